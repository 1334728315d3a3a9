"""How NCCL reads the value of a variable: integers by strtoll, topology levels by strcmp, algorithm and protocol lists."""

from __future__ import annotations

import re
from collections.abc import Iterator

from eagle_forensics.nccl.issue import ERROR, WARN, Issue
from eagle_forensics.nccl.registry import rules, version

PER_FUNCTION = (2, 24)
"""First release with `function:list;function:list`, where an unknown token aborts and nothing falls back to ring."""


THREADS = ("NCCL_NTHREADS", "NCCL_LL128_NTHREADS")


def as_int(value: str | None) -> int | None:
    """A plain decimal or hexadecimal value; None for anything else."""
    if value is None or not re.fullmatch(r"\s*[+-]?(0|[1-9]\d*|0[xX][0-9a-fA-F]+)\s*", value):
        return None
    return int(value.strip(), 0)


def strtoll(value: str) -> int:
    """What C's strtoll(value, NULL, 0) makes of a text: leading digits, octal after 0, 0 where there are none."""
    found = re.match(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9]\d*)", value)
    if not found:
        return 0
    digits = found[2]
    base = 16 if digits[:2].lower() == "0x" else 8 if digits.startswith("0") and len(digits) > 1 else 10
    return int(found[1] + digits, base)


def integer(name: str, value: str, release: tuple[int, ...] | None) -> Iterator[Issue]:
    """Issues of an integer value."""
    read = strtoll(value)
    if not value.strip():
        return
    if not re.match(r"\s*[+-]?\d", value):
        yield Issue("INT_GARBAGE", ERROR, name, f"{value!r} is no number: NCCL reads 0", "Give a plain decimal number.")
    elif re.match(r"\s*[+-]?0\d", value):
        yield Issue("INT_OCTAL", ERROR, name, f"{value!r} starts with 0 and is read as octal: {read}", "Drop the leading zero.")
    elif as_int(value) is None:
        yield Issue("INT_SUFFIX", ERROR, name, f"{value!r} is read as {read}: units and trailing text are dropped without a message",
                     "Write the number in full, in bytes where it is a size.")
    elif not -(2**63) <= read < 2**63:
        yield Issue("RANGE", ERROR, name, f"{value!r:.40} does not fit into 64 bits: NCCL uses its default", "Give a smaller number.")
    elif name in THREADS and read <= 0:
        return  # NCCL's default
    elif name in THREADS and read % 32:
        yield Issue("NTHREADS_STEP", ERROR, name, f"{read} is not a multiple of 32: NCCL uses its maximum instead", "Use 64, 128, 256 or 512.")
    else:
        low, high = rules()["ranges"].get(name, (read, read))
        if high == 64 and release is not None and release < version(rules()["channel_limit"]["raised_to_64"]):
            high = 32
        if not low <= read <= high:
            yield Issue("RANGE", ERROR, name, f"{read} is outside {low}..{high}: NCCL does not take it as it stands", f"Use {low} to {high}.")


def level(name: str, value: str, release: tuple[int, ...] | None) -> Iterator[Issue]:
    """Issues of a topology level."""
    names, integers = rules()["levels"]["names"], rules()["levels"]["integers"]
    upper = value.strip().upper()
    if value in names and (release is None or release >= version(names[value])):
        return
    if value in names:
        yield Issue("LEVEL_UNKNOWN", ERROR, name, f"{value} exists since NCCL {names[value]}: it is ignored", f"Use one of {', '.join(n for n, s in names.items() if release and release >= version(s))}.")
    elif re.match(r"\d", value):
        meaning = integers[min(strtoll(value), len(integers) - 1)]
        yield Issue("LEVEL_INT", WARN, name, f"the legacy number {value} means {meaning}; tables that say otherwise are wrong", f"Write {meaning}.")
    elif upper in names:
        yield Issue("LEVEL_CASE", ERROR, name, f"{value!r} is compared with upper-case names and ignored", f"Write {upper}.")
    elif upper == "NODE":
        yield Issue("LEVEL_NODE", ERROR, name, "NODE is a word of nvidia-smi, not an NCCL level: it is ignored", "Write PHB (the same distance), or SYS.")
    elif value:
        yield Issue("LEVEL_UNKNOWN", ERROR, name, f"{value!r} is no level: it is ignored", f"Use one of {', '.join(names)}.")


def words(name: str, value: str) -> Iterator[Issue]:
    """Issues of a variable that takes one of a few words, or a list of them."""
    rule = rules()["words"][name]
    text = value.strip().lower().removeprefix(rule.get("inverts", ""))
    for word in filter(None, (w.strip() for w in (text.split(rule["separator"]) if rule["separator"] else [text]))):
        if word not in rule["words"]:
            yield Issue("WORD_UNKNOWN", ERROR, name, f"{word!r} is no word it knows: {rule['otherwise']}", f"Use {', '.join(rule['words'])}.")


