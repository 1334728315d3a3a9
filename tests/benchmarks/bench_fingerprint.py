"""The fingerprint: bytes of dump and bank it settles a second against a plain read of the same files, SGLang's comparator on the same pairs,
memory and time on dumps of 1 and 20 GiB. All times are CPU seconds on one thread (files in the page cache), so that a busy machine changes them little.

    read_efficiency   seconds of a plain read of dump and bank (1 MiB at a time, page cache warm) over seconds of matching 4 slots against 34 states of a
                      target of 8B class, 4 samples of 2,048 tokens; the match reads blocks of rows of every sample, the plain read everything
    read_efficiency_small       the same for 32 states 576 wide, where fewer rows can be left out
    read_efficiency_every_row   the same as the first if no row is left out: what the arithmetic alone costs
    vs_sglang_comparator   seconds of `python -m sglang.srt.debug_utils.comparator` (0.5.23) on 4 x 32 pairs of one sample over ours on the same tensors,
                           both without start and imports (of theirs: what `--help` takes); left out without `make sglang-env` and polars in it
    vs_sglang_comparator_every_row   the same where we compare every row too
    vs_sglang_comparator_process   the first with start and imports of both
    peak_mib   largest resident memory of the process that identifies the slots of the 20 GiB dump, interpreter and torch included
    cost_20gib_over_1gib   seconds to the verdict on 20 GiB (600 samples) over those on 1 GiB, without imports
"""

from __future__ import annotations

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

import torch
from safetensors.torch import save_file

from eagle_forensics.evidence.states import read_states

ROOT = Path(__file__).resolve().parents[2]
SGLANG = ROOT / ".venv-sglang" / "bin" / "python"
SLOTS = 4
GIB = 1 << 30


def figures() -> dict[str, float]:
    found: dict[str, float] = {}
    with _folder() as folder:
        found["fingerprint.read_efficiency"] = _efficiency(folder, hidden=4096, states=34, samples=4)
        found["fingerprint.read_efficiency_every_row"] = _efficiency(folder, rows=2048)
    with _folder() as folder:
        found["fingerprint.read_efficiency_small"] = _efficiency(folder, hidden=576, states=32, samples=8)
    if SGLANG.exists() and not subprocess.run([SGLANG, "-c", "import polars"], capture_output=True, check=False).returncode:  # the comparator needs it, the wheel does not ask for it
        with _folder() as folder:
            found |= _vs_sglang(folder)
    with _folder() as folder:
        found |= _scale(folder)
    return found


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder on a real disk: where /tmp is memory, 1 GiB of it would count as ours."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as name:
        yield Path(name)


def world(folder: Path, *, hidden: int, states: int, samples: int, length: int = 2048, same: bool = False) -> tuple[Path, Path]:
    """A dump (speculators v1) of `SLOTS` boundaries and the bank of all, of a stream to which every layer adds a third of its size; `same`: one text in all samples."""
    slots = [min(states - 1, b) for b in (2, states // 2, states - 3, states - 1)]
    generator = torch.Generator().manual_seed(0)
    texts = [tuple(torch.randint(0, 30_000, (length,), generator=generator).tolist()) for _ in range(1 if same else samples)]

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
        for number in range(samples) if same else [index]:
            torch.save({"input_ids": torch.tensor(ids), "hidden_states": [planes[b] for b in slots]}, folder / "dump" / f"data_{number}.pt")
    return folder / "dump", folder / "bank"


def _efficiency(folder: Path, *, rows: int | None = None, **shape: int) -> float:
    dump, bank = world(folder, **shape) if shape else (folder / "dump", folder / "bank")
    files = [*dump.iterdir(), *bank.glob("*.safetensors")]
    _plain(files)
    plain = min(_plain(files) for _ in range(3))
    return plain / _child("match", dump, bank, rows or 0)["seconds"]


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
    """The 20 GiB dump: hard links to the samples of the 1 GiB dump, each 32 MiB."""
    dump, bank = world(folder, hidden=1024, states=34, samples=32, length=4096, same=True)
    size = sum(p.stat().st_size for p in dump.iterdir())
    (folder / "large").mkdir()
    for number in range(-(-20 * GIB // (size // 32))):
        os.link(dump / f"data_{number % 32}.pt", folder / "large" / f"data_{number}.pt")
    _plain([*dump.iterdir(), *bank.iterdir()])
    small, large = ([_child("verdict", path, bank, 0) for _ in range(3)] for path in (dump, folder / "large"))
    if {r["settled"] for r in (*small, *large)} != {True}:
        raise RuntimeError("a verdict is missing")
    return {"fingerprint.peak_mib": max(r["peak_mib"] for r in large),
            "fingerprint.cost_20gib_over_1gib": min(r["seconds"] for r in large) / min(r["seconds"] for r in small)}


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
