"""The same prompts at several lengths: what stands before the question grows, the question does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle, islice

from eagle_forensics.acceptance.live.workload import Workload


def padded(work: Workload, length: int, most: int) -> Workload:
    """Up to `most` of the rendered prompts, each exactly `length` tokens long: text of the workload's other prompts is put where its own begins.

    The head and the end that most prompts share (the chat template's) stay where they are. ValueError where fewer than `most` prompts are
    short enough, or where there is nothing to fill with.
    """
    ids = [p.ids for p in work.prompts]
    heads, tails = _shared(ids), _shared([tuple(reversed(i)) for i in ids])
    short = [i for i, own in enumerate(ids) if len(own) <= length]
    if len(short) < most:
        raise ValueError(f"prompt length {length}: {len(short)} of {len(ids)} prompts are that short, {most} are needed. Give longer lengths or shorter prompts.")
    found = []
    for i in short[:most]:
        bodies = [t for j, own in enumerate(ids) if j != i for t in own[heads[j]:len(own) - tails[j]]]
        if not bodies and len(ids[i]) < length:
            raise ValueError(f"prompt length {length}: the prompts hold nothing that others could be filled with")
        fill = tuple(islice(cycle(bodies), length - len(ids[i]))) if bodies else ()
        found.append(replace(work.prompts[i], ids=(*ids[i][:heads[i]], *fill, *ids[i][heads[i]:])))
    return work.of(found, f"{work.name}, {length} tokens")


def _shared(rows: Sequence[tuple[int, ...]]) -> list[int]:
    """How many leading tokens of each row at least half of the others begin with too; always leaves one."""
    found = []
    for row in rows:
        k, others = 0, list(rows)
        while k < len(row) - 1 and 2 * (len(others := [o for o in others if len(o) > k and o[k] == row[k]]) - 1) >= len(rows) - 1 > 0:
            k += 1
        found.append(k)
    return found
