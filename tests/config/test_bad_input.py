"""Evidence that lies or is broken: the message names file, field, what was expected and what to do; every other finding goes on."""

import json
import struct

import pytest

from eagle_forensics.case import CaseError
from eagle_forensics.config.cache_scales import scale_findings
from eagle_forensics.config.capacity import capacity_findings
from eagle_forensics.config.checkpoint import checkpoint_findings
from eagle_forensics.config.checks import argument_findings, boundary_findings, problem_findings
from eagle_forensics.config.extraction import extraction_findings
from eagle_forensics.config.frames import notes_frame
from eagle_forensics.config.handover import handover_findings
from eagle_forensics.config.inspection import inspect
from eagle_forensics.config.launching import launching_findings, upgrade_findings
from eagle_forensics.config.live import live_findings
from eagle_forensics.config.loading import loading_findings
from eagle_forensics.config.rotary import rope_frame, rotary_findings
from eagle_forensics.config.tables import table_findings
from eagle_forensics.config.tokens import tokenizer_findings
from eagle_forensics.finding import Status
from tests.config.papers import papers
from tests.evidence import builders

EVERY = (problem_findings, boundary_findings, argument_findings, launching_findings, live_findings, checkpoint_findings, loading_findings, table_findings, tokenizer_findings,
         rotary_findings, upgrade_findings, extraction_findings, handover_findings, capacity_findings, scale_findings)


def everything(case):
    found = inspect(case)
    rope_frame(found)
    return {f.id: f for check in EVERY for f in check(found)}


def spoil(file, change):
    header_bytes = struct.unpack("<Q", file.read_bytes()[:8])[0]
    header, data = json.loads(file.read_bytes()[8:8 + header_bytes]), file.read_bytes()[8 + header_bytes:]
    builders.write_raw(file, change(header) or header, data)


def overlap(header):
    header["fc.weight"]["data_offsets"] = [0, header["fc.weight"]["data_offsets"][1] - header["fc.weight"]["data_offsets"][0]]


def wrong_dtype(header):
    header["fc.weight"]["dtype"] = "F32"


@pytest.mark.parametrize(("break_it", "words"), [
    (lambda f: f.write_bytes(f.read_bytes()[:5]), ("copy it again",)), (lambda f: f.write_bytes(f.read_bytes()[:-7]), ("expected", "copy it again")),
    (lambda f: f.write_bytes(struct.pack("<Q", 1 << 60) + f.read_bytes()[8:]), ("header",)), (lambda f: spoil(f, overlap), ("data_offsets", "overlap")),
    (lambda f: spoil(f, wrong_dtype), ("fc.weight", "F32", "expected"))], ids=["stub", "truncated", "huge length", "overlap", "dtype"])
def test_a_lying_header_is_named_and_the_rest_goes_on(tmp_path, break_it, words):
    case = papers(tmp_path, weights=builders.head())
    break_it(tmp_path / "drafter" / "model.safetensors")
    items = everything(case)
    error = items["config.read.drafter-path"]
    assert error.status is Status.ERROR and "model.safetensors" in error.statement and "drafter.path" in error.next_step
    assert all(w.lower() in error.statement.lower() for w in words), error.statement
    assert items["config.draft-budget"].status is Status.PASS, "the launch line is judged all the same"


@pytest.mark.parametrize("config", ["[1]", "3", "null", "{", '{"hidden_size": "wide"}', '{"hidden_size": 16, "hidden_size": 17}', ""])
def test_a_config_that_is_no_config(tmp_path, config):
    case = papers(tmp_path)
    (tmp_path / "drafter" / "config.json").write_text(config)
    items = everything(case)
    error = items["config.read.drafter-path"]
    assert error.status is Status.ERROR and "config.json" in error.statement and "expected" in error.statement
    assert items["config.draft-budget"].status is Status.PASS


def with_ids(folder, ids):
    case = papers(folder, weights=builders.head())
    file = folder / "drafter" / "config.json"
    config = json.loads(file.read_text())
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = ids
    file.write_text(json.dumps(config))
    return case


