"""Whole pages of notebook 01 over odd-looking cases with a known answer: what is right is not accused, what is wrong is, what is open stays open."""

import pytest
import torch

from eagle_forensics.config.inspection import inspect
from eagle_forensics.finding import Status
from tests.config.papers import DEEPSEEK_TARGET, GOOD_LAUNCH, LLAMA_TARGET, papers
from tests.config.test_bad_input import everything
from tests.evidence import builders

H, V, VD = builders.H, builders.V, builders.VD
VLLM_LAUNCH = 'vllm serve m --speculative-config \'{"method": "eagle3", "model": "d", "num_speculative_tokens": 3}\''
VLLM = {"engine": "vllm", "version": "0.32.0", "launch": VLLM_LAUNCH, "ids": [2, 15, 27], "place": "top"}
KIMI = DEEPSEEK_TARGET | {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25"}
NORMS = {f"fc_norm.{i}.weight": torch.ones(H) for i in range(3)}
MODELOPT = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 14, 26], "use_aux_hidden_state": True, "use_last_layernorm": True,
                             "use_mtp_layernorm": False, "next_layer_regular": True, "has_lm_head": True}}
LAYER_KEYS = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
              "rms_norm_eps", "rope_theta", "max_position_embeddings", "model_type")
SPECULATORS = {**dict.fromkeys(LAYER_KEYS, ...), "architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3", "norm_before_residual": True,
               "transformer_layer_config": {k: builders.LLAMA[k] for k in LAYER_KEYS}}


def head(layer="midlayer.", **more):
    """A head with a map that t2d confirms."""
    image = torch.cat([torch.arange(20), torch.arange(30, 30 + VD - 20)])
    t2d = torch.zeros(V, dtype=torch.bool)
    t2d[image] = True
    return builders.head(layer) | {"d2t": image - torch.arange(VD), "t2d": t2d} | more


def page(folder, **changed):
    """Findings of the whole page by id; a healthy SpecForge drafter on SGLang but for what is changed."""
    return everything(papers(folder, **({"trainer": ("specforge", "0.2"), "layer_ids": [1, 14, 26], "weights": head()} | changed)))


def faults(items):
    return {f.fault for f in items.values() if f.status is Status.FAIL}


@pytest.mark.parametrize("changed", [
    {},
    VLLM | {"draft": {"architectures": ["Eagle3LlamaForCausalLM"], "target_model_type": "llama", "modal_type": "LLM"}, "trainer": ("angelslim", "0.5.0")},
    {"ids": None, "weights": head("layers.0."), "draft": MODELOPT, "trainer": ("modelopt", "0.47.0")},
    VLLM | {"weights": head("layers.0."), "draft": SPECULATORS, "trainer": ("speculators", "0.9.0"), "layer_ids": [2, 15, 27, 30]},
    {"target": KIMI, "ids": [2, 30, 58], "layer_ids": [1, 29, 57], "weights": builders.mla_head(), "draft": builders.MLA | {"head_dim": ..., "draft_vocab_size": V}},
    {"weights": builders.fused_head() | {k: head()[k] for k in ("d2t", "t2d")}},
    {"weights": {k if k in ("d2t", "t2d", "lm_head.weight") else f"model.{k}": v for k, v in head().items()}},
    {"draft": {"fc_norm": True, "norm_output": True, "norm_before_fc": True}, "weights": head(**NORMS, **{"input_norm.weight": torch.ones(3 * H)})},
    {"version": "0.5.9", "draft": {"fc_norm": False, "norm_output": False, "norm_before_residual": False}},
    {"ids": [1, 8, 14, 26], "layer_ids": [1, 8, 14, 26], "weights": head(**{"fc.weight": builders.weights(H, 4 * H)})},
    {"weights": head(**{"midlayer.self_attn.rotary_emb.inv_freq": torch.ones(2), "midlayer.self_attn.q_proj.bias": torch.zeros(16)})},
    {"weights": head(**{"midlayer.self_attn.o_proj.bias": torch.ones(H)}), "draft": {"attention_bias": True}},
    {"target": KIMI, "version": "0.5.10", "ids": [2, 30, 58], "trainer": ("speculators", "0.4.0"), "layer_ids": [2, 30, 58, 60], "launch": f"{GOOD_LAUNCH} --disable-cuda-graph"},
    {"launch": f"{GOOD_LAUNCH} --quantization awq --speculative-draft-model-quantization unquant"},
    {"ids": [2, 15, 27], "launch": GOOD_LAUNCH + """ --json-model-override-args '{"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 14, 26]}}'"""},
], ids=["specforge", "angelslim", "modelopt", "speculators", "kimi-mla", "fused", "prefix", "eagle-3.1", "flags-off", "four-planes", "frequencies", "o-bias", "graphs-off",
        "unquant", "overridden-ids"])
