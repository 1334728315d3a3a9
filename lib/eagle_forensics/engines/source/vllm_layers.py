"""vLLM's source against our table: which ids each model runner reads, the default layers, and which runner is the default."""

from __future__ import annotations

import ast
import re
from typing import Any

from eagle_forensics.engines import vllm
from eagle_forensics.engines.source.execute import Refused, callable_of, outcome
from eagle_forensics.engines.source.ledger import Ledger
from eagle_forensics.engines.source.standins import Anything, Arguments, Log
from eagle_forensics.engines.source.trees import Tree
from eagle_forensics.engines.tables import table
from eagle_forensics.engines.versions import since
from eagle_forensics.evidence.records import ClaimedIds

KEY = "eagle_aux_hidden_state_layer_ids"
RESOLVERS = {
    "v1": ("v1/worker/gpu_model_runner.py", "_get_eagle3_aux_layers_from_config"),
    "v2": ("v1/worker/gpu/spec_decode/eagle/eagle3_utils.py", "get_eagle3_aux_layers_from_config"),
}
PROPOSERS = ("v1/spec_decode/eagle.py", "v1/spec_decode/llm_base_proposer.py")
INTERFACES, CONFIG = "model_executor/models/interfaces.py", "config/vllm.py"
CONFIGS: tuple[tuple[str, dict[str, Any], ClaimedIds], ...] = (
    ("no ids", {}, ClaimedIds()),
    ("top-level ids [2, 30, 58]", {KEY: [2, 30, 58]}, ClaimedIds(top_level=(2, 30, 58))),
    ("nested ids [1, 29, 57]", {"eagle_config": {KEY: [1, 29, 57]}}, ClaimedIds(nested=(1, 29, 57), eagle_config="object")),
    ("eagle_config.layer_ids [1, 29, 57]", {"eagle_config": {"layer_ids": [1, 29, 57]}},
     ClaimedIds(nested_layer_ids=(1, 29, 57), eagle_config="object")),
    ("top-level [2, 30, 58] and nested [1, 29, 57]", {KEY: [2, 30, 58], "eagle_config": {KEY: [1, 29, 57]}},
     ClaimedIds(top_level=(2, 30, 58), nested=(1, 29, 57), eagle_config="object")),
)
LAYERS = 61


