"""The fingerprint: bytes of dump and bank it settles a second against a plain read of the same files, SGLang's comparator on the same pairs,
memory and time on dumps of 1 and 20 GiB. All times are CPU seconds on one thread (files in the page cache), so that a busy machine changes them little.

    read_efficiency   seconds of a plain read of dump and bank (1 MiB at a time, page cache warm) over seconds of matching 4 slots against 34 states of a
                      target of 8B class, 4 samples of 2,048 tokens; the match reads blocks of rows of every sample, the plain read everything
    read_efficiency_first       the same for the first match of a process
    read_efficiency_small       the same for 32 states 576 wide, where fewer rows can be left out
    read_efficiency_every_row   the same as the first if no row is left out: what the arithmetic alone costs
    vs_sglang_comparator   seconds of `python -m sglang.srt.debug_utils.comparator` (0.5.23) on 4 x 32 pairs of one sample over ours on the same tensors,
                           both without start and imports (of theirs: what `--help` takes); left out, with a word, without `make sglang-env`
    vs_sglang_comparator_every_row   the same where we compare every row too
    vs_sglang_comparator_process   the first with start and imports of both
    peak_mib   largest resident memory of the process that identifies the slots of the 20 GiB dump, interpreter and torch included
    cost_20gib_over_1gib   seconds to the verdict on 20 GiB (640 samples) over those on 1 GiB (32 samples), without imports: median, `_least` and `_most` of 5 pairs of
                      runs; `draws_*` are the samples each looked at
"""

from __future__ import annotations

import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from eagle_forensics.evidence.states import read_states
from eagle_forensics.fingerprint.rows import ROWS, picked

ROOT = Path(__file__).resolve().parents[2]
SGLANG = ROOT / ".venv-sglang" / "bin" / "python"
SLOTS = 4
GIB = 1 << 30
REPEATS = 5


def figures() -> dict[str, float]:
    found: dict[str, float] = {}
    with _folder() as folder:
        found |= _efficiency(folder, "", hidden=4096, states=34, samples=4)
        found |= _efficiency(folder, "_every_row", rows=2048)
    with _folder() as folder:
        found |= _efficiency(folder, "_small", hidden=576, states=32, samples=8)
    if SGLANG.exists():
        with _folder() as folder:
            found |= _vs_sglang(folder)
    else:
        print("bench_fingerprint: no comparison with SGLang's comparator, since `make sglang-env` was not run")
    with _folder() as folder:
        found |= _scale(folder)
    return found


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder on a real disk: where /tmp is memory, 1 GiB of it would count as ours."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as name:
        yield Path(name)


