"""What the client of live servers costs: 64 streams on one core against a server that only writes on schedule; and the verdict on a CSV alone.

The server is a process of its own and says in the last event how long it took from the request to there, so the overhead is what the client adds: sending,
reading 64 events, parsing. `live.client_overhead`: median of that over the server's time; at most 0.02 is the budget.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from eagle_forensics.acceptance import live
from eagle_forensics.acceptance.clients import Sampling, connect
from eagle_forensics.acceptance.workload import Prompt, render
from eagle_forensics.demo.stage import DATA
from eagle_forensics.evidence.transport import Transport

STREAMS, REQUESTS, EVENTS, EVERY_S = 64, 256, 64, 0.03
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
    with _server() as port:
        os.sched_setaffinity(0, {min(cores)})
        try:
            began = time.process_time()
            answers, wall = asyncio.run(_ask(port))
            used = time.process_time() - began
        finally:
            os.sched_setaffinity(0, cores)
    served = [float(a.text) for a in answers]
    return {"live.client_overhead": statistics.median((a.seconds - s) / s for a, s in zip(answers, served, strict=True)),
            "live.streams_busy": sum(a.seconds for a in answers) / wall, "live.core_used": used / wall}


async def _ask(port: int) -> tuple[tuple[live.Answer, ...], float]:
    prompts = [Prompt(f"p{i}", "x", ids=tuple(range(i, i + 100))) for i in range(REQUESTS)]
    settings = live.Settings(Sampling(0.0, EVENTS), concurrency=STREAMS, warm_up=0, half_width=None)
    async with Transport(f"http://127.0.0.1:{port}", connections=STREAMS + 2) as transport:
        client = await connect(transport)
        gate = asyncio.Semaphore(STREAMS)

        async def one(prompt: Prompt) -> live.Answer:
            async with gate:
                return await client.answer(prompt.id, prompt.domain, prompt.ids, settings.sampling)

        began = time.perf_counter()
        answers = await asyncio.gather(*map(one, render(prompts, None).prompts))
        wall = time.perf_counter() - began
    assert all(a.ok for a in answers), next(a.error for a in answers if not a.ok)
    return tuple(answers), wall


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
                await reader.readexactly(length)
                if b"/generate" not in head.split(b"\r\n")[0]:
                    body = json.dumps({"internal_states": [{}], "version": "0.5.23", "speculative_algorithm": "EAGLE3"}).encode()
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
                    continue
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
                for i in range(1, EVENTS + 1):
                    await asyncio.sleep(max(0.0, began + i * EVERY_S - time.perf_counter()))
                    last = i == EVENTS
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
