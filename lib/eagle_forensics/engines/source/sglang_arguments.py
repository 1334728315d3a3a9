"""SGLang's own resolution of the EAGLE arguments, executed, against `resolve_args`.

The code is `_handle_eagle_family` (arg_groups/speculative_hook.py, from 0.5.13), and before that the block of server_args.py that starts
with `if self.speculative_algorithm in ("EAGLE", "EAGLE3", ...)`. Other parts of the start (page sizes, backends chosen for a GPU) are
not run here; the engine's own ServerArgs is the oracle for those.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Mapping
from typing import Any

from eagle_forensics.engines.arguments import resolve_args
from eagle_forensics.engines.source.execute import (
    Refused,
    block_as_function,
    call_by_name,
    callable_of,
    outcome,
)
from eagle_forensics.engines.source.ledger import Ledger
from eagle_forensics.engines.source.standins import Anything, Arguments, Flags, Log
from eagle_forensics.engines.source.trees import Tree

HOOK, SERVER = "srt/arg_groups/speculative_hook.py", "srt/server_args.py"
ARCHITECTURES = (
    "LlamaForCausalLM", "Qwen3ForCausalLM", "KimiK25ForConditionalGeneration", "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM",
    "DeepseekV32ForCausalLM", "GptOssForCausalLM", "Glm4MoeForCausalLM", "Glm4MoeLiteForCausalLM", "BailingMoeForCausalLM",
    "MiMoV2FlashForCausalLM", "Grok1ForCausalLM", "PixtralForConditionalGeneration", "Gemma3ForCausalLM")
NAMES = {
    "steps": "speculative_num_steps", "topk": "speculative_eagle_topk", "draft": "speculative_num_draft_tokens", "page": "page_size",
    "backend": "attention_backend", "mixed": "enable_mixed_chunk", "running": "max_running_requests", "draft_path": "speculative_draft_model_path",
    "sync": "disable_overlap_schedule"}
LATE = ("fails later", "selected index", "stays None")
"""Words of our errors for arguments that the parser accepts and a later stage of the start refuses."""


def grid() -> list[tuple[str, dict[str, Any]]]:
    """(architecture, arguments) of every combination that is tried."""
    qwen = "Qwen3ForCausalLM"
    cases: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in ARCHITECTURES]
    for steps, topk, draft in itertools.product((None, 1, 3), (None, 1, 4), (None, 2, 16)):
        cases.append((qwen, {"steps": steps, "topk": topk, "draft": draft}))
    for backend, topk in itertools.product(("flashinfer", "fa3", "triton", "trtllm_mha"), (1, 4)):
        cases.append((qwen, {"steps": 3, "topk": topk, "draft": 16, "page": 64, "backend": backend}))
    cases += [
        ("DeepseekV3ForCausalLM", {"draft_path": None}), ("PixtralForConditionalGeneration", {"draft_path": None}),
        (qwen, {"mixed": True}), (qwen, {"running": 7}), (qwen, {"steps": 3, "topk": 1, "sync": True})]
    return cases


def check_eagle_arguments(tree: Tree, ledger: Ledger) -> None:
    """Every case of `grid`: numbers, switches, log lines and exceptions."""
    code = _Code(tree)
    for architecture, given in grid():
        shown = ", ".join(f"{k}={v}" for k, v in given.items() if v is not None or k == "draft_path") or "nothing set"
        what = f"{architecture}: {shown}"
        ours, our_source = _ours(tree.version, architecture, given)
        try:
            theirs = code.resolve(architecture, given)
        except Refused as refused:
            ledger.unread(what, ours, our_source, str(refused), code.at)
            continue
        if ours.get("error") in LATE and "error" not in theirs:
            ours = {**ours}
            del ours["error"]
        for key in sorted(ours.keys() | theirs.keys()):
            if "error" in theirs and key not in ("error",):
                continue
            ledger.compare(f"{what}: {key}", _shown(ours.get(key)), our_source, _shown(theirs.get(key)), code.at)


def _shown(value: Any) -> str:
    return "accepted" if value is None else str(value)


def _ours(version: str, architecture: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    values = {"draft_path": "draft", "backend": "flashinfer", **given}
    argv = ["--model-path", "target", "--speculative-algorithm", "EAGLE3"]
    for key, value in values.items():
        flag = "--" + NAMES[key].replace("_", "-")
        argv += [] if value is None else [flag] if value is True else [flag, str(value)]
    answer = resolve_args("sglang", version, argv, architecture=architecture)
    e = answer.effective
    out = {
        "num_steps": e["num_steps"], "topk": e["topk"], "num_draft_tokens": e["num_draft_tokens"], "overlap": bool(e["overlap"]),
        "max_running_requests": e["max_running_requests"], "mixed_chunk": e["mixed_chunk"], "draft_model_path": e["draft_model_path"],
        "log": [m.text for m in answer.messages if m.level in ("info", "warning")]}
    if answer.error:
        late = next((word for word in LATE if word in answer.error), None)
        out["error"] = late or re.split(r"[: (]", answer.error)[0]
    return out, answer.sources[0]


class _Code:
    """The deciding code of one tree."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.hook, self.server = tree.parse(HOOK), tree.parse(SERVER)
        self.old = None if self._has("_handle_eagle_family", self.hook) else _old_block(self.server)
        self.block = block_as_function([self.old], ("self",)) if self.old else None
        where = next((n for n in (self.hook.body if self.hook else ()) if getattr(n, "name", "") == "_handle_eagle_family"), None)
        self.at = tree.at(HOOK, where) if where else tree.at(SERVER, self.old or ast.Module([], []))
        environ = re.search(r"SGLANG_ENABLE_SPEC_V2 = EnvBool\((True|False)\)", tree.read("srt/environ.py") or "")
        self.spec_v2 = environ is not None and environ[1] == "True"

    @staticmethod
    def _has(name: str, module: ast.Module | None) -> bool:
        return module is not None and any(getattr(node, "name", "") == name for node in module.body)

    def resolve(self, architecture: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments after the engine's code ran, its log, and its exception."""
        log = Log()
        args = _arguments(architecture, given)
        names = _namespace(log, architecture, self.spec_v2)
        if self.server is not None and self._has("auto_choose_speculative_params", self.server):
            names["auto_choose_speculative_params"] = call_by_name(self.server, "auto_choose_speculative_params", names)
        function = self._function(names)
        _, error = outcome(lambda: function(args))
        out = {
            "num_steps": args.speculative_num_steps, "topk": args.speculative_eagle_topk, "num_draft_tokens": args.speculative_num_draft_tokens,
            "overlap": not args.disable_overlap_schedule, "max_running_requests": args.max_running_requests,
            "mixed_chunk": bool(args.enable_mixed_chunk), "draft_model_path": args.speculative_draft_model_path, "log": log.lines}
        return {**out, "error": re.split(r"[: (]", error)[0]} if error else out

    def _function(self, names: Mapping[str, Any]) -> Callable[..., Any]:
        if self.old is not None:
            return callable_of(self.block, names)
        function = call_by_name(self.hook, "_handle_eagle_family", names) if self.hook else None
        if function is None:
            raise Refused("neither _handle_eagle_family nor the EAGLE block of server_args.py is there")
        return function


def _arguments(architecture: str, given: Mapping[str, Any]) -> Arguments:
    config = Anything(hf_config=Anything(architectures=[architecture]))
    values = {
        "speculative_algorithm": "EAGLE3", "speculative_draft_model_path": "draft", "model_path": "target", "page_size": 1, "device": "cuda",
        "attention_backend": "flashinfer", "moe_runner_backend": "auto", "speculative_accept_threshold_single": 1.0,
        "speculative_accept_threshold_acc": 1.0, "disable_overlap_schedule": False, "enable_mixed_chunk": False, "enable_dp_attention": False,
        "get_model_config": lambda: config, "get_hf_config": lambda: config.hf_config}
    return Arguments({**values, **{NAMES[key]: value for key, value in given.items()}})


def _namespace(log: Log, architecture: str, spec_v2: bool) -> dict[str, Any]:
    def declare(args: Arguments, who: str, **values: Any) -> None:
        vars(args).update(values)

    no = Anything(is_out_of_tree=lambda: False)
    return {
        "logger": log, "envs": Flags({"SGLANG_ENABLE_SPEC_V2": spec_v2, "SGLANG_SIMULATE_ACC_LEN": -1}), "current_platform": no,
        "get_model_arch": lambda args: architecture,
        "get_config": lambda *args, **kwargs: Anything(architectures=[architecture]), "is_cuda": lambda: True,
        "get_platform": lambda: Anything(is_hip=False, is_sm100=False), "resolved_view": lambda args: args, "resolving_view": lambda args: args,
        "attn_dp_enabled_of": lambda args: False, "model_config_of": lambda args: args.get_model_config(),
        "attention_backends_of": lambda args: (args.attention_backend, args.prefill_attention_backend, args.decode_attention_backend),
        "json": Anything(), "declare_resolution": declare, "_handle_iquest_q1_mtp_draft": lambda args: False,
        "SpeculativeAlgorithm": Anything(from_string=lambda name: Anything(supports_mixed_chunk=lambda: True))}


def _old_block(module: ast.Module | None) -> ast.If | None:
    """`if self.speculative_algorithm in ("EAGLE", "EAGLE3", ...)`: the branch that settles the numbers."""
    for node in ast.walk(module) if module else ():
        if isinstance(node, ast.If) and isinstance(node.test, ast.Compare) and isinstance(node.test.ops[0], ast.In):
            test = ast.unparse(node.test)
            settles = any("speculative_num_draft_tokens" in ast.unparse(part) for part in node.body)
            if settles and test.startswith("self.speculative_algorithm in") and "'EAGLE3'" in test:
                return node
    return None
