"""Tables and recorded answers of the line-up's cases: rows as dictionaries, and the folder that a measurement leaves."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Mapping, Sequence
from csv import writer as csv_writer
from typing import Any

Row = Mapping[str, Any]
KNOWN = {"temperature": 0, "concurrency": 1, "prompts_hash": "9c41", "env_hash": "e1", "dataset": "mt-bench"}


def csv(*rows: Row) -> str:
    """The rows as a measurements table, with the columns that any of them has."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv_writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_shown(c, row.get(c)) for c in columns] for row in rows)
    return text.getvalue()


def _shown(column: str, value: Any) -> Any:
    """Accept lengths with two decimals at least, as engines print them."""
    return f"{value:.2f}" if column == "accept_length" and value is not None and value == round(value, 2) else value


def spec(label: str, length: float | None, *, steps: int = 3, rounds: int | None = 20000, engine: str = "sglang", version: str = "0.5.23", **more: Any) -> Row:
    """A run with speculation that records all that a comparison needs; None in `more` leaves a column out."""
    return {"label": label, "engine": engine, "engine_version": version, "speculative": 1, "steps": steps, "topk": 1, **KNOWN, "rounds": rounds, "accept_length": length} | more


def plain(label: str, speed: float, *, engine: str = "sglang", version: str = "0.5.23", **more: Any) -> Row:
    """A run without speculation."""
    return {"label": label, "engine": engine, "engine_version": version, "speculative": 0, **KNOWN, "tokens_per_second": speed} | more


def pair(column: str, off: float, on: float, **more: Any) -> str:
    """Two runs that differ in one switch."""
    return csv(spec("first", off, **more, **{column: 0}), spec("second", on, **more, **{column: 1}))


def answers(texts: Mapping[str, Sequence[Sequence[int]]], length: Callable[[str], float], steps: int = 3, **about: Any) -> dict[str, str]:
    """Files of a measurement's folder `served/`: answers by domain, each with the rounds of an accept length."""
    prompts, found = [], []
    for domain, outputs in texts.items():
        for i, ids in enumerate(outputs):
            rounds = max(1, round(len(ids) / length(domain)))
            prompts.append({"id": f"{domain}-{i}", "domain": domain, "input_ids": [1, 2 + i % 40, 3]})
            found.append({"prompt": f"{domain}-{i}", "domain": domain, "output_ids": list(ids), "completion_tokens": len(ids),
                          "acceptance": {"rounds": rounds, "accepted": max(0, min(len(ids) - rounds, rounds * steps)), "proposed": rounds * steps}})
    settings = {"engine": "sglang", "version": "0.5.23", "dtype": "bfloat16", "steps": steps, "topk": 1, "draft_tokens": steps + 1, "temperature": 0.0} | about
    lines = {"prompts.jsonl": prompts, "answers_speculation.jsonl": found}
    return {f"served/{name}": "".join(json.dumps(row) + "\n" for row in rows) for name, rows in lines.items()} | {"served/served.json": json.dumps(settings)}


def texts(n: int, tokens: Sequence[int], size: int = 60, seed: int = 0) -> list[list[int]]:
    """n answers of tokens drawn from these."""
    draw = random.Random(seed)
    return [[draw.choice(tokens) for _ in range(size)] for _ in range(n)]
