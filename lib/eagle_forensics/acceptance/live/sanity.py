"""Is a served text fit to measure acceptance on, and do two servers say the same: gates on every answer, first divergence.

Loops and repeated characters are easy to draft, so they inflate acceptance; broken numerics make them. Thresholds are measured on
982 greedy answers of SmolLM2-135M-Instruct to real prompts (the demo's sequences, 21 to 160 tokens).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from eagle_forensics.acceptance.clients.counters import Acceptance
from eagle_forensics.acceptance.clients.records import Answer, Client

LONG = 40
"""Tokens from which an answer is judged by its variety: a short one may rightly hold few different tokens."""
FEW_TOKENS = 10
"""Distinct tokens; 99 % of the 982 answers hold 15 or more, the five that hold fewer than 10 are loops."""
FEW_BIGRAMS = 0.14
"""Distinct bigrams as a share of all; 99 % of the 982 answers are above it."""
LOOP_SHARE = 0.5
"""Share of an answer that is one repeating cycle; 49 of the 982 answers have it, all of them loops to the eye."""
LONGEST_CYCLE = 32
SAME_CHARACTER = re.compile(r"(\S)\1{15,}")
"""`!!!!!!!!!!!!!!!!`: the picture of broken numerics. Ruled lines of markup are of `-`, `=`, `_`, `*`, `#`, `.` or `~` and do not count."""
RULES = frozenset("-=_*#.~─═│|")


def gates(ids: Sequence[int] | None, text: str) -> tuple[str, ...]:
    """What is wrong with one answer, in words; empty if nothing is."""
    found = []
    if (match := SAME_CHARACTER.search(text)) and match[1] not in RULES:
        found.append(f"one character repeated {len(match[0])} times ({match[1] * 4})")
    tokens = tuple(ids or ())
    if len(tokens) < LONG:
        return tuple(found)
    if (distinct := len(set(tokens))) < FEW_TOKENS:
        found.append(f"{distinct} distinct tokens in {len(tokens)}")
    bigrams = list(pairwise(tokens))
    if (share := len(set(bigrams)) / len(bigrams)) < FEW_BIGRAMS:
        found.append(f"{share:.0%} distinct bigrams")
    share, cycle = loop(tokens)
    if share >= LOOP_SHARE:
        found.append(f"a cycle of {cycle} token{'s' * (cycle != 1)} fills {share:.0%} of it")
    return tuple(found)


def loop(tokens: Sequence[int]) -> tuple[float, int]:
    """Largest share of the tokens that is one cycle repeated three times or more, and the cycle's length."""
    best = (0.0, 0)
    for period in range(1, min(LONGEST_CYCLE, len(tokens) // 3) + 1):
        run = 0
        for now, before in zip(tokens[period:], tokens, strict=False):
            run = run + 1 if now == before else 0
            if run >= 2 * period and (run + period) / len(tokens) > best[0]:
                best = ((run + period) / len(tokens), period)
    return best


def pinned(found: Acceptance, steps: int | None) -> str | None:
    """`1.00` or `its ceiling 4` if every round ended alike; None otherwise."""
    if found.accepted == 0:
        return "1.00"
    return f"its ceiling {steps + 1}" if steps and found.accepted == found.rounds * steps else None


@dataclass(frozen=True)
class Divergence:
    """Where two servers' greedy answers to one prompt part."""

    prompt: str
    position: int
    """Index of the first different token."""
    first: int | None
    """Token of the first server; None if its answer ended there."""
    second: int | None
    gap: float | None = None
    """Log-probability of the second server's token minus that of the first server's, as the second server gives them for the common
    text: near 0 is a tie that rounding may turn either way."""


def divergences(first: Sequence[Answer], second: Sequence[Answer]) -> tuple[int, tuple[Divergence, ...]]:
    """Prompts that both answered in full with token ids, and where they differ."""
    other = {a.prompt: a for a in second if a.ok and a.output_ids}
    pairs = [(a, other[a.prompt]) for a in first if a.ok and a.output_ids and a.prompt in other]
    found = []
    for a, b in pairs:
        at = first_difference(a.output_ids, b.output_ids)
        if at is not None:
            found.append(Divergence(a.prompt, at, *(x.output_ids[at] if at < len(x.output_ids) else None for x in (a, b))))
    return len(pairs), tuple(found)


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Index of the first different element, the shorter length if one only goes on; None if equal."""
    for at, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return at
    return None if len(a) == len(b) else min(len(a), len(b))


async def gap(client: Client, context: Sequence[int], divergence: Divergence, n: int = 5) -> Divergence:
    """The divergence with its gap, asked of the second server; unchanged if either token is not among its n likeliest."""
    if divergence.first is None or divergence.second is None:
        return divergence
    known = {c.token: c.logprob for c in await client.choices(tuple(context), n)}
    if divergence.first not in known or divergence.second not in known:
        return divergence
    return Divergence(divergence.prompt, divergence.position, divergence.first, divergence.second, known[divergence.second] - known[divergence.first])
