"""What decode sends over the interconnect: size and number of the all-reduces of one target forward, from its config.

Under tensor parallelism a decoder layer ends both of its halves (attention, MLP or experts) with an all-reduce over the
hidden states of the tokens in flight, and the vocabulary-parallel embedding adds one. Source: sglang 0.5.9 deepseek_v2.py:621,
699, 755 and vocab_parallel_embedding; 61 layers give 123. Fused or data-parallel paths send others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ELEMENT_BYTES = {"bfloat16": 2, "float16": 2, "half": 2, "float32": 4, "float": 4}
PER_LAYER = 2
TOKENS = (1, 2, 3, 4, 6, 8, 16)
DRAFT_LAYER = 3
"""All-reduces of one EAGLE-3 draft step: two of its layer and one of its embedding."""


@dataclass(frozen=True)
class MessagePlan:
    """The all-reduces of one verify forward."""

    layers: int
    hidden: int
    dtype: str
    element_bytes: int
    tp: int
    tokens: int
    """Tokens verified per request: draft steps + 1 in a chain, the draft tokens in a tree."""
    batch: int
    steps: int
    """Draft steps of a round."""

    @property
    def bytes(self) -> int:
        """Size of one all-reduce."""
        return message_bytes(self.hidden, self.tokens, self.element_bytes, self.batch)

    @property
    def count(self) -> int:
        """All-reduces per target forward: 2 per layer and 1 for the embedding; none without tensor parallelism."""
        return 0 if self.tp == 1 else PER_LAYER * self.layers + 1

    @property
    def draft_count(self) -> int:
        """All-reduces of the draft steps of one round."""
        return 0 if self.tp == 1 else DRAFT_LAYER * self.steps

    def verify_ms(self, all_reduce_us: float) -> float:
        """Milliseconds of one verify forward spent in all-reduces of that time each."""
        return self.count * all_reduce_us / 1e3

    @property
    def nccl_tests(self) -> str:
        """The nccl-tests command that measures exactly these sizes, one process a GPU, replayed from a CUDA graph."""
        one = message_bytes(self.hidden, 1, self.element_bytes)
        kind = {2: "half" if self.dtype in ("float16", "half") else "bfloat16", 4: "float"}[self.element_bytes]
        top = one * max(16, self.tokens * self.batch)
        return f"mpirun -np {self.tp} all_reduce_perf -g 1 -b {one} -e {top} -i {one} -d {kind} -n 200 -w 50 -G 20 -c 1"


def message_bytes(hidden: int, tokens: int, element_bytes: int = 2, batch: int = 1) -> int:
    """Bytes of one decode all-reduce: batch x tokens x hidden x element size."""
    return batch * tokens * hidden * element_bytes


def decode_sizes(plan: MessagePlan) -> dict[int, int]:
    """Bytes to tokens per request of the forwards worth looking at: plain decode, common step counts, and the one configured."""
    return {message_bytes(plan.hidden, t, plan.element_bytes, plan.batch): t for t in sorted({*TOKENS, plan.tokens})}


def plan(config: Mapping[str, Any], tp: int, steps: int = 0, batch: int = 1, dtype: str | None = None,
         tokens: int | None = None) -> MessagePlan:
    """The message plan of a target from its config.json (a nested `text_config` is read).

    `steps`: draft steps, 0 for plain decode; `tokens`: verified at once, where a tree makes it another number. Raises ValueError if hidden size or layers are missing, or for a dtype whose
    activations are not 2 or 4 bytes wide.
    """
    text = {**config, **(config.get("text_config") or {})}
    layers, hidden = text.get("num_hidden_layers"), text.get("hidden_size")
    if not isinstance(layers, int) or not isinstance(hidden, int) or layers < 1 or hidden < 1:
        raise ValueError(f"target config: num_hidden_layers is {layers!r} and hidden_size {hidden!r}; expected two whole numbers above 0")
    if tp < 1 or steps < 0 or batch < 1:
        raise ValueError(f"message plan: tensor parallel size {tp}, steps {steps}, batch {batch}; expected at least 1, 0 and 1")
    name = str(dtype or text.get("dtype") or text.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    if name not in ELEMENT_BYTES:
        raise ValueError(f"target config: dtype {name!r}; expected one of {', '.join(ELEMENT_BYTES)} (the type of the activations, not of the weights)")
    return MessagePlan(layers, hidden, name, ELEMENT_BYTES[name], tp, tokens or steps + 1, batch, steps)


def saving_ms(count: int, before_us: float, after_us: float) -> float:
    """Milliseconds that `count` all-reduces of a verify forward save when each goes from `before_us` to `after_us`."""
    return count * (before_us - after_us) / 1e3
