"""SGLang's dumper: a file a tensor, `step=S___rank=R___dump_index=N___name=X[___layer_id=..].pt` (`debug_utils/dumper.py`, 0.5.23).

`{"value": tensor, "meta": {...}}`, before 0.5.10 the bare tensor under `forward_pass_id=..`. All files of one step and rank are one sample, planes in
dump order. Where whole modules were dumped (`non_intrusive__...`), the residual stream is kept, as of `sglang_passes`; else every tensor
[T, H] of the sample's length.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from eagle_forensics.evidence.layouts.parts import NOTHING, Layout, Parts, rows, sequences

MODULES = "non_intrusive__"
STREAM = re.compile(MODULES + r"(?:.*\.)?(?:embed_tokens\.output|fc\.(?:inputs\.\w+|output)|layers\.\d+\.input_layernorm\.output\.1|(?<!\w)norm\.output(?:\.[01])?)")
COUNTERS = ("step", "forward_pass_id")


class Tags(NamedTuple):
    """What a file's name says."""

    sample: tuple[str, str]
    """Step and rank: files that share both are one sample."""
    index: int
    name: str
    layer: str | None

    @property
    def label(self) -> str:
        return self.name if self.layer is None or self.name.startswith(MODULES) else f"{self.name}[layer {self.layer}]"


class Step(NamedTuple):
    """The opened files of one step and rank, in dump order."""

    files: tuple[tuple[Tags, Any], ...]


def tags_of(name: str) -> Tags | None:
    """Tags of a file name; None for a name that is not the dumper's."""
    if "___" not in name:
        return None
    fields = dict(part.split("=", 1) for part in Path(name).stem.split("___") if "=" in part)
    step = next((fields[k] for k in COUNTERS if k in fields), None)
    if step is None or not {"rank", "dump_index", "name"} <= fields.keys() or not all(v.isdecimal() for v in (step, fields["rank"], fields["dump_index"])):
        return None
    return Tags((step, fields["rank"]), int(fields["dump_index"]), fields["name"], fields.get("layer_id"))


def _value(content: Any) -> Any:
    return content["value"] if isinstance(content, Mapping) and "value" in content and "meta" in content else content


def _tensors(step: Step) -> list[tuple[str, torch.Tensor]]:
    return [(tags.label, value) for tags, content in step.files if isinstance(value := _value(content), torch.Tensor)]


def _named(step: Step, name: str) -> torch.Tensor | None:
    return next((v.reshape(-1) for label, v in _tensors(step) if label == name), None)


def _states(step: Step) -> list[tuple[str, torch.Tensor]]:
    found = [(label, rows(v)) for label, v in _tensors(step) if v.is_floating_point() and rows(v).dim() == 2]
    stream = [(label, v) for label, v in found if STREAM.fullmatch(label)]
    found = stream or found
    ids = _named(step, "input_ids")
    return [(label, v) for label, v in found if ids is None or v.shape[0] == ids.shape[0]]


def _members(step: Step) -> list[tuple[Step, slice]]:
    positions, states = _named(step, "positions"), _states(step)
    length = states[0][1].shape[0] if states else 0
    if positions is None or positions.shape[0] != length:
        return [(step, slice(0, length))]
    return [(step, where) for where in sequences(positions)]


def _read(member: tuple[Step, slice], _: Path) -> Parts:
    step, where = member
    planes, ids = [(label, v[where]) for label, v in _states(step)], _named(step, "input_ids")
    if not planes:
        raise ValueError("none of its tensors has the shape [T, H]")
    repeated = Counter(label for label, _ in planes)
    planes = [(f"{label}#{i}" if repeated[label] > 1 else label, v) for i, (label, v) in enumerate(planes)]
    number, rank = step.files[0][0].sample
    meta = next((c["meta"] for _, c in step.files if isinstance(c, Mapping) and isinstance(c.get("meta"), Mapping)), {})
    parallel = meta.get("sglang_parallel_info")
    parallel = parallel if isinstance(parallel, Mapping) else {}
    tp = [v if isinstance(v := parallel.get(key), int) else None for key in ("tp_rank", "tp_size")]
    return Parts(planes, ids[where] if ids is not None else None, None, replace(NOTHING, engine="sglang", forward_pass=int(number)),
                 f"step={number}", int(rank) if tp[0] is None else tp[0], tp[1])


SGLANG_DUMPER = Layout("sglang_dumper", "files step=S___rank=R___dump_index=N___name=X.pt, each a tensor or `value` with `meta`",
                       lambda c: isinstance(c, Step) and bool(_states(c)), _read, members=_members)
