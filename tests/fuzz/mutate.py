"""Seeded mutations of bytes, of text and of JSON: the same seed gives the same input."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

NUMBERS = ("0", "-1", "1e999", "-1e999", "nan", "NaN", "inf", "Infinity", "9" * 30, "9" * 5000, "0x10", "1e-400", "2147483648", "18446744073709551616", "²", "½", "٣", "1_000", "")
WORDS = ("\x00", "\ufeff", "\u202e", "\r", "\n", "\t", "'", '"', "\\", "$(true)", "`", "{", "}", "[" * 300, "{" * 300, "--", "=", ",", ";", "#", "../" * 8, "/dev/zero", "\ud800",
         "<script>", "\x1b[2J", "%s%n", "null", "true", "!!python/object/apply:os.system", "&a *a", "A" * 5000)
VALUES: tuple[Any, ...] = (None, True, False, 0, -1, 1, 3.5, 1e308, float("nan"), float("inf"), 2**31, 2**63, 10**400, "", "0", "x" * 300, "\x00", "../..", [], {}, [[]], [None], [0], ["a"], {"a": 1},
                           [1] * 1000, {"type": "yarn"}, [[[[[1]]]]])


def bytes_(data: bytes, rng: random.Random, times: int | None = None) -> bytes:
    """Flip, cut, double, insert and overwrite bytes, one to six times."""
    out = bytearray(data)
    for _ in range(times or rng.randint(1, 6)):
        at = rng.randrange(len(out) + 1)
        span = min(len(out) - at, rng.choice((1, 1, 2, 4, 8, 64, 1000)))
        kind = rng.randrange(7)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[at:at + span] = b""
        elif kind == 2:
            out[at:at] = out[at:at + span]
        elif kind == 3:
            out[at:at] = rng.randbytes(rng.choice((1, 4, 16)))
        elif kind == 4:
            out[at:at + span] = rng.choice((b"\x00", b"\xff", b"\x7f")) * span
        elif kind == 5:
            del out[at:]
        else:
            out[at:at] = rng.choice(WORDS + NUMBERS).encode("utf-8", "surrogatepass")
    return bytes(out)


def text(data: str, rng: random.Random) -> str:
    """Replace numbers and words, repeat, drop and swap lines or fields."""
    for _ in range(rng.randint(1, 4)):
        separator = rng.choice(("\n", ",", " ", ":", "="))
        parts = data.split(separator)
        at = rng.randrange(len(parts))
        kind = rng.randrange(6)
        if kind == 0:
            parts[at] = rng.choice(NUMBERS)
        elif kind == 1:
            parts[at] = rng.choice(WORDS)
        elif kind == 2:
            parts.insert(at, parts[at] * rng.choice((1, 2, 50)))
        elif kind == 3:
            del parts[at]
        elif kind == 4:
            other = rng.randrange(len(parts))
            parts[at], parts[other] = parts[other], parts[at]
        else:
            parts[at] += rng.choice(WORDS + NUMBERS)
        data = separator.join(parts)
    return data


def tree(value: Any, rng: random.Random) -> Any:
    """A JSON value with one to four of its parts replaced, dropped or doubled."""
    value = json.loads(json.dumps(value))
    for _ in range(rng.randint(1, 4)):
        holders = [h for h in _holders(value) if h]
        if not holders:
            return copy.deepcopy(rng.choice(VALUES))
        holder = rng.choice(holders)
        key = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
        kind = rng.randrange(4)
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, dict):
            holder[rng.choice(list(holder)) + rng.choice(("", "_", "x"))] = copy.deepcopy(holder[key])
        else:
            holder[key] = copy.deepcopy(rng.choice(VALUES))
    return value


def _holders(value: Any) -> list[Any]:
    found, waiting = [], [value]
    while waiting:
        here = waiting.pop()
        if isinstance(here, dict | list) and len(found) < 500:
            found.append(here)
            waiting += here.values() if isinstance(here, dict) else here
    return found
