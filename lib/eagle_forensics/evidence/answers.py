"""Answers of a live server with its own counts, as a measurement leaves them in a run folder; what a walk on the served text reads.

Three files of `evidence/04_live`: `prompts.jsonl` (an object a line: `id`, `domain`, `input_ids`, which replays as it is),
`answers_speculation.jsonl` (one answer a line with `output_ids` and the counts of its rounds) and `served.json` (engine and settings).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle_forensics.evidence.records import EvidenceError

PROMPTS, ANSWERS, SERVED = "prompts.jsonl", "answers_speculation.jsonl", "served.json"
IN_RUN = Path("evidence") / "04_live"
"""Where a run folder keeps them."""
MAX_BYTES = 200_000_000
CONSTRAINTS = ("json_schema", "regex")
"""Keys of a prompt whose answer the server constrains by a grammar."""


@dataclass(frozen=True)
class ServedAnswer:
    """One answer and how many verify rounds the server took for it."""

    prompt: str
    """Id of the prompt."""
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    rounds: int
    constrained: bool = False
    """The server had to keep to a grammar."""
    domain: str = ""
    accepted: int | None = None
    """Accepted drafts, the bonus tokens not among them; None where the server does not count them."""

    @property
    def decoded(self) -> int:
        """Tokens of the verify rounds: accepted drafts and a bonus token each; without a count of them all tokens but prefill's."""
        return max(self.rounds, len(self.output_ids) - 1) if self.accepted is None else self.rounds + self.accepted


@dataclass(frozen=True)
class ServedAnswers:
    """The answers of one server at one setting."""

    where: Path
    answers: tuple[ServedAnswer, ...]
    left_out: tuple[str, ...]
    """Answers without text or counts, with the reason."""
    engine: str
    version: str | None
    dtype: str | None
    """As the server states it; `auto` is possible."""
    steps: int | None
    topk: int | None
    draft_tokens: int | None
    temperature: float
    adaptive: bool
    """The server changes its number of steps by itself."""


def read_answers(path: Path | str) -> ServedAnswers | None:
    """The answers under a folder of a measurement, or under a run folder; None if it holds none. EvidenceError for files of another form."""
    path = Path(path)
    folder = path / IN_RUN if (path / IN_RUN).is_dir() else path
    if not (folder / SERVED).is_file() or not (folder / ANSWERS).is_file():
        return None
    about = _object(folder / SERVED)
    prompts = {str(row.get("id")): row for row in _lines(folder / PROMPTS)}
    found, left_out = [], []
    for row in _lines(folder / ANSWERS):
        name = str(row.get("prompt"))
        reason = _lacking(row, prompts.get(name))
        if reason:
            left_out.append(f"{name}: {reason}")
            continue
        asked = prompts[name]
        found.append(ServedAnswer(name, tuple(asked["input_ids"]), tuple(row["output_ids"]), row["acceptance"]["rounds"], any(asked.get(k) for k in CONSTRAINTS),
                                  str(asked.get("domain") or row.get("domain") or ""), _count(row["acceptance"].get("accepted"))))
    try:
        return ServedAnswers(folder, tuple(found), tuple(left_out), str(about["engine"]), about.get("version"), about.get("dtype"), about.get("steps"),
                             about.get("topk"), about.get("draft_tokens"), float(about["temperature"]), bool(about.get("adaptive")))
    except (KeyError, TypeError, ValueError):
        raise EvidenceError(f"{folder / SERVED}: expected `engine` and `temperature` of the server that answered. Measure again.") from None


def _lacking(row: Mapping[str, Any], asked: Mapping[str, Any] | None) -> str | None:
    """Why an answer cannot be walked; None if it can."""
    if row.get("error"):
        return "the answer failed"
    if asked is None or not _tokens(asked.get("input_ids")):
        return f"{PROMPTS} holds no token ids of its prompt"
    if not _tokens(row.get("output_ids")):
        return "the server gave no token ids"
    rounds = (row.get("acceptance") or {}).get("rounds") if isinstance(row.get("acceptance"), Mapping) else None
    if not isinstance(rounds, int) or rounds < 1:
        return "the server gave no count of its rounds"
    if row.get("completion_tokens") not in (None, len(row["output_ids"])):
        return f"{row['completion_tokens']} tokens counted, {len(row['output_ids'])} given"
    return None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(t, int) and not isinstance(t, bool) and t >= 0 for t in value)


def _object(file: Path) -> dict[str, Any]:
    found = list(_lines(file, whole=True))
    return found[0]


def _lines(file: Path, *, whole: bool = False) -> Iterator[dict[str, Any]]:
    try:
        if file.stat().st_size > MAX_BYTES:
            raise EvidenceError(f"{file}: {file.stat().st_size} bytes; answers of more than {MAX_BYTES} are not read. Take some of its lines.")
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise EvidenceError(f"{file}: cannot be read ({getattr(error, 'strerror', None) or 'not UTF-8'}). Name the folder that a measurement of notebook 04 left.") from None
    for number, line in enumerate([text] if whole else text.splitlines(), 1):
        if not line.strip() and not whole:
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise EvidenceError(f"{file}, line {number}: expected a JSON object. Name the folder that a measurement of notebook 04 left.")
        yield row
