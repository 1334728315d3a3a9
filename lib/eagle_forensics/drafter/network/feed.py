"""What the drafter's first step reads when it is fed recorded planes in a given order, under its own flags."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from eagle_forensics.drafter.network.fuse import Projections
from eagle_forensics.drafter.network.model import Drafter
from eagle_forensics.drafter.network.unroll import Chunk


def feed(drafter: Drafter, chunk: Chunk, planes: Sequence[str]) -> torch.Tensor:
    """fc of the chunk's `planes`, [N, H]. ValueError for a plane that a sequence does not have, or another number of them than fc reads."""
    return Projections(drafter, chunk.planes(planes)).hidden(
        planes, norm_before_fc=bool(drafter.flags.norm_before_fc), fc_norm=bool(drafter.flags.fc_norm))
