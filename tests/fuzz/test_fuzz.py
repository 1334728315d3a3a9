"""A bounded campaign, what earlier campaigns found, and generated evidence: only refusals may come out, and no input may run."""

import gzip
import json
import pickle

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eagle_forensics.case import CaseError, load_case
from eagle_forensics.evidence.archives import read_torch_index
from eagle_forensics.evidence.captures import read_capture
from eagle_forensics.evidence.containers import open_pt
from eagle_forensics.evidence.drafts import read_draft
from eagle_forensics.evidence.launch import read_launch
from eagle_forensics.evidence.measurements import COLUMNS, read_measurements
from eagle_forensics.evidence.nccl.logs import read_nccl_log
from eagle_forensics.evidence.nccl.nccl_tests import read_nccl_tests
from eagle_forensics.evidence.records import EvidenceError
from eagle_forensics.evidence.targets import read_target
from eagle_forensics.evidence.tensors import load_array, read_header
from tests.evidence import builders
from tests.fuzz.campaign import LIMIT_S, campaign
from tests.fuzz.readers import MARKER, READERS, Reader, hostile

BOUNDED = settings(max_examples=60, deadline=LIMIT_S * 1000, derandomize=True, database=None,
                   suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large])
JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8), lambda x: st.lists(x, max_size=4) | st.dictionaries(st.text(max_size=8), x, max_size=4),
                    max_leaves=12)


@pytest.mark.parametrize("reader", READERS, ids=lambda r: r.name)
def test_a_bounded_campaign(reader):
    result = campaign(seconds=20, readers=[reader], inputs=12)
    assert not result.failures and result.tried[reader.name] == 12


def test_the_campaign_sees_what_it_looks_for(tmp_path):
    def explode(folder):
        raise KeyError("x")

    def run(folder):
        pickle.loads((folder / "x").read_bytes())

    bad = Reader("bad", lambda: [b"x"], "x", explode)
    unsafe = Reader("unsafe", lambda: hostile()[:1], "x", run)
    assert campaign(5, readers=[bad], inputs=1).failures[0].what.startswith("KeyError")
    assert campaign(5, readers=[unsafe], inputs=1).failures[-1].what == "code of the input ran"


def test_the_same_seed_gives_the_same_input():
    import random
    for reader in READERS:
        seeds = reader.seeds()[:1]
        assert reader.mutation(seeds[0], random.Random(5)) == reader.mutation(seeds[0], random.Random(5))


