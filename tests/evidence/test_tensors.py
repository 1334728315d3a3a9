"""Tensors by header and slice: what a lying header costs, and what a read costs."""

import json
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from eagle_forensics.evidence import tensors
from eagle_forensics.evidence.records import EvidenceError
from tests.evidence.builders import entry, head, weights, write_raw, write_shards, write_sparse

TYPES = {
    "BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip


@pytest.fixture(scope="module")
def every_type(tmp_path_factory):
    """One safetensors file with a [6, 4] tensor of every type, and the tensors themselves."""
    made = {name: (weights(6, 4, dtype=torch.float32) * 100).to(dtype) for name, dtype in TYPES.items()}
    path = tmp_path_factory.mktemp("types") / "model.safetensors"
    save_file(made, path)
    return path, made


@pytest.mark.parametrize("dtype", TYPES)
def test_values_are_those_of_torch(every_type, dtype):
    path, made = every_type
    info, tensor = tensors.read_header(path)[dtype], made[dtype]
    assert (info.dtype, info.shape, info.nbytes) == (dtype, (6, 4), tensor.numel() * tensor.element_size())
    wide = tensor.float() if tensor.is_floating_point() and dtype != "F64" else tensor
    for rows in (None, slice(1, 4), slice(0, 6, 2), [5, 0, 5]):
        array, loaded = tensors.load_array(info, rows), tensors.load_tensor(info, rows)
        picked = slice(None) if rows is None else rows
        assert np.array_equal(array, wide.numpy()[picked], equal_nan=dtype.startswith("F")), rows
        assert array.dtype == wide.numpy().dtype
        assert loaded.dtype == tensor.dtype and torch.equal(loaded.double(), tensor.double()[picked]), rows


@pytest.mark.parametrize(("dtype", "kind"), [("F8_E4M3", torch.float8_e4m3fn), ("F8_E5M2", torch.float8_e5m2), ("F8_E8M0", torch.float8_e8m0fnu)])
def test_all_256_codes_of_each_fp8(dtype, kind):
    codes = torch.arange(256, dtype=torch.uint8).view(kind).float().numpy()
    assert np.array_equal(tensors.fp8_values(dtype), codes, equal_nan=True)


def test_bf16_keeps_infinities_and_subnormals(tmp_path):
    odd = torch.tensor([[float("inf"), float("-inf"), 1e-40, -0.0]], dtype=torch.bfloat16)
    save_file({"x": odd}, tmp_path / "x.safetensors")
    assert tensors.load_array(tensors.read_header(tmp_path / "x.safetensors")["x"]).tobytes() == odd.float().numpy().tobytes()


def test_a_tensor_is_mapped_and_never_written_back(tmp_path):
    save_file({"x": torch.ones(4, 4)}, tmp_path / "x.safetensors")
    before = (tmp_path / "x.safetensors").read_bytes()
    info = tensors.read_header(tmp_path / "x.safetensors")["x"]
    tensors.load_tensor(info).fill_(7)
    assert (tmp_path / "x.safetensors").read_bytes() == before


def test_scalars_and_empty_tensors(tmp_path):
    save_file({"s": torch.tensor(3.0), "e": torch.zeros(0, 4)}, tmp_path / "x.safetensors")
    infos = tensors.read_header(tmp_path / "x.safetensors")
    assert tensors.load_array(infos["s"]).item() == 3.0
    assert tensors.load_array(infos["e"]).shape == (0, 4)
    with pytest.raises(ValueError, match="scalar"):
        tensors.load_array(infos["s"], [0])


def test_rows_outside_the_tensor_are_refused(every_type):
    info = tensors.read_header(every_type[0])["F32"]
    with pytest.raises(ValueError, match=r"row 6 was asked for; expected rows in 0\.\.5"):
        tensors.load_array(info, [6])


def test_unaligned_data_is_still_read(tmp_path):
    path = write_raw(tmp_path / "x.safetensors", {"a": entry("U8", [1], 0, 1), "b": entry("F32", [2], 1, 9)}, b"\1" + struct.pack("<2f", 1.5, -2))
    info = tensors.read_header(path)["b"]
    assert tensors.load_array(info).tolist() == [1.5, -2] and tensors.load_tensor(info).tolist() == [1.5, -2]


GOOD = {"a": entry("F32", [2], 0, 8), "b": entry("U8", [4], 8, 12)}

LIES = {
    "an empty file": (None, "8-byte header length"),
    "a header longer than the file": ({"length": 5000}, "header length 5000 bytes but only"),
    "a header over the limit": ({"length": 1 << 60}, "expected at most 100000000"),
    "no JSON": ({"header": b"{not json"}, "not valid JSON at line 1"),
    "no text": ({"header": b"\xff\xfe{}"}, "not UTF-8 at byte 0"),
    "a list": ({"header": b"[]"}, "a JSON list; expected an object"),
    "a key twice": ({"header": b'{"a": {}, "a": {}}'}, "'a' stands twice"),
    "bottomless nesting": ({"header": b'{"a":' + b"[" * 100_000}, "unreadable JSON"),
    "a number with too many digits": ({"header": b'{"a":' + b"9" * 5000 + b"}"}, "unreadable JSON"),
    "an unknown dtype": ({"header": {"a": entry("F33", [2], 0, 8)}}, "'a': dtype 'F33'; expected one of"),
    "a dtype that is no name": ({"header": {"a": {"dtype": 3, "shape": [2], "data_offsets": [0, 8]}}}, "dtype 3"),
    "a negative dimension": ({"header": {"a": entry("F32", [-2], 0, 8)}}, "shape [-2]; expected a list of non-negative"),
    "a boolean dimension": ({"header": {"a": entry("U8", [True], 0, 1)}}, "shape [True]"),
    "a shape that is larger than its bytes": ({"header": {"a": entry("F32", [3], 0, 8)}}, "shape [3] of F32 takes 12 bytes but data_offsets span 8"),
    "a shape beyond all memory": ({"header": {"a": entry("F32", [1 << 62, 1 << 62], 0, 8)}}, "but data_offsets span 8"),
    "offsets outside the file": ({"header": {"a": entry("F32", [20], 0, 80)}}, "end at byte 80 of the data but the file holds only 12"),
    "offsets backwards": ({"header": {"a": entry("F32", [2], 8, 0)}}, "data_offsets [8, 0]; expected [begin, end]"),
    "one offset": ({"header": {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0]}}}, "data_offsets [0]"),
    "a missing field": ({"header": {"a": {"dtype": "F32", "shape": [2]}}}, "expected exactly dtype, shape and data_offsets"),
    "overlap": ({"header": {"a": entry("F32", [2], 0, 8), "b": entry("U8", [4], 4, 8)}}, "'b': data_offsets begin at 4 inside another tensor's data"),
    "a gap": ({"header": {"a": entry("F32", [1], 0, 4), "b": entry("U8", [4], 8, 12)}}, "'b': data_offsets begin at 8 but the data before it ends at 4"),
    "bytes of no tensor": ({"header": {"a": entry("F32", [2], 0, 8)}}, "describes 8 bytes of data but the file holds 12"),
    "metadata that is no text": ({"header": GOOD | {"__metadata__": {"step": 3}}}, "`__metadata__` is {'step': 3}"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_header_is_named_with_file_field_and_remedy(tmp_path, lie):
    surgery, said = LIES[lie]
    path = tmp_path / "model.safetensors"
    if surgery is None:
        path.write_bytes(b"")
    else:
        write_raw(path, surgery.get("header", GOOD), bytes(12), surgery.get("length"))
    with pytest.raises(EvidenceError) as caught:
        tensors.read_header(path)
    message = str(caught.value)
    assert said in message and str(path) in message and "expected" in message
    assert "copy it again" in message or "Delete one" in message or "JSON" in message


def test_the_untouched_header_is_fine(tmp_path):
    assert set(tensors.read_header(write_raw(tmp_path / "x.safetensors", GOOD, bytes(12)))) == {"a", "b"}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_mutation_of_a_header_gives_a_traceback(tmp_path, data):
    """Random bytes, and random values put in the place of any field, end in tensors inside the file or in an EvidenceError."""
    junk = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["F32", "BF16", "F4"]),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2), max_leaves=5)  # fmt: skip
    if data.draw(st.booleans()):
        header = json.loads(json.dumps(GOOD))
        field = data.draw(st.sampled_from([("a",), ("a", "dtype"), ("a", "shape"), ("b", "data_offsets"), ("__metadata__",)]))
        place = header if len(field) == 1 else header[field[0]]
        place[field[-1]] = data.draw(junk)
        path = write_raw(tmp_path / "m.safetensors", header, bytes(12))
    else:
        raw = bytearray(write_raw(tmp_path / "m.safetensors", GOOD, bytes(12)).read_bytes())
        for position, value in data.draw(st.lists(st.tuples(st.integers(0, len(raw) - 1), st.integers(0, 255)), min_size=1, max_size=4)):
            raw[position] = value
        path = tmp_path / "m.safetensors"
        path.write_bytes(raw[: data.draw(st.integers(0, len(raw)))])
    try:
        infos = tensors.read_header(path)
        for info in infos.values():
            assert info.offset + info.nbytes <= path.stat().st_size
            tensors.load_array(info)
    except EvidenceError:
        pass


