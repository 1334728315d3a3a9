"""How does a target route its tokens to experts, and how many different experts do several tokens touch?

    U(t) = E (1 - (1 - k/E)^t)    distinct experts of E that t tokens with k each touch, as if they chose independently: an upper bound

One forward pass reads each touched expert's weights once, so U is what the tokens of a verify cost in memory traffic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle_forensics.evidence.configs import read_object
from eagle_forensics.evidence.records import EvidenceError


@dataclass(frozen=True)
class Experts:
    """How a mixture of experts routes; one expert of one for a dense target."""

    count: int = 1
    per_token: int = 1

    @property
    def sparse(self) -> bool:
        """A token touches only some of them."""
        return self.count > self.per_token

    def load(self, tokens: float) -> float:
        """Distinct experts that `tokens` touch, over those that one touches; the tokens themselves for a dense target."""
        return distinct_experts(tokens, self.count, self.per_token) / self.per_token if self.sparse else tokens


def distinct_experts(tokens: float, experts: int, per_token: int) -> float:
    """Expected number of different experts among `tokens` that choose `per_token` of `experts` each, independently."""
    return experts * (1 - (1 - per_token / experts) ** tokens)


def experts(config: Mapping[str, Any]) -> Experts:
    """Routing of a target's config.json; dense if it names no experts."""
    text = {**config, **(config.get("text_config") or {})}
    count = next((text[k] for k in ("n_routed_experts", "num_experts", "num_local_experts") if isinstance(text.get(k), int)), 1)
    per_token = text.get("num_experts_per_tok")
    return Experts(count, per_token) if isinstance(per_token, int) and 0 < per_token < count else Experts()


def read_experts(target: Path | None) -> Experts:
    """Routing of the target in a folder; dense where there is no config to be read (notebook 01 says why)."""
    try:
        return experts(read_object(target / "config.json")) if target else Experts()
    except (EvidenceError, OSError):
        return Experts()
