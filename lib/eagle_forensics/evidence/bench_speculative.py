"""Results of SGLang's `scripts/playground/bench_speculative.py`: a JSON object a line, as rows of the measurements table.

`speed` is acc_length over the 20th percentile of the step time, tokens/s of one request; steps 0 is the run without speculation.
The script does not check that the server kept its arguments (topk 1 overwrites the draft tokens), so the table's own checks apply.
"""

from __future__ import annotations

import json
from typing import Any

FIELDS = {"steps": "steps", "topk": "topk", "num_draft_tokens": "draft_tokens", "batch_size": "concurrency", "acc_length": "accept_length", "speed": "tokens_per_second"}
"""Key of the script to column of the table."""
HEADER = ("label", "engine", "speculative", *FIELDS.values())


def recognised(text: str) -> bool:
    """Whether a file's text is such a result rather than a CSV."""
    line = text.lstrip().split("\n", 1)[0]
    return line.startswith("{") and '"acc_length"' in line and '"step_time"' in line


def rows(text: str) -> list[tuple[int, list[str]]]:
    """The table's header and a row a run, with line numbers. A line that is no result becomes a row that the table's checks name."""
    found: list[tuple[int, list[str]]] = [(0, list(HEADER))]
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            found.append((number, _cells(line)))
    return found


def _cells(line: str) -> list[str]:
    try:
        run = json.loads(line, parse_float=str, parse_int=str, parse_constant=str)
    except (ValueError, RecursionError):
        run = None
    if not isinstance(run, dict) or not set(FIELDS) <= set(run):
        return ["cut line", "sglang", "not a result of bench_speculative.py", *[""] * len(FIELDS)]
    figures = {column: _text(run[key]) for key, column in FIELDS.items()}
    plain = figures["steps"] == "0"
    if plain:
        figures |= {"steps": "", "topk": "", "draft_tokens": ""}
    name = "no speculation" if plain else f"{figures['steps']} steps, topk {figures['topk']}, {figures['draft_tokens']} tokens"
    return [f"{name}, batch {figures['concurrency']}", "sglang", "0" if plain else "1", *figures.values()]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
