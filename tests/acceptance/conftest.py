"""Fixtures of the live tests: the demo's target, the prompts they ask, the pair in float32."""

import pytest

from eagle_forensics.acceptance.live.workload import Prompt, read_prompts, render
from eagle_forensics.demo.stage import sequences
from eagle_forensics.demo.target import DemoError, target_folder
from tests.acceptance import served_text


@pytest.fixture(scope="session")
def demo_target():
    try:
        return target_folder()
    except DemoError as error:
        pytest.skip(f"the demo's target cannot be had: {error}")


@pytest.fixture(scope="session")
def asked(demo_target):
    """Two built-in prompts (code, German) and eight of the drafter's own held-out ones."""
    own = [Prompt(f"held-out-{i}", row.family, ids=row.prompt_ids) for i, row in enumerate(sequences()[served_text.ASKED])]
    return render([p for p in read_prompts()[:5] if p.domain in ("code", "german")] + own, demo_target)


@pytest.fixture(scope="session")
def exact(demo_target, tmp_path_factory):
    """Folder of the target in float32, as the servers run it."""
    return served_text.in_float32(demo_target, tmp_path_factory.mktemp("float32"))


@pytest.fixture(scope="session")
def drafter(exact):
    """(drafter, target in float32)."""
    return served_text.pair(exact)