def test_shards_are_read_as_one(tmp_path):
    tensors_in = head()
    infos = tensors.read_index(write_shards(tmp_path, tensors_in))
    assert set(infos) == set(tensors_in) and len({i.file for i in infos.values()}) == 2


def test_a_missing_shard_is_named(tmp_path):
    folder = write_shards(tmp_path, head())
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(EvidenceError, match=r"2 shards, of which 1 are not in the folder \(first: model-00002-of-00002"):
        tensors.read_index(folder)
    assert tensors.missing_shards(folder) == ("model-00002-of-00002.safetensors",)
    assert tensors.read_index(folder, partial=True)


@pytest.mark.parametrize("shard", ["../outside.safetensors", "/etc/outside.safetensors", "sub/x.safetensors", "..\\x.safetensors", "x.bin", "", 3])
def test_an_index_that_points_outside_its_folder_is_refused(tmp_path, shard):
    write_raw(tmp_path / "outside.safetensors", GOOD, bytes(12))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shard}}))
    with pytest.raises(EvidenceError, match=r"expected the plain name of a .safetensors file in this folder"):
        tensors.read_index(folder)


def test_an_index_of_another_export_is_named(tmp_path):
    folder = write_shards(tmp_path, head())
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["ghost.weight"] = "model-00001-of-00002.safetensors"
    index.write_text(json.dumps(content))
    with pytest.raises(EvidenceError, match=r"'ghost.weight' in model-00001-of-00002.safetensors, whose header does not hold it"):
        tensors.read_index(folder)
    index.write_text("[]")
    with pytest.raises(EvidenceError, match="expected an object"):
        tensors.read_index(folder)
    index.write_text("{}")
    with pytest.raises(EvidenceError, match="no `weight_map` object"):
        tensors.read_index(folder)


