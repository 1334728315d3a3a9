"""Measures the distributions behind `calibration.json`: `python -m tests.fingerprint.calibrate [TARGET DUMP] [--store]` (make calibrate).

TARGET: a Llama-class checkpoint with weights; DUMP: a dump whose token ids are used (its planes are not); without them the demo's. Prints the
measurements as JSON, with `--store` writes them into the library's `calibration.json`, whose thresholds stay as they are: a test holds them
against the new figures. About four minutes on one core for SmolLM2-135M.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eagle_forensics import demo
from eagle_forensics.boundary import Boundary
from eagle_forensics.demo.stage import DATA
from eagle_forensics.evidence.dumps import find_dump, iter_samples, read_sample
from eagle_forensics.evidence.records import Sample
from eagle_forensics.fingerprint import calibration, measure, midlayer
from eagle_forensics.fingerprint.forms import damaged_forms, patch_of
from eagle_forensics.fingerprint.match import match
from eagle_forensics.fingerprint.noise import increment_share
from eagle_forensics.fingerprint.rows import Reference, collect
from eagle_forensics.fingerprint.teacher import WAYS, teacher_tests

from .damage import kinds
from .real import Real
from .tiny import samples

PLANES, LENGTH, HEADS = 4, 128, 12
"""Sequences whose planes are compared, tokens of each, and sequences the head is asked about."""
FORMS = (1, 2, 8, 15, 22, 27, 29, 30)
"""Boundaries at which forms found by trying all candidates are measured; everything else is measured at all."""

Make = Callable[[Real, int, int], torch.Tensor]
Figures = dict[str, Any]


def span(values: Iterable[float], digits: int = 4) -> list[float]:
    """[smallest, largest]."""
    held = [min(float(v), 9999.0) for v in values]
    return [round(min(held), digits), round(max(held), digits)]


class Bench:
    """The real target, its states on a few sequences and the MLPs of its layers."""

    def __init__(self, folder: Path, ids: Sequence[torch.Tensor]) -> None:
        self.real = Real(folder, ids)
        self.every, self.inner = range(self.real.layers + 2), range(1, self.real.layers + 1)
        self.mlps = {b: self.real.weights.mlp(b - 1) for b in self.inner}
        self.number = {tuple(s.tolist()): i for i, s in enumerate(self.real.ids)}

    def reference(self, make: Make, boundaries: Sequence[int]) -> Reference:
        rows = collect(samples(lambda s: [make(self.real, self.number[tuple(s.tolist())], b) for b in boundaries], self.real.ids))
        return Reference(self.real.bank, rows, self.real.weights, self.real.layers)

    def planes(self, make: Make, boundaries: Sequence[int], *, rivals: bool = False) -> Figures:
        """Error to the nearest state, second over best, alignment, votes and share of the increments, over all boundaries."""
        reference = self.reference(make, boundaries)
        table = match(reference)
        states = {b: reference.at(b)[~table.sinks] for b in reference.boundaries}
        shares = [increment_share(reference.rows.planes[m.slot][~table.sinks], states, m.best, self.real.weights) for m in table.matches if m.error.value > 0]
        found = {"slots": len(table.matches), "error": span(m.error.value for m in table.matches), "ratio": span((m.ratio for m in table.matches), 2),
                 "alignment": span((abs(m.alignment) for m in table.matches), 2), "votes": span((m.votes for m in table.matches), 3)}
        if any(s is not None for s in shares):
            found["share"] = span((s for s in shares if s is not None), 3)
        return found | ({"nearest closure of a part": span(self._closures(reference, table.sinks, boundaries, None, shared=True), 3)} if rivals else {})

    def parts(self, make: Make, inner: Callable[[int], midlayer.Inner], *, shared: bool = False) -> Figures:
        """How a form inside a layer closes under its own explanation, at all layers, and how the nearest other explanation does."""
        reference = self.reference(make, self.inner)
        table = match(reference)
        at = np.flatnonzero(~table.sinks)[: midlayer.ROWS]
        own = [inner(b).errors(reference.rows.planes[i][at], reference.at(Boundary(b))[at], self.mlps[b]) for i, b in enumerate(self.inner)]
        return {"slots": len(own), "not settled": sum(e is None for e in own), "closure": span((np.median(e) for e in own if e is not None), 3),
                "closure, 90 % of tokens": span((np.quantile(e, 0.9) for e in own if e is not None), 3),
                "nearest closure of another part": span(self._closures(reference, table.sinks, self.inner, inner, shared=shared), 3)}

    def _closures(self, reference: Reference, sinks: np.ndarray, boundaries: Sequence[int], right: Callable[[int], midlayer.Inner] | None, *, shared: bool) -> list[float]:
        """Per slot the smallest median closure of any explanation but the right one, on the rows that are screened; shares next to the boundary only."""
        at = np.flatnonzero(~sinks)[: midlayer.SCREEN]
        xs, best = [reference.rows.planes[i][at] for i in range(len(boundaries))], np.full(len(boundaries), np.inf)
        together = torch.cat(xs)
        for b in self.inner:
            after = reference.at(Boundary(b))[at]
            for tried, closures in midlayer.simple_errors(Boundary(b), together, after.repeat(len(xs), 1), self.mlps[b]):
                errors = np.median(closures.reshape(len(xs), -1), axis=1)
                own = np.array([right is not None and tried == right(slot) for slot in boundaries])
                best = np.where(own, best, np.minimum(best, errors))
            for slot, x in zip(boundaries, xs, strict=True):
                if not shared or abs(slot - b) > 1:
                    continue
                for tried in midlayer.shares(Boundary(b), self.mlps[b]):
                    if (right is None or tried != right(slot)) and (errors := tried.errors(x, after, self.mlps[b])) is not None:
                        best[slot - boundaries[0]] = min(best[slot - boundaries[0]], float(np.median(errors)))
        return list(best)

    def forms(self, make: Make, boundaries: Sequence[int]) -> Figures:
        """Error of the accepted form and how many times as far the next one is."""
        reference = self.reference(make, boundaries)
        table, patch = match(reference), patch_of(reference)
        found = [damaged_forms(x, patch, measure.health(x).usable & ~table.sinks, table.matches[i])[-1] for i, x in enumerate(reference.rows.planes)]
        return {"slots": len(found), "error": span(f.error for f in found), "ratio": span((f.ratio for f in found), 1), "accepted": sum(f.holds for f in found)}

    def heads(self, ids: Sequence[torch.Tensor]) -> Figures:
        """How often the head reads the next token off each state: over all sequences at all boundaries, and a sequence alone at the last."""
        asked = Real(self.real.folder, ids)
        norm, last = asked.weights.normed, asked.layers
        number = {tuple(s.tolist()): i for i, s in enumerate(asked.ids)}
        ways: dict[str, Callable[[int], torch.Tensor]] = {f"b={b}": lambda i, b=b: asked.state(i, b) for b in range(last + 1)}
        ways |= {"b=L": ways[f"b={last}"], "L+norm": lambda i: asked.state(i, last + 1), "normed twice": lambda i: norm(asked.state(i, last + 1))}

        def ask(name: str, on: Sequence[torch.Tensor]):
            return teacher_tests(collect(samples(lambda s: [ways[name](number[tuple(s.tolist())])], on)), asked.weights)[0]

        together = {name: ask(name, asked.ids) for name in ways}
        alone = {name: [ask(name, [s]) for s in asked.ids] for name in (f"b={last - 1}", "b=L", "L+norm", "normed twice")}
        return {"unit": "share of tokens whose next token the head reads off the state in its best of three ways; margin to the next best way",
                "all sequences together": {name: {"agreement": round(t.best, 3), "margin": round(t.margin.value, 3), "way": WAYS[int(np.argmax(t.agreement))]} for name, t in together.items()},
                "one sequence alone": {name: {"sequences": len(held), "agreement": span((t.best for t in held), 3), "margin": span((t.margin.value for t in held), 3)}
                                       for name, held in alone.items()}}


def measured(name: str, folder: Path, ids: Sequence[torch.Tensor], served: Sample | None = None, say: Callable[[str], None] = lambda _: None) -> Figures:
    """Everything that `calibration.json` stores under `measured`."""
    bench = Bench(folder, [s[:LENGTH] for s in ids[:PLANES]])
    real, made, states = bench.real, kinds(bench.real), bench.every
    inner = bench.inner
    report: Figures = {"target": f"{name}, {real.layers} layers, hidden {real.target.hidden}, float32 reference states",
                       "tokens": f"planes: {PLANES} sequences, {sum(len(s) for s in real.ids)} tokens; head: {len(ids)} sequences, {sum(len(s) for s in ids)} tokens",
                       "command": "make calibrate", "unit": "[smallest, largest] over the boundaries of: per-token median relative error to the nearest state, second error over best, "
                       "|cosine| of the difference with a layer's increment, share of tokens that vote for the nearest, share of the difference that the increments around explain"}

    def put(group: str, name: str, figures: Figures) -> None:
        report.setdefault(group, {})[name] = figures
        say(f"{group} | {name} | {figures}")

    right, noisy, damaged = "right planes", "right planes, too noisy to be sure", "damaged planes"
    for kind in ("stored as float16", "stored as float8, a scale a token", "computed in bfloat16", "int8 target, a scale a row"):
        put(right, kind, bench.planes(made[kind].planes, states))
    put(right, "stored as bfloat16", bench.planes(lambda r, i, b: r.state(i, b).bfloat16().float(), states))
    if served is not None:
        put(right, "served by vLLM 0.32.0 in bfloat16", _served(folder, served))
    for group in (64, 0):
        put(noisy, "int4 weights, " + (f"groups of {group}" if group else "a scale a row"), bench.planes(lambda r, i, b, g=group: r.quantised(4, g)[i].states[b], inner, rivals=group == 64))
        real.forget()
    put(damaged, "neighbouring boundary", {"error": span(m.second_error for m in match(bench.reference(lambda r, i, b: r.state(i, b), states)).matches)})
    for rank, ranks in ((0, 2), (1, 2), (1, 3), (0, 8), (3, 8), (7, 8)):
        put(damaged, f"partial sum, rank {rank} of {ranks}", bench.planes(lambda r, i, b, k=rank, n=ranks: r.partial(i, b, k, n), inner))
    for kind in ("before the MLP", "MLP reduced 8 times", "missing residual", "MLP output only"):
        put(damaged, kind, bench.planes(made[kind].planes, inner))
    parts = "inside a layer, by the closure of its MLP"
    put(parts, "before the MLP", bench.parts(made["before the MLP"].planes, lambda b: midlayer.Inner(Boundary(b), "middle")))
    put(parts, "MLP output only", bench.parts(made["MLP output only"].planes, lambda b: midlayer.Inner(Boundary(b), "mlp")))
    put(parts, "MLP reduced 8 times", bench.parts(made["MLP reduced 8 times"].planes, lambda b: midlayer.Inner(Boundary(b), "reduced", 8)))
    for rank, ranks in ((1, 2), (3, 8)):
        put(parts, f"partial sum, rank {rank} of {ranks}", bench.parts(lambda r, i, b, k=rank, n=ranks: r.partial(i, b, k, n),
                                                                     lambda b, k=rank, n=ranks: midlayer.Inner(Boundary(b), "share", n, k), shared=ranks == 8))
    explained = f"damaged planes, explained by their form (boundaries {' '.join(map(str, FORMS))})"
    for kind in ("one token late", "inner planes normed", "double norm", "rotated", "missing residual"):
        make, at = made[kind].planes, {"inner planes normed": FORMS[:-1], "double norm": FORMS[-1:]}.get(kind, FORMS)
        put(explained, kind, bench.forms(lambda r, i, b, m=make: m(r, i, b).bfloat16().float(), at))
    put(explained, "halved", bench.forms(lambda r, i, b: r.state(i, b).bfloat16().float() / 2, FORMS))
    put("sinks", "norm over the median, boundaries 1 to L", _sinks(real))
    report["head"] = bench.heads(ids)
    say(f"head | {report['head']}")
    return report


def _served(folder: Path, sample: Sample) -> Figures:
    """A recording of a real server against the reference states of its tokens."""
    bench = Bench(folder, [sample.input_ids])
    return bench.planes(lambda r, i, b: sample.planes[b].data.float(), range(len(sample.planes)))


def _sinks(real: Real) -> Figures:
    norms = [measure.token_norms(real.state(i, b)) for i in range(len(real.ids)) for b in range(1, real.layers + 1)]
    over = [n / np.median(n) for n in norms]
    return {"first token": span((o[0] for o in over), 1), "any other token": span((o[1:].max() for o in over), 1)}


def main(argv: Sequence[str]) -> None:
    store, paths = "--store" in argv, [a for a in argv if a != "--store"]
    served, model = None, Path(paths[0]).resolve().name if paths else "SmolLM2-135M-Instruct"
    if not paths:
        demo.prepare(print)
        folder = demo.case_file("broken").parent
        paths, served = [folder / "target", folder / "dump"], read_sample(find_dump(DATA / "vllm_server_states.safetensors"), 0)
    every = [s.input_ids for s in iter_samples(find_dump(paths[1])) if s.input_ids is not None and len(s.input_ids) >= LENGTH]
    ids = every[:: max(1, len(every) // HEADS)][:HEADS]
    found = measured(model, Path(paths[0]), ids, served, lambda text: print(text, file=sys.stderr, flush=True))
    if store:
        file = Path(calibration.__file__).with_name("calibration.json")
        held = json.loads(file.read_text(encoding="utf-8"))
        file.write_text(json.dumps({**held, "measured": found}, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1:])
