"""What was measured: one row of the measurements table as a frozen Run, with the precision that its figures carry."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eagle_forensics import stats

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    "label", "engine", "engine_version", "speculative", "steps", "topk", "draft_tokens", "temperature", "concurrency",
    "context_length", "dataset", "prompts_hash", "rounds", "accept_length", "accept_rate", "accepted_per_position",
    "tokens_per_second", "distinct_output_tokens", "cuda_graph", "env_hash",
    "drafter", "prefix_cache", "dp_attention", "grammar", "images", "outputs_hash", "cache_hit_rate",
)
_COUNTS = ("steps", "topk", "draft_tokens", "concurrency", "context_length", "rounds", "distinct_output_tokens")
_TEXTS = ("engine", "engine_version", "dataset", "prompts_hash", "env_hash", "drafter", "outputs_hash")
_FLAGS = ("speculative", "cuda_graph", "prefix_cache", "dp_attention", "grammar", "images")
_FIGURES = ("accept_length", "accept_rate", "tokens_per_second", "cache_hit_rate")


@dataclass(frozen=True)
class Run:
    """One measured run; None: the table does not say."""

    label: str
    engine: str | None = None
    engine_version: str | None = None
    speculative: bool | None = None
    steps: int | None = None
    """Draft steps: the longest chain proposed in one round."""
    topk: int | None = None
    draft_tokens: int | None = None
    temperature: float | None = None
    concurrency: int | None = None
    context_length: int | None = None
    dataset: str | None = None
    prompts_hash: str | None = None
    rounds: int | None = None
    """Verify rounds behind accept_length."""
    accept_length: stats.Estimate | None = None
    """Tokens per verify round, bonus token included; interval of its printing."""
    accept_rate: stats.Estimate | None = None
    """As printed; what it means depends on the engine's version."""
    survival: tuple[float, ...] | None = None
    """Share of rounds that accepted position 1..k at least."""
    tokens_per_second: stats.Estimate | None = None
    distinct_output_tokens: int | None = None
    cuda_graph: bool | None = None
    env_hash: str | None = None
    drafter: str | None = None
    """Name of the head."""
    prefix_cache: bool | None = None
    dp_attention: bool | None = None
    grammar: bool | None = None
    """The answers had to keep to one."""
    images: bool | None = None
    outputs_hash: str | None = None
    """Of the answers' token ids in order: equal hashes are the same text."""
    cache_hit_rate: stats.Estimate | None = None
    """Share of the prompt tokens that came out of the prefix cache."""
    verification: str | None = None
    """Above temperature 0, where the server is known: `greedy` (whatever is asked), `target-only` or `rejection`."""
    cycle_ms: stats.Estimate | None = None
    """Milliseconds a round where they were measured as such (live), not divided out of printed figures."""

    @property
    def is_baseline(self) -> bool:
        """Measured without speculation."""
        return self.speculative is False or (self.speculative is None and self.steps == 0)

    @property
    def is_speculative(self) -> bool:
        return not self.is_baseline and (self.speculative is True or self.accept_length is not None)

    @property
    def ceiling(self) -> int | None:
        """Largest accept length these settings allow: one token a step and the bonus token; None if no setting is known.

        A tree (topk > 1) is no deeper than its steps and accepts no more than its draft tokens. With topk 1 draft_tokens
        says nothing (SGLang replaces it by steps + 1). Where draft_tokens bounds, the bound is draft_tokens + 1, which
        holds whether or not the engine counts the root among them.
        """
        if self.steps is None:
            return None if self.draft_tokens is None else self.draft_tokens + 1
        bound = self.steps + 1
        if self.topk is not None and self.topk > 1 and self.draft_tokens is not None:
            bound = min(bound, self.draft_tokens + 1)
        return bound

    @property
    def settings(self) -> tuple[Any, ...]:
        """Everything that was set, nothing that was measured: equal settings are repeats."""
        return (self.engine, self.engine_version, self.speculative, self.steps, self.topk, self.draft_tokens, self.temperature,
                self.concurrency, self.context_length, self.dataset, self.prompts_hash, self.cuda_graph, self.env_hash,
                self.drafter, self.prefix_cache, self.dp_attention, self.grammar, self.images)