def test_two_exports_in_one_folder_are_named(tmp_path):
    for name in ("model.safetensors", "model-old.safetensors"):
        write_raw(tmp_path / name, GOOD, bytes(12))
    with pytest.raises(EvidenceError, match=r"also in model-old.safetensors"):
        tensors.read_index(tmp_path)


def test_a_missing_folder_and_a_missing_file_are_named(tmp_path):
    with pytest.raises(EvidenceError, match=r"nowhere: does not exist; .* Correct the path"):
        tensors.read_index(tmp_path / "nowhere")
    with pytest.raises(EvidenceError, match=r"nowhere.safetensors: cannot be read \(No such file"):
        tensors.read_header(tmp_path / "nowhere.safetensors")
    assert tensors.read_index(tmp_path) == {}


def test_a_file_that_shrinks_after_its_header_was_read_is_an_error_not_a_crash(tmp_path):
    path = tmp_path / "x.safetensors"
    save_file({"x": torch.ones(64, 64)}, path)
    info = tensors.read_header(path)["x"]
    path.write_bytes(path.read_bytes()[:2000])
    for rows in (None, [60]):
        with pytest.raises(EvidenceError, match="became shorter"):
            tensors.load_array(info, rows)


def test_packed_types_are_listed_but_not_loaded(tmp_path):
    info = tensors.read_header(write_raw(tmp_path / "x.safetensors", {"a": entry("F4", [2, 4], 0, 4)}, bytes(4)))["a"]
    with pytest.raises(EvidenceError, match="is F4, which this reader lists but cannot load"):
        tensors.load_array(info)


