"""SGLang's draft class against our table: `load_weights` is executed on tensor names, the head flags are looked up in the text."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from eagle_forensics.engines.source.execute import Refused, callable_of, outcome
from eagle_forensics.engines.source.ledger import Ledger
from eagle_forensics.engines.source.standins import Anything
from eagle_forensics.engines.source.trees import Tree
from eagle_forensics.engines.tables import table
from eagle_forensics.engines.tensors import loading
from eagle_forensics.engines.versions import since

DRAFT, MLA_DRAFT = "srt/models/llama_eagle3.py", "srt/models/kimi_k25_eagle3.py"
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "use_aux_norm", "norm_output", "num_aux_hidden_states", "use_last_layernorm")
_LAYER = ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight", "self_attn.o_proj.weight", "hidden_norm.weight",
          "input_layernorm.weight", "post_attention_layernorm.weight", "mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight")
_HEAD = ("fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d")
SPELLINGS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "midlayer": ((*_HEAD, *(f"midlayer.{part}" for part in _LAYER)), {}),
    "layers.0": ((*_HEAD, *(f"layers.0.{part}" for part in _LAYER)), {}),
    "model.layers.0": (("lm_head.weight", "model.fc.weight", "model.norm.weight", *(f"model.layers.0.{part}" for part in _LAYER)), {}),
    "aux_norm": ((*_HEAD, "aux_norm_low.weight", "aux_norm_mid.weight", "aux_norm_high.weight", "midlayer.hidden_norm.weight"), {"use_aux_norm": True}),
    "fc_norm without its flag": ((*_HEAD, "fc_norm.0.weight", "fc_norm.1.weight", "fc_norm.2.weight"), {}),
    "input_norm": ((*_HEAD, "input_norm.weight"), {"norm_before_fc": True}),
    "misspelled fc": (("fc_proj.weight", "norm.weight", "lm_head.weight"), {}),
}


def check_loading(tree: Tree, ledger: Ledger) -> None:
    """Which tensors of each spelling reach a parameter, for the parameters that our table says the class builds."""
    node, parent = _method(tree, DRAFT), _method(tree, "srt/models/llama.py")
    at = tree.at(DRAFT, node) if node else f"sglang {tree.version} models/llama_eagle3.py: no load_weights"
    for spelling, (names, flags) in SPELLINGS.items():
        config = {"num_hidden_layers": 1, "hidden_size": 576, "vocab_size": 49152, "draft_vocab_size": 4096, **flags}
        answer = loading("sglang", tree.version, names, config)
        ours = (answer.error or "").partition(":")[0] or sorted(name for name in answer.loaded if "d2t" not in name)
        what, source = f"draft tensors spelled {spelling}: loaded", f"{answer.sources[0]}"
        if node is None:
            ledger.unread(what, ours, source, "no load_weights", at)
            continue
        try:
            theirs = _load(node, parent, names, {*answer.loaded.values(), *answer.missing, "model.embed_tokens.weight"})
        except Refused as refused:
            ledger.unread(what, ours, source, str(refused), at)
            continue
        ledger.compare(what, ours, source, theirs, at)


def check_flags(tree: Tree, ledger: Ledger) -> None:
    """Which head flags the draft class reads, whether it builds named layers, and whether there is an MLA draft class."""
    rules = table("tensors")["sglang"]
    text = tree.read(DRAFT) or ""
    at = f"sglang {tree.version} models/llama_eagle3.py"
    for flag in FLAGS:
        ours = since(rules["honoured_since"].get(flag), tree.version)
        ledger.compare(f"draft flag {flag}: read", ours, rules["source"], f'"{flag}"' in text, at)
    ledger.compare("draft layers are named layers.N", since(rules["layers_since"], tree.version), rules["source"], "self.midlayer =" not in text, at)
    ledger.compare("an MLA draft class exists", since(rules["mla_since"], tree.version), rules["source"], tree.read(MLA_DRAFT) is not None,
                   f"sglang {tree.version} models/kimi_k25_eagle3.py")
    switch = f'"{"use_aux_hidden_state"}"'
    files = [file for file, body in tree.files("srt/model_executor") if switch in body]
    ledger.compare("eagle_config.use_aux_hidden_state: read", since(rules["honoured_since"]["use_aux_hidden_state"], tree.version), rules["source"],
                   bool(files), f"sglang {tree.version} {(files or ['srt/model_executor/'])[0].removeprefix('srt/')}")


def _method(tree: Tree, file: str) -> ast.FunctionDef | None:
    module = tree.parse(file)
    classes = [node for node in (module.body if module else ()) if isinstance(node, ast.ClassDef)]
    parts = [part for node in classes for part in node.body if isinstance(part, ast.FunctionDef)]
    return next((part for part in parts if part.name == "load_weights"), None)


def _load(node: ast.FunctionDef, parent: ast.FunctionDef | None, names: tuple[str, ...], params: set[str]) -> list[str] | str:
    """The names whose tensor is handed to a parameter's loader, or the exception; `parent` is the inherited method."""
    reached: set[str] = set()

    def loader(param: Any, weight: Any, *shard: Any) -> None:
        reached.add(weight.origin)

    def tensors() -> Iterator[tuple[str, Any]]:
        for name in names:
            yield name, _Weight(name)

    def inherited(given: Any) -> None:
        callable_of(parent, names_used)(me, given)

    me = Anything(named_parameters=lambda: [(name, Anything(weight_loader=loader)) for name in params], config=Anything(tie_word_embeddings=False))
    names_used = {"default_weight_loader": loader, "torch": Anything(arange=lambda n: 0), "logger": Anything(), "get_layer_id": lambda name: None,
                  "super": lambda: Anything(load_weights=inherited)}
    _, error = outcome(lambda: callable_of(node, names_used)(me, tensors()))
    return error.partition(":")[0] if error else sorted(reached)


class _Weight:
    """A tensor of which only the name and a length are known."""

    shape = (4096, 576)

    def __init__(self, origin: str) -> None:
        self.origin = origin

    def __add__(self, other: Any) -> _Weight:
        return self
