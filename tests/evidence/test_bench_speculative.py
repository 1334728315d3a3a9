"""JSON lines of SGLang's bench_speculative.py are rows of the measurements table."""

import json

import pandas as pd
import pytest

from eagle_forensics.acceptance.runs import runs
from eagle_forensics.evidence.measurements import read_measurements
from eagle_forensics.evidence.records import EvidenceError


def record(steps, topk, tokens, accept, speed, batch=1):
    return json.dumps({"model_path": "m", "batch_size": batch, "steps": steps, "topk": topk, "num_draft_tokens": tokens, "acc_length": accept, "step_time": round(accept / speed, 5),
                       "speed": speed, "completion_tokens": 512.0})


def read(tmp_path, *lines):
    file = tmp_path / "output.jsonl"
    file.write_text("\n".join(lines) + "\n")
    return read_measurements(file)


def test_a_sweep_with_its_baseline(tmp_path):
    frame = read(tmp_path, record(0, 0, 0, 1.0, 88.8), record(1, 1, 2, 1.6, 56.8), record(5, 1, 6, 1.8, 54.8))
    assert list(frame["speculative"]) == [False, True, True] and list(frame["accept_length"]) == [1.0, 1.6, 1.8]
    assert pd.isna(frame["steps"][0]) and frame["steps"][2] == 5 and frame["label"][2] == "5 steps, topk 1, 6 tokens, batch 1" and frame.attrs["problems"] == []
    baseline, first, _ = runs(frame)
    assert baseline.is_baseline and first.is_speculative and first.tokens_per_second.value == 56.8


def test_impossible_and_cut_lines_are_named(tmp_path):
    frame = read(tmp_path, record(1, 1, 2, 1.6, 56.8), record(1, 1, 2, 2.7, 56.8), record(5, 1, 6, 1.8, 54.8)[:60], '{"steps": 1}')
    assert len(frame) == 1
    assert [p.split(" ")[1] for p in frame.attrs["problems"]] == ["2", "3", "4"] and "allows at most 2" in frame.attrs["problems"][0]


def test_a_csv_stays_a_csv(tmp_path):
    with pytest.raises(EvidenceError, match="unknown column"):
        read(tmp_path, '{"a": 1}', "x")