def test_odd_looking_but_right(tmp_path, changed):
    items = page(tmp_path, **changed)
    assert not faults(items), [f.statement for f in items.values() if f.status is Status.FAIL]
    assert not [f for f in items.values() if f.status is Status.ERROR or (f.status is Status.INCONCLUSIVE and f.required)]


@pytest.mark.parametrize(("changed", "fault"), [
    ({"launch": GOOD_LAUNCH + """ --json-model-override-args '{"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 15, 27]}}'"""}, "wiring.layer-offset"),
    ({"weights": head(**{"midlayer.self_attn.q_norm.weight": torch.ones(4)})}, "load.tensor-inventory"),
    ({"weights": head(**{"midlayer.self_attn.q_proj.bias": torch.ones(16)})}, "load.tensor-inventory"),
    ({"version": "0.5.9", "draft": {"use_aux_norm": True}, "weights": head(**{f"aux_norm_{n}.weight": torch.ones(H) for n in ("low", "mid", "high")})}, "drafter.norm-flags"),
    ({"ids": [1, 8, 14, 26], "layer_ids": [1, 8, 14, 26], "draft": {"num_aux_hidden_states": 3}, "weights": head(**{"fc.weight": builders.weights(H, 4 * H)})},
     "wiring.plane-count"),
    ({"draft": {"num_aux_hidden_states": 4}}, "wiring.plane-count"),
    ({"target": LLAMA_TARGET | {"hidden_size": 2 * H}, "weights": head(**{"fc.weight": builders.weights(H, 6 * H)})}, "load.tensor-inventory"),
    ({"weights": head(**{"d2t": torch.zeros(VD, 1, dtype=torch.int64)})}, "vocab.map-semantics"),
    ({"weights": head(**{"d2t": torch.zeros(0, dtype=torch.int64)})}, "vocab.map-semantics"),
    ({"weights": head(**{"d2t": torch.tensor(3)})}, "vocab.map-semantics"),
], ids=["overridden-ids", "q-norm", "q-bias", "use-aux-norm", "three-for-four", "four-for-three", "target-width", "map-2d", "map-empty", "map-scalar"])
def test_one_thing_wrong(tmp_path, changed, fault):
    assert faults(page(tmp_path, **changed)) == {fault}


def test_an_eagle_1_head_under_eagle3(tmp_path):
    weights = {"layers.0.self_attn.q_proj.weight": builders.weights(H, H), "fc.weight": builders.weights(H, 2 * H), "norm.weight": builders.weights(H)}
    items = page(tmp_path, ids=None, draft={"architectures": ["LlamaForCausalLMEagle"], "draft_vocab_size": ...}, weights=weights)
    assert items["config.algorithm"].fault == "args.algorithm-mismatch" and items["config.algorithm"].expected == "EAGLE"
    assert items["config.fc-width"].status is Status.SKIPPED, "no list of ids makes it an EAGLE-3 head"