def selection(name: str, value: str, release: tuple[int, ...] | None, link: str | None) -> Iterator[Issue]:
    """Issues of NCCL_ALGO or NCCL_PROTO. Without a release the newer grammar is assumed and nothing is said about tokens' ages."""
    modern = release is None or release >= PER_FUNCTION
    entries = value.split(";") if modern else [value]
    if not modern and (":" in value or ";" in value):
        yield Issue("ALGO_PREFIX_NEEDS_224", ERROR, name, f"{value!r}: function prefixes need NCCL 2.24; here no token matches, so the setting "
                     "does not select what it names", "Drop the prefix, or use NCCL 2.24 or later.")
        return
    chosen: dict[str, set[str]] = {}
    for index, entry in enumerate(e for e in entries if e):
        function, colon, listed = entry.rpartition(":")
        function = function.lower()
        if colon and function not in rules()["functions"]:
            yield Issue("ALGO_UNKNOWN_TOKEN", ERROR, name, f"{function!r} is no collective: NCCL aborts with ncclInvalidUsage",
                         f"Use one of {', '.join(rules()['functions'])}.")
            continue
        if not colon and index:
            yield Issue("ALGO_PREFIX_MISSING", ERROR, name, f"{entry!r}: only the first entry may lack a function prefix; NCCL aborts",
                         f"Write allreduce:{entry}.")
            continue
        tokens, bad = _tokens(name, listed, release)
        for token, why in bad:
            effect = "NCCL aborts with ncclInvalidUsage" if modern else "it is ignored without a message"
            yield Issue("ALGO_UNKNOWN_TOKEN", ERROR, name, f"{token!r} {why}: {effect}", f"Use one of {', '.join(_known(name, release))}.")
        if bad and modern:
            continue
        for f in [function] if colon else rules()["functions"]:
            chosen[f] = tokens
    if name == "NCCL_ALGO" and modern:
        absent = set(rules()["needs_nvswitch"]["algorithms"]) if link == "pcie" else set()
        starved = [f for f, tokens in chosen.items() if not (tokens - absent) & set(rules()["functions"][f])]
        if starved:
            yield Issue("ALGO_STARVES_COLLECTIVE", ERROR, name, f"{value!r} leaves {', '.join(starved)} without an algorithm"
                        f"{' (NVLS needs an NVSwitch)' if any(chosen[f] & absent for f in starved) else ''}: NCCL aborts at the first one",
                        "Delete it, or name algorithms that this machine has: allreduce:ring." if "allreduce" in starved else "Name the collective: allreduce:" + value.rpartition(":")[2].split(";")[0] + ".")
    if name == "NCCL_PROTO":
        yield from _protocols(name, value, chosen, link)


def _protocols(name: str, value: str, chosen: dict[str, set[str]], link: str | None) -> Iterator[Issue]:
    if any("ll128" in tokens for tokens in chosen.values()) and link in ("pcie", None):
        where = "on PCIe" if link else "on a link that is not known to be NVLink"
        how = "" if "ll128" in value.lower() else f" ({value!r} switches every protocol on that it does not name)"
        yield Issue("LL128_ON_PCIE", ERROR if link else WARN, name, f"LL128 forced {where}{how}: it relies on 128-byte stores staying whole and can corrupt "
                     "data silently", "Leave LL128 out, or name it after ^; for decode sizes LL is the low-latency protocol.")
    if any(tokens == {"ll"} for tokens in chosen.values()):
        yield Issue("PROTO_LL_LARGE", WARN, name, "LL alone also serves large messages (prefill) at half the bandwidth, and NVLS, which needs Simple, is off",
                     "Prefer the narrow form allreduce:LL,Simple (2.24 or later), or a tuner file by size; measure prefill as well.")


def _tokens(name: str, listed: str, release: tuple[int, ...] | None) -> tuple[set[str], list[tuple[str, str]]]:
    text = listed.lower()
    inverted = text.startswith("^")
    known = _known(name, release)
    everything = rules()["algorithms" if name == "NCCL_ALGO" else "protocols"]
    tokens, bad = set(), []
    for token in filter(None, text.removeprefix("^").split(",")):
        if token in known:
            tokens.add(token)
        elif token.strip() in known:
            bad.append((token, "has a space around it, which NCCL takes as part of the word"))
        elif token in everything and release is not None and release < version(everything[token]):
            bad.append((token, f"exists since NCCL {everything[token]}"))
        else:
            bad.append((token, "is unknown"))
    return (set(known) - tokens if inverted else tokens), bad


def _known(name: str, release: tuple[int, ...] | None) -> list[str]:
    table = rules()["algorithms" if name == "NCCL_ALGO" else "protocols"]
    gone = rules()["algorithms_gone"]
    return [t for t, since in table.items()
            if (release is None or release >= version(since)) and not (t in gone and (release is None or release >= version(gone[t])))]

