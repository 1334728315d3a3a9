"""Trainers: which boundaries a drafter was trained on, and the state of the last plane. The rules are rows of `trainers.toml`."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from eagle_forensics.boundary import Boundary
from eagle_forensics.engines.tables import table
from eagle_forensics.engines.versions import row_at, version_key

_ALIASES = {
    "model-optimizer": "modelopt", "nvidia-modelopt": "modelopt", "modelopt_vllm": "modelopt-vllm", "tensorrt-llm": "trtllm",
    "nemo-automodel": "nemo", "verl_speco": "verl-speco", "safeailab/eagle": "eagle",
}


@dataclass(frozen=True)
class TrainedAnswer:
    """What a trainer made of a list of layer ids."""

    trainer: str
    version: str | None
    boundaries: tuple[int, ...]
    """Aux planes in training order: fc consumes them in this order."""
    last: Boundary | None
    """State of the last plane that the trainer's own generator writes; None: none is written, or it is not known."""
    last_expected: str | None
    """`pre` or `post` the final norm: what the trainer takes the last plane for; None: not known."""
    rule: str
    source: str
    notes: tuple[str, ...] = ()
    assumed: bool = False
    error: str | None = None
    """Why the ids name no boundaries; `boundaries` is empty then."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def trained_boundaries(trainer: str, version: str | None = None, *, ids: Sequence[int] | None = None, layers: int, aux_planes: int | None = None) -> TrainedAnswer:
    """Which boundaries `trainer` `version` feeds a drafter for `ids` (its default without ids) on a target of `layers` layers.

    `aux_planes`: how many fc takes, where known; a list of exactly that many does not hold the last plane.
    ValueError for an unknown trainer (with a did-you-mean) or a text that is no version.
    """
    name, row, assumed, notes = _row(trainer, version)
    rule, source = row["rule"], row["source"]
    last = _last(row, layers)
    common = {"trainer": name, "version": version, "last_expected": row.get("expects"), "rule": rule, "source": source}

    def refuse(text: str) -> TrainedAnswer:
        return TrainedAnswer(boundaries=(), last=last, notes=tuple(notes), assumed=assumed, error=text, **common)

    if rule == "fixed" and ids is not None:
        notes.append("this trainer takes no layer ids: the list is ignored")
    if ids is None or rule == "fixed":
        boundaries = tuple(_place(text, layers) for text in row["default"])
        if ids is None:
            notes.append("no ids are given: the trainer's default")
        return TrainedAnswer(boundaries=boundaries, last=last, notes=tuple(notes), assumed=assumed, **common)

    bad = next((item for item in ids if isinstance(item, bool) or not isinstance(item, int)), None)
    if bad is not None:
        return refuse(f"layer ids must be integers; got {bad!r}")
    listed = list(ids)
    if row.get("minus_one_is_last"):
        listed = [i for i in sorted(set(listed)) if i != -1]
    planes = [i + 1 if rule == "post_layer" else i for i in listed]
    if row.get("ids_hold_last"):
        if len(planes) > 1 and len(planes) != aux_planes and (planes[-1] == layers or (row.get("four_hold_last") and len(planes) == 4)):
            last = Boundary(planes.pop())
            notes.append(f"the last id, {listed[-1]}, is the last plane ({last}), not an aux plane")
            if last.index != layers:
                notes.append(f"the last plane is not the target's last layer (b={layers}): its distribution is not the target's")
        else:
            notes.append("the list does not hold the last layer; the launcher appends it (the trainer drops the last entry of a dump as the last plane)")
    outside = [b for b in planes if not 0 <= b <= layers]
    if outside:
        return refuse(f"boundaries {outside} lie outside 0..{layers}: the ids {list(ids)} do not fit a target of {layers} layers")
    if len(set(planes)) < len(planes):
        notes.append("duplicate ids: two aux planes hold the same tensor")
    if planes != sorted(planes):
        notes.append("the planes are not ascending: every engine serves them ascending, so this order cannot be served by configuration")
    return TrainedAnswer(boundaries=tuple(planes), last=last, notes=tuple(notes), assumed=assumed, **common)


def _row(trainer: str, version: str | None) -> tuple[str, Mapping[str, Any], bool, list[str]]:
    rows = table("trainers")["trainer"]
    name = _ALIASES.get(str(trainer).strip().lower(), str(trainer).strip().lower())
    mine = [row for row in rows if row["name"] == name]
    if not mine:
        known = list(dict.fromkeys(row["name"] for row in rows))
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        raise ValueError(f"unknown trainer {trainer!r}; known: {', '.join(known)}" + (f"; did you mean {near[0]!r}?" if near else ""))
    notes: list[str] = []
    if "from" not in mine[0]:
        row, assumed = mine[0], bool(mine[0].get("assumed"))
        if version is not None and name != "eagle":
            notes.append("the releases of this trainer are not told apart")
        return name, row, assumed, notes + list(row.get("notes", ()))
    if version is None:
        notes.append(f"no version given: the newest generation ({mine[-1]['from']} on) is assumed")
        return name, mine[-1], True, notes + list(mine[-1].get("notes", ()))
    row = row_at(mine, version) or mine[0]
    read = table("trainers")["read"][name]
    assumed = not any(version_key(version)[:2] == version_key(release)[:2] for release in read)
    if assumed:
        notes.append(f"{name} {version} was not read; the rules from {row['from']} on are assumed")
    return name, row, assumed, notes + list(row.get("notes", ()))


def _last(row: Mapping[str, Any], layers: int) -> Boundary | None:
    return Boundary(layers, normed=row["last"] == "post") if "last" in row else None


def _place(text: str, layers: int) -> int:
    """`2`, `half`, `half-1`, `half+1`, `L`, `L-3` for a target of `layers` layers."""
    for word, value in (("half", layers // 2), ("L", layers)):
        if text.startswith(word):
            return value + int(text[len(word):] or 0)
    return int(text)