@pytest.mark.parametrize(("version", "changed", "id"), [
    ("0.6.0", {"target": KIMI, "ids": [24, 30, 61], "layer_ids": [23, 29, 60]}, "config.captured"),
    ("0.6.0", {"ids": [2, 15, 27]}, "config.served-boundaries"),
    ("0.6.0", {"draft": {"norm_before_residual": True}}, "config.flags"),
    ("0.6.0", {"weights": {k: v for k, v in head().items() if "mlp" not in k}}, "config.inventory"),
    ("0.6.0", {"draft": {"architectures": ["Eagle3DraftModel"]}}, "config.architecture"),
    ("0.6.0", {"launch": GOOD_LAUNCH.replace("tokens 4", "tokens 16")}, "config.draft-budget"),
    ("0.6.0", {"launch": f"{GOOD_LAUNCH.replace('topk 1', 'topk 4')} --attention-backend trtllm_mha"}, "config.arguments"),
    ("0.6.0", {"launch": f"{GOOD_LAUNCH} --quantization awq"}, "config.draft-quantization"),
    ("0.6.0", {"launch": f"--model-path m {GOOD_LAUNCH}"}, "config.draft-path"),
    ("0.5.23", {"target": LLAMA_TARGET | {"architectures": ["FooForCausalLM"], "model_type": "foo"}, "ids": [2, 15, 27]}, "config.served-boundaries"),
])
def test_a_rule_that_was_not_read_accuses_nobody(tmp_path, version, changed, id):
    items = page(tmp_path, version=version, **changed)
    assert not faults(items), [f.statement for f in items.values() if f.status is Status.FAIL]
    assert items[id].status is Status.INCONCLUSIVE and items[id].required and items[id].fault and "assumption" in items[id].statement and not items[id].edits


@pytest.mark.parametrize("launch", [
    f"--model-path m {GOOD_LAUNCH} --speculative-draft-model-path $DRAFT", f"--tp=$TP {GOOD_LAUNCH}", f"--port 3000${{RANK}} --tp ${{TP:-8}} {GOOD_LAUNCH}",
    f"docker run -e HF_TOKEN=$HF_TOKEN lmsysorg/sglang:latest python3 -m sglang.launch_server --model-path $MODEL --speculative-draft-model-path $DRAFT --tp $TP {GOOD_LAUNCH}"])
def test_a_variable_where_nothing_hangs_on_it(tmp_path, launch):
    items = page(tmp_path, launch=launch)
    assert not faults(items) and items["config.draft-budget"].status is Status.PASS


@pytest.mark.parametrize(("launch", "named"), [
    (GOOD_LAUNCH.replace("topk 1", "topk $K"), "--speculative-eagle-topk"), (GOOD_LAUNCH.replace("topk 1", "topk 4").replace("tokens 4", "tokens $N"), "--speculative-num-draft-tokens"),
    (f"{GOOD_LAUNCH} --attention-backend=$BACKEND", "--attention-backend")])
def test_a_variable_that_decides_leaves_the_budget_open(tmp_path, launch, named):
    items = page(tmp_path, launch=launch)
    assert not faults(items) and items["config.arguments"].status is Status.INCONCLUSIVE and named in items["config.arguments"].statement


def test_a_speculative_config_that_only_the_shell_knows(tmp_path):
    items = page(tmp_path, **VLLM | {"launch": 'vllm serve m --speculative-config "$SPEC"'})
    assert "--speculative-config is set outside" in items["config.arguments"].statement and not faults(items)
    assert not [f for f in items.values() if f.status is Status.ERROR]


@pytest.mark.parametrize(("runner", "served"), [("0", (1, 14, 26)), ("1", (2, 15, 27)), ("true", (2, 15, 27))])
def test_the_runner_may_be_forced_on_the_launch_line(tmp_path, runner, served):
    """vLLM's V1 runner reads the nested list raw, V2 does not read it."""
    found = inspect(papers(tmp_path, engine="vllm", version="0.32.0", launch=f"VLLM_USE_V2_MODEL_RUNNER={runner} {VLLM_LAUNCH}"))
    assert found.served.boundaries["eager"] == served and found.arguments.effective["runner"] == found.served.runner


def test_the_remedy_for_overridden_ids_is_on_the_launch_line(tmp_path):
    items = page(tmp_path, launch=GOOD_LAUNCH + """ --json-model-override-args '{"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 15, 27]}}'""")
    assert "--json-model-override-args" in items["config.served-boundaries"].remedy and not items["config.served-boundaries"].edits


def test_an_override_of_the_rotation_leaks_into_the_draft(tmp_path):
    items = page(tmp_path, launch=GOOD_LAUNCH + """ --json-model-override-args '{"rope_theta": 500000.0}'""")
    assert items["config.rope"].fault == "drafter.rope" and items["config.rope"].status is Status.FAIL


