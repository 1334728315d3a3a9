"""What the client of live servers costs: 64 streams on one core against a server that only writes on schedule; and the verdict on a CSV alone.

`live.client_overhead`: seconds of processor that the client spends on its answers over the seconds they take, which is what it adds to a request as long
as the core keeps up (`live.streams_busy`: streams under way on average); at most 0.02 is the budget. `live.client_delay`: how much later it has the
whole answer than a bare reader of the same stream, over the answer's time; on a busy machine that is the machine's doing as well.
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

from eagle_forensics.acceptance.clients import Sampling
from eagle_forensics.acceptance.connect import connect
from eagle_forensics.acceptance.workload import Prompt, render
from eagle_forensics.demo.stage import DATA
from eagle_forensics.evidence.transport import Transport

STREAMS, PHASES, EVERY_S = 64, 5, 0.03
EVENTS = (48, 80)
"""Of an answer, by its prompt: answers of one length would all begin and end together."""
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
    return _streams() | {"live.csv_verdict_s": _verdict()}


def _streams() -> dict[str, float]:
    cores = os.sched_getaffinity(0)
    prompts = render([Prompt(f"p{i}", "x", ids=tuple(range(i, i + 100))) for i in range(STREAMS)], None).prompts
    with _server() as port:
        os.sched_setaffinity(0, {max(cores)})
        try:
            return asyncio.run(_compare(port, prompts))
        finally:
            os.sched_setaffinity(0, cores)


async def _compare(port: int, prompts: Sequence[Prompt]) -> dict[str, float]:
    async with Transport(f"http://127.0.0.1:{port}", connections=STREAMS + 2) as transport:
        client = await connect(transport)

        async def ours(prompt: Prompt) -> tuple[float, float]:
            answer = await client.answer(prompt.id, prompt.domain, prompt.ids, Sampling(0.0, EVENTS[1]))
            assert answer.ok, answer.error
            return answer.seconds, answer.seconds - float(answer.text)

        differences, used, busy, wall = [], 0.0, 0.0, 0.0
        await asyncio.gather(*map(ours, prompts))  # connections
        for _ in range(PHASES):
            bare = await asyncio.gather(*(_bare(port, p) for p in prompts))
            began, core = time.perf_counter(), time.process_time()
            late = await asyncio.gather(*map(ours, prompts))
            used, wall = used + time.process_time() - core, wall + time.perf_counter() - began
            busy += sum(seconds for seconds, _ in late)
            differences.append(statistics.median((x - y) / seconds for (seconds, x), y in zip(late, bare, strict=True)))
    return {"live.client_overhead": used / busy, "live.client_delay": statistics.median(differences), "live.streams_busy": busy / wall}


def _events(first: int) -> int:
    return EVENTS[0] + first * 7 % (EVENTS[1] - EVENTS[0])


async def _bare(port: int, prompt: Prompt) -> float:
    """Seconds of a stream beyond the server's own, read with nothing but a socket."""
    body = json.dumps({"input_ids": prompt.ids}).encode()
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /generate HTTP/1.1\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
    last = b""
    while b"[DONE]" not in last:
        last = last[-4000:] + await reader.read(65536)
    seconds = time.perf_counter() - began
    writer.close()
    return seconds - float(last.rsplit(b'"text": "', 1)[1].split(b'"')[0])


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
                events = _events(json.loads(asked)["input_ids"][0])
                for i in range(1, events + 1):
                    await asyncio.sleep(max(0.0, began + i * EVERY_S - time.perf_counter()))
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


def _verdict() -> float:
    """Median seconds of a fresh interpreter from a CSV to every finding of notebook 04."""
    times = []
    for _ in range(3):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", VERDICT.format(table=str(Path(DATA) / "cases" / "incident" / "runs.csv"))], check=True, capture_output=True)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


if __name__ == "__main__":
    asyncio.run(_serve())
