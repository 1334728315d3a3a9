"""The fast line-up in this process, the judge on made-up outcomes, and that a case says nothing about what was planted."""

import re
from collections import Counter

import pytest

from eagle_forensics.faults import catalogue
from tests.lineup import fast, score
from tests.lineup.in_process import run_in_process
from tests.lineup.outcome import Expected, Outcome, Planted, judge
from tests.lineup.real import Real


@pytest.mark.parametrize("case", fast.CASES, ids=lambda c: c.name)
def test_fast_case(case, tmp_path):
    folder = tmp_path / "case"
    folder.mkdir()
    case.make(folder)
    row = judge(case, run_in_process(case, folder / "case.yaml", tmp_path / "run"))
    if case.kind == "healthy":
        assert not row["named"], row["statements"]
    if case.name in score.KNOWN_MISSES:
        assert not row["right"], "no longer missed: take it off known_misses.json"
        pytest.xfail(score.KNOWN_MISSES[case.name])
    assert row["right"], (row["planted"], row["named"], row["verdict"], row["statements"])


def test_a_case_holds_evidence_and_no_hint(tmp_path):
    made = (c for c in _full() if not isinstance(c.make, Real))  # the real pair's folders are links to what the demo downloads
    for index, case in enumerate((*fast.CASES, *made)):
        folder = tmp_path / str(index)
        folder.mkdir()
        case.make(folder)
        for file in (p for p in folder.rglob("*") if p.is_file()):
            text = file.name.lower() + (" " + file.read_text().lower() if file.suffix not in (".safetensors", ".pt", ".ckpt") else "")
            assert not any(s in text for s in catalogue()), (case.name, file.name)
            assert not re.search(r"(?<!#)\b(fault|wrong|broken|planted|healthy|should|mislabel\w*|offset|early|late)\b", text), (case.name, file.name)


def test_every_slug_of_the_catalogue_is_planted_and_the_tables_are_wide():
    cases = (*fast.CASES, *_full())
    kinds = Counter(c.kind for c in fast.CASES)
    assert {s for c in cases for s in c.expected.faults + c.expected.suspects} == set(catalogue())
    assert {s for c in cases for s in c.expected.follows} <= set(catalogue())
    assert len({c.name for c in fast.CASES}) == len(fast.CASES) and len({c.name for c in _full()}) == len(_full())
    assert set(score.KNOWN_MISSES) <= {c.name for c in cases}
    assert kinds["healthy"] >= 150 and kinds["abstain"] >= 75 and kinds["double"] >= 45 and kinds["single"] >= 220


def _full():
    from tests.lineup.full import CASES

    return CASES


def row(faults=(), named=(), verdict="FAIL", verdicts=(), follows=(), suspects=(), suspected=(), rival=None):
    case = Planted("x", lambda folder: None, Expected(faults, follows, verdicts, rival, suspects))
    return judge(case, Outcome(verdict, tuple(named), (C,) * len(named), tuple(suspected), (), 1.0))


A, B, C = "wiring.layer-offset", "wiring.plane-count", "cost.cannot-win"


@pytest.mark.parametrize(("planted", "right"), [
    (row((A,), (A,)), True),
    (row((A,), (A, B)), False),
    (row((A,), (A, B), follows=(B,)), True),
    (row((A,), (B, A), follows=(B,)), False),
    (row((A,), (), "PASS"), False),
    (row((A, B), (B, A)), True),
    (row((A, B), (A,)), False),
    (row((), (), "PASS"), True),
    (row((), (), "INCONCLUSIVE"), False),
    (row((), (A,)), False),
    (row((), (), "INCONCLUSIVE", ("INCONCLUSIVE",)), True),
    (row((), (), "PASS", ("INCONCLUSIVE",)), False),
    (row((), (), "INCONCLUSIVE", ("INCONCLUSIVE",), suspects=(A,), suspected=(B, A)), True),
    (row((), (), "INCONCLUSIVE", ("INCONCLUSIVE",), suspects=(A,), suspected=(B,)), False),
    (row((A,), (A,), rival=C), True),
    (row((A,), (A,), rival=B), False),
])
def test_the_judge(planted, right):
    assert planted["right"] is right


def test_counts_confusion_and_changes():
    rows = [r | {"name": n} for n, r in (("a", row((A,), (A,))), ("b", row((A,), (C,))), ("c", row((), (B,))), ("d", row((A, B), (A, B, C))),
                                         ("e", row((), (), "INCONCLUSIVE", ("INCONCLUSIVE",))))]
    counts = score.counts(rows)
    assert counts["right"] == [2, 5] and counts["single_first"] == [1, 2] and counts["double_all_named"] == [1, 1]
    assert counts["healthy_accused"] == [1, 1] and counts["abstained"] == [1, 1] and counts["false_accusations"] == [3, 5]
    assert score.confusion(rows) == {score.NONE: {B: 1, score.NONE: 1, C: 1}, A: {A: 2, C: 1}, B: {B: 1}}
    assert [r["name"] for r in score.unexpected(rows)] == ["b", "c", "d"]
    before = {"cases": [rows[0] | {"right": False}, rows[1] | {"right": True}, rows[2] | {"name": "z"}]}
    changes = score.changes(rows, before)
    assert [line.split(":")[0] for line in changes] == ["mended", "BROKEN", "new", "new", "new", "gone"]
    assert score.brief(changes) == f"{changes[0]}; {changes[1]}; 3 new; 1 gone"
