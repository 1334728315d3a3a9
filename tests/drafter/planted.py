"""Text on which a tiny drafter is right most of the time under one wiring, and only there: the planted truth of a battery."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from eagle_forensics.drafter.model import Drafter
from eagle_forensics.drafter.recorded import Recorded
from eagle_forensics.drafter.wiring import Wiring, evaluate
from tests.drafter import tiny


def plant(model: Drafter, wiring: Wiring, *, sequences: int = 20, length: int = 44, planes: int = 4, keep: float = 0.85, seed: int = 0) -> tuple[Recorded, ...]:
    """Random states; every even token is what step 1 predicts under `wiring`, every odd one what step 2 predicts, but for a share of noise."""
    rng = np.random.default_rng(seed)
    items = [tiny.sequence(1000 * seed + i, length, 3, planes) for i in range(sequences)]
    for j in range(4, length):
        step = j % 2
        result = evaluate(model, items, wiring, 2)
        for i, found in enumerate(result.sequences):
            row = int(np.nonzero(found.positions == j - 2 - step)[0][0])
            if rng.random() < keep:
                ids = items[i].input_ids.clone()
                ids[j] = int(found.predicted[row, step])
                items[i] = replace(items[i], input_ids=ids)
    return tuple(replace(item, planes={f"slot {k}": p for k, p in enumerate(item.planes.values())}, loss_mask=torch.arange(length) >= 4) for item in items)


def slots(*numbers: int) -> tuple[str, ...]:
    return tuple(f"slot {n}" for n in numbers)
