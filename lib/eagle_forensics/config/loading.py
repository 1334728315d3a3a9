"""What the draft's own config makes of the checkpoint: class, layers, head dimensions, bias, quantization, dtype."""

from __future__ import annotations

from eagle_forensics.config.inspection import Inspection
from eagle_forensics.config.question import Question, rules, unless_assumed
from eagle_forensics.engines.loading import ENGINES, draft_dtype, draft_quantization
from eagle_forensics.engines.tables import table
from eagle_forensics.engines.tensors import ONE_LAYER
from eagle_forensics.evidence.records import Draft
from eagle_forensics.evidence.tensors import load_array
from eagle_forensics.finding import Evidence, Finding

CLASS = Question("config.architecture", "Does the engine have a drafter class for this config?")
LAYERS = Question("config.layer-count", "Does the config name as many draft layers as the weights hold?")
HEADS = Question("config.head-dims", "Do the attention heads of the config fit the weights?")
BIAS = Question("config.fc-bias", "Is a bias of fc used?")
QUANTIZED = Question("config.draft-quantization", "Is the draft loaded in the quantization it was exported in?")
DTYPE = Question("config.dtype", "Does the draft run in the dtype it was exported in?")
_SPELLED = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64"}


def loading_findings(found: Inspection) -> list[Finding]:
    """Everything about loading that is not the inventory of names (`checkpoint.py`)."""
    draft = found.draft
    if draft is None:
        return [CLASS.needs(found, "drafter.path", decides="which class loads it")]
    bias = [BIAS.unless_unreadable(lambda: _bias(found, draft))] if "fc.bias" in draft.tensors else []
    shapes = [_head_dims(draft), *bias, _dtype(found, draft)] if draft.tensors else []
    items = [_class(found, draft), *_layer_count(found, draft), *shapes, _quantization(found, draft)]
    return [item if item.id == HEADS.id else unless_assumed(item, {found.engine: found.arguments if item.id == QUANTIZED.id else found.loads}) for item in items]


def _class(found: Inspection, draft: Draft) -> Finding:
    answer, named = found.loads, ", ".join(draft.architectures) or "none"
    if answer is None:
        return CLASS.needs(found, "serving.engine", "serving.version", decides="whether a drafter class of that release takes this config")
    if not answer.error:
        return CLASS.passes(f"{found.engine} takes this config (architectures: {named})", observed=named, evidence=rules(*answer.sources))
    if _one_layer_only(found, draft):
        return CLASS.fails(
            "drafter.extra-layers", f"{found.engine} does not load this drafter of {draft.layers} layers: {answer.error}", observed=draft.layers, expected=1, unit="draft layers",
            rival=("drafter.residual", f"{draft.layers} layers in the weights, 1 in the class", "the class refuses the number of layers before it computes any of them"),
            refuted_by="the server starts with this drafter and reports accept lengths above 1.00", evidence=rules(*answer.sources),
            remedy="A release that builds every layer of the head (SGLang from 0.5.12 for plain attention; vLLM), or a head of one layer. Not `num_hidden_layers: 1`: the engine would then drop the other layers "
            "without a message.", predicted_effect="The server starts; nothing is known yet about the accept length.", next_step="Serve with such a release and measure.")
    mapped = sum("midlayer." in t.name or "layers.0." in t.name for t in draft.tensors.values())
    null = "target_hidden_size" in draft.config and draft.config["target_hidden_size"] is None and "target_hidden_size" in answer.error
    margin = f"{mapped} tensors of a draft layer are in the file" if draft.tensors else "the config alone decides it"
    return CLASS.fails(
        "load.architecture", f"{found.engine} does not load this drafter: {answer.error}", observed=named, expected="a drafter class of this release",
        rival=("load.tensor-inventory", margin, "nothing is missing from the file; the class refuses before it looks for a tensor"),
        refuted_by="the server starts with this drafter and reports accept lengths above 1.00", evidence=rules(*answer.sources),
        remedy="Remove the key target_hidden_size, or write the target's hidden size." if null else "Correct the config field the error names"
        + (" (SGLang: LlamaForCausalLMEagle3 for a head with plain attention)." if "draft class" in answer.error else "."),
        edits=found.edit("target_hidden_size", found.target.hidden if found.target else None) if null else (),
        predicted_effect="The server starts; nothing is known yet about the accept length.", next_step="Apply the remedy and start the server once.")