@pytest.mark.parametrize("open_file", [open_pt, read_torch_index, read_capture])
@pytest.mark.parametrize("kind", range(4))
def test_a_pickle_never_runs(open_file, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / ("x.ckpt.gz" if kind == 3 else "x.pt")
    file.write_bytes(hostile()[kind])
    with pytest.raises(EvidenceError):
        open_file(file)
    assert not list(tmp_path.rglob(MARKER))


def test_a_gzipped_sample_is_read_whole(tmp_path):
    file = tmp_path / "x.ckpt.gz"
    file.write_bytes(gzip.compress(READERS[7].seeds()[0]))
    assert isinstance(open_pt(file)["input_ids"], torch.Tensor)


FOUND = {
    "a name too long for a file": lambda f: read_launch("{" * 1000),
    "a ragged reply": lambda f: read_capture(_write(f / "c.json", {"meta_info": {"hidden_states": [[[1.0] * 4], [1.0]]}})),
    "a number beyond floats in a reply": lambda f: read_capture(_write(f / "c.json", {"meta_info": {"hidden_states": [[[10**400] * 4]]}})),
    "a number beyond floats in a config": lambda f: read_target(builders.write_config(f, builders.LLAMA | {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "rope_theta": 10**400})),
    "a shape beyond floats": lambda f: read_header(builders.write_raw(f / "x.safetensors", {"a": builders.entry("F32", [10**200, 10**200], 0, 4)}, b"\0" * 4)),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_a_campaign_found(name, tmp_path):
    with pytest.raises(EvidenceError):
        FOUND[name](tmp_path)


def test_what_a_campaign_found_in_tables(tmp_path):
    file = tmp_path / "runs.csv"
    file.write_text("label,rounds\na,99999999999999999999999\nb,7\n")
    frame = read_measurements(file)
    assert list(frame["label"]) == ["b"] and len(frame.attrs["problems"]) == 1


def test_what_a_campaign_found_in_nccl_logs(tmp_path):
    head = "#  size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
    table = _text(tmp_path / "t.txt", head + " 8 2 float sum -1 1.0 1 1 inf 1.0 1 1 0\n" + "9" * 5000 + " 2 float sum -1 1.0 1 1 0 1.0 1 1 0\n"
                  " 16 4 float sum -1 1.0 1 1 0 1.0 1 1 0\n")
    found = read_nccl_tests(table)
    assert [(row.bytes, row.wrong) for row in found.rows] == [(16, 0), (16, 0)] and "2 rows are cut or impossible" in found.notes[0]
    odd = _text(tmp_path / "o.txt", "#  size count type time time #wrong\n8 2 float 1.0 1.0 0\n")
    assert read_nccl_tests(odd).rows[0].bytes == 8
    log = _text(tmp_path / "n.log", f"h:1:1 [0] NCCL INFO Could not find a path for pattern {'9' * 5000}\nh:1:1 [0] NCCL INFO AllReduce: 64 Bytes -> Algo {'9' * 5000} proto 0\n"
                "h:1:1 [0] NCCL INFO Pattern 1, crossNic 0, nChannels 2, bw 1.2.3/0.1, type SYS/SYS, sameChannels 1\n")
    found = read_nccl_log(log)
    assert found.lines == 3 and not found.picks and not found.patterns and "choices" in " ".join(found.notes)


def test_a_path_too_long_is_missing_evidence(tmp_path):
    (tmp_path / "case.yaml").write_text(json.dumps({"name": "a", "target": {"path": "x" * 300}}))
    assert [key for key, _ in load_case(tmp_path).missing_evidence()] == ["target.path"]


def _write(file, content):
    return _text(file, json.dumps(content))


def _text(file, content):
    file.write_text(content)
    return file


@BOUNDED
@given(key=st.sampled_from([*builders.LLAMA, "eagle_config", "rope_scaling", "rope_parameters", "quantization_config", "transformer_layer_config"]), value=JSON)
def test_any_value_in_a_config(key, value, tmp_path):
    folder = builders.write_config(tmp_path / "d", builders.LLAMA | {key: value})
    for read in (read_draft, read_target):
        try:
            read(folder)
        except EvidenceError:
            pass


@BOUNDED
@given(entry=JSON | st.fixed_dictionaries({"dtype": st.sampled_from(["F32", "BF16", "F8_E4M3", "I64", "BOOL", "X"]), "shape": st.lists(st.integers(-1, 9), max_size=3),
                                           "data_offsets": st.lists(st.integers(-1, 64), min_size=1, max_size=3)}))
def test_any_entry_in_a_header(entry, tmp_path):
    file = builders.write_raw(tmp_path / "x.safetensors", json.dumps({"a": entry}).encode(), b"\0" * 64)
    try:
        for info in read_header(file).values():
            load_array(info)
    except EvidenceError:
        pass


@BOUNDED
@given(raw=st.dictionaries(st.sampled_from(["schema", "name", "target", "drafter", "training", "serving", "captures", "measurements", "nccl", "x"]), JSON, max_size=5))
def test_any_value_in_a_case(raw, tmp_path):
    (tmp_path / "case.yaml").write_text(json.dumps({"name": "a"} | raw))
    try:
        load_case(tmp_path)
    except CaseError:
        pass


@BOUNDED
@given(text=st.text(max_size=60) | st.lists(st.sampled_from(["--tp", "--speculative-num-steps", "=", "'", '"', "\\", "\n", "$X", "{", "8", "python -m sglang.launch_server", "vllm serve"]), max_size=9).map(" ".join))
def test_any_launch_line(text):
    try:
        read_launch(text)
    except EvidenceError:
        pass


@BOUNDED
@given(columns=st.lists(st.sampled_from([*COLUMNS]), min_size=1, max_size=6), cells=st.lists(st.lists(st.text(max_size=8) | st.floats().map(str) | st.integers().map(str), max_size=6), max_size=4))
def test_any_cell_in_a_table(columns, cells, tmp_path):
    file = tmp_path / "runs.csv"
    file.write_text("\n".join(",".join(row) for row in (columns, *cells)), encoding="utf-8", errors="surrogatepass")
    try:
        read_measurements(file)
    except EvidenceError:
        pass


@BOUNDED
@given(fields=st.lists(st.floats().map(str) | st.integers(0, 10**30).map(str) | st.sampled_from(["N/A", "inf", "nan", "float", "sum"]), min_size=9, max_size=12))
def test_any_row_of_nccl_tests(fields, tmp_path):
    file = tmp_path / "t.txt"
    file.write_text("#  size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n 8 2 float sum -1 1.0 1 1 0 1.0 1 1 0\n 8 2 float " + " ".join(fields) + "\n")
    try:
        read_nccl_tests(file)
    except EvidenceError:
        pass
