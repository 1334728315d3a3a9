"""Measures the distributions behind `calibration.json` on a real target: `python -m tests.fingerprint.calibrate TARGET DUMP`.

Prints every distribution and the confusion counts as JSON. TARGET: a Llama-class checkpoint with weights; DUMP: a dump whose token ids are used (its planes are not).
Takes about ten minutes on a shared core for SmolLM2-135M and 12 sequences.
"""

from __future__ import annotations

import json
import sys
from collections import Counter

import torch
from transformers import LlamaForCausalLM

from eagle_forensics.boundary import Boundary
from eagle_forensics.evidence.dumps import find_dump, iter_samples
from eagle_forensics.evidence.targets import read_target
from eagle_forensics.fingerprint import measure
from eagle_forensics.fingerprint.identify import identify
from eagle_forensics.fingerprint.rows import weights_of

from .tiny import samples


class Run:
    """States, mid-layer states and MLP inputs of one model on one sequence."""

    def __init__(self, model: LlamaForCausalLM, ids: torch.Tensor) -> None:
        self.states, self.middle, self.active = [], [], []
        hooks = [model.model.norm.register_forward_hook(lambda _, i, o: self.states.extend([i[0][0], o[0]]))]
        for layer in model.model.layers:
            hooks += [layer.register_forward_pre_hook(lambda _, i: self.states.append(i[0][0])),
                      layer.post_attention_layernorm.register_forward_pre_hook(lambda _, i: self.middle.append(i[0][0])),
                      layer.mlp.down_proj.register_forward_pre_hook(lambda _, i: self.active.append(i[0][0]))]
        with torch.inference_mode():
            model.model(ids[None])
        for hook in hooks:
            hook.remove()


class Bank:
    def __init__(self, runs: list[Run], ids: list[torch.Tensor]) -> None:
        last = len(runs[0].states) - 2
        self.boundaries = (*map(Boundary, range(last + 1)), Boundary(last, True))
        self.sequences, self.runs = ids, runs

    def plane(self, i: int, boundary: Boundary) -> torch.Tensor:
        return self.runs[i].states[boundary.index + boundary.normed]


