"""What the client of live servers costs, against a local server that only writes on schedule; and the verdict on a CSV alone.

`live.client_overhead`, one stream of 64 events at 10 ms: how much longer an answer takes than the server's own send span, less the same of a bare
socket reader asked in turn, over the answer's time; centre of the pairs and its 95 % interval; 0.02 is the budget.
`live.streams_busy`, 64 streams at 30 ms (what a batch of 64 gives) on one core: streams under way on average over that time;
`live.core_share`: what the client uses of the core; `live.streams_delay`: the overhead there, which on a busy machine is the machine's doing as well;
`live.events_a_second`: events that a whole core would take.
`live.csv_verdict_s`: a fresh interpreter to every finding of notebook 04 from a table; `live.csv_verdict_ratio`: over one that only imports pandas and pydantic.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from eagle_forensics import stats
from eagle_forensics.acceptance.clients.connect import connect
from eagle_forensics.acceptance.clients.records import Sampling
from eagle_forensics.acceptance.live.workload import Prompt, render
from eagle_forensics.demo.stage import DATA
from eagle_forensics.evidence.transport import Transport

STREAMS, PHASES, PAIRS = 64, 5, 30
ONE_MS, MANY_MS = 10, 30
EVENTS = (48, 80)
"""Of an answer, by its prompt: answers of one length would all begin and end together."""
SINGLE = EVENTS[0] + 16
Bare = tuple[asyncio.StreamReader, asyncio.StreamWriter]
FLOOR = "import pandas, pydantic"
VERDICT = """
from pathlib import Path
from eagle_forensics.acceptance import study
from eagle_forensics.case import Case
work = study.begin(Case(name="bench", measurements=Path({table!r})), predicted=None, layers=None, arguments={{"num_steps": 1}})
found = [*study.predicted_against_measured(work), *study.ceiling(work), *study.steps(work), *study.checks(work)]
study.record(work)
assert any(f.fault == "cost.cannot-win" for f in found)
"""


def figures() -> dict[str, float]:
    return _streams() | _verdict()


def _streams() -> dict[str, float]:
    cores = os.sched_getaffinity(0)
    with _server() as port:
        os.sched_setaffinity(0, {max(cores)})
        try:
            return asyncio.run(_compare(port))
        finally:
            os.sched_setaffinity(0, cores)


def _prompts(every_ms: int, events: Sequence[int]) -> Sequence[Prompt]:
    """Prompts whose first ids tell the server what to do: events, milliseconds between them; a hundred ids in all."""
    return render([Prompt(f"p{i}", "x", ids=(n, every_ms, *range(i, i + 98))) for i, n in enumerate(events)], None).prompts


async def _compare(port: int) -> dict[str, float]:
    async with Transport(f"http://127.0.0.1:{port}", connections=STREAMS + 2) as transport:
        client = await connect(transport)

        async def ours(prompt: Prompt) -> tuple[float, float]:
            """Seconds, and seconds beyond the server's own."""
            began = time.perf_counter()
            answer = await client.answer(prompt.id, prompt.domain, prompt.ids, Sampling(0.0, EVENTS[1]))
            seconds = time.perf_counter() - began
            assert answer.ok, answer.error
            return seconds, seconds - float(answer.text)

        (one,), many = _prompts(ONE_MS, [SINGLE]), _prompts(MANY_MS, [EVENTS[0] + i * 7 % (EVENTS[1] - EVENTS[0]) for i in range(STREAMS)])
        sockets = await asyncio.gather(*(asyncio.open_connection("127.0.0.1", port) for _ in many))
        await asyncio.gather(*map(ours, many), _bare(sockets[0], one))
        alone = []
        for i in range(PAIRS):
            asked = [lambda: ours(one), lambda: _bare(sockets[0], one)]
            said = [await ask() for ask in asked[::-1 if i % 2 else 1]]
            (seconds, late), bare = said[::-1] if i % 2 else said
            alone.append((late - bare) / seconds)
        overhead = stats.pseudomedian(alone)
        differences, used, busy, wall, events = [], 0.0, 0.0, 0.0, 0
        for _ in range(PHASES):
            bare = await asyncio.gather(*map(_bare, sockets, many))
            began, core = time.perf_counter(), time.process_time()
            late = await asyncio.gather(*map(ours, many))
            used, wall = used + time.process_time() - core, wall + time.perf_counter() - began
            busy, events = busy + sum(seconds for seconds, _ in late), events + sum(p.ids[0] for p in many)
            differences.append(statistics.median((x - y) / seconds for (seconds, x), y in zip(late, bare, strict=True)))
        for _, writer in sockets:
            writer.close()
    return {"live.client_overhead": overhead.value, "live.client_overhead_low": overhead.low, "live.client_overhead_high": overhead.high,
            "live.streams_busy": busy / wall, "live.core_share": used / wall, "live.streams_delay": statistics.median(differences), "live.events_a_second": events / used}


async def _bare(socket: Bare, prompt: Prompt) -> float:
    """Seconds of a stream beyond the server's own, read with nothing but a socket."""
    reader, writer = socket
    body = json.dumps({"input_ids": prompt.ids}).encode()
    began = time.perf_counter()
    writer.write(b"POST /generate HTTP/1.1\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
    last = b""
    while b"[DONE]" not in last or not last.endswith(b"0\r\n\r\n"):
        last = last[-4000:] + await reader.read(65536)
    return time.perf_counter() - began - float(last.rsplit(b'"text": "', 1)[1].split(b'"')[0])


@contextmanager
def _server() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-m", "tests.benchmarks.bench_live", "serve"], stdout=subprocess.PIPE)
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


async def _serve() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                began = time.perf_counter()
                length = next((int(x.split(b":")[1]) for x in head.split(b"\r\n") if x.lower().startswith(b"content-length")), 0)
                asked = await reader.readexactly(length)
                if b"/generate" not in head.split(b"\r\n")[0]:
                    body = json.dumps({"internal_states": [{}], "version": "0.5.23", "speculative_algorithm": "EAGLE3"}).encode()
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
                    continue
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
                events, every_ms = json.loads(asked)["input_ids"][:2]
                for i in range(1, events + 1):
                    await asyncio.sleep(max(0.0, began + i * every_ms / 1000 - time.perf_counter()))
                    last = i == events
                    meta = {"prompt_tokens": 100, "completion_tokens": i, "finish_reason": {"type": "length"} if last else None, "spec_verify_ct": i - 1 or 1,
                            "spec_num_correct_drafts": 0}
                    event = {"text": "word " * i if not last else f"{time.perf_counter() - began:.6f}", "output_ids": list(range(i)), "meta_info": meta}
                    _chunk(writer, b"data: " + json.dumps(event).encode() + b"\n\n")
                _chunk(writer, b"data: [DONE]\n\n")
                writer.write(b"0\r\n\r\n")

    server = await asyncio.start_server(handle, "127.0.0.1", 0, backlog=256)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))


def _verdict() -> dict[str, float]:
    """Median of fresh interpreters, the two kinds in turn."""
    table = str(Path(DATA) / "cases" / "incident" / "runs.csv")
    took: dict[str, list[float]] = {FLOOR: [], VERDICT: []}
    for code in (FLOOR, VERDICT) * 5:
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code.format(table=table)], check=True, capture_output=True)
        took[code].append(time.perf_counter() - began)
    seconds = statistics.median(took[VERDICT])
    return {"live.csv_verdict_s": seconds, "live.csv_verdict_ratio": seconds / statistics.median(took[FLOOR])}


if __name__ == "__main__":
    asyncio.run(_serve())
