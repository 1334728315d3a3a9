"""The compute capability in every spelling that a case may hold."""

import pytest

from eagle_forensics.engines.hardware import capability_major
from eagle_forensics.engines.loading import draft_dtype


@pytest.mark.parametrize(("text", "major"), [
    ("12.0", 12), ("9.0", 9), ("9", 9), ("sm90", 9), ("sm_120", 12), ("SM100a", 10), ("sm_90a", 9), ("7.5", 7), (None, None), ("", None), ("Hopper", None)])
def test_spellings(text, major):
    assert capability_major(text) == major


@pytest.mark.parametrize(("capability", "runs"), [("sm75", "float16"), ("7.5", "float16"), ("sm90", "bfloat16"), ("Hopper", "bfloat16")])
def test_float32_on_vllm_by_capability(capability, runs):
    assert draft_dtype("vllm", asked="auto", draft={}, target={"torch_dtype": "float32"}, capability=capability).runs == runs
