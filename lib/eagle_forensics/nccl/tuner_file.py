"""The file of NCCL's example tuner plugin: written, read back as the plugin reads it, and checked for what the plugin does not say.

The plugin takes unknown words for allreduce, ring and simple, the first matching line wins, and every call that no line
matches (or whose line says `channels=-1`) runs on ONE channel, contrary to its README. So: explicit channels, all five
collectives, all sizes. Source: nccl 2.30.7 plugins/tuner/example/plugin.c, compiled and asked the same questions; 2.27.7 on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eagle_forensics.nccl.tuning import Choice

COLLECTIVES = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
PROTOCOLS = ("ll", "ll128", "simple")
LINE = 255
"""Characters that the plugin's buffer of 256 takes; the rest of a longer line is read as a line of its own."""
ALL = 2**64 - 1
HEADER = "# collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff"


@dataclass(frozen=True)
class Entry:
    """One line."""

    collective: str
    low: int
    high: int
    """Bytes, both included."""
    algorithm: str
    protocol: str
    channels: int
    nodes: int = -1
    ranks: int = -1
    pipe_ops: int = -1
    registered: int = -1

    def line(self) -> str:
        return ",".join(map(str, (self.collective, self.low, self.high, self.algorithm, self.protocol, self.channels, self.nodes, self.ranks,
                                  self.pipe_ops, self.registered)))


@dataclass(frozen=True)
class Answer:
    """What the plugin makes NCCL do for one call."""

    algorithm: str | None
    """None: NCCL's own choice."""
    protocol: str | None
    channels: int


def entries(choices: Sequence[Choice], *, ranks: int, nodes: int, channels: int) -> tuple[Entry, ...]:
    """Lines for the measured sizes of an all-reduce, borders halfway between them; ring and Simple on all `channels` for the rest.

    Above twice the largest measured size nothing was measured: NCCL's own way for large messages on PCIe, ring and Simple,
    is written out. Raises ValueError without a choice.
    """
    if not choices:
        raise ValueError("a tuner file needs at least one measured size")
    ordered = sorted(choices, key=lambda c: c.bytes)
    found: list[Entry] = []
    low = 0
    for i, c in enumerate(ordered):
        way = (c.algorithm.lower(), c.protocol.lower(), c.channels or channels)
        high = (c.bytes + ordered[i + 1].bytes) // 2 if i + 1 < len(ordered) else 2 * c.bytes
        if found and way == (found[-1].algorithm, found[-1].protocol, found[-1].channels):
            found[-1] = Entry("allreduce", found[-1].low, high, *way, nodes, ranks)
        else:
            found.append(Entry("allreduce", low, high, *way, nodes, ranks))
        low = high + 1
    rest = [Entry("allreduce", low, ALL, "ring", "simple", channels, nodes, ranks)]
    rest += [Entry(c, 0, ALL, "ring", "simple", channels, nodes, ranks) for c in COLLECTIVES if c != "allreduce"]
    return (*found, *rest)


def text(lines: Sequence[Entry]) -> str:
    """The file. Raises ValueError for lines that the plugin would read otherwise than written."""
    written = "\n".join([HEADER, *(e.line() for e in lines), ""])
    if tuple(read(written)) != tuple(lines):
        raise ValueError("the tuner plugin would read another table than the one to be written")
    return written


def read(content: str) -> list[Entry]:
    """The table as the plugin takes it, its silent defaults included."""
    found = []
    for line in _lines(content):
        fields = [f.strip(" \t") for f in line.split(",") if f][:10]
        if len(fields) < 8:
            continue
        words = [fields[i] if fields[i] in known else default for i, known, default in
                 ((0, COLLECTIVES, "allreduce"), (3, ALGORITHMS, "ring"), (4, PROTOCOLS, "simple"))]
        whole = [_whole(f) for f in (*fields[5:], "-1", "-1")[:5]]
        found.append(Entry(words[0], _size(fields[1]), _size(fields[2]), words[1], words[2], *whole))
    return found


