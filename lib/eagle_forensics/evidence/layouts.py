"""Which layout a file of hidden states has, and its parts: one table, told apart by keys and ranks, never by extension.

The same key means different tensors in different trainers (`hidden_state` is the last layer in SpecForge and the aux
planes in speculators v0), so a layout is recognised by which keys stand together. Names and shapes: the trainers'
data writers, speculators 0.3.0-0.9.0, SpecForge 0.2, ModelOpt 0.47, AngelSlim 0.5, vLLM's hidden-state connector.

Nothing is unpickled: `archives.tensors_only` and safetensors only.
"""

from __future__ import annotations

import gzip
import io
import pickle
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from eagle_forensics.evidence.archives import code_wanted, tensors_only
from eagle_forensics.evidence.records import EvidenceError
from eagle_forensics.evidence.tensors import load_tensor, read_header

GUNZIP_LIMIT = 4 << 30
"""Bytes a gzipped sample may expand to: no single sequence comes near, a gzip bomb does."""


class Parts(NamedTuple):
    """One sample as its file holds it: planes `(label, [T, H])` in slot order, raw ids and mask."""

    planes: list[tuple[str | None, torch.Tensor]]
    input_ids: torch.Tensor | None
    loss_mask: torch.Tensor | None


@dataclass(frozen=True)
class Layout:
    """One way to lay out a sample."""

    name: str
    shows: str
    """What marks it, for people."""
    test: Callable[[Mapping[str, Any]], bool]
    read: Callable[[Mapping[str, Any]], Parts]


def _rank(content: Mapping[str, Any], key: str) -> int:
    """Rank of a tensor without its batch dimension of one; 0 if there is no such tensor."""
    value = content.get(key)
    if not isinstance(value, torch.Tensor):
        return 0
    return value.dim() - 1 if value.dim() == 3 and value.shape[0] == 1 else value.dim()


def _flat(content: Mapping[str, Any], *keys: str) -> torch.Tensor | None:
    """First of `keys` that is a tensor, without a batch dimension of one."""
    for key in keys:
        value = content.get(key)
        if isinstance(value, torch.Tensor):
            return value[0] if value.dim() == 2 and value.shape[0] == 1 else value
    return None


def _split(content: Mapping[str, Any], aux: str, last: str) -> Parts:
    """Planes of a concatenated `aux` [T, n*H] and the `last` [T, H]."""
    wide, narrow = (content[k][0] if content[k].dim() == 3 else content[k] for k in (aux, last))
    hidden = narrow.shape[-1]
    if hidden == 0 or wide.shape[-1] % hidden:
        raise ValueError(f"`{aux}` is {wide.shape[-1]} wide, no multiple of the {hidden} of `{last}`")
    count = wide.shape[-1] // hidden
    planes = [(f"{aux}[{i}]", wide[:, i * hidden:(i + 1) * hidden]) for i in range(count)]
    return Parts([*planes, (last, narrow)], _flat(content, "input_ids"), _flat(content, "loss_mask"))


def _v1(content: Mapping[str, Any]) -> Parts:
    planes = [(None, t[0] if t.dim() == 3 and t.shape[0] == 1 else t) for t in content["hidden_states"]]
    return Parts(planes, _flat(content, "input_ids"), _flat(content, "loss_mask"))


def _vllm(content: Mapping[str, Any]) -> Parts:
    states = content["hidden_states"]
    scales = content.get("hidden_states_scales")
    if scales is not None:  # speculators 0.9.0 FP8: one scale a token over all planes, [T, 1, 1]
        states = states.float() * scales.float().reshape(-1, 1, 1)
    planes = [(None, states[:, k]) for k in range(states.shape[1])]
    return Parts(planes, _flat(content, "token_ids"), _flat(content, "loss_mask"))


def _folder(content: Mapping[str, Any]) -> Parts:
    aux = sorted((k for k in content if re.fullmatch(r"aux_\d+", k)), key=lambda k: int(k[4:]))
    planes = [(key, content[key][0] if _rank(content, key) < content[key].dim() else content[key]) for key in [*aux, "final"]]
    return Parts(planes, _flat(content, "input_ids", "token_ids"), _flat(content, "loss_mask"))


