"""What a plane's label claims. A label is a claim, never a proof: notebook 03 decides by the tensor."""

from __future__ import annotations

import re

from eagle_forensics.boundary import Boundary

_EMBEDDING = re.compile(r"^(embed(ding|dings|_tokens|_out)?|inputs_embeds|wte)$")
_LAYER = re.compile(r"^(?:model[._])?layers?[._ -]?(\d+)(?:[._](?:out|output|hidden))?$")
_OUTPUT = re.compile(r"^out(?:put)?[._ -]?(\d+)$")
_BOUNDARY = re.compile(r"^b(?:oundary)?[=_ ]?(\d+)$")
_LAST = re.compile(r"^(final|last|last_hidden(_state)?|target|teacher)$")
_NORMED = re.compile(r"^((final_)?norm(ed)?|final_norm_out)$")


def label_claim(label: str, layers: int) -> frozenset[Boundary]:
    """The states a label allows; empty for text that claims nothing.

    `embed` is b=0; `layerN` may be the state before layer N (b=N, a capture value) or its output (b=N+1);
    `outN` is b=N+1; `bN` is b=N; `final` may be before or after the final norm; `norm` is after it.
    """
    text = label.strip().lower()
    if _EMBEDDING.match(text):
        return frozenset({Boundary(0)})
    if m := _BOUNDARY.match(text):
        return _within(layers, int(m[1]))
    if m := _OUTPUT.match(text):
        return _within(layers, int(m[1]) + 1)
    if m := _LAYER.match(text):
        return _within(layers, int(m[1]), int(m[1]) + 1)
    if _LAST.match(text):
        return frozenset({Boundary(layers), Boundary(layers, normed=True)})
    if _NORMED.match(text):
        return frozenset({Boundary(layers, normed=True)})
    return frozenset()


def boundary_label(boundary: Boundary) -> str:
    """The unambiguous label of a boundary: `b15`, `norm` for the state after the final norm."""
    return "norm" if boundary.normed else f"b{boundary.index}"


def _within(layers: int, *indices: int) -> frozenset[Boundary]:
    return frozenset(Boundary(i) for i in indices if 0 <= i <= layers)