def test_without_aux_states_fc_may_be_missing(tmp_path):
    weights = {k: v for k, v in head().items() if k != "fc.weight"}
    changed = {"ids": None, "trainer": None, "layer_ids": None, "weights": weights, "draft": {"eagle_config": {"use_aux_hidden_state": False}}}
    assert not faults(page(tmp_path / "read", **changed))
    assert faults(page(tmp_path / "old", version="0.5.7", **changed)) == {"load.tensor-inventory"}, "the key is read from 0.5.8 on"


def test_planes_in_another_order_are_not_called_equal(tmp_path):
    item = page(tmp_path, ids=[26, 1, 14], layer_ids=[26, 1, 14])["config.served-boundaries"]
    assert item.status is Status.INCONCLUSIVE and item.required and item.fault == "wiring.plane-order"


def test_a_map_of_zeros_is_believed_only_with_t2d(tmp_path):
    zeros = torch.zeros(VD, dtype=torch.int64)
    without = {k: v for k, v in head(d2t=zeros).items() if k != "t2d"}
    assert page(tmp_path / "without", weights=without)["config.vocabulary"].fault == "vocab.map-semantics"
    assert page(tmp_path / "with", weights=head(d2t=zeros, t2d=torch.arange(V) < VD))["config.vocabulary"].status is Status.PASS


def test_a_norm_in_the_file_that_no_flag_asks_for(tmp_path):
    item = page(tmp_path, weights=head(**{"input_norm.weight": torch.ones(3 * H)}))["config.inventory"]
    assert item.status is Status.INCONCLUSIVE and item.fault == "drafter.norm-flags" and item.required


def test_a_trainer_without_ids_still_names_its_states(tmp_path):
    items = page(tmp_path, **VLLM | {"ids": None, "trainer": ("eagle", None), "layer_ids": None, "draft": {"architectures": ["LlamaForCausalLM"], "rope_theta": ...}})
    assert items["config.served-boundaries"].status is Status.PASS


def test_a_trainer_guessed_by_the_look_is_not_certain(tmp_path):
    case = papers(tmp_path, **VLLM | {"ids": None, "trainer": None, "layer_ids": None, "draft": {"architectures": ["LlamaForCausalLM"], "rope_theta": 500000.0}})
    torch.save(head(), tmp_path / "drafter" / "pytorch_model.bin")
    item = everything(case)["config.rope"]
    assert item.status is Status.INCONCLUSIVE and "by the look" in item.statement


@pytest.mark.parametrize("draft", [
    {"fc_norm": True, "eagle_config": {"eagle_aux_hidden_state_layer_ids": 5}}, {"fc_norm": True, "eagle_config": {"num_aux_hidden_states": "3"}},
    {"fc_norm": True, "num_aux_hidden_states": 10**8}, {"head_dim": 10**9}, {"num_hidden_layers": None},
    {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": float("inf")}},
    {"rope_scaling": {"rope_type": "linear", "factor": 10**400}}, {"rope_scaling": {"rope_type": "linear", "factor": float("nan")}}])
def test_a_damaged_field_stops_nothing_and_costs_nothing(tmp_path, draft):
    ids = None if "eagle_config" in draft else (1, 14, 26)
    assert page(tmp_path, draft=draft, ids=ids)
    assert page(tmp_path / "trt", engine="trtllm", version="1.0.0", launch=None, draft=draft, ids=ids)


@pytest.mark.parametrize("table", [torch.ones(V), torch.zeros(0, H)])
def test_an_embedding_that_is_no_table(tmp_path, table):
    item = page(tmp_path, weights=head(**{"embed_tokens.weight": table}), target_weights={"model.embed_tokens.weight": builders.weights(V, H)})["config.embedding"]
    assert item.status is Status.INCONCLUSIVE and str(list(table.shape)) in item.statement


def test_a_tensor_that_cannot_be_loaded_is_an_error_of_its_question(tmp_path):
    header, position = {}, 0
    for name, tensor in head(**{"fc.bias": torch.zeros(H)}).items():
        bits = 4 if name == "fc.bias" else 16
        size = tensor.numel() * bits // 8
        header[name] = builders.entry("F4" if bits == 4 else "BF16", list(tensor.shape), position, position + size)
        position += size
    case = papers(tmp_path)
    builders.write_raw(tmp_path / "drafter" / "model.safetensors", header, bytes(position))
    items = everything(case)
    assert items["config.fc-bias"].status is Status.ERROR and "F4" in items["config.fc-bias"].statement
