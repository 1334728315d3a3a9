"""Measures the distributions behind `calibration.json`: `python -m tests.fingerprint.calibrate [TARGET DUMP] [--store] [--only=shares,head]` (make calibrate).

TARGET: a Llama-class checkpoint with weights; DUMP: a dump whose token ids are used (its planes are not); without them the demo's. Prints
each row as it is measured, with `--store` writes it into the library's `calibration.json`, whose thresholds stay as they are: a test holds them
against the new figures. `--only` names some of `GROUPS`; the others keep what was stored. About six minutes on one core for SmolLM2-135M.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
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
            near = [slot for slot in boundaries if shared and abs(slot - b) <= 1]
            for tried, slot, closed, left in self._shares([xs[slot - boundaries[0]] for slot in near], near, after, b):
                if (right is None or tried != right(slot)) and (errors := midlayer.accepted(closed, left)) is not None:
                    best[slot - boundaries[0]] = min(best[slot - boundaries[0]], float(np.median(errors)))
        return list(best)

    def _shares(self, xs: Sequence[torch.Tensor], slots: Sequence[int], after: torch.Tensor, b: int) -> Iterator[tuple[midlayer.Inner, int, np.ndarray, np.ndarray]]:
        """Every share of the layer that leads to `b`, searched in some slots at once: closure and what is left open, per token."""
        for tried in midlayer.shares(Boundary(b), self.mlps[b]) if xs else ():
            closed, left = midlayer.searched(torch.cat(list(xs)), after.repeat(len(xs), 1), self.mlps[b], tried.rank, tried.ranks)
            yield from ((tried, slot, c, o) for slot, c, o in zip(slots, closed.reshape(len(xs), -1), left.reshape(len(xs), -1), strict=True))

    def shares(self, make: Make, rank: int = 0, ranks: int = 0) -> Figures:
        """What single ranks' shares leave open, asked at FORMS of the planes at and next to them: the right one (`rank` of `ranks`; 0: the planes are
        whole), and every wrong one that closes as a right one would. Those that overlap the right share, which beats them several times, are counted apart."""
        right, wrong, parts, tried_wrong = [], [], [], 0
        for b in FORMS:
            slots = [slot for slot in (b - 1, b, b + 1) if slot in self.inner]
            reference = self.reference(make, slots)
            at = np.flatnonzero(~match(reference).sinks)[: midlayer.SCREEN]
            xs, after = [x[at] for x in reference.rows.planes], reference.at(Boundary(b))[at]
            for tried, slot, closed, left in self._shares(xs, slots, after, b):
                settled = np.isfinite(closed)
                closes = settled.mean() >= 0.5 and np.median(closed[settled]) <= calibration.THRESHOLDS["increment_error"]
                own = ranks > 0 and slot == b
                if own and (tried.rank, tried.ranks) == (rank, ranks):
                    right.append(float(np.median(left[settled])) if closes else None)
                    continue
                tried_wrong += 1
                if closes:
                    overlaps = own and tried.rank * ranks < (rank + 1) * tried.ranks and rank * tried.ranks < (tried.rank + 1) * ranks
                    (parts if overlaps else wrong).append(float(np.median(left[settled])))
        found: Figures = {"wrong shares": tried_wrong, "of these closing": len(wrong), "left open by these": span(wrong, 3) if wrong else None}
        if right:
            held = [r for r in right if r is not None]
            found |= {"slots": len(right), "ended elsewhere": len(right) - len(held), "left open by the right share": span(held, 3), "closing ones that overlap it": len(parts)}
        return found

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


Put = Callable[[str, str, Figures], None]
"""Takes a group of `calibration.json`, a name and its figures."""
RIGHT, NOISY, DAMAGED, INSIDE = "right planes", "right planes, too noisy to be sure", "damaged planes", "inside a layer, by the closure of its MLP"


def _right(bench: Bench, put: Put) -> None:
    made, states = kinds(bench.real), bench.every
    for kind in ("stored as float16", "stored as float8, a scale a token", "computed in bfloat16", "int8 target, a scale a row"):
        put(RIGHT, kind, bench.planes(made[kind].planes, states))
    put(RIGHT, "stored as bfloat16", bench.planes(_stored(torch.bfloat16), states))


def _noisy(bench: Bench, put: Put) -> None:
    for group in (64, 0):
        put(NOISY, "int4 weights, " + (f"groups of {group}" if group else "a scale a row"),
            bench.planes(lambda r, i, b, g=group: r.quantised(4, g)[i].states[b], bench.inner, rivals=group == 64))
        bench.real.forget()


def _damaged(bench: Bench, put: Put) -> None:
    made = kinds(bench.real)
    put(DAMAGED, "neighbouring boundary", {"error": span(m.second_error for m in match(bench.reference(_stored(torch.float32), bench.every)).matches)})
    for rank, ranks in ((0, 2), (1, 2), (1, 3), (0, 8), (3, 8), (7, 8)):
        put(DAMAGED, f"partial sum, rank {rank} of {ranks}", bench.planes(_partial(rank, ranks), bench.inner))
    for kind in ("before the MLP", "MLP reduced 8 times", "missing residual", "MLP output only"):
        put(DAMAGED, kind, bench.planes(made[kind].planes, bench.inner))


def _parts(bench: Bench, put: Put) -> None:
    made = kinds(bench.real)
    put(INSIDE, "before the MLP", bench.parts(made["before the MLP"].planes, lambda b: midlayer.Inner(Boundary(b), "middle")))
    put(INSIDE, "MLP output only", bench.parts(made["MLP output only"].planes, lambda b: midlayer.Inner(Boundary(b), "mlp")))
    put(INSIDE, "MLP reduced 8 times", bench.parts(made["MLP reduced 8 times"].planes, lambda b: midlayer.Inner(Boundary(b), "reduced", 8)))
    for rank, ranks in ((1, 2), (3, 8)):
        put(INSIDE, f"partial sum, rank {rank} of {ranks}", bench.parts(_partial(rank, ranks), lambda b, k=rank, n=ranks: midlayer.Inner(Boundary(b), "share", n, k), shared=ranks == 8))


LEFT = f"what a rank's share leaves open of what the other ranks add (boundaries {' '.join(map(str, FORMS))})"


def _whole(bench: Bench, put: Put) -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        put(LEFT, f"whole, stored as {str(dtype).removeprefix('torch.')}", bench.shares(_stored(dtype)))
    put(LEFT, "whole, int4 weights, groups of 64", bench.shares(lambda r, i, b: r.quantised(4, 64)[i].states[b]))
    bench.real.forget()


def _shares(bench: Bench, put: Put) -> None:
    for rank, ranks in ((1, 2), (1, 3), (2, 4), (3, 8), (9, 16)):
        put(LEFT, f"partial sum, rank {rank} of {ranks}", bench.shares(lambda r, i, b, k=rank, n=ranks: r.partial(i, b, k, n).bfloat16().float(), rank, ranks if ranks in midlayer.RANKS else 0))


def _forms(bench: Bench, put: Put) -> None:
    made, group = kinds(bench.real), f"damaged planes, explained by their form (boundaries {' '.join(map(str, FORMS))})"
    for kind in ("one token late", "inner planes normed", "double norm", "rotated", "missing residual"):
        make, at = made[kind].planes, {"inner planes normed": FORMS[:-1], "double norm": FORMS[-1:]}.get(kind, FORMS)
        put(group, kind, bench.forms(lambda r, i, b, m=make: m(r, i, b).bfloat16().float(), at))
    put(group, "halved", bench.forms(lambda r, i, b: r.state(i, b).bfloat16().float() / 2, FORMS))


GROUPS: dict[str, Callable[[Bench, Put], None]] = {"right": _right, "noisy": _noisy, "damaged": _damaged, "parts": _parts, "whole": _whole, "shares": _shares,
                                                        "forms": _forms}
"""What is measured on planes, by the names that `--only` takes; besides, `sinks` and `head`."""


def _stored(dtype: torch.dtype) -> Make:
    return lambda r, i, b: r.state(i, b).to(dtype).float()


def _partial(rank: int, ranks: int) -> Make:
    return lambda r, i, b: r.partial(i, b, rank, ranks)


def measured(name: str, folder: Path, ids: Sequence[torch.Tensor], served: Sample | None, only: Sequence[str], say: Callable[[Figures], None]) -> None:
    """Everything that `calibration.json` stores under `measured`, or the groups in `only`; `say` takes the report after each of its rows."""
    bench = Bench(folder, [s[:LENGTH] for s in ids[:PLANES]])
    real = bench.real
    report: Figures = {"target": f"{name}, {real.layers} layers, hidden {real.target.hidden}, float32 reference states",
                       "tokens": f"planes: {PLANES} sequences, {sum(len(s) for s in real.ids)} tokens; head: {len(ids)} sequences, {sum(len(s) for s in ids)} tokens",
                       "command": "make calibrate", "unit": "[smallest, largest] over the boundaries of: per-token median relative error to the nearest state, second error over best, "
                       "|cosine| of the difference with a layer's increment, share of tokens that vote for the nearest, share of the difference that the increments around explain"}

    def put(group: str, name: str, figures: Figures) -> None:
        report[group] = {**report.pop(group, {}), name: figures}
        say(report)

    for group in only or GROUPS:
        if group in GROUPS:
            GROUPS[group](bench, put)
        if group == "right" and served is not None:
            put(RIGHT, "served by vLLM 0.32.0 in bfloat16", _served(folder, served))
    if not only or "sinks" in only:
        put("sinks", "norm over the median, boundaries 1 to L", _sinks(real))
    if not only or "head" in only:
        report["head"] = bench.heads(ids)
        say(report)


def _served(folder: Path, sample: Sample) -> Figures:
    """A recording of a real server against the reference states of its tokens."""
    bench = Bench(folder, [sample.input_ids])
    return bench.planes(lambda r, i, b: sample.planes[b].data.float(), range(len(sample.planes)))


def _sinks(real: Real) -> Figures:
    norms = [measure.token_norms(real.state(i, b)) for i in range(len(real.ids)) for b in range(1, real.layers + 1)]
    over = [n / np.median(n) for n in norms]
    return {"first token": span((o[0] for o in over), 1), "any other token": span((o[1:].max() for o in over), 1)}


def main(argv: Sequence[str]) -> None:
    only = [name for a in argv if a.startswith("--only=") for name in a.removeprefix("--only=").split(",")]
    if unknown := set(only) - {*GROUPS, "sinks", "head"}:
        sys.exit(f"calibrate: no group {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}, sinks, head")
    store, paths = "--store" in argv, [a for a in argv if not a.startswith("--")]
    served, model = None, Path(paths[0]).resolve().name if paths else "SmolLM2-135M-Instruct"
    if not paths:
        demo.prepare(print)
        folder = demo.case_file("broken").parent
        paths, served = [folder / "target", folder / "dump"], read_sample(find_dump(DATA / "vllm_server_states.safetensors"), 0)
    every = [s.input_ids for s in iter_samples(find_dump(paths[1])) if s.input_ids is not None and len(s.input_ids) >= LENGTH]
    ids = every[:: max(1, len(every) // HEADS)][:HEADS]
    measured(model, Path(paths[0]), ids, served, only, keep if store else show)


def show(report: Figures) -> None:
    """The row that was measured last."""
    group = list(report)[-1]
    print(group, "|", *(list(report[group].items())[-1] if isinstance(report[group], dict) else [report[group]]), flush=True)


def keep(report: Figures) -> None:
    """Shows it, and replaces what is stored by what was measured so far, row by row: a run that is cut short keeps its rows."""
    show(report)
    file = Path(calibration.__file__).with_name("calibration.json")
    held = json.loads(file.read_text(encoding="utf-8"))
    for name, figures in report.items():
        held["measured"][name] = held["measured"].get(name, {}) | figures if isinstance(figures, dict) else figures
    file.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1:])
