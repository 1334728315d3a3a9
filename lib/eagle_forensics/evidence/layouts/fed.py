"""What a drafter is fed: `fed` [T, k, H] of `eagle-forensics capture`, [T, k*H] of the hook for serving hosts (`engines/onhost/fed_hook.py`).

Both show the eager path alone; the capture's `manifest.json` names the engine.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from eagle_forensics.evidence.layouts.parts import NOTHING, Layout, Parts, flat, rank_in


def _is_fed(content: Any) -> bool:
    fed = content.get("fed") if isinstance(content, Mapping) else None
    return isinstance(fed, torch.Tensor) and fed.dim() in (2, 3)


def _read(content: Mapping[str, Any], file: Path) -> Parts:
    fed = content["fed"]
    planes = [(None, fed)] if fed.dim() == 2 else [(None, fed[:, k]) for k in range(fed.shape[1])]
    name, rank, ranks = rank_in(file)
    return Parts(planes, flat(content, "input_ids"), None, replace(NOTHING, path_kind="eager"), name, rank, ranks)


FED = Layout("fed", "`fed` [T, k, H] or [T, k*H]", _is_fed, _read)