def world(folder: Path, *, hidden: int, states: int, samples: int, length: int = 2048) -> tuple[Path, Path]:
    """A dump (speculators v1) of `SLOTS` boundaries and the bank of all, of a stream to which every layer adds a third of its size, the
    dump with the noise of another engine."""
    slots = [min(states - 1, b) for b in (2, states // 2, states - 3, states - 1)]
    generator = torch.Generator().manual_seed(0)
    texts = [tuple(torch.randint(0, 30_000, (length,), generator=generator).tolist()) for _ in range(samples)]

    def text(index: int) -> list[torch.Tensor]:
        walk, planes = torch.Generator().manual_seed(index), []
        h = torch.randn(length, hidden, generator=walk)
        for _ in range(states):
            planes.append(h.bfloat16())
            h = h.roll(1, -1).mul_(0.33).add_(h)
        return planes

    for name in ("dump", "bank"):
        (folder / name).mkdir()
    about = {"boundaries": [f"b{b}" for b in range(states)], "sequences": len(texts), "origin": "made"}
    (folder / "bank" / "bank.json").write_text(json.dumps(about))
    for index, ids in enumerate(texts):
        planes = text(index)
        save_file({"input_ids": torch.tensor(ids)} | {f"b{b}": p for b, p in enumerate(planes)}, folder / "bank" / f"states_{index}.safetensors")
        served = [planes[b] * (1 + 0.003 * torch.randn(length, hidden, generator=generator)) for b in slots]
        torch.save({"input_ids": torch.tensor(ids), "hidden_states": [x.bfloat16() for x in served]}, folder / "dump" / f"data_{index}.pt")
    return folder / "dump", folder / "bank"


def _efficiency(folder: Path, name: str, *, rows: int | None = None, **shape: int) -> dict[str, float]:
    dump, bank = world(folder, **shape) if shape else (folder / "dump", folder / "bank")
    files = [*dump.iterdir(), *bank.glob("*.safetensors")]
    _plain(files)
    plain = min(_plain(files) for _ in range(3))
    done = _child("match", dump, bank, rows or 0)
    return {f"fingerprint.read_efficiency{name}": plain / done["seconds"], f"fingerprint.read_efficiency{name}_first": plain / done["first"]}


def _plain(files: list[Path]) -> float:
    buffer, began = bytearray(1 << 20), time.process_time()
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return time.process_time() - began


def _vs_sglang(folder: Path) -> dict[str, float]:
    dump, bank = world(folder, hidden=576, states=32, samples=1)
    planes = torch.load(dump / "data_0.pt", weights_only=True)["hidden_states"]
    states = read_states(bank)
    for side in ("baseline", "target"):
        (folder / side).mkdir()
    for slot, plane in enumerate(planes):
        for boundary in states.boundaries:
            name = f"name=slot{slot}_b{boundary.index}___step=0___rank=0___dump_index={slot * len(states.boundaries) + boundary.index}.pt"
            for side, value in (("baseline", states.plane(0, boundary)), ("target", plane)):
                torch.save({"value": value.clone(), "meta": {}}, folder / side / name)
    done, theirs = _timed([SGLANG, "-m", "sglang.srt.debug_utils.comparator", "--baseline-path", folder / "baseline", "--target-path", folder / "target",
                           "--output-format", "json", "--report-path", folder / "report.jsonl"], {"CUDA_VISIBLE_DEVICES": ""})
    report = folder / "report.jsonl"
    compared = sum('"type":"comparison_tensor"' in line.replace(" ", "") for line in report.read_text().splitlines()) if report.exists() else 0
    if compared != SLOTS * 32:
        raise RuntimeError(f"the comparator compared {compared} of {SLOTS * 32} pairs: {done.stdout[-1500:]} {done.stderr[-1500:]}")
    start = _timed([SGLANG, "-m", "sglang.srt.debug_utils.comparator", "--help"], {"CUDA_VISIBLE_DEVICES": ""})[1]
    few, every = (min((_child("match", dump, bank, rows) for _ in range(2)), key=lambda r: r["seconds"]) for rows in (0, 2048))
    return {"fingerprint.vs_sglang_comparator": (theirs - start) / few["seconds"], "fingerprint.vs_sglang_comparator_every_row": (theirs - start) / every["seconds"],
            "fingerprint.vs_sglang_comparator_process": theirs / (few["whole"] - 3 * few["seconds"] + few["first"])}


def _scale(folder: Path) -> dict[str, float]:
    """Two dumps of one target, every file recorded anew (its own noise) and 32 MiB long; rows that are never looked at are holes, so that 20 GiB fit on a small disk."""
    dump, bank = world(folder, hidden=1024, states=34, samples=1, length=4096)
    recorded = torch.load(dump / "data_0.pt", weights_only=True)
    runs: dict[str, list[dict]] = {"small": [], "large": []}
    for seed, (name, size) in enumerate(zip(runs, (GIB, 20 * GIB), strict=True)):
        (folder / name).mkdir()
        for number in range(-(-size // (dump / "data_0.pt").stat().st_size)):
            _record(folder / name / f"data_{number}.pt", recorded, seed=10_000 * seed + number)
    for _ in range(REPEATS):  # in turns, so that both meet the same machine
        for name, done in runs.items():
            done.append(_child("verdict", folder / name, bank, 0))
    if {r["settled"] for done in runs.values() for r in done} != {True}:
        raise RuntimeError("a verdict is missing")
    ratios = sorted(large["seconds"] / small["seconds"] for small, large in zip(*runs.values(), strict=True))
    return {"fingerprint.peak_mib": max(r["peak_mib"] for r in runs["large"]), "fingerprint.cost_20gib_over_1gib": ratios[len(ratios) // 2],
            "fingerprint.cost_20gib_over_1gib_least": ratios[0], "fingerprint.cost_20gib_over_1gib_most": ratios[-1],
            "fingerprint.draws_1gib": runs["small"][0]["looked"], "fingerprint.draws_20gib": runs["large"][0]["looked"]}


def _record(path: Path, recorded: dict, seed: int) -> None:
    """One sample with noise of its own in the rows that are compared, zeros elsewhere, written without its zeros."""
    generator, planes = torch.Generator().manual_seed(seed), []
    for plane in recorded["hidden_states"]:
        at = picked(len(plane), ROWS)
        planes.append(torch.zeros_like(plane))
        planes[-1][at] = (plane[at] * (1 + 0.003 * torch.randn(len(at), plane.shape[1], generator=generator))).to(plane.dtype)
    stored = io.BytesIO()
    torch.save({**recorded, "hidden_states": planes}, stored)
    data = stored.getbuffer()
    with path.open("wb") as file:
        file.truncate(len(data))
        for start in range(0, len(data), 1 << 16):
            if np.frombuffer(data[start:start + (1 << 16)], np.uint8).any():
                file.seek(start)
                file.write(data[start:start + (1 << 16)])


def _child(*command: object) -> dict:
    """A measured process of its own: `whole` holds its imports, `seconds` does not."""
    with tempfile.TemporaryDirectory() as cache:
        done, seconds = _timed([sys.executable, "-m", "tests.benchmarks.fingerprint_work", *map(str, command)], {"EAGLE_FORENSICS_CACHE": cache})
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return json.loads(done.stdout) | {"whole": seconds}


def _timed(command: list, env: dict[str, str]) -> tuple[subprocess.CompletedProcess, float]:
    """The process and the CPU seconds it took, with all it started."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env={**os.environ, **env, "OMP_NUM_THREADS": "1"})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    print(json.dumps(figures(), indent=1))
