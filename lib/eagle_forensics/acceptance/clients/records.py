"""What every client of a live server gives: who it is, one answer, its running counters."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

from eagle_forensics.acceptance.clients.counters import Acceptance, count
from eagle_forensics.evidence.environment import redacted
from eagle_forensics.evidence.transport import Failure

GROUPS = ("model_config", "device_config", "cache_config")
"""Groups of vLLM's `/server_info` in which the target's own arguments stand."""
DEEPEST = 12
"""Levels of nested arguments; vLLM's have six."""

PLAIN = {"top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
"""Asked for in so many words with every request: left out, vLLM takes what the target's generation_config.json says (0.32.0
entrypoints/openai/completion/protocol.py:350) and SGLang its --preferred-sampling-params; two servers, and a prediction at a temperature, would then
not be of the same thing. `top_k` too, which each engine switches off by a number of its own."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen: from the target's whole distribution at a temperature."""

    temperature: float = 0.0
    max_tokens: int = 128
    json_schema: str | None = None
    """A JSON schema, as JSON text, that the answer has to keep to."""
    regex: str | None = None


@dataclass(frozen=True)
class Server:
    """What a server says about itself."""

    url: str
    engine: str
    version: str | None
    arguments: Mapping[str, Any]
    """Effective arguments as the server gives them, secrets blanked; empty where it gives none."""
    speculative: bool | None
    steps: int | None
    topk: int | None
    draft_tokens: int | None
    instance: str
    """Changes when the server is started again or with other arguments."""
    simulated: str | None = None
    """The setting that makes acceptance a simulation; None if none is seen."""
    notes: tuple[str, ...] = ()

    def argument(self, name: str) -> Any:
        """An effective argument by its name; vLLM keeps them in groups. None if it is not given."""
        groups = (self.arguments, *(g for n in GROUPS if isinstance(g := self.arguments.get(n), Mapping)))
        return next((g[name] for g in groups if g.get(name) is not None), None)

    @property
    def most_accepted(self) -> int | None:
        """Drafts that a round can accept at most; None if the server does not say, or changes its steps by itself."""
        known = [n for n in (self.steps, self.draft_tokens) if n is not None]
        return None if not known or self.argument("speculative_adaptive") else max(known)

    @property
    def dtype(self) -> str | None:
        """`float32`, `bfloat16`, `auto`: as SGLang writes it; None if it is not given."""
        said = self.argument("dtype")
        return None if said is None else str(said).removeprefix("torch.")


@dataclass(frozen=True)
class Answer:
    """One request and what came back; a failed one has `error` and nothing invented."""

    prompt: str
    """Id of the prompt."""
    domain: str
    prompt_tokens: int | None = None
    output_ids: tuple[int, ...] | None = None
    text: str = ""
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    finish: str | None = None
    acceptance: Acceptance | None = None
    by_round: tuple[int, ...] | None = None
    """Tokens of each verify round in order, the bonus token included; None unless the server says them or its stream brought one event a round."""
    started_s: float = 0.0
    """Monotonic clock."""
    first_s: float | None = None
    """Seconds to the first token."""
    seconds: float = 0.0
    """Seconds to the last."""
    error: str | None = None
    kind: str | None = None
    """Kind of the failure (`transport.Failure`)."""
    notes: tuple[str, ...] = field(default=())

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def decode_tokens_per_second(self) -> float | None:
        """Tokens after the first, by the time they took."""
        if not self.ok or self.first_s is None or not self.completion_tokens or self.completion_tokens < 2 or self.seconds <= self.first_s:
            return None
        return (self.completion_tokens - 1) / (self.seconds - self.first_s)


@dataclass(frozen=True)
class Choice:
    """A token and its log-probability."""

    token: int
    logprob: float


class Client(Protocol):
    """A live server."""

    engine: str
    url: str

    async def server(self) -> Server:
        """What it is; asked again to notice a restart."""
        ...

    async def answer(self, prompt: str, domain: str, ids: tuple[int, ...], sampling: Sampling) -> Answer:
        """One streamed answer; failures become `Answer.error`."""
        ...

    async def counters(self) -> Acceptance | None:
        """Running counters since the server's start; None where it has none. A source without accepted drafts counts them as 0."""
        ...

    async def flush(self) -> str | None:
        """Empty the prefix cache; why it could not be, else None."""
        ...

    async def choices(self, ids: tuple[int, ...], n: int) -> tuple[Choice, ...]:
        """The n likeliest next tokens after `ids`."""
        ...


def rounds_in_order(seen: Sequence[int], acceptance: Acceptance | None) -> tuple[int, ...] | None:
    """Tokens of each round from the tokens said to be there after each event of a stream, prefill's one first."""
    rounds = tuple(later - earlier for earlier, later in pairwise(seen))
    whole = acceptance is not None and len(rounds) == acceptance.rounds and seen[0] == 1 and min(rounds, default=0) > 0
    return rounds if whole else None


def shown_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments without secrets: values of secret names and passwords in URLs are blanked, nested ones too; what is nested deeper than any is left out."""
    def shown(name: str, value: Any, depth: int) -> Any:
        if isinstance(value, Mapping | list | tuple) and depth > DEEPEST:
            return "..."
        if isinstance(value, Mapping):
            return {k: shown(str(k), v, depth + 1) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [shown(name, v, depth + 1) for v in value]
        return redacted(name, value, setting=True) if isinstance(value, str) else value

    return {str(k): shown(str(k), v, 0) for k, v in arguments.items()}


def words(value: Any, most: int = 4_000_000) -> str | None:
    """A text as a server may say it, cut at `most` characters, without the half characters that JSON allows and no file takes; None for anything else."""
    return value[:most].encode("utf-8", "replace").decode() if isinstance(value, str) else None


def token_ids(value: Any, sampling: Sampling) -> tuple[int, ...] | None:
    """The token ids of an answer; None where they are none. Failure for far more of them than were asked for."""
    if not isinstance(value, list):
        return None
    within(len(value), sampling)
    return tuple(value) if value and all(count(t) is not None for t in value) else None


def digest(value: Any) -> str:
    """Short hash of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:12]


def within(tokens: int, sampling: Sampling) -> None:
    """Failure for far more tokens than were asked for: a stream of them need not end."""
    if tokens > 2 * sampling.max_tokens + 64:
        raise Failure("malformed", f"{tokens} tokens came where at most {sampling.max_tokens} were asked for")