def runs(frame: pd.DataFrame) -> tuple[Run, ...]:
    """The rows of a measurements table as Runs, in order; absent columns and empty cells become None.

    Precision: a cell that is still text keeps its printed decimals. Of a number the trailing zeros are lost (1.60 and 1.6
    are one float), so it is read as printed with the decimals it shows, never finer. A whole number shows none:
    the coarsest decimals of its column's other values stand for it. Raises ValueError for a cell that is no number.
    """
    coarsest = {name: _coarsest(frame[name]) for name in _FIGURES if name in frame}
    return tuple(_run(row, index, coarsest) for index, row in enumerate(frame.to_dict("records")))


def _run(row: dict[str, Any], index: int, coarsest: dict[str, int]) -> Run:
    label = _text(row.get("label")) or f"row {index + 1}"
    values: dict[str, Any] = {"label": label}
    for name in _TEXTS:
        values[name] = _text(row.get(name))
    values |= {"engine": values["engine"] and values["engine"].lower(), "engine_version": values["engine_version"] and re.sub(r"^[vV](?=\d)", "", values["engine_version"])}
    for name in (*_COUNTS, *_FLAGS):
        number = _number(row.get(name), name, label)
        if number is not None and number != int(number):
            raise ValueError(f"measurements, {label}: {name} is {row[name]!r}; expected a whole number")
        values[name] = None if number is None else (bool(number) if name in _FLAGS else int(number))
    values["temperature"] = _number(row.get("temperature"), "temperature", label)
    for name in _FIGURES:
        number = _number(row.get(name), name, label)
        values[name] = None if number is None else stats.printed(number, _decimals(row[name], coarsest[name]))
    if values["tokens_per_second"] is not None and values["tokens_per_second"].value <= 0:
        values["tokens_per_second"] = None  # a run that produced nothing was not a measurement of speed
    values["survival"] = _survival(row.get("accepted_per_position"), label)
    return Run(**values)


def _survival(cell: Any, label: str) -> tuple[float, ...] | None:
    if _missing(cell):
        return None
    parts = cell.split(";") if isinstance(cell, str) else cell if isinstance(cell, list | tuple) else [cell]
    rates = tuple(_number(p, "accepted_per_position", label) for p in parts if not _missing(p))
    if any(not 0 <= r <= 1 for r in rates):
        raise ValueError(f"measurements, {label}: accepted_per_position is {cell!r}; expected shares from 0 to 1, `0.6;0.4;0.2`")
    return rates or None


def _missing(cell: Any) -> bool:
    if cell is None or type(cell).__name__ in ("NAType", "NaTType"):
        return True
    if isinstance(cell, str):
        return not cell.strip()
    return not isinstance(cell, list | tuple) and bool(cell != cell)


def _text(cell: Any) -> str | None:
    return None if _missing(cell) else str(cell).strip()


def _number(cell: Any, name: str, label: str) -> float | None:
    if _missing(cell):
        return None
    try:
        value = float(cell)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"measurements, {label}: {name} is {cell!r}; expected a number")
    return value


def _shown(cell: Any) -> int:
    text = cell.strip() if isinstance(cell, str) else repr(float(cell))
    mantissa, _, exponent = text.lower().partition("e")
    fraction = mantissa.partition(".")[2]
    if not isinstance(cell, str) and fraction == "0":
        fraction = ""
    return max(0, len(fraction) - int(exponent or 0))


def _coarsest(column: pd.Series) -> int:
    shown = [_shown(c) for c in column if not _missing(c) and _is_number(c)]
    return min((d for d in shown if d > 0), default=0)


def _is_number(cell: Any) -> bool:
    try:
        float(cell)
    except (TypeError, ValueError):
        return False
    return True


def _decimals(cell: Any, coarsest: int) -> int:
    shown = _shown(cell)
    return coarsest if shown == 0 and not isinstance(cell, str) else shown