def check_resolvers(tree: Tree, ledger: Ledger) -> None:
    """Both runners, on every place the ids may stand."""
    for runner, (file, name) in RESOLVERS.items():
        if runner == "v2" and tree.read(file) is None:
            continue
        node = _function(tree, file, name)
        at = tree.at(file, node) if node else f"vllm {tree.version} {file}: no {name}"
        for what, config, claimed in CONFIGS:
            answer, _ = vllm.capture(tree.version, model_type="llama", layers=LAYERS, claimed=claimed, runner=runner)
            question = f"{runner.upper()} runner, {what}: boundaries asked for"
            if node is None:
                ledger.compare(question, answer.values["eager"], answer.sources[0], (2, LAYERS // 2, LAYERS - 3), at)
                continue
            spec = Anything(draft_model_config=Anything(hf_config=_Config(config)))
            try:
                function = callable_of(node, {})
                ids, error = outcome(lambda f=function, s=spec, r=runner: f(Anything(speculative_config=s)) if r == "v1" else f(s))
            except Refused as refused:
                ledger.unread(question, answer.values["eager"], answer.sources[0], str(refused), at)
                continue
            theirs = error or (tuple(ids) if ids else (2, LAYERS // 2, LAYERS - 3))
            ledger.compare(question, answer.values["eager"], answer.sources[0], theirs, at)


def check_default(tree: Tree, ledger: Ledger) -> None:
    """The layers a model captures when the config names none, in every class that says so itself."""
    wanted, source = (2, LAYERS // 2, LAYERS - 3), "vllm.toml: default 2, L//2, L-3"
    for file, text in sorted(tree.models.items()):
        for name in ("get_eagle3_default_aux_hidden_state_layers", "get_eagle3_aux_hidden_state_layers"):
            if f"def {name}" not in text:
                continue
            relative = f"model_executor/models/{file}.py"
            for cls, node in _methods(tree, relative, name):
                if _abstract(node):
                    continue
                what, at = f"{cls}.{name}, L={LAYERS}", tree.at(relative, node)
                try:
                    theirs, error = outcome(lambda n=node: callable_of(n, {})(_model()))
                except Refused as refused:
                    ledger.unread(what, wanted, source, str(refused), at)
                    continue
                if isinstance(theirs, Anything):
                    continue  # it asks the language model inside, which is checked under its own name
                ledger.compare(what, wanted, source, error or tuple(theirs), at)


def check_runner(tree: Tree, ledger: Ledger) -> None:
    """Which architectures get the V2 runner by default: the release's own decision, run for each of our families."""
    node = _function(tree, CONFIG, "use_v2_model_runner")
    is_default = _function(tree, CONFIG, "_is_default_v2_model_runner_model")
    listed = _listed(tree) if node else frozenset()
    for model_type, architecture in sorted(_TARGETS.items()):
        ours, _, source = vllm.default_runner(tree.version, model_type)
        what = f"{architecture} ({model_type}): default runner"
        if node is None:
            ledger.compare(what, ours, source, "v1", f"vllm {tree.version} {CONFIG}: no use_v2_model_runner")
            continue
        try:
            theirs = "v2" if _decide(node, is_default, architecture, listed) else "v1"
        except Refused as refused:
            ledger.unread(what, ours, source, str(refused), tree.at(CONFIG, node))
            continue
        ledger.compare(what, ours, source, theirs, tree.at(CONFIG, node))


_TARGETS = {
    "llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM", "gpt_oss": "GptOssForCausalLM", "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM", "deepseek_v32": "DeepseekV32ForCausalLM", "kimi_k25": "KimiK25ForConditionalGeneration",
    "gemma3": "Gemma3ForConditionalGeneration", "gemma3_text": "Gemma3ForCausalLM", "apertus": "ApertusForCausalLM", "phi3": "Phi3ForCausalLM",
    "arcee": "ArceeForCausalLM", "minicpm": "MiniCPMForCausalLM", "llama4": "Llama4ForConditionalGeneration",
    "qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration", "minimax_m2": "MiniMaxM2ForCausalLM", "glm4_moe": "Glm4MoeForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM"}


def _decide(node: ast.FunctionDef, is_default: ast.FunctionDef | None, architecture: str, listed: frozenset[str]) -> bool:
    """Runs `use_v2_model_runner` for a plain unquantized start on a CUDA machine with Triton and no unsupported feature."""
    names = {
        "envs": Anything(VLLM_USE_V2_MODEL_RUNNER=None), "logger": Log(), "HAS_TRITON": True, "current_platform": Anything(is_rocm=lambda: False),
        "DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES": listed, "default_v2_model_runner_architectures": lambda: listed}
    moe = any(part in architecture for part in ("Moe", "MoE", "Deepseek", "GptOss", "Kimi", "MiniMaxM2", "Llama4", "Next"))
    model = Arguments({"architectures": [architecture], "architecture": architecture, "is_moe": moe, "runner_type": "generate"})
    start = _Start({"model_config": model, "speculative_config": Arguments({"method": "eagle3"}), "attention_config": Arguments({}),
                    "parallel_config": Anything(prefill_context_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=1)})
    if is_default is not None:
        start._is_default_v2_model_runner_model = lambda: callable_of(is_default, names)(start)
    result, error = outcome(lambda: callable_of(node, names)(start))
    if error:
        raise Refused(error)
    return bool(result)


def _listed(tree: Tree) -> frozenset[str]:
    module = tree.parse(CONFIG)
    for node in module.body if module else ():
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES":
            return frozenset(n.value for n in ast.walk(node.value) if isinstance(n, ast.Constant))
    return frozenset()


class _Start(Arguments):
    """The start's configuration: questions about it that are not asked here are answered with no."""

    def __getattr__(self, name: str) -> Any:
        return (lambda *args, **kwargs: False) if name.startswith("_") and not name.startswith("__") else super().__getattr__(name)


class _Config:
    def __init__(self, values: dict[str, Any]) -> None:
        vars(self).update(values)


def _model() -> Any:
    """A model of LAYERS layers, with the language model that a multimodal class asks in its place (answered under its own name)."""
    inner = _Config({"layers": [None] * LAYERS, "config": Anything(num_hidden_layers=LAYERS)})
    language = Anything(model=inner, config=inner.config)
    return Anything(model=inner, decoder=inner, config=inner.config, language_model=language, get_language_model=lambda: language)


def _abstract(node: ast.FunctionDef) -> bool:
    return all(isinstance(part, ast.Expr | ast.Pass) for part in node.body)


def _function(tree: Tree, file: str, name: str) -> ast.FunctionDef | None:
    return next((node for _, node in _methods(tree, file, name)), None)


def _methods(tree: Tree, file: str, name: str) -> list[tuple[str, ast.FunctionDef]]:
    """(class, function) of every definition of `name` in a file; the class is the file's name for a plain function."""
    text = tree.read(file)
    module = tree.parse(file) if text and f"def {name}" in text else None
    found: list[tuple[str, ast.FunctionDef]] = []
    for node in module.body if module else ():
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        owner = node.name if isinstance(node, ast.ClassDef) else file.rpartition("/")[2]
        found += [(owner, part) for part in inside if isinstance(part, ast.FunctionDef) and part.name == name]
    return found



def check_capture(tree: Tree, ledger: Ledger) -> None:
    """What is only read as text: whether boundaries 0 and L are captured, and which head flags the draft class knows."""
    rules = table("vllm")
    mixin = "def _maybe_add_hidden_state" in (tree.read(INTERFACES) or "")
    for field in ("embedding_since", "final_since"):
        ledger.compare(f"classes with the mixin: {field.removesuffix('_since')} boundary captured", since(rules[field], tree.version),
                       rules["mixin_source"], mixin, f"vllm {tree.version} {INTERFACES}")
    _support(tree, ledger)
    row = next(row for row in rules["family"] if row["name"] == "deepseek_v2")
    text = tree.models.get("deepseek_v2", "")
    at = f"vllm {tree.version} model_executor/models/deepseek_v2.py"
    supported = "aux_hidden_state_layers" in text
    if supported:
        ledger.compare("DeepseekV2ForCausalLM: boundary L captured", since(row["final_since"], tree.version), row["source"],
                       "self.end_layer in self.aux_hidden_state_layers" in text, at)
        ledger.compare("DeepseekV2ForCausalLM: boundary 0 captured", row["embedding_since"] != "never", row["source"],
                       "_maybe_add_hidden_state(" in text or "if residual is None" in text.partition("in self.aux_hidden_state_layers")[2][:300], at)
    tensors = table("tensors")["vllm"]
    draft = tree.models.get("llama_eagle3", "")
    for flag in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "num_aux_hidden_states"):
        ledger.compare(f"draft flag {flag}: read", since(tensors["honoured_since"][flag], tree.version), tensors["source"],
                       f'"{flag}"' in draft or f"config.{flag}" in draft, f"vllm {tree.version} model_executor/models/llama_eagle3.py")
    readers = [tree.read(file) or "" for file in PROPOSERS]
    ledger.compare("draft flag use_aux_hidden_state: read", since(tensors["honoured_since"]["use_aux_hidden_state"], tree.version), tensors["source"],
                   any('"use_aux_hidden_state"' in text for text in readers), f"vllm {tree.version} {' or '.join(PROPOSERS)}")
    ledger.compare("an MLA draft class exists", since(tensors["mla_since"], tree.version), tensors["source"], "deepseek_eagle3" in tree.models,
                   f"vllm {tree.version} model_executor/models/deepseek_eagle3.py")


def _support(tree: Tree, ledger: Ledger) -> None:
    """From which release on each class of the table can capture."""
    for row in table("vllm")["family"]:
        for architecture in row["architectures"]:
            file = next((file for file, text in sorted(tree.models.items()) if file != "config" and f"class {architecture}(" in text), None)
            if file is not None:
                ledger.compare(f"{architecture}: can capture", since(row["supported_since"], tree.version), f"vllm.toml: {row['name']}",
                               _can_capture(tree.models[file], architecture), f"vllm {tree.version} model_executor/models/{file}.py")


def _can_capture(text: str, cls: str) -> bool:
    """Whether a class, or one it inherits from in the same file or LlamaForCausalLM, is told which layers to capture."""
    found = re.search(rf"class {cls}\((.*?)\):(.*?)(?=\nclass |\Z)", text, re.DOTALL)
    if found is None:
        return cls == "LlamaForCausalLM"
    bases, body = found.groups()
    return "SupportsEagle3" in bases or "def set_aux_hidden_state_layers" in body or any(
        _can_capture(text, base) for base in re.findall(r"\w+ForCausalLM", bases))