def _one_layer_only(found: Inspection, draft: Draft) -> bool:
    """The weights hold several layers, the config says so, and the class of this release builds one."""
    answer = found.loads
    return answer is not None and (answer.error or "").startswith(ONE_LAYER) and draft.layers > 1 and draft.config.get("num_hidden_layers", 1) == draft.layers


def _layer_count(found: Inspection, draft: Draft) -> list[Finding]:
    if _one_layer_only(found, draft):
        return []
    claimed = draft.config.get("num_hidden_layers", 1)
    copied = found.target is not None and claimed == found.target.layers and claimed != draft.layers
    common = {"observed": draft.layers, "expected": claimed, "unit": "draft layers"}
    if not draft.tensors:
        if found.target is not None and claimed == found.target.layers and claimed > 4:
            return [LAYERS.suspects("load.tensor-inventory", f"the config names {claimed} layers, as many as the target has; a drafter holds one or a few",
                                    next_step="Add the drafter's weights: their headers count the layers.")]
        return []
    if claimed == draft.layers:
        return [LAYERS.passes(f"config and weights agree on {claimed} layer(s)", **common)]
    answer, whence = found.loads, ", copied from the target" if copied else ""
    words = f"the config names {claimed} layers{whence}, the weights hold {draft.layers}"
    random = sorted({n.split(".layers.")[1].split(".")[0] for n in answer.missing if ".layers." in n}) if answer else []
    if answer is None or (not random and not answer.error):
        return [LAYERS.suspects("load.tensor-inventory", f"{words}; what {found.engine} builds then is not written down", **common,
                               next_step=f"Write `num_hidden_layers: {draft.layers}` and compare the accept length.")]
    effect = f"{found.engine} builds {claimed} and leaves {len(random)} of them random" if random else f"{found.engine} stops: {answer.error}"
    return [LAYERS.fails(
        "load.tensor-inventory", f"{words}: {effect}", **common, evidence=rules(*answer.sources),
        rival=("data.too-little", f"{len(random)} of {claimed} layers have no tensor", "random layers ruin any drafter; the count decides without running it"),
        refuted_by="another file of the checkpoint holds the other layers", remedy=f"Write `num_hidden_layers: {draft.layers}` in the drafter's config.json.",
        edits=found.edit("num_hidden_layers", draft.layers), predicted_effect="The accept length leaves 1.00 for what the trained layer earns.",
        next_step="Apply the edit and measure again.")]


def _head_dims(draft: Draft) -> Finding:
    """q [heads * D, 2H], k and v [kv_heads * D, 2H], o [H, heads * D]; latent attention by its ranks."""
    shapes = {k.split("self_attn.")[1]: t.shape for k, t in draft.tensors.items() if k.startswith("layers.0.self_attn.") and len(t.shape) == 2}
    if not shapes:
        return HEADS.skips("attention projections of a draft layer among the drafter's tensors", "whether heads and head_dim of the config are right")
    dims = _expected_rows(draft)
    checked = {name: (shapes[name][axis], want) for (name, axis), want in dims.items() if name in shapes and want}
    wrong = {name: pair for name, pair in checked.items() if pair[0] != pair[1]}
    evidence = tuple(Evidence(note=f"{name} {list(shape)}") for name, shape in shapes.items())
    if not checked:
        return HEADS.suspects(None, "the config names no heads; nothing to compare the shapes with", evidence=evidence, next_step="Add num_attention_heads and head_dim.")
    if not wrong:
        return HEADS.passes(f"{draft.heads} heads of {draft.head_dim} fit {len(checked)} projections", observed=draft.head_dim, unit="head_dim", n=len(checked), evidence=evidence)
    words = "; ".join(f"{name} has {is_} where the config gives {want}" for name, (is_, want) in wrong.items())
    return HEADS.fails(
        "load.tensor-inventory", f"heads of the config do not fit the weights: {words}", observed=[p[0] for p in wrong.values()], expected=[p[1] for p in wrong.values()],
        n=len(checked), unit="rows or columns", evidence=evidence,
        rival=("load.architecture", f"{len(checked) - len(wrong)} of {len(checked)} projections fit", "the names belong to this class; only sizes differ"),
        refuted_by="the engine loads these tensors without a shape error", remedy="Correct num_attention_heads, num_key_value_heads and head_dim in the drafter's config.json.",
        predicted_effect="The server starts.", next_step="Correct the config and inspect again.")


