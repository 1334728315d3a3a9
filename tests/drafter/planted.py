"""Text on which a tiny drafter is right most of the time under one wiring, and only there: the planted truth of a battery."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import torch

from eagle_forensics.drafter.network.model import Drafter
from eagle_forensics.drafter.recorded import Recorded
from eagle_forensics.drafter.wirings.battery import WiringResult, investigate, run_battery
from eagle_forensics.drafter.wirings.candidates import standard_battery
from eagle_forensics.drafter.wirings.derived import FinalNorm
from eagle_forensics.drafter.wirings.wiring import Wiring, evaluate
from tests.drafter import tiny

WEIGHTS = tiny.weights(40)
MODEL = tiny.drafter(WEIGHTS)
PLAIN = tiny.drafter(tiny.weights(41, norms=False))
"""A drafter without norms before fc: few flags, so that all pairs of faults are quickly tried."""
TRAINED = ("slot 0", "slot 1", "slot 2")
NORM = FinalNorm(torch.rand(tiny.TARGET, generator=torch.Generator().manual_seed(9), dtype=torch.float64) + 0.5, tiny.EPS)
"""The final norm of the target that the states are said to come from."""


def plant(model: Drafter, wiring: Wiring, *, sequences: int = 20, length: int = 44, planes: int = 4, keep: float = 0.85, seed: int = 0) -> tuple[Recorded, ...]:
    """Random states; every even token is what step 1 predicts under `wiring`, every odd one what step 2 predicts, but for a share of noise."""
    rng = np.random.default_rng(seed)
    items = [tiny.sequence(1000 * seed + i, length, 3, planes) for i in range(sequences)]
    for j in range(4, length):
        step = j % 2
        result = evaluate(model, [i.cut(j + 1) for i in items], wiring, 2, norm=NORM)
        for i, found in enumerate(result.sequences):
            row = int(np.nonzero(found.positions == j - 2 - step)[0][0])
            if rng.random() < keep:
                ids = items[i].input_ids.clone()
                ids[j] = int(found.predicted[row, step])
                items[i] = replace(items[i], input_ids=ids)
    return tuple(replace(item, planes={f"slot {k}": p for k, p in enumerate(item.planes.values())}, loss_mask=torch.arange(length) >= 4) for item in items)


def as_named(wiring: Wiring) -> Wiring:
    """The same wiring for planes that are still called p0, p1, ... ."""
    return replace(wiring, planes=tuple(p.replace("slot ", "p") for p in wiring.planes))


@cache
def planted(truth: Wiring, model: Drafter = MODEL, length: int = 44) -> tuple[Recorded, ...]:
    """Text on which `model` is right under `truth`, with more planes: copies of the trained states, states near them, and others."""
    rng, found = torch.Generator().manual_seed(5), []
    for item in plant(model, as_named(truth), length=length):
        more = {}
        for i in range(3):
            plane = item.planes[f"slot {i}"]
            noise = torch.randn(plane.shape, generator=rng, dtype=plane.dtype)
            more |= {f"same {i}": plane.clone(), f"near {i}": plane + 0.35 * (i + 1) * noise, f"hair {i}": plane + 0.002 * noise, f"far {i}": noise * (i + 1)}
        found.append(item.with_planes(more))
    return tuple(found)


@cache
def battery(truth: Wiring) -> tuple[WiringResult, ...]:
    """The standard battery of MODEL on the text of `truth`."""
    return tuple(run_battery(MODEL, planted(truth), standard_battery(MODEL, TRAINED, slots(0, 1, 2, 3), norm=NORM), 2, norm=NORM, screen_tokens=160))


@cache
def investigated(truth: Wiring) -> tuple[WiringResult, ...]:
    """Everything that is tried when the contract explains nothing: single departures, pairs, and what lies around the best."""
    return tuple(investigate(PLAIN, planted(truth, PLAIN, 36), TRAINED, slots(0, 1, 2, 3), 2, norm=NORM, screen_tokens=96))


def slots(*numbers: int) -> tuple[str, ...]:
    return tuple(f"slot {n}" for n in numbers)
