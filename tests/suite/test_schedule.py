"""Which notebooks may work at once: the table against the notebooks, the order kept, everything stopped together."""

import re
import threading
import time
from pathlib import Path

import nbformat
import pytest

from eagle_forensics.suite.runfolder import NOTEBOOKS
from eagle_forensics.suite.schedule import AFTER, Kernels, in_order

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"


def test_a_notebook_comes_after_those_whose_records_it_reads():
    source = {name[:2]: "\n".join(c.source for c in nbformat.read(FOLDER / f"{name}.ipynb", as_version=4).cells if c.cell_type == "code") for name in NOTEBOOKS}
    writer = {record: number for number, text in source.items() for record in re.findall(r"run\.record\(\"([\w-]+)\"", text)}
    for number, text in source.items():
        reads = {writer[record] for record in re.findall(r"run\.read\(\"([\w-]+)\"", text)} - {number}
        assert reads == set(AFTER.get(number, ())), number


@pytest.mark.parametrize("jobs", [1, 2, 5])
def test_each_starts_after_what_it_reads_and_no_more_than_jobs_at_once(jobs):
    events, lock, busy, most = [], threading.Lock(), 0, 0

    def work(name):
        nonlocal busy, most
        with lock:
            busy += 1
            most = max(most, busy)
            events.append(("start", name[:2]))
        time.sleep(0.05)
        with lock:
            busy -= 1
            events.append(("end", name[:2]))
        return name

    names = [NOTEBOOKS[i] for i in (0, 1, 2, 4)]  # 04 is not asked for, so 05 waits for 01 alone
    assert list(in_order(names, work, jobs, Kernels())) == names
    assert most == min(jobs, 3)
    for number, needs in {"02": "01", "03": "01", "05": "01"}.items():
        assert events.index(("end", needs)) < events.index(("start", number))


def test_one_exception_stops_the_kernels_of_all_and_no_later_one_survives():
    killed = []

    class Held:
        def __init__(self, name):
            self.name = name
            self.dead = threading.Event()

        def kill_now(self):
            killed.append(self.name)
            self.dead.set()

    kernels = Kernels()

    def work(name):
        if name[:2] == "02":
            raise RuntimeError("no disk")
        kernel = Held(name)
        kernels.add(kernel)
        if name[:2] == "03" and not kernel.dead.wait(10):
            raise AssertionError("was not stopped")

    with pytest.raises(RuntimeError, match="no disk"):
        in_order(NOTEBOOKS[:3], work, 2, kernels)
    assert set(killed) == set(NOTEBOOKS[:3:2])
    kernels.add(Held("late"))
    assert killed[-1] == "late"
