"""Tables of notebook 02 and the record it leaves for notebook 04 and the diagnosis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pandas as pd

from eagle_forensics import stats
from eagle_forensics.drafter.correctness import Correctness
from eagle_forensics.drafter.prediction.predict import by_position, predict_accept_length
from eagle_forensics.drafter.wirings.battery import WiringResult
from eagle_forensics.drafter.wirings.search import Searched, boundaries_of
from eagle_forensics.drafter.wirings.sets import Compared
from eagle_forensics.drafter.wording import interval_cell, signed_cell
from eagle_forensics.drafter.workbench import Workbench


def bench_frame(bench: Workbench | None) -> pd.DataFrame | None:
    """What is evaluated, and what was left out; None without a bench."""
    if bench is None:
        return None
    tokens = sum(int(s.loss_mask.sum()) for s in bench.sequences)
    rows = [("sequences evaluated", str(len(bench.sequences))), ("response tokens", str(tokens)), ("planes of the dump", ", ".join(bench.slots)),
            ("planes fc reads", str(bench.drafter.n_aux)), ("sequences with the target's own states", str(len(bench.computed))),
            *(("further plane", n) for n in bench.extra),
            *(("remark", n) for n in (*bench.drafter.notes, *bench.notes)), *((f"left out: {p.sample_id}", p.reason) for p in bench.problems)]
    return pd.DataFrame(rows, columns=["what", "value"])


def battery_frame(results: Sequence[WiringResult]) -> pd.DataFrame:
    """The wirings, best first. What was dropped at a screening shows no accuracy: its tokens are not the others'."""
    return pd.DataFrame([{"wiring": r.label, **_row(r)} for r in results])


def battery_csv(results: Sequence[WiringResult]) -> pd.DataFrame:
    """Every figure of every wiring, for the evidence folder; `complete` 0: figures of a screening sample."""
    return pd.DataFrame([{
        "wiring": r.label, "complete": int(r.complete), "tokens": r.n, **{f"accuracy_{k + 1}": a.value for k, a in enumerate(r.accuracy)},
        "accept_length": r.accept_length.value, "accept_length_low": r.accept_length.low, "accept_length_high": r.accept_length.high,
        "mean_run": r.mean_run, "against_best": r.difference.value, "against_best_low": r.difference.low, "against_best_high": r.difference.high} for r in results])


def sets_frame(bench: Workbench | None, compared: Compared | None) -> pd.DataFrame | None:
    """The target's own states at each boundary set beside the dump's planes; None without them."""
    if bench is None or compared is None:
        return None
    origins = {id(r): bench.sets[tuple(sorted(ids))] + ("" if list(ids) == sorted(ids) else "; in the order that fits the dump") for ids, r in compared.by_set.items()}
    return pd.DataFrame([{"fed": f"the dump: {', '.join(r.wiring.planes)}" if r.wiring == compared.base else r.label, "origin": origins.get(id(r), "recorded"), **_row(r)}
                         for r in compared.results])


def search_frame(searched: Searched | None) -> pd.DataFrame | None:
    """The best boundaries by search, their neighbours and the runners-up; None without a search."""
    if searched is None:
        return None
    return pd.DataFrame([{"boundaries in fc order": ", ".join(map(str, boundaries_of(r.wiring))), **_row(r),
                          "told from the best": "best" if r is searched.results[0] else "no" if r.difference.high >= 0 else "yes"} for r in searched.results])


def damage_frame(found: Mapping[str, Correctness]) -> pd.DataFrame | None:
    """What the trained states would give in each damaged form; None without."""
    if not found:
        return None
    return pd.DataFrame([{"states": name, "step 1 right": interval_cell(c.accuracy(0)), "accept length": interval_cell(c.accept_length()), "tokens": c.n} for name, c in found.items()])