LAYOUTS = (
    Layout("speculators_v1", "`hidden_states` is a list of tensors [T, H]",
           lambda c: isinstance(c.get("hidden_states"), list | tuple) and bool(c["hidden_states"])
           and all(isinstance(t, torch.Tensor) for t in c["hidden_states"]), _v1),
    Layout("vllm_extract", "`hidden_states` [T, k, H] with `token_ids`",
           lambda c: isinstance(c.get("hidden_states"), torch.Tensor) and c["hidden_states"].dim() == 3
           and isinstance(c.get("token_ids"), torch.Tensor), _vllm),
    Layout("specforge", "`hidden_state` [1, T, H] with `aux_hidden_state` [1, T, n*H]",
           lambda c: _rank(c, "hidden_state") == 2 and _rank(c, "aux_hidden_state") == 2,
           lambda c: _split(c, "aux_hidden_state", "hidden_state")),
    Layout("modelopt", "`hidden_states` [T, H] with `aux_hidden_states` [T, n*H]",
           lambda c: _rank(c, "hidden_states") == 2 and _rank(c, "aux_hidden_states") == 2,
           lambda c: _split(c, "aux_hidden_states", "hidden_states")),
    Layout("angelslim", "`hidden_states` [1, T, n*H] with `target_hiddens` [1, T, H]",
           lambda c: _rank(c, "hidden_states") == 2 and _rank(c, "target_hiddens") == 2,
           lambda c: _split(c, "hidden_states", "target_hiddens")),
    Layout("speculators_v0", "`hidden_state` [T, n*H] with `target` [T, H]",
           lambda c: _rank(c, "hidden_state") == 2 and _rank(c, "target") == 2,
           lambda c: _split(c, "hidden_state", "target")),
    Layout("plane_folder", "a folder of aux_0.pt, aux_1.pt, ... and final.pt, each [T, H]",
           lambda c: _rank(c, "aux_0") == 2 and _rank(c, "final") == 2, _folder),
)


def layout_of(content: Mapping[str, Any]) -> Layout | None:
    """The layout whose marks the opened file shows; None if it is not a sample of hidden states."""
    return next((layout for layout in LAYOUTS if layout.test(content)), None)


def open_sample(path: Path) -> Mapping[str, Any]:
    """Contents of a sample file, or of a folder of plane files, by key; tensors stay mapped, nothing is unpickled.

    Raises EvidenceError for files that are damaged, foreign, or need more than tensors to load.
    """
    if path.is_dir():
        parts = {p.stem: open_pt(p) for p in sorted(path.glob("*.pt"))}
        return {name: value for name, value in parts.items() if isinstance(value, torch.Tensor)}
    if path.suffix == ".safetensors":
        return {name: load_tensor(info) for name, info in read_header(path).items()}
    content = open_pt(path)
    if not isinstance(content, Mapping):
        raise EvidenceError(f"{path}: expected named tensors, found {_kind(content)}. It is no sample of a known layout; "
                            "a bare tensor can be read as a capture.")
    return content


def open_pt(path: Path) -> Any:
    """What `torch.save` wrote, with weights_only and memory mapping. Raises EvidenceError with the reason."""
    try:
        if path.suffix == ".gz":
            return tensors_only(_gunzip(path))
        with path.open("rb") as file:
            if file.read(2) != b"PK":
                raise EvidenceError(f"{path}: no zip archive of torch.save (empty, cut off, foreign, or written by torch before 1.6). "
                                    "Copy it again or save it again with a current torch; else remove it from the dump.")
        return tensors_only(path)
    except EvidenceError:
        raise
    except pickle.UnpicklingError as error:
        asks = f"its pickle asks for {code_wanted(error) or 'more than tensors'}"
        raise EvidenceError(f"{path}: refused. Loading it would run code ({asks}); only tensors, numbers, text, lists and dicts "
                            "are read. Save it again as plain tensors where it was made.") from None
    except Exception as error:  # a damaged file makes torch raise RuntimeError, ValueError, KeyError, EOFError, OSError ...
        text = " ".join(str(error).split())[:160] or "no details"
        raise EvidenceError(f"{path}: damaged or cut off ({type(error).__name__}: {text}). "
                            "Copy it again, or remove it from the dump.") from None


def _gunzip(path: Path) -> io.BytesIO:
    with gzip.open(path) as stream:
        data = stream.read(GUNZIP_LIMIT + 1)
    if len(data) > GUNZIP_LIMIT:
        raise EvidenceError(f"{path}: expands to more than {GUNZIP_LIMIT >> 30} GiB; that is no sample. Unpack and check it.")
    return io.BytesIO(data)


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor {list(value.shape)}"
    return f"a {type(value).__name__}"
