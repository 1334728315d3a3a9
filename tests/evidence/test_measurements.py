"""The measurements table: typed columns, impossible figures named and kept out of every figure."""

import math

import pandas as pd
import pytest

from eagle_forensics.evidence.measurements import COLUMNS, read_measurements
from eagle_forensics.evidence.records import EvidenceError

INCIDENT = """label,engine,engine_version,speculative,steps,topk,draft_tokens,accept_length,accepted_per_position,tokens_per_second,cuda_graph
baseline,sglang,0.5.9,0,,,,,,88.8,1
"one, step",sglang,0.5.9,1,1,1,16,1.60,,56.8,1
fifteen,sglang,0.5.9,1,15,1,16,1.9,0.5;0.25;0.1,46.7,true
"""


def table(tmp_path, text, encoding="utf-8"):
    (tmp_path / "runs.csv").write_bytes(text.encode(encoding))
    return read_measurements(tmp_path / "runs.csv")


def test_the_incident_is_read_with_types(tmp_path):
    frame = table(tmp_path, INCIDENT)
    assert list(frame["label"]) == ["baseline", "one, step", "fifteen"] and frame.attrs["problems"] == []
    assert frame["steps"].dtype == "Int64" and frame["steps"].isna()[0] and frame["steps"][2] == 15
    assert frame["speculative"].dtype == "boolean" and list(frame["cuda_graph"]) == [True, True, True]
    assert frame["tokens_per_second"].dtype == "float64" and math.isnan(frame["accept_length"][0])
    assert frame["accepted_per_position"][2] == (0.5, 0.25, 0.1) and frame["accepted_per_position"][0] is None
    assert list(frame["engine_version"]) == ["0.5.9"] * 3


def test_every_column_of_the_schema_is_known_and_only_label_is_needed(tmp_path):
    assert list(table(tmp_path, ",".join(COLUMNS) + "\n" + "x" + "," * (len(COLUMNS) - 1)).columns) == list(COLUMNS)
    assert list(table(tmp_path, "\ufefflabel\r\nx\r\n\r\n")["label"]) == ["x"]


IMPOSSIBLE = {
    "more than steps allow": ("steps,accept_length", "1,2.6", "accept_length is 2.6 but steps 1 allows at most 2 tokens a round"),
    "more than a tree allows": ("engine,steps,topk,draft_tokens,accept_length", "sglang,5,4,3,3.5", "draft_tokens 3 allows at most 3"),
    "more than a chain allows": ("engine,draft_tokens,accept_length", "vllm,3,4.5", "draft_tokens 3 allows at most 4"),
    "less than the bonus token": ("steps,accept_length", "3,0.9", "accept_length is 0.9; expected at least 1"),
    "a rate over one": ("accept_rate", "1.3", "accept_rate is '1.3'; expected a share from 0 to 1"),
    "negative speed": ("tokens_per_second", "-5", "tokens_per_second is '-5'; expected a number of at least 0"),
    "a speed beyond any server": ("tokens_per_second", "1e308", "expected a speed that a server can have"),
    "a speed below any server": ("tokens_per_second", "1e-308", "expected a speed that a server can have"),
    "a word": ("tokens_per_second", "fast", "tokens_per_second is 'fast'; expected a number"),
    "not a number": ("tokens_per_second", "nan", "expected a number"),
    "a broken count": ("steps", "2.5", "steps is '2.5'; expected a whole number"),
    "a flag that is none": ("speculative", "maybe", "speculative is 'maybe'; expected 0 or 1"),
    "rising survival": ("accepted_per_position", "0.5;0.6", "survival, which never rises"),
    "survival over one": ("accepted_per_position", "1.5", "a share from 0 to 1"),
    "more positions than steps": ("steps,accepted_per_position", "2,0.6;0.4;0.1", "3 positions but steps 2 allows at most 2"),
    "too many cells": ("steps", "1,2", "3 cells under a header of 2"),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_an_impossible_row_is_named_and_left_out(tmp_path, name):
    columns, cells, said = IMPOSSIBLE[name]
    frame = table(tmp_path, f"label,{columns}\nbad,{cells}\ngood{',' * (columns.count(',') + 1)}\n")
    assert list(frame["label"]) == ["good"]
    (problem,) = frame.attrs["problems"]
    assert problem.startswith("line 2 (bad): ") and said in problem and problem.endswith("left out of every figure.")


@pytest.mark.parametrize("row", ["sglang,1,1,16,2.0", "sglang,15,1,2,2.9", "vllm,,,3,4.0", ",,,3,4.0", "sglang,5,4,6,6.0"])
def test_a_figure_at_its_limit_is_possible(tmp_path, row):
    """SGLang overwrites draft_tokens by steps + 1 at topk 1, and other engines do not count the root."""
    frame = table(tmp_path, f"label,engine,steps,topk,draft_tokens,accept_length\nx,{row}\n")
    assert frame.attrs["problems"] == [] and len(frame) == 1


def test_a_row_without_label_is_named(tmp_path):
    frame = table(tmp_path, "label,steps\n,3\nx,3\n")
    assert len(frame) == 1 and frame.attrs["problems"] == ["line 2: no label; expected a name for the run. The row is left out of every figure."]
    assert isinstance(frame, pd.DataFrame) and frame["steps"].dtype == "Int64"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty; expected a CSV whose header names at least `label`"),
        ("\n \n", "empty"),
        ("label,steps\n", "a header without rows; expected one row a measured run"),
        ("steps\n3\n", "no column `label`"),
        ("label,acept_length\nx,1\n", "unknown column `acept_length`; .*Did you mean `accept_length`"),
        ("label,colour\nx,1\n", "unknown column `colour`; expected some of label"),
        ("label,steps,steps\nx,1,1\n", "`steps` stands twice"),
        ("label;steps\nx;1\n", "not separated by commas"),
        ('label,steps\n"x,1\n', "not valid CSV"),
        ("label,steps\nx,-1\ny,2.5\n", r"none of its 2 row\(s\) can be used. First: line 2 \(x\): steps is '-1'"),
        ("label\n" + "x\n" * 2001, "2001 rows; .*Is this a row a request"),
    ],
)
def test_tables_that_cannot_be_read(tmp_path, text, said):
    with pytest.raises(EvidenceError, match=said) as caught:
        table(tmp_path, text)
    assert "runs.csv" in str(caught.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(EvidenceError, match=r"not UTF-8 at byte 6; expected a CSV in UTF-8"):
        table(tmp_path, "label\n\xfcber\n", "latin-1")
    with pytest.raises(EvidenceError, match=r"nowhere.csv: cannot be read"):
        read_measurements(tmp_path / "nowhere.csv")