def _expected_rows(draft: Draft) -> dict[tuple[str, int], int | None]:
    config, heads, kv, dim = draft.config, draft.heads, draft.kv_heads, draft.head_dim
    if draft.family == "eagle3_mla":
        nope, rope, value, lora = (config.get(k) for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank"))
        ints = all(isinstance(v, int) for v in (nope, rope, value, lora, heads))
        return {} if not ints else {("q_b_proj.weight", 0): heads * (nope + rope), ("kv_b_proj.weight", 0): heads * (nope + value),
                                    ("kv_a_proj_with_mqa.weight", 0): lora + rope, ("o_proj.weight", 1): heads * value}
    if not (heads and kv and dim):
        return {}
    return {("q_proj.weight", 0): heads * dim, ("k_proj.weight", 0): kv * dim, ("v_proj.weight", 0): kv * dim, ("o_proj.weight", 1): heads * dim}


def _bias(found: Inspection, draft: Draft) -> Finding:
    tensor, answer = draft.tensors["fc.bias"], found.loads
    if answer is None:
        return BIAS.needs(found, "serving.engine", "serving.version", decides="whether fc.bias is used")
    largest = float(abs(load_array(tensor)).max(initial=0.0))
    common = {"observed": largest, "unit": "largest absolute value of fc.bias", "n": tensor.shape[0], "evidence": rules(*answer.sources)}
    if largest == 0:
        return BIAS.passes("fc.bias is there but zero everywhere", **common)
    if tensor.name not in answer.dropped and found.case.serving.engine == "vllm":
        return BIAS.suspects(
            "drafter.bias", f"fc has a bias (up to {largest:.3g}); the drafter classes of vLLM that were read build fc without one", **common, required=True,
            rival=("load.tensor-inventory", "one tensor of one module", "not rejected here: an error at load that names fc.bias is the loud form of it"),
            next_step="See whether vLLM names fc.bias in an error at load; if it starts, the bias is not used.")
    if tensor.name not in answer.dropped:
        return BIAS.passes(f"{found.engine} uses fc.bias", **common)
    return BIAS.fails(
        "drafter.bias", f"fc has a bias (up to {largest:.3g}) but the config has no `bias: true`: {found.engine} drops it silently", **common,
        rival=("load.tensor-inventory", "one tensor of one module", "the module exists; only the flag that gives it a bias is absent"),
        refuted_by="the engine's parameters contain fc.bias", remedy="Write `bias: true` in the drafter's config.json.", edits=found.edit("bias", True),
        predicted_effect="Notebook 02 shows the accuracy with and without the bias.", next_step="Apply the edit and measure again.")


def _quantization(found: Inspection, draft: Draft) -> Finding:
    rule, answer = table("loading")["quantization"], found.arguments
    if answer is None:
        return QUANTIZED.needs(found, "serving.engine", "serving.version", "serving.launch", decides="whether the draft inherits --quantization")
    if answer.error:
        return QUANTIZED.skips("launch line that this engine accepts", "whether the draft inherits --quantization")
    engine = found.case.serving.engine
    if engine not in ENGINES:
        return QUANTIZED.skips("engine whose quantization rule is written down (SGLang, vLLM)", "the format the draft is loaded in")
    loads = draft_quantization(engine, found.case.serving.version, effective=answer.effective, raw=answer.raw, draft=draft.config,
                               target=found.target.config if found.target else {})
    own, method = draft.config.get("quantization_config"), loads.method
    said = next((line for line in found.log_lines("quantization") if rule["stops_with"] in line), None)
    evidence = (*rules(*answer.sources, loads.source), *([Evidence(note=said)] if said else []))
    common = {"observed": method or "none", "expected": "its own" if own else "none", "evidence": evidence}
    if loads.ignores_own:
        return QUANTIZED.suspects("load.draft-quantization", f"the draft brings a quantization_config that {found.engine} does not use: {loads.whence}", **common, required=True,
                                  next_step="Serve with vLLM 0.11.1 or later, or an unquantized copy of the drafter.")
    if own or not method:
        return QUANTIZED.passes(f"the draft {'brings its own quantization_config' if own else 'is loaded unquantized'}", **common)
    words = f"the draft has no quantization_config but is loaded as {method} ({loads.whence})"
    if method not in rule["needs_files"] or engine != "sglang":
        return QUANTIZED.suspects("load.draft-quantization", f"{words}: whether it loads so, and at what loss, is not known", **common, required=True,
                                  next_step="Measure once with the draft unquantized (SGLang: --speculative-draft-model-quantization unquant; vLLM: 0.11.1 or later).")
    return QUANTIZED.fails(
        "load.draft-quantization", f"{words}, a method that needs its own files in the checkpoint" + (f"; the log says: {said}" if said else ""), **common,
        rival=("a corrupt checkpoint", f"{len(draft.tensors)} tensors with plain names and shapes" if draft.tensors else "the config alone decides it",
               "the shapes are right for an unquantized layer; the launch line asks for another format"),
        refuted_by="the resolved draft quantization is none, or the draft loads with weights equal to the checkpoint",
        remedy="--speculative-draft-model-quantization unquant (SGLang 0.5.7 or later); before, serve the draft with a release that has the flag.",
        predicted_effect="The draft loads.", next_step="Restart with the flag.")


def _dtype(found: Inspection, draft: Draft) -> Finding:
    serving = found.case.serving
    if serving.engine not in ENGINES:
        return DTYPE.skips("engine whose dtype rule is written down (SGLang, vLLM)", "the dtype the draft runs in")
    effective = found.arguments.effective if found.arguments and not found.arguments.error else {}
    bulk: dict[str, int] = {}
    for tensor in draft.tensors.values():
        if tensor.dtype in _SPELLED:
            bulk[_SPELLED[tensor.dtype]] = bulk.get(_SPELLED[tensor.dtype], 0) + tensor.nbytes
    stored = max(bulk, key=bulk.get) if bulk else None
    asked = effective.get("dtype", "auto")
    chosen = draft_dtype(serving.engine, asked=asked, draft=draft.config, target=found.target.config if found.target else {},
                         capability=serving.hardware.compute_capability if serving.hardware else None)
    runs, whose = chosen.runs, "the target's config" if chosen.follows == "target" else "config"
    if runs is None:
        return DTYPE.skips("dtype in the target's config, which vLLM gives to the draft", "the dtype the draft runs in")
    words = f"--dtype {asked}, {whose} {chosen.claimed or 'silent'}, file {stored or 'unknown'}: the draft runs in {runs}"
    common = {"observed": runs, "expected": stored, "evidence": rules(chosen.source)}
    apart = _beside_target(found, asked, runs)
    if apart is not None:
        return apart
    if stored is None:
        return DTYPE.skips("drafter tensor in a plain float format", f"whether {runs}, in which the draft runs, is that of the file")
    if runs in bulk or runs == "float32":
        return DTYPE.passes(words, **common)
    return DTYPE.suspects(
        "load.dtype", words + (": float16 overflows above 65504, which bfloat16 does not" if runs == "float16" else ""), **common,
        rival=("load.draft-quantization", "no quantization method is involved", "a rounding, not another format; its cost is measured, not assumed"),
        remedy=f"State --dtype {stored}.", next_step="Notebook 02: the accuracy in either dtype decides whether it matters.")


def _beside_target(found: Inspection, asked: str, runs: str) -> Finding | None:
    """With --dtype auto SGLang gives each model the dtype of its own config, and fc multiplies the target's states as they are."""
    draft, target, serving = found.draft, found.target, found.case.serving
    if serving.engine != "sglang" or target is None or not (target.config.get("torch_dtype") or target.config.get("dtype")) or draft.config.get("quantization_config"):
        return None
    capability = serving.hardware.compute_capability if serving.hardware else None
    theirs = draft_dtype("sglang", asked=asked, draft=target.config, target={}, capability=capability).runs
    if theirs is None or theirs == runs:
        return None
    said = draft.config.get("torch_dtype") or draft.config.get("dtype")
    return DTYPE.fails(
        "load.dtype", f"--dtype {asked}: the target runs in {theirs}, the draft in {runs} (its config says {said or 'nothing, and float16 is taken'}): fc gets states of one dtype for weights of the "
        "other, and the server stops at the first draft forward", observed=runs, expected=theirs,
        rival=("load.draft-quantization", "two plain float formats", "no quantization method is involved"), refuted_by="the server answers a request with these two configs and --dtype auto",
        evidence=rules("sglang 0.5.23 configs/model_config.py:2284 _get_and_verify_dtype, layers/quantization/unquant.py:614 F.linear; served so on a CPU it stops: expected m1 and m2 to have the same dtype"),
        remedy=f"--dtype {theirs}, or `torch_dtype: {theirs}` in the drafter's config.json.", edits=found.edit("torch_dtype", theirs),
        predicted_effect="The server gets past its first draft forward; nothing is known yet about the accept length.", next_step="Apply the edit and start the server once.")
