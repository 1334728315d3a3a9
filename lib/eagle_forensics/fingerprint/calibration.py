"""Thresholds of the fingerprint tests, with the measurements they come from (`calibration.json`).

Measured by `make calibrate` on SmolLM2-135M-Instruct (30 layers, hidden 576) at every boundary, per-token medians over ordinary tokens; under
`measured` each threshold names the measurements that it rests on.
A threshold lies between what right planes showed and what wrong or damaged planes showed; where those come close the tests abstain.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any


@cache
def measured() -> Mapping[str, Any]:
    """The measured distributions and the reason of each threshold."""
    return MappingProxyType(json.loads(resources.files(__package__).joinpath("calibration.json").read_text(encoding="utf-8")))


THRESHOLDS: Mapping[str, float] = MappingProxyType({name: row["value"] for name, row in measured()["thresholds"].items()})
"""Name to value; `why(name)` gives the reason."""


def why(name: str) -> str:
    """Why a threshold has its value, in one sentence with the measured figures."""
    return measured()["thresholds"][name]["why"]
