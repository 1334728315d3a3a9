"""NCCL_DEBUG logs of any release: what NCCL found, believes, chose and complained about.

Streamed in blocks; a 1 GB log costs a few MB of memory. A line counts only if it has the whole form that some release prints:
one that begins like it but is cut, glued to another or of a newer form is counted in `notes` and not used.
Forms: NCCL 2.8.3 to 2.30.7, enqueue.cc, init.cc, graph/search.cc, graph/tuning.cc, graph/paths.cc, misc/param.cc, transport/.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from eagle_forensics.evidence.blocks import blocks
from eagle_forensics.evidence.environment import redacted
from eagle_forensics.evidence.nccl.records import ALGORITHMS, PROTOCOLS, Belief, NcclLog, Pattern, Pick
from eagle_forensics.evidence.records import EvidenceError

LAST_KNOWN = (2, 30, 7)
"""Last release whose lines were read in source."""
KEPT = 20
"""Complaints of NCCL that are quoted; the rest is counted."""
SHOWN = 200
"""Characters of a quoted line."""

_MESSAGE = re.compile(
    rb"NCCL (?:INFO |WARN |TRACE )?((?:Pattern |Could not find a path|Search \d|Channel \d+(?:/\d+)? : \d+\[|(?:\w+: )?\d+ Bytes -|NCCL_|comm 0|"
    rb"ncclCommInit|version \d|\d+ coll chan|TUNER/|(?<=WARN )|Invalid | +\w[\w ]*\||Latency/)[^\n]*)")
_TABLE = re.compile(rb"^([^\n]*?)NCCL INFO ([^\n|]{10,16}\|[^\n]*)$", re.MULTILINE)
_N = r"(\d{1,18})"
"""A count of a log; what is longer is no count."""
_REAL = r"(\d{1,18}(?:\.\d+)?)"
_FORMS: tuple[tuple[str, re.Pattern[str]], ...] = tuple((kind, re.compile(form, re.ASCII)) for kind, form in (
    ("pick", rf"(?:(\w+): )?{_N} Bytes -> Algo (\d) proto (\d) time {_REAL}"),
    ("pick", rf"(\w+): {_N} Bytes -> Algo ([A-Z_]+) proto ([A-Z0-9]+) channel\{{Lo\.\.Hi\}}=\{{(\d{{1,3}})\.\.(\d{{1,3}})\}}"),
    ("via", r"Channel \d+(?:/\d+)? : \d+\[\w+\] -> \d+\[\w+\] (?:\[(?:send|receive)\] )?via (\S.*)"),
    ("pattern", rf"Pattern {_N}, crossNic \d+, nChannels {_N}, (?:bw|speed) {_REAL}/{_REAL}, type (\w+)/(\w+), sameChannels \d+"),
    ("lost", rf"Could not find a path for pattern {_N}, falling back to simple order"),
    ("xml", rf"Search \d+ : {_N} channels loaded from XML graph"),
    ("environment", r"(NCCL_[A-Z0-9_]+) set by environment to (.*?)\.?"),
    ("rank", rf"(?:comm|ncclCommInit\w+ comm) 0x[0-9a-f]+ rank {_N} n[rR]anks {_N}\b(?: nNodes {_N})?.*"),
    ("channels", rf"{_N} coll channels, .*p2p channels per peer"),
    ("version", r"version (\d+\.\d+\.\d+)\b.*"),
    ("tuner", r"TUNER/\S+: Applied config for .*"),
))
_BEGINS = {"pick": re.compile(r"(?:\w+: )?\d+ Bytes -"), "via": re.compile("Channel "),
           "pattern": re.compile("Pattern "), "lost": re.compile("Could not"), "xml": re.compile("Search "),
           "environment": re.compile(r"NCCL_[A-Z0-9_]+ set by env")}
"""How a line begins that should have one of the forms."""
_WORDS = {"pick": "choices of algorithm and protocol", "via": "transports", "pattern": "graphs", "lost": "lost graphs", "xml": "loaded graphs",
          "environment": "environment"}
_COMPLAINT = re.compile(r"Error : no algorithm|No algorithm/protocol|Invalid (?:value|NCCL_)|NCCL_\w+ .*(?:ignored|invalid|unsupported)", re.IGNORECASE)
_TIMES = re.compile(r"(\d+\.\d)/ *(\d+\.\d)$", re.ASCII)
_HOP = re.compile(r"/\d+(?:\(\d+\))?(?:\[\w+\])?")


@dataclass
class _Found:
    """What has been read so far."""

    environment: dict[str, dict[str, None]] = field(default_factory=dict)
    patterns: dict[Pattern, None] = field(default_factory=dict)
    lost: dict[int, None] = field(default_factory=dict)
    transports: Counter[str] = field(default_factory=Counter)
    picks: Counter[Pick] = field(default_factory=Counter)
    groups: dict[int, set[int]] = field(default_factory=dict)
    """Ranks of a communicator to the ranks that wrote."""
    nodes: int | None = None
    channels: int | None = None
    versions: dict[str, None] = field(default_factory=dict)
    beliefs: dict[tuple[str, str, str], Belief] = field(default_factory=dict)
    graph_file: bool = False
    tuner: int = 0
    complaints: dict[str, None] = field(default_factory=dict)
    unread: Counter[str] = field(default_factory=Counter)
    samples: dict[str, str] = field(default_factory=dict)
    glued: int = 0


def read_nccl_log(path: str | Path) -> NcclLog:
    """What a log says, over all the ranks in it. EvidenceError for a file that cannot be read or has no line of NCCL."""
    path = Path(path)
    found = _Found()
    lines, odd = 0, None
    tables: dict[bytes, list[tuple[str, str]]] = {}
    try:
        for offset, block in blocks(path):
            messages = Counter(_MESSAGE.findall(block))
            lines += block.count(b"] NCCL INFO ") or sum(messages.values())
            for message, times in messages.items():
                _take(found, message, times)
            if any(message.endswith(b"|") for message in messages):
                _tables(found, block, tables)
            if odd is None and not block.isascii():
                odd = _not_utf8(block, offset)
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read ({error.strerror or error}); name an existing file in the case, as `nccl.debug_log`") from None
    if not lines and not found.versions:
        raise EvidenceError(f"{path}: no line of NCCL in it; expected the output of a process started with NCCL_DEBUG=INFO")
    ranks = max(found.groups, default=None)
    version = next(iter(found.versions), None)
    return NcclLog(
        path=path, version=version, environment={name: next(reversed(values)) for name, values in found.environment.items()}, patterns=tuple(found.patterns),
        lost_patterns=tuple(found.lost), transports=dict(found.transports), picks=tuple(_counted(found.picks)), ranks=ranks, lines=lines or len(found.versions),
        nodes=found.nodes, channels=found.channels, beliefs=tuple(found.beliefs.values()), graph_file=found.graph_file, plugin_picks=found.tuner,
        refused=tuple(found.complaints)[:KEPT], seen_ranks=tuple(sorted(found.groups[ranks])) if ranks else (), notes=tuple(_notes(found, version, odd)))


def _take(found: _Found, message: bytes, times: int) -> None:
    text = message.decode("utf-8", "replace").rstrip()
    if "NCCL INFO " in text or "NCCL WARN " in text:  # two writers in one line: only the last message is whole
        found.glued += times
        text = re.split(r"NCCL (?:INFO|WARN) +", text)[-1]
    for kind, form in _FORMS:
        if match := form.fullmatch(text):
            if _keep(found, kind, match, times):
                return
            break
    if _COMPLAINT.match(text):
        found.complaints[text[:SHOWN]] = None
        return
    for kind, begin in _BEGINS.items():
        if begin.match(text):
            found.unread[kind] += times
            found.samples.setdefault(kind, text[:SHOWN])
            return


def _keep(found: _Found, kind: str, match: re.Match[str], times: int) -> bool:
    """Store what a whole line says; False where its words are not known."""
    if kind == "pick":
        pick = _pick(match)
        if pick is None:
            return False
        found.picks[pick] += times
    elif kind == "via":
        found.transports[_HOP.sub("", match[1])] += times
    elif kind == "pattern":
        found.patterns[Pattern(int(match[1]), int(match[2]), float(match[3]), float(match[4]), match[5], match[6])] = None
    elif kind == "lost":
        found.lost[int(match[1])] = None
    elif kind == "xml":
        found.graph_file = True
    elif kind == "environment":
        found.environment.setdefault(match[1], {})[redacted(match[1], match[2])] = None
    elif kind == "rank":
        found.groups.setdefault(int(match[2]), set()).add(int(match[1]))
        found.nodes = max(found.nodes or 0, int(match[3])) if match[3] else found.nodes
    elif kind == "channels":
        found.channels = int(match[1])
    elif kind == "version":
        found.versions[match[1]] = None
    else:
        found.tuner += times
    return True


def _pick(match: re.Match[str]) -> Pick | None:
    """Only rank 0 of a communicator logs its choice."""
    if match.re.groups == 5:  # up to 2.23: numbers, with NCCL's estimate
        algorithm, protocol = int(match[3]), int(match[4])
        if algorithm >= len(ALGORITHMS) or protocol >= len(PROTOCOLS):
            return None
        return Pick(0, match[1], int(match[2]), ALGORITHMS[algorithm], PROTOCOLS[protocol], time_us=float(match[5]))
    low, high = int(match[5]), int(match[6])
    if match[3] not in ALGORITHMS or match[4] not in PROTOCOLS or high < low:
        return None
    return Pick(0, match[1], int(match[2]), match[3], match[4], channels=high - low + 1)


def _counted(picks: Counter[Pick]) -> Iterator[Pick]:
    for pick, times in picks.items():
        yield Pick(pick.rank, pick.collective, pick.bytes, pick.algorithm, pick.protocol, pick.channels, pick.time_us, times)


def _tables(found: _Found, block: bytes, columns: dict[bytes, list[tuple[str, str]]]) -> None:
    """Rows of the TUNING tables: a header of algorithms (or `Latency/AlgBw`, up to 2.17), then a row a collective.

    `columns` holds, by the process that writes, which algorithm and protocol the cells of the next rows belong to.
    """
    for origin, row in _TABLE.findall(block):
        head, *cells = (cell.strip() for cell in row.decode("ascii", "replace").rstrip(" |").split("|"))
        if head == "Algorithm":
            columns[origin] = [(name, protocol) for name in map(_word, cells) for protocol in PROTOCOLS]
        elif head == "Latency/AlgBw":
            columns[origin] = [(_word(a), p.strip().upper()) for a, _, p in (cell.partition("/") for cell in cells)]
        elif head in ("AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce"):
            times = [_TIMES.match(cell) for cell in cells]
            where = columns.get(origin, [])
            if len(times) != len(where) or not all(times):
                found.unread["table"] += 1
                continue
            for (algorithm, protocol), time in zip(where, times, strict=True):
                if time and algorithm in ALGORITHMS and float(time[1]) > 0:
                    found.beliefs[head, algorithm, protocol] = Belief(head, algorithm, protocol, float(time[1]), float(time[2]))


def _word(text: str) -> str:
    """`CollNetDirect` as COLLNET_DIRECT, `NVLSTree` as NVLS_TREE."""
    return {"COLLNETDIRECT": "COLLNET_DIRECT", "COLLNETCHAIN": "COLLNET_CHAIN", "NVLSTREE": "NVLS_TREE"}.get(text.strip().upper(), text.strip().upper())


def _not_utf8(block: bytes, offset: int) -> int | None:
    """The first byte that is no UTF-8 text."""
    try:
        block.decode("utf-8")
    except UnicodeDecodeError as error:
        return offset + error.start
    return None


def _notes(found: _Found, version: str | None, odd: int | None) -> Iterator[str]:
    if version and tuple(map(int, version.split("."))) > LAST_KNOWN:
        yield f"NCCL {version} is newer than {'.'.join(map(str, LAST_KNOWN))}, the last release whose log lines are known: what it prints differently is not read."
    if len(found.versions) > 1:
        yield f"Several releases in one log ({', '.join(found.versions)}): the ranks load different libraries, or logs were joined."
    if len(found.groups) > 1:
        yield f"Several communicators in one log, of {', '.join(map(str, sorted(found.groups)))} ranks: their choices are not told apart."
    if found.glued:
        yield (f"{found.glued} lines hold two messages: ranks wrote into one file at the same time. The first of each is not used. "
               "NCCL_DEBUG_FILE=nccl.%h.%p.log gives each process its own file.")
    for kind, count in found.unread.items():
        sample = f" The first: {found.samples[kind]!r}." if kind in found.samples else ""
        yield f"{count} lines about {_WORDS.get(kind, 'latency tables')} are cut or of a form no known release prints; they are not used.{sample}"
    for name, values in found.environment.items():
        if len(values) > 1:
            yield f"{name} has several values in one log ({', '.join(values)}): the ranks do not share an environment, or logs were joined."
    if odd is not None:
        yield f"Not UTF-8 from byte {odd} on: such bytes are shown as replacement characters."