def _row(r: WiringResult) -> dict[str, str | int]:
    return {"step 1 right": interval_cell(r.accuracy[0]) if r.complete else "dropped", "accept length": interval_cell(r.accept_length) if r.complete else "dropped",
            "run of right tokens against the best": signed_cell(r.difference), "tokens": r.n}


def prediction_frame(trained: Correctness | None, served: Correctness | None) -> pd.DataFrame | None:
    """Accept length to expect for every chain length; the three numbers that people confuse, side by side."""
    if trained is None:
        return None
    rows = []
    for row, other in zip(predict_accept_length(trained), predict_accept_length(served) if served else [None] * trained.steps, strict=True):
        entry = {"steps": row.steps, "ceiling": row.ceiling, "trained states, walk": interval_cell(row.accept_length)}
        if other is not None:
            entry["served states, walk"] = interval_cell(other.accept_length)
        entry |= {"product of accuracies": f"{row.product_formula:.3f}", "vocabulary bound": f"{row.vocabulary_bound:.3f}", "rounds": row.accept_length.n}
        rows.append(entry)
    return pd.DataFrame(rows)


def groups_frame(trained: Correctness | None) -> pd.DataFrame | None:
    """Accuracy of step 1 and accept length by position in the text, by length of the text and by folder of the dump. A fall with position
    points to rope, a folder (domain) that falls behind to training data."""
    if trained is None:
        return None
    rows = [{"by": "position in the text", "of": _range(*edge), "step 1 right": interval_cell(e), "accept length": "–", "tokens": e.n} for edge, e in by_position(trained).items()]
    for by, parts in (("length of the text", by_length(trained)), ("folder of the dump", by_folder(trained))):
        rows += [{"by": by, "of": name, "step 1 right": interval_cell(c.accuracy(0)), "accept length": interval_cell(c.accept_length()) if any(s.rounds() for s in c.sequences) else "–", "tokens": c.n} for name, c in parts.items()]
    return pd.DataFrame(rows)


def by_length(correctness: Correctness) -> dict[str, Correctness]:
    """The sequences in up to three groups by response tokens, cut at the terciles; fewer where many are equally long."""
    order = sorted(correctness.sequences, key=lambda s: s.n)
    limits = sorted({0, *(order[len(order) * i // 3].n for i in (1, 2)), order[-1].n + 1})
    parts = [[s for s in order if low <= s.n < high] for low, high in pairwise(limits)]
    return {f"{p[0].n} to {p[-1].n} response tokens": Correctness(tuple(p), correctness.steps) for p in parts if p}


def by_folder(correctness: Correctness) -> dict[str, Correctness]:
    """The sequences by folder of the dump; empty where there is one."""
    groups = sorted({s.group for s in correctness.sequences if s.group})
    return {g: correctness.of_group(g) for g in groups} if len(groups) > 1 else {}


def _range(low: int, high: int) -> str:
    return f"tokens {low} to {high}" if high < 1 << 40 else f"from token {low}"


def prediction_record(trained: Correctness, wirings: Mapping[str, Correctness], served: Correctness | None, served_name: str | None) -> dict[str, Any]:
    """`steps` and `wirings`: accept length by step count for the trained and every other wiring, at full and at screened sizes."""
    def lengths(c: Correctness) -> dict[str, Any]:
        return {str(p.steps): plain(p.accept_length) for p in predict_accept_length(c)}

    def summary(c: Correctness | None) -> dict[str, Any] | None:
        return None if c is None else {"accuracy": plain(c.accuracy(0)), "accept_length": plain(c.accept_length())}

    return {"steps": lengths(trained), "wirings": {name: lengths(c) for name, c in wirings.items()}, "trained": summary(trained),
            "served": summary(served), "served_wiring": served_name, "coverage": plain(trained.coverage())}


def plain(e: stats.Estimate) -> dict[str, Any]:
    """An estimate as a record keeps it."""
    return {"value": e.value, "low": e.low, "high": e.high, "n": e.n, "clusters": e.clusters, "method": e.method}