def main(target_path: str, dump_path: str) -> None:
    target = read_target(target_path)
    ids = [s.input_ids for s in iter_samples(find_dump(dump_path))]
    load = lambda dtype=torch.float32: LlamaForCausalLM.from_pretrained(target_path, dtype=dtype).eval()  # noqa: E731
    model = load()
    runs = [Run(model, s) for s in ids]
    bank, weights, last = Bank(runs, ids), weights_of(target), target.layers
    few, few_bank = ids[:4], Bank(runs[:4], ids[:4])
    by_ids = {tuple(s.tolist()): r for s, r in zip(ids, runs, strict=True)}
    at = lambda s: by_ids[tuple(s.tolist())]  # noqa: E731
    report: dict[str, dict] = {"tokens": {"sequences": len(ids), "rows": sum(map(len, ids))}}
    confusion: Counter = Counter()

    def look(name, planes_of, truth, on=few, against=few_bank):
        found = identify(samples(planes_of, on), bank=against, weights=weights, layers=last)
        errors, ratios, aligned, votes = [], [], [], []
        for slot, true in zip(found.slots, truth, strict=True):
            outcome = "not sure" if not slot.sure else f"{slot.state}, right boundary" if slot.boundary == true else f"WRONG: {slot.boundary} for {true}, {slot.state}"
            confusion[name, outcome] += 1
            if slot.match:
                errors.append(slot.match.error.value)
                ratios.append(min(slot.match.ratio, 9999.0))
                aligned.append(abs(slot.match.alignment))
                votes.append(slot.match.votes)
        if errors:
            report[name] = {"slots": len(errors), **{k: [round(min(v), 4), round(max(v), 4)] for k, v in
                            (("error", errors), ("ratio", ratios), ("alignment", aligned), ("votes", votes))}}
        print(name, report.get(name), {o: c for (n, o), c in confusion.items() if n == name}, file=sys.stderr, flush=True)
        return found

    every = bank.boundaries
    inner = [b for b in every if b.index > 0 and not b.normed]
    state = lambda s, b: at(s).states[b.index + b.normed]  # noqa: E731
    exact = look("exact", lambda s: [state(s, b) for b in every], every, ids, bank)
    report["neighbours"] = {"error": sorted(round(m.second_error, 4) for m in exact.table.matches)[:: max(1, len(every) // 8)],
                            "cosine": [round(float(exact.table.cosines[b.index, b.index - 1]), 4) for b in inner]}
    norms = [(measure.token_norms(r.states[b.index]), b.index) for r in runs for b in inner]
    report["sinks"] = {"first token, over median": [round(float(max(n[0] / sorted(n)[len(n) // 2] for n, b in norms if b == i)), 1) for i in range(1, last + 1)],
                       "any other token, largest": round(float(max((n[1:] / sorted(n)[len(n) // 2]).max() for n, _ in norms)), 1)}
    for dtype in (torch.bfloat16, torch.float16, torch.float8_e4m3fn):
        scale = lambda x, d=dtype: (448 / x.abs().amax(-1, keepdim=True) if d.itemsize == 1 else torch.ones(1))  # noqa: E731
        look(f"stored as {str(dtype)[6:]}", lambda s, d=dtype, f=scale: [(state(s, b) * f(state(s, b))).to(d).float() / f(state(s, b)) for b in every], every)
    twin = load(torch.bfloat16)
    other = {tuple(s.tolist()): Run(twin, s) for s in few}
    look("computed in bfloat16", lambda s: [other[tuple(s.tolist())].states[b.index + b.normed] for b in every], every)
    for bits, group in ((8, 0), (4, 64), (4, 0)):
        quantised = load()
        for name, p in quantised.named_parameters():
            if "layers" in name and p.ndim == 2:
                p.data = _rounded(p.data, bits, group)
        noisy = {tuple(s.tolist()): Run(quantised, s) for s in few}
        look(f"int{bits} weights" + (f", groups of {group}" if group else ", a scale a row"),
             lambda s, n=noisy: [n[tuple(s.tolist())].states[b.index + b.normed] for b in every], every)
    for ranks in (2, 3, 8):
        look(f"partial sum, {ranks} ranks", lambda s, r=ranks: [_partial(model, at(s), b.index, r) for b in inner], inner)
        width = target.hidden // ranks
        look(f"slice, {ranks} ranks", lambda s, w=width: [state(s, b)[:, w : 2 * w].bfloat16() for b in inner], inner)
    look("all-reduced twice, 8 ranks", lambda s: [at(s).middle[b.index - 1] + 8 * (state(s, b) - at(s).middle[b.index - 1]) for b in inner], inner)
    look("layer output without residual", lambda s: [(state(s, b) - state(s, Boundary(b.index - 1))).bfloat16() for b in inner], inner)
    look("MLP output only", lambda s: [state(s, b) - at(s).middle[b.index - 1] for b in inner], inner)
    look("after attention", lambda s: [at(s).middle[b.index - 1] for b in inner], inner)
    look("one token late", lambda s: [state(s, b).roll(1, 0).bfloat16() for b in inner], inner)
    look("one token early", lambda s: [state(s, b).roll(-1, 0).bfloat16() for b in inner], inner)
    look("final norm on inner states", lambda s: [weights.normed(state(s, b)).bfloat16() for b in inner[:-1]], inner[:-1])
    look("final norm twice", lambda s: [weights.normed(state(s, every[-1])).bfloat16()], inner[-1:])
    rotation = torch.linalg.qr(torch.randn(target.hidden, target.hidden, generator=torch.Generator().manual_seed(0)))[0]
    look("rotated", lambda s: [(state(s, b) @ rotation).bfloat16() for b in inner], inner)
    look("halved", lambda s: [state(s, b).bfloat16() / 2 for b in inner], inner)
    report["confusion"] = {f"{name}: {outcome}": count for (name, outcome), count in confusion.items()}
    print(json.dumps(report, indent=1))


def _rounded(w: torch.Tensor, bits: int, group: int) -> torch.Tensor:
    rows = w.reshape(-1, group) if group else w
    step = rows.abs().amax(-1, keepdim=True) / (2 ** (bits - 1) - 1)
    return ((rows / step).round() * step).reshape(w.shape)


def _partial(model: LlamaForCausalLM, run: Run, boundary: int, ranks: int) -> torch.Tensor:
    """The state of rank 0 before the MLP's all-reduce: residual after attention plus its share of the down projection."""
    weight = model.model.layers[boundary - 1].mlp.down_proj.weight
    width = weight.shape[1] // ranks
    return run.middle[boundary - 1] + run.active[boundary - 1][:, :width] @ weight[:, :width].detach().T


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:3])
