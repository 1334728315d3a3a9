"""Which layout a file of hidden states has: one table, told apart by keys and ranks, never by extension.

The same key means different tensors in different trainers (`hidden_state` is the last layer in SpecForge and the aux
planes in speculators v0), so a layout is recognised by which keys stand together. A layout is a module here and a line in `LAYOUTS`.
"""

from __future__ import annotations

from typing import Any

from eagle_forensics.evidence.layouts.angelslim import ANGELSLIM
from eagle_forensics.evidence.layouts.fed import FED
from eagle_forensics.evidence.layouts.modelopt import MODELOPT
from eagle_forensics.evidence.layouts.parts import Layout, Parts
from eagle_forensics.evidence.layouts.plane_folder import PLANE_FOLDER
from eagle_forensics.evidence.layouts.sglang_dumper import SGLANG_DUMPER
from eagle_forensics.evidence.layouts.sglang_passes import SGLANG_PASSES
from eagle_forensics.evidence.layouts.sglang_reply import SGLANG_REPLY
from eagle_forensics.evidence.layouts.specforge import SPECFORGE
from eagle_forensics.evidence.layouts.speculators import SPECULATORS_V0, SPECULATORS_V1
from eagle_forensics.evidence.layouts.torchspec import TORCHSPEC
from eagle_forensics.evidence.layouts.trtllm import TRTLLM
from eagle_forensics.evidence.layouts.verl import VERL_SPECO
from eagle_forensics.evidence.layouts.vllm import VLLM_EXTRACT

__all__ = ["FED", "LAYOUTS", "SGLANG_REPLY", "VLLM_EXTRACT", "Layout", "Parts", "layout_named", "layout_of"]

LAYOUTS = (SPECULATORS_V1, VLLM_EXTRACT, SPECFORGE, MODELOPT, ANGELSLIM, SPECULATORS_V0, PLANE_FOLDER, TRTLLM, TORCHSPEC, VERL_SPECO,
           SGLANG_PASSES, SGLANG_DUMPER, SGLANG_REPLY, FED)


def layout_of(content: Any) -> Layout | None:
    """The layout whose marks the opened file shows; None if it is no file of samples."""
    return next((layout for layout in LAYOUTS if layout.test(content)), None)


def layout_named(name: str) -> Layout:
    """The layout of a name out of `LAYOUTS`."""
    return next(layout for layout in LAYOUTS if layout.name == name)
