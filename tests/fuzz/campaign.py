"""A fuzzing campaign: seeded inputs through the readers; what escapes a refusal, hangs or runs code is a failure."""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.readers import MARKER, READERS, Reader

LIMIT_S = 5.0
"""No input may take longer."""


class Hang(BaseException):
    """Raised by the alarm; no reader catches it."""


@dataclass(frozen=True)
class Failure:
    """One input that broke a rule, reproducible from reader and seed."""

    reader: str
    seed: int
    what: str
    where: str


@dataclass
class Result:
    """Counts of a campaign."""

    tried: Counter = field(default_factory=Counter)
    refused: Counter = field(default_factory=Counter)
    slowest: dict[str, float] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)

    def distinct(self) -> list[Failure]:
        """One failure for each reader and place."""
        return list({(f.reader, f.what.split(":")[0], f.where): f for f in reversed(self.failures)}.values())


def campaign(seconds: float, first_seed: int = 0, readers: Sequence[Reader] = READERS, inputs: int | None = None) -> Result:
    """Go round the readers until the time is over, or until each had `inputs`. Whole seeds are tried first."""
    result, until = Result(), time.monotonic() + seconds
    whole = {reader.name: reader.seeds() for reader in readers}
    seed = first_seed
    with tempfile.TemporaryDirectory(prefix="fuzz-") as work, _inside(Path(work)):
        while time.monotonic() < until and (inputs is None or seed - first_seed < inputs):
            for reader in readers:
                if time.monotonic() >= until:
                    break
                _one(reader, whole[reader.name], seed, Path(work), result)
            seed += 1
    return result


def _one(reader: Reader, seeds: list[bytes], seed: int, work: Path, result: Result) -> None:
    rng = random.Random(f"{reader.name} {seed}")
    data = seeds[seed] if seed < len(seeds) else reader.mutation(rng.choice(seeds), rng)
    folder = work / "in"
    folder.mkdir()
    try:
        reader.around(folder)
        file = folder / reader.file
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        file.write_bytes(data)
        began = time.monotonic()
        result.tried[reader.name] += 1
        try:
            with _alarm(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                reader.call(folder)
        except ValueError as error:
            result.refused[reader.name, type(error).__name__] += 1
        except (Exception, Hang) as error:
            result.failures.append(Failure(reader.name, seed, f"{type(error).__name__}: {str(error)[:160]}", _where(error)))
        result.slowest[reader.name] = max(result.slowest.get(reader.name, 0.0), time.monotonic() - began)
        if any(work.rglob(MARKER)):
            result.failures.append(Failure(reader.name, seed, "code of the input ran", ""))
    finally:
        shutil.rmtree(folder)


def _where(error: BaseException) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "eagle_forensics" in f.filename]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno} {frames[-1].name}" if frames else ""


@contextmanager
def _alarm() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise Hang(f"longer than {LIMIT_S:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