# Kimi-K2.6 MLA drafter with embeddings: 17 tensors, 6.03 GB (training-formats of the published checkpoint).
KIMI_MLA = {
    "embed_tokens.weight": (163840, 7168), "fc.weight": (7168, 21504), "norm.weight": (7168,), "lm_head.weight": (163840, 7168),
    "layers.0.hidden_norm.weight": (7168,), "layers.0.input_layernorm.weight": (7168,), "layers.0.post_attention_layernorm.weight": (7168,),
    "layers.0.self_attn.q_a_proj.weight": (1536, 14336), "layers.0.self_attn.q_a_layernorm.weight": (1536,),
    "layers.0.self_attn.q_b_proj.weight": (12288, 1536), "layers.0.self_attn.kv_a_proj_with_mqa.weight": (576, 14336),
    "layers.0.self_attn.kv_a_layernorm.weight": (512,), "layers.0.self_attn.kv_b_proj.weight": (16384, 512),
    "layers.0.self_attn.o_proj.weight": (7168, 8192), "layers.0.mlp.gate_proj.weight": (18432, 7168),
    "layers.0.mlp.up_proj.weight": (18432, 7168), "layers.0.mlp.down_proj.weight": (7168, 18432),
}  # fmt: skip


def read_by_process() -> int:
    """Bytes this process asked of read(); mapped pages are not counted."""
    return int(Path("/proc/self/io").read_text().split("rchar:")[1].split()[0])


def resident(path: Path) -> int:
    """Bytes of a mapped file that are in memory for this process."""
    total, mine = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ")[0]:
            mine = line.endswith(path.name)
        elif mine and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts bytes by /proc")
def test_a_6_gb_drafter_costs_its_header_and_the_asked_rows(tmp_path):
    """A third of a percent of the file at most: under 4 MiB of 6.03 GB."""
    path = tmp_path / "kimi-mla.safetensors"
    size = write_sparse(path, {name: ("BF16", shape) for name, shape in KIMI_MLA.items()}, tensors.BITS)
    assert 6.0e9 < size < 6.1e9
    before = read_by_process()
    infos = tensors.read_header(path)
    rows = tensors.load_array(infos["lm_head.weight"], range(0, 163840, 5120))
    mapped = tensors.load_tensor(infos["fc.weight"], slice(0, 8))
    assert rows.shape == (32, 7168) and mapped.sum() == 0
    asked = rows.size * 2 + mapped.numel() * 2
    spent = read_by_process() - before + resident(path)
    assert asked <= spent < 4 * 2**20
    assert spent - asked < 256 * 1024, "more than the header and the rounding to pages beside the asked rows"


def test_the_same_rows_of_several_tensors_at_once(tmp_path):
    made = {name: torch.randn(9, 3).bfloat16() for name in ("b", "a")} | {"wide": torch.randn(9, 4).bfloat16()}
    save_file(made, tmp_path / "t.safetensors")
    infos = tensors.read_header(tmp_path / "t.safetensors")
    rows = [7, 2, 3, 4, 8, 8]
    assert torch.equal(tensors.load_rows([infos["a"], infos["b"]], rows), torch.stack([made["a"][rows], made["b"][rows]]))
    with pytest.raises(ValueError, match="one file, dtype and shape"):
        tensors.load_rows([infos["a"], infos["wide"]], rows)
    with pytest.raises(ValueError, match="row 9 was asked for"):
        tensors.load_rows([infos["a"]], [9])