def answer(table: Sequence[Entry], collective: str, size: int, *, ranks: int, nodes: int = 1, pipe_ops: int = 1, registered: int = 0,
           disabled: Sequence[tuple[str, str]] = ()) -> Answer:
    """What a call gets: the first line that matches and whose way NCCL has enabled; else NCCL's own choice on one channel."""
    for e in table:
        if (e.collective == collective and e.low <= size <= e.high and e.nodes in (-1, nodes) and e.ranks in (-1, ranks)
                and e.pipe_ops in (-1, pipe_ops) and e.registered in (-1, registered) and (e.algorithm, e.protocol) not in disabled):
            return Answer(e.algorithm, e.protocol, 1 if e.channels == -1 else e.channels)
    return Answer(None, None, 1)


def problems(content: str, *, ranks: int, nodes: int = 1) -> list[str]:
    """What the plugin would do with this file that it does not say, one sentence each."""
    found = []
    for number, raw in enumerate(content.split("\n"), start=1):
        line = raw.rstrip("\r")
        fields = [f.strip(" \t") for f in line.split(",")]
        if len(line) > LINE:
            found.append(f"line {number}: {len(line)} characters; what follows the first {LINE} is read as a line of its own")
        if not line or line.startswith("#"):
            continue
        if not 8 <= len(fields) <= 10:
            found.append(f"line {number}: {len(fields)} fields, 8 to 10 are read" + (": it is skipped without a message" if len(fields) < 8 else ""))
            continue
        for at, known, default in ((0, COLLECTIVES, "allreduce"), (3, ALGORITHMS, "ring"), (4, PROTOCOLS, "simple")):
            if fields[at] not in known:
                found.append(f"line {number}: {fields[at]!r} is unknown and taken for {default}; write one of {', '.join(known)} in lower case")
        if fields[5] == "-1":
            found.append(f"line {number}: channels -1 is one channel, not NCCL's own number")
        if fields[9:10] not in ([], ["-1"]):
            found.append(f"line {number}: regBuff {fields[9]} matches only {'inside' if fields[9] == '1' else 'outside'} of CUDA graphs with registration; write -1")
    table = read(content)
    for collective in COLLECTIVES:
        gap = _gap([e for e in table if e.collective == collective and e.nodes in (-1, nodes) and e.ranks in (-1, ranks)])
        if gap is not None:
            found.append(f"{collective} from {gap:,} bytes on matches no line: it runs on one channel")
    return found


def _lines(content: str) -> list[str]:
    found = []
    for raw in content.split("\n"):
        pieces = [raw[i: i + LINE] for i in range(0, len(raw), LINE)] or [""]
        found += [p for p in pieces if p and not p.startswith("#")]
    return found


def _whole(word: str) -> int:
    """As C reads a number: digits after an optional sign, the rest ignored, 0 without any."""
    sign, digits = (-1, word[1:]) if word.startswith("-") else (1, word.removeprefix("+"))
    end = next((i for i, c in enumerate(digits) if c not in "0123456789"), len(digits))
    return sign * int(digits[:end] or 0)


def _size(word: str) -> int:
    """As C reads an unsigned number: a minus wraps around, so that -1 is the largest size there is."""
    value = _whole(word)
    return value % (ALL + 1) if value < 0 else min(value, ALL)


def _gap(lines: Sequence[Entry]) -> int | None:
    """The least size that no line covers, None if all are."""
    at = 0
    for e in sorted((e for e in lines if e.pipe_ops == -1 and e.registered == -1), key=lambda e: e.low):
        if e.low > at:
            return at
        at = max(at, e.high + 1)
    return at if at <= 2**32 - 1 else None


def environment(path: str, *, ll128: bool = False) -> Mapping[str, str]:
    """The variables that put the file to work; the plugin is built from plugins/tuner/example of NCCL's source."""
    return {"NCCL_TUNER_PLUGIN": "example", "NCCL_TUNER_CONFIG_FILE": path, **({"NCCL_PROTO": "LL,LL128,Simple"} if ll128 else {})}
