"""Inverse frequencies in plain Python against the formulas' own landmarks, and who reads which field."""

import math
from pathlib import Path

import pytest

from eagle_forensics.engines.rotary import engine_rope, inverse_frequencies, trained_rope
from eagle_forensics.evidence.records import Rope

HERE = Path("config.json")


def test_plain_and_partial():
    inverse, factor = inverse_frequencies(Rope(10000.0, None, 1.0, "x"), 8)
    assert inverse == pytest.approx([1, 0.1, 0.01, 0.001]) and factor == 1
    assert len(inverse_frequencies(Rope(10000.0, None, 0.25, "x"), 256)[0]) == 32


def test_linear_yarn_and_llama3_at_their_ends():
    plain, _ = inverse_frequencies(Rope(10000.0, None, 1.0, "x"), 128)
    linear, _ = inverse_frequencies(Rope(10000.0, {"type": "linear", "factor": 4}, 1.0, "x"), 128)
    assert linear == pytest.approx([f / 4 for f in plain])
    yarn, factor = inverse_frequencies(Rope(10000.0, {"rope_type": "yarn", "factor": 32, "original_max_position_embeddings": 2048}, 1.0, "x"), 128)
    assert yarn[0] == plain[0] and yarn[-1] == pytest.approx(plain[-1] / 32) and factor == pytest.approx(0.1 * math.log(32) + 1)
    scaling = {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192}
    llama, _ = inverse_frequencies(Rope(500000.0, scaling, 1.0, "x"), 128)
    assert llama[0] == 1 and llama[-1] == pytest.approx(500000.0 ** -(126 / 128) / 8)


@pytest.mark.parametrize(("scaling", "words"), [({"type": "linear"}, "factor"), ({"rope_type": "longrope"}, "not known"), ({"rope_type": "yarn", "factor": 2}, "original_max")])
def test_what_cannot_be_computed_is_said(scaling, words):
    with pytest.raises(ValueError, match=words):
        inverse_frequencies(Rope(10000.0, scaling, 1.0, "x"), 8)


def test_fields_read_by_release():
    config = {"rope_parameters": {"rope_theta": 5e5}}
    assert engine_rope("sglang", "0.5.9", config, HERE).rope.theta == 10000
    assert all(engine_rope("sglang", version, config, HERE).rope.theta == 5e5 for version in ("0.5.10", "0.5.11", "0.5.12"))
    assert engine_rope("sglang", "0.5.9", {"rope_theta": 5e5}, HERE).rope.theta == 5e5
    assert not engine_rope("trtllm", "1.0", config, HERE).certain


def test_fields_used_in_training():
    config = {"rope_theta": 5e5, "partial_rotary_factor": 0.25}
    assert trained_rope("eagle", None, config, HERE).rope.theta == 10000
    assert trained_rope("speculators", "0.7.0", config, HERE).rope.partial == 1
    assert trained_rope("speculators", "0.8.0", config, HERE).rope.partial == 0.25
    assert trained_rope("speculators", None, config, HERE).rope.partial == 0.25, "no version, no correction"
    assert trained_rope(None, None, config, HERE).rope.theta == 5e5
