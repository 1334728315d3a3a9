"""An engine's own source against our tables, as a finding: agreement passes, a patched engine is quoted, absence is skipped."""

from pathlib import Path

import pytest

from eagle_forensics.config.inspection import inspect
from eagle_forensics.config.source import source_finding
from eagle_forensics.finding import Status
from tests.config.papers import papers


def test_without_an_engine_here_nothing_is_compared(tmp_path):
    item = source_finding(inspect(papers(tmp_path)))
    assert item.status is Status.SKIPPED and "engine_tree" in item.statement


def test_a_wrong_tree_is_named(tmp_path):
    item = source_finding(inspect(papers(tmp_path)), str(tmp_path))
    assert item.status is Status.INCONCLUSIVE and item.required and str(tmp_path) in item.statement


@pytest.fixture(scope="module")
def tree():
    from tests.engines.wheels import source_of

    return source_of("sglang", "sglang", "0.5.23")


def copied(tree: Path, folder: Path) -> Path:
    """The text that the comparison reads, and nothing of the gigabytes beside it."""
    from tests.engines.wheels import NEEDED

    for file in (tree / "sglang").rglob("*.py"):
        inside = file.relative_to(tree / "sglang").as_posix()
        if inside.startswith(NEEDED["sglang"]) or "/" not in inside:
            target = folder / "sglang" / inside
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
    return folder


def test_the_released_engine_agrees_and_a_patched_one_is_quoted(tmp_path, tree):
    own = copied(tree, tmp_path / "own")
    assert source_finding(inspect(papers(tmp_path / "a")), str(own)).status is Status.PASS
    file = own / "sglang" / "srt" / "models" / "llama.py"
    text = file.read_text()
    assert "[val + 1 for val in layer_ids]" in text
    file.write_text(text.replace("[val + 1 for val in layer_ids]", "[val + 2 for val in layer_ids]"))
    item = source_finding(inspect(papers(tmp_path / "b")), str(own))
    assert item.status is Status.INCONCLUSIVE and item.required and item.observed > 0
    assert any("llama" in e.note.lower() for e in item.evidence)
