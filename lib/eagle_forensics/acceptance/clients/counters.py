"""Counters of speculation in one form, whatever engine gave them, and every other definition of the same figures.

The canonical record holds counts only: rounds (verify steps), drafts proposed, drafts accepted (the bonus token not among them)
and, where known, how many rounds accepted at least 1, 2, ... drafts. Accept length is 1 + accepted / rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest
from typing import Any

from eagle_forensics import stats
from eagle_forensics.acceptance.estimators import accept_length_of_requests, conditional_of
from eagle_forensics.engines.metrics import accept_length_to_accept_rate, counts_to_accept_length, definitions


class Backwards(ValueError):
    """A counter that only grows is smaller than before: the server was restarted or its counters were reset."""


@dataclass(frozen=True)
class Acceptance:
    """What became of the drafts over some rounds."""

    rounds: int
    """Verify steps."""
    accepted: int
    """Accepted drafts, without the bonus token."""
    proposed: int | None = None
    reached: tuple[int, ...] | None = None
    """Rounds that accepted at least 1, 2, ... drafts."""
    source: str = ""
    """Which fields of which engine these are."""
    estimated: bool = False
    """`accepted` is derived from tokens and rounds because the server does not count it."""

    @property
    def accept_length(self) -> float:
        return counts_to_accept_length(self.accepted, self.rounds)

    @property
    def survival(self) -> tuple[float, ...] | None:
        """Share of rounds that accepted at least 1, 2, ... drafts."""
        return None if self.reached is None else tuple(r / self.rounds for r in self.reached)

    @property
    def histogram(self) -> tuple[int, ...] | None:
        """Rounds that accepted exactly 0, 1, 2, ... drafts."""
        return None if self.reached is None else tuple(a - b for a, b in zip((self.rounds, *self.reached), (*self.reached, 0), strict=True))

    @property
    def conditional(self) -> tuple[float | None, ...] | None:
        """Share accepted among the rounds that got to that position."""
        return None if self.reached is None else conditional_of(self.survival)

    @property
    def contradiction(self) -> str | None:
        """What cannot be true of these counts; None if they agree."""
        if self.rounds < 0 or self.accepted < 0:
            return f"a negative count ({self.accepted} accepted in {self.rounds} rounds)"
        if self.proposed is not None and self.accepted > self.proposed:
            return f"{self.accepted} drafts accepted of {self.proposed} proposed"
        if self.reached is not None:
            if any(later > earlier for earlier, later in zip((self.rounds, *self.reached), self.reached, strict=False)):
                return f"more rounds at a later position than before it ({self.reached} of {self.rounds})"
            if sum(self.reached) != self.accepted:
                return f"positions add up to {sum(self.reached)} accepted drafts, the total says {self.accepted}"
        return None


def count(value: Any) -> int | None:
    """A count as a server may say it: a whole number from 0 on that a float still holds; None for anything else."""
    return value if type(value) is int and 0 <= value <= 2**53 else None


def total(parts: Iterable[Acceptance]) -> Acceptance | None:
    """Counts added up; `proposed` and `reached` only if every part has them. None without a part."""
    parts = list(parts)
    if not parts:
        return None
    proposed = None if any(p.proposed is None for p in parts) else sum(p.proposed for p in parts)
    reached = None if any(p.reached is None for p in parts) else tuple(map(sum, zip_longest(*(p.reached for p in parts), fillvalue=0)))
    return Acceptance(sum(p.rounds for p in parts), sum(p.accepted for p in parts), proposed, reached,
                      "; ".join(dict.fromkeys(p.source for p in parts)), any(p.estimated for p in parts))


def accept_length(parts: Sequence[Acceptance], *, seed: int = 0) -> stats.Estimate:
    """Accept length over requests, with an interval over requests. ValueError without a round."""
    return accept_length_of_requests([p.accepted for p in parts], [p.rounds for p in parts], seed=seed)


def reached_of(histogram: Sequence[int]) -> tuple[int, ...]:
    """Rounds that accepted at least 1, 2, ... drafts, from rounds that accepted exactly 0, 1, 2, ..."""
    return tuple(reversed(tuple(accumulate(reversed(histogram[1:])))))


def difference(before: Acceptance, after: Acceptance) -> Acceptance:
    """What was counted between two readings of running counters. Backwards if one of them fell."""
    pairs = [("rounds", before.rounds, after.rounds), ("accepted drafts", before.accepted, after.accepted)]
    pairs += [("proposed drafts", before.proposed, after.proposed)] if None not in (before.proposed, after.proposed) else []
    pairs += [(f"position {i}", a, b) for i, (a, b) in enumerate(zip(before.reached or (), after.reached or (), strict=False), 1)]
    fell = [f"{name} {a} -> {b}" for name, a, b in pairs if b < a]
    if fell:
        raise Backwards(f"counters went backwards ({', '.join(fell)}): the server was restarted or reset while it was measured")
    proposed = None if None in (before.proposed, after.proposed) else after.proposed - before.proposed
    reached = None if after.reached is None else tuple(b - a for a, b in zip_longest(before.reached or (), after.reached, fillvalue=0))
    return Acceptance(after.rounds - before.rounds, after.accepted - before.accepted, proposed, reached, after.source)


def as_defined(found: Acceptance, engine: str, version: str | None, *, steps: int | None, completion_tokens: int | None = None) -> list[dict[str, Any]]:
    """The same counts under every name that this engine prints, each with its own definition: rows {figure, value, definition}.

    `completion_tokens` adds SGLang's per-request accept length, which also counts the token of prefill.
    Both engines count before they cut an answer (sglang 0.5.23 batch_result_processor.py:835, vllm v1/spec_decode/metrics.py); the offline walk ends
    with the text, so it stays below by what was cut from the last rounds.
    """
    whole = "" if found.estimated else "; a last round counts whole where the answer ends within it"
    rows = [{"figure": "accept length", "value": found.accept_length, "definition": f"1 + accepted drafts / verify steps{whole}"}]
    if found.proposed:
        rows.append({"figure": "share of drafts accepted", "value": found.accepted / found.proposed, "definition": "accepted drafts / proposed drafts"})
    if found.reached:
        rows += [{"figure": f"survival at position {i}", "value": s, "definition": "rounds that accepted at least this many drafts / verify steps"}
                 for i, s in enumerate(found.survival, 1)]
        rows += [{"figure": f"conditional at position {i}", "value": c, "definition": "accepted here / rounds that got here"}
                 for i, c in enumerate(found.conditional, 1) if c is not None]
    if completion_tokens is not None and engine == "sglang":
        defined = definitions("sglang", "spec_accept_length")[0]
        rows.append({"figure": defined.name, "value": completion_tokens / found.rounds,
                     "definition": f"{defined.numerator} / {defined.denominator}: {defined.note}"})
    if steps and version:
        tokens = steps + 1 if engine == "sglang" else steps
        try:
            rate = accept_length_to_accept_rate(engine, version, found.accept_length, draft_tokens=tokens)
        except ValueError:
            return rows
        bonus = accept_length_to_accept_rate(engine, version, 1.0, draft_tokens=tokens) > 0
        rows.append({"figure": f"accept rate as {engine} {version} prints it", "value": rate,
                     "definition": "accept length / draft tokens, bonus counted" if bonus else "accepted drafts / proposed drafts"})
    return rows


def from_fields(meta: Mapping[str, Any], names: Mapping[str, Sequence[str]], source: str) -> Acceptance | None:
    """Counts out of an answer's fields: the first name of each list that is there. None without a count of rounds.

    ValueError for counts that contradict each other.
    """
    def first(key: str) -> Any:
        return next((meta[n] for n in names[key] if meta.get(n) is not None), None)

    rounds, accepted, proposed, histogram = first("rounds"), first("accepted"), first("proposed"), first("histogram")
    if rounds is None or rounds == 0:
        return None
    if any(count(n) is None for n in (rounds, *(n for n in (accepted, proposed) if n is not None), *(histogram or ()))):
        raise ValueError("a count that is no whole number from 0 on")
    tokens = count(meta.get("completion_tokens"))
    if tokens and rounds > tokens + 1:  # each yields a token; one may run ahead of the end
        raise ValueError(f"{rounds} verify rounds for {tokens} tokens")
    estimated = accepted is None
    if histogram and sum(histogram) == rounds and estimated:
        accepted, estimated = sum(k * n for k, n in enumerate(histogram)), False
    if estimated:
        if tokens is None:
            return None
        accepted = max(tokens - 1 - rounds, 0)
    found = Acceptance(rounds, accepted, proposed, reached_of(histogram) if histogram else None, source, estimated)
    if wrong := found.contradiction:
        raise ValueError(wrong)
    return found