@pytest.mark.parametrize("ids", [{"a": 1}, "1,14,26", 7])
def test_ids_that_are_no_list_leave_the_default_and_a_note(tmp_path, ids):
    case = with_ids(tmp_path, ids)
    item = everything(case)["config.served-boundaries"]
    assert item.status is Status.PASS and "the default happens to be the same" in item.statement
    assert any("expected a list of integers" in note for note in notes_frame(inspect(case))["note"])


@pytest.mark.parametrize("ids", [["1", "14", "26"], [1.5, 14, 26], [-5, 14, 26], [1, 1, 26], [1, 14, 99], [True, 14, 26], [None], [], [[1], 2, 3]])
def test_ids_that_are_no_layer_ids(tmp_path, ids):
    items = everything(with_ids(tmp_path, ids))
    verdicts = {f.status for i, f in items.items() if i in ("config.captured", "config.served-boundaries")} | {f.status for i, f in items.items() if "read" in i}
    assert verdicts & {Status.FAIL, Status.ERROR}, {i: f.statement for i, f in items.items()}
    assert items["config.draft-budget"].status is Status.PASS and "config.fc-width" in items


def test_a_list_without_end_is_refused_with_its_length_and_its_first_ids(tmp_path):
    items = everything(with_ids(tmp_path, list(range(200_000))))
    error = items["config.read.drafter-path"]
    assert error.status is Status.ERROR and "holds 200000 ids (0, 1, 2, 3, ...)" in error.statement and "config.json" in error.statement
    assert items["config.draft-budget"].status is Status.PASS and all(len(f.model_dump_json()) < 4000 for f in items.values())
    with pytest.raises(CaseError, match="at most 1000 items after validation, not 20000"):
        papers(tmp_path / "case", layer_ids=list(range(20_000)))


@pytest.mark.parametrize(("left_out", "named"), [
    ({"engine": None}, ["serving.engine"]), ({"version": None}, ["serving.version"]), ({"engine": None, "version": None}, ["serving.engine", "serving.version"]),
    ({"launch": None}, ["serving.launch"])])
def test_a_skipped_check_names_what_is_missing_and_no_more(tmp_path, left_out, named):
    items = everything(papers(tmp_path, weights=builders.head(), **left_out))
    said = [f.statement for f in items.values() if f.status is Status.SKIPPED and "serving." in f.statement]
    assert f"not examined: the case has no {' and '.join(named)}" in said
    assert {word for text in said for word in text.split() if word.startswith("serving.")} == set(named)


def test_unreadable_evidence_is_not_called_absent(tmp_path):
    case = papers(tmp_path)
    (tmp_path / "drafter" / "config.json").unlink()
    item = everything(case)["config.served-boundaries"]
    assert item.statement == "not examined: drafter.path could not be read" and item.next_step.startswith("Correct drafter.path in the case file")


@pytest.mark.parametrize(("launch", "words"), [
    ("--speculative-algorithm 'EAGLE3 --speculative-num-steps 3", "quote"), ("launch.sh", "launch.sh"), ("--speculative-config '[1]'", "speculative-config")])
def test_a_launch_line_that_is_none(tmp_path, launch, words):
    items = everything(papers(tmp_path, launch=launch))
    error = items["config.read.serving-launch"]
    assert error.status is Status.ERROR and words in error.statement and items["config.served-boundaries"].status is Status.PASS


@pytest.mark.parametrize("field", ["head_dim", "num_attention_heads", "num_hidden_layers", "max_position_embeddings", "rope_scaling", "rope_theta", "draft_vocab_size", "target_hidden_size",
                                   "tie_word_embeddings", "quantization_config", "torch_dtype", "architectures", "qk_rope_head_dim", "partial_rotary_factor"])
@pytest.mark.parametrize("value", ["x", -1, 0, [], {}, 1e400, True, 2.5])
def test_no_value_of_a_field_stops_the_notebook(tmp_path, field, value):
    """Every field may hold anything: a finding or an error of its own, never an exception."""
    items = everything(papers(tmp_path, weights=builders.head(), draft={field: value}))
    assert "config.draft-budget" in items


def test_a_missing_log_is_an_error_of_its_own(tmp_path):
    items = everything(papers(tmp_path, serving={"log": "gone.log"}))
    assert items["config.read.serving-log"].status is Status.ERROR and "serving.log" in items["config.read.serving-log"].statement
    assert items["config.served-boundaries"].status is Status.PASS
