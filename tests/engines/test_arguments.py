"""Launch arguments: raw to effective, per release, with the texts the engine prints."""

from __future__ import annotations

import json
import shlex

import pytest

from eagle_forensics.engines.arguments import resolve_args
from eagle_forensics.engines.sglang import releases

DRAFT_TOKENS = "speculative_num_draft_tokens is adjusted to speculative_num_steps + 1 when speculative_eagle_topk == 1"
LLAMA, KIMI, DSV3, QWEN = "LlamaForCausalLM", "KimiK25ForConditionalGeneration", "DeepseekV3ForCausalLM", "Qwen3ForCausalLM"


def sglang(version, line, architecture=QWEN, **kwargs):
    return resolve_args("sglang", version, shlex.split("--speculative-algorithm EAGLE3 " + line), architecture=architecture, **kwargs)


def triple(answer):
    return tuple(answer.effective[key] for key in ("num_steps", "topk", "num_draft_tokens"))


def texts(answer, level="warning"):
    return [m.text for m in answer.messages if m.level == level]


@pytest.mark.parametrize("version", releases())
def test_the_draft_budget_is_overridden_in_every_release(version):
    answer = sglang(version, "--speculative-num-steps 1 --speculative-eagle-topk 1 --speculative-num-draft-tokens 16")
    assert answer.error is None and not answer.assumed
    assert triple(answer) == (1, 1, 2)
    assert answer.effective["max_accept_length"] == 2
    assert answer.raw["speculative_num_draft_tokens"] == 16
    assert DRAFT_TOKENS in texts(answer)
    assert answer.changed == ("num_draft_tokens",)


AUTO = [
    ("0.4.6.post5", DSV3, (5, 4, 8)), ("0.4.9.post6", DSV3, (3, 1, 4)), ("0.5.1", "GptOssForCausalLM", (3, 1, 4)),
    ("0.4.9.post6", "GptOssForCausalLM", (5, 4, 8)), ("0.5.2", "DeepseekV32ForCausalLM", (5, 4, 8)), ("0.5.3", "DeepseekV32ForCausalLM", (3, 1, 4)),
    ("0.5.6", "Glm4MoeForCausalLM", (5, 4, 8)), ("0.5.6.post1", "Glm4MoeForCausalLM", (3, 1, 4)), ("0.5.7", "MiMoV2FlashForCausalLM", (3, 1, 4)),
    ("0.5.7", "Glm4MoeLiteForCausalLM", (5, 4, 8)), ("0.5.8", "Glm4MoeLiteForCausalLM", (3, 1, 4)), ("0.5.7", KIMI, (5, 4, 8)),
    ("0.5.8", KIMI, (3, 1, 4)), ("0.5.23", QWEN, (3, 1, 4)), ("0.5.23", LLAMA, (5, 4, 8)), ("0.5.23", "Grok1ForCausalLM", (5, 4, 8)),
]


@pytest.mark.parametrize(("version", "architecture", "expected"), AUTO)
def test_the_automatic_triple(version, architecture, expected):
    answer = sglang(version, "", architecture)
    assert triple(answer) == expected
    assert answer.effective["chosen_automatically"] and not answer.assumed


def test_the_automatic_triple_without_an_architecture_is_an_assumption():
    assert sglang("0.5.23", "", None).assumed
    assert not sglang("0.5.23", "", None, model_type="llama").assumed
    assert triple(sglang("0.5.23", "", None, model_type="llama")) == (5, 4, 8)


REFUSED = [
    ("0.5.9", "--speculative-eagle-topk 4", "AssertionError"),
    ("0.5.2", "--speculative-num-steps 3", "TypeError: '>' not supported between instances of 'NoneType' and 'int'"),
    ("0.5.23", "--speculative-num-steps 3", "TypeError: '>' not supported between instances of 'NoneType' and 'int'"),
    ("0.5.1", "--speculative-num-steps 3", "fails later"),
    ("0.5.9", "--speculative-num-steps 3 --speculative-eagle-topk 4", "num_draft_tokens stays None"),
    ("0.5.9", "--speculative-num-steps 2 --speculative-eagle-topk 2 --speculative-num-draft-tokens 8", "selected index k out of range"),
    ("0.5.1", "--speculative-num-steps 3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 16 --attention-backend trtllm_mha",
     "trtllm_mha backend only supports topk = 1"),
    ("0.5.5", "--speculative-num-steps 3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 16 --page-size 64 --attention-backend fa3",
     "topk > 1 with page_size > 1 is unstable"),
    ("0.5.12.post1", "--speculative-num-steps 3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 16 --page-size 64 --attention-backend triton",
     "topk > 1 with page_size > 1 is unstable"),
    ("0.5.23", "--speculative-num-steps 3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 16 --attention-backend trtllm_mla",
     "got attention_backend='trtllm_mla'"),
    ("0.5.9", "--speculative-num-steps", "argument --speculative-num-steps: expected one argument"),
    ("0.5.9", "--speculative-num-steps three --speculative-eagle-topk 1", "argument --speculative-num-steps: invalid int value: 'three'"),
    ("0.5.9", "--speculative-num-steps 1 --speculative-eagle-topk 1 --pp-size 2", "Pipeline parallelism"),
    ("0.5.14", "--speculative-num-steps 3 --speculative-eagle-topk 2 --speculative-num-draft-tokens 4 --speculative-use-rejection-sampling",
     "requires --speculative-eagle-topk=1"),
    ("0.5.23", "--speculative-adaptive --speculative-num-steps 2", "not in the adaptive config candidate_steps [0, 1, 3, 5, 7]"),
]


@pytest.mark.parametrize(("version", "line", "text"), REFUSED)
def test_arguments_that_stop_the_server(version, line, text):
    answer = sglang(version, line)
    assert text in answer.error


ACCEPTED = [
    ("0.4.6.post5", "--speculative-num-steps 3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 16 --page-size 64", (3, 1, 4)),
    ("0.4.9.post6", "--speculative-num-steps 3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 16 --page-size 64", (3, 4, 16)),
    ("0.5.6", "--speculative-num-steps 3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 16 --page-size 64 --attention-backend fa3", (3, 4, 16)),
    ("0.5.13", "--speculative-num-steps 3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 16 --page-size 64 --attention-backend triton", (3, 4, 16)),
    ("0.4.6.post5", "--speculative-num-steps 3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 16 --attention-backend trtllm_mha", (3, 4, 16)),
    ("0.5.23", "--speculative-adaptive", (3, 1, 4)),
    ("0.5.14", "--speculative-adaptive", (3, 1, 4)),
    ("0.5.9", "--speculative-num-steps=15 --speculative-eagle-topk=1", (15, 1, 16)),
    ("0.5.9", "--speculative-num-step 15 --speculative-eagle-topk 1", (15, 1, 16)),
]


@pytest.mark.parametrize(("version", "line", "expected"), ACCEPTED)
def test_arguments_that_are_accepted(version, line, expected):
    answer = sglang(version, line)
    assert answer.error is None
    assert triple(answer) == expected


@pytest.mark.parametrize(("version", "line", "env", "overlap", "spec_v2"), [
    ("0.5.3", "--speculative-eagle-topk 1", {"SGLANG_ENABLE_SPEC_V2": "1"}, False, False),
    ("0.5.3.post2", "--speculative-eagle-topk 1", {"SGLANG_ENABLE_SPEC_V2": "1"}, True, True),
    ("0.5.9", "--speculative-eagle-topk 1", {}, False, False),
    ("0.5.9", "--speculative-eagle-topk 1", {"SGLANG_ENABLE_SPEC_V2": "1"}, True, True),
    ("0.5.11", "--speculative-eagle-topk 1", {}, True, True),
    ("0.5.11", "--speculative-eagle-topk 4 --speculative-num-draft-tokens 8", {}, False, False),
    ("0.5.12", "--speculative-eagle-topk 1", {"SGLANG_ENABLE_SPEC_V2": "0"}, False, False),
    ("0.5.13", "--speculative-eagle-topk 1", {"SGLANG_ENABLE_SPEC_V2": "0"}, False, True),
    ("0.5.14", "--speculative-eagle-topk 1", {"SGLANG_ENABLE_SPEC_V2": "0"}, True, True),
    ("0.5.23", "--speculative-eagle-topk 1 --disable-overlap-schedule", {}, False, True),
])
def test_overlap_and_spec_v2(version, line, env, overlap, spec_v2):
    answer = sglang(version, "--speculative-num-steps 3 " + line, env=env)
    assert answer.error is None
    assert (answer.effective["overlap"], answer.effective["spec_v2"]) == (overlap, spec_v2)


def test_spec_v2_refuses_a_tree_while_it_is_opt_in():
    line = "--speculative-num-steps 3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 8"
    assert "Spec v2 currently only supports topk = 1" in sglang("0.5.9", line, env={"SGLANG_ENABLE_SPEC_V2": "true"}).error


def test_an_env_assignment_before_the_command_counts():
    line = "SGLANG_ENABLE_SPEC_V2=1 python -m sglang.launch_server --speculative-algorithm EAGLE3 --speculative-num-steps 3 --speculative-eagle-topk 1"
    assert resolve_args("sglang", "0.5.9", line.split(), architecture=QWEN).effective["spec_v2"]


def test_the_algorithm_name():
    assert "invalid choice" in resolve_args("sglang", "0.5.11", ["--speculative-algorithm", "eagle3"]).error
    assert resolve_args("sglang", "0.5.12", ["--speculative-algorithm", "eagle3"], architecture=QWEN).effective["algorithm"] == "EAGLE3"
    answer = resolve_args("sglang", "0.5.9", ["--speculative-algorithm", "NEXTN"], architecture=QWEN, draft_architecture="LlamaForCausalLMEagle3")
    assert answer.effective["algorithm"] == "EAGLE"
    assert any("accept length is exactly 1.00" in text for text in texts(answer, "note"))


def test_no_speculation_has_a_ceiling_of_one():
    answer = resolve_args("sglang", "0.5.9", ["--model-path", "x"])
    assert answer.effective["algorithm"] is None and answer.effective["max_accept_length"] == 1


def test_the_target_quantization_leaks_into_the_draft():
    line = "--speculative-num-steps 3 --speculative-eagle-topk 1 --quantization awq"
    assert sglang("0.5.9", line).effective["draft_quantization"] == "awq"
    assert sglang("0.5.9", line + " --speculative-draft-model-quantization unquant").effective["draft_quantization"] is None
    assert any("no flag to opt out" in text for text in texts(sglang("0.5.6", line), "note"))


def test_the_mtp_warning_is_for_targets_with_their_own_head():
    line = "--speculative-draft-model-path d --speculative-num-steps 3 --speculative-eagle-topk 1"
    warning = "DeepSeek MTP does not require setting speculative_draft_model_path."
    assert warning in texts(sglang("0.5.9", line, DSV3))
    assert warning not in texts(sglang("0.5.9", line, KIMI))
    assert sglang("0.5.9", "--model-path t", DSV3).effective["draft_model_path"] == "t"


def test_an_mla_backend_refuses_a_llama_draft():
    line = "--speculative-num-steps 3 --speculative-eagle-topk 1 --attention-backend trtllm_mla"
    assert "requires MLA model" in sglang("0.5.9", line, DSV3, draft_architecture="LlamaForCausalLMEagle3").error
    assert sglang("0.5.9", line, DSV3, draft_architecture="Eagle3DeepseekV2ForCausalLM").error is None


def test_unknown_and_repeated_flags_are_noted_and_kept():
    answer = sglang("0.5.9", "--frobnicate 3 4 --speculative-num-steps 1 --speculative-num-steps 2 --speculative-eagle-topk 1 stray")
    assert answer.raw["frobnicate"] == "3 4"
    assert triple(answer) == (2, 1, 3)
    notes = " ".join(texts(answer, "note"))
    assert "--frobnicate is not examined" in notes and "more than once" in notes and "'stray'" in notes


def test_a_version_that_was_not_read_is_marked():
    answer = sglang("0.5.24", "--speculative-num-steps 1 --speculative-eagle-topk 1")
    assert answer.assumed and triple(answer) == (1, 1, 2)


def test_the_answer_is_json():
    answer = sglang("0.5.9", "--speculative-num-steps 1 --speculative-eagle-topk 1")
    assert set(json.loads(json.dumps(answer.to_json()))) >= {"engine", "version", "raw", "effective", "messages", "error", "sources", "assumed"}


def vllm(config, line="", version="0.32.0", **kwargs):
    text = config if isinstance(config, str) else json.dumps(config)
    return resolve_args("vllm", version, ["serve", *shlex.split(line), "--speculative-config", text], **kwargs)


def test_vllm_drafts_a_chain():
    answer = vllm({"method": "eagle3", "model": "d", "num_speculative_tokens": 3}, "--tensor-parallel-size 2")
    assert answer.error is None
    assert triple(answer) == (3, 1, 3)
    assert answer.effective["max_accept_length"] == 4 and answer.effective["algorithm"] == "eagle3"


@pytest.mark.parametrize(("path", "draft_architecture", "method"), [
    ("org/m-eagle3", None, "eagle3"), ("org/eagle-head", None, "eagle"), ("org/head", None, "draft_model"), ("org/head", "LlamaForCausalLMEagle3", "eagle3"),
])
def test_vllm_guesses_the_method_from_the_path(path, draft_architecture, method):
    answer = vllm({"model": path, "num_speculative_tokens": 3}, draft_architecture=draft_architecture)
    assert answer.effective["algorithm"] == method


@pytest.mark.parametrize(("config", "text"), [
    ("{", "is not JSON"), ("[1]", "must be a JSON object"),
    ({"method": "eagle3", "num_speculative_tokens": 0}, "greater than zero"),
    ({"method": "eagle3", "num_speculative_token": 3}, "did you mean 'num_speculative_tokens'"),
    ({"method": "eagle3", "num_speculative_tokens": 3, "tensor_parallel_size": 1}, "draft_tensor_parallel_size"),
    ({"method": "eagle3", "num_speculative_tokens": 3, "draft_tensor_parallel_size": 2}, "cannot be other value than 1"),
    ({"method": "eagle9", "num_speculative_tokens": 3}, "unsupported speculative method"),
])
def test_vllm_configs_that_are_refused(config, text):
    assert text in vllm(config).error


@pytest.mark.parametrize(("version", "env", "runner"), [
    ("0.28.0", {}, "v1"), ("0.29.0", {}, "v2"), ("0.32.0", {"VLLM_USE_V2_MODEL_RUNNER": "0"}, "v1"),
])
def test_vllm_runner(version, env, runner):
    config = {"method": "eagle3", "num_speculative_tokens": 3}
    assert vllm(config, version=version, env=env, model_type="kimi_k25").effective["runner"] == runner


@pytest.mark.parametrize(("version", "refused"), [("0.5.2", False), ("0.5.3.post1", True), ("0.5.23", True)])
def test_a_shortened_pp_is_ambiguous_once_there_are_two_such_flags(version, refused):
    answer = resolve_args("sglang", version, ["--model-path", "m", "--pp", "1"])
    assert bool(answer.error) is refused
    assert not refused or "ambiguous option: --pp could match --pp-size, --pp-max-micro-batch-size" in answer.error
    assert resolve_args("sglang", version, ["--model-path", "m", "--pp-size", "1"]).error is None


@pytest.mark.parametrize(("version", "algorithm", "words"), [
    ("0.5.9", "EAGLE3", "speculative decoding, mixed chunked prefill."), ("0.5.20", "NGRAM", "overlap schedule, speculative decoding"),
    ("0.5.23", "EAGLE3", "only supports EAGLE (non-multi-layer)"), ("0.5.23", "EAGLE", None),
])
def test_pipeline_parallelism_is_refused_in_the_words_of_the_release(version, algorithm, words):
    answer = resolve_args("sglang", version, ["--pp-size", "2", "--speculative-algorithm", algorithm, "--speculative-num-steps", "3",
                                              "--speculative-eagle-topk", "1"], architecture="LlamaForCausalLM")
    assert (words or "") in (answer.error or "") and bool(answer.error) is bool(words)
    assert words or any("SGLANG_ENABLE_PP_SPEC" in m.text for m in answer.messages)


CHAIN3 = "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 --speculative-adaptive"


@pytest.mark.parametrize(("version", "extra", "reason"), [
    ("0.5.11", "", "the overlap scheduler (spec v2) is enabled (adaptive is only implemented for EAGLEWorker v1)"),
    ("0.5.11", "--disable-overlap-schedule", None), ("0.5.12", "", None),
    ("0.5.12", "--enable-multi-layer-eagle", "enable_multi_layer_eagle=True is not supported (MultiLayerEagleWorker does not implement adaptive)"),
    ("0.5.13", "--enable-multi-layer-eagle", "enable_multi_layer_eagle=True is not supported (MultiLayerEagleWorkerV2 does not implement adaptive)"),
    ("0.5.21", "--enable-dp-attention", "enable_dp_attention=True is not supported (adaptive tier decisions are not synchronized across DP ranks)"),
    ("0.5.22", "--enable-dp-attention", "attention DP is not supported (adaptive tier decisions are not synchronized across DP ranks)"),
    ("0.5.14", "--enable-pdmux", "enable_pdmux=True is not supported (adaptive state swap does not update decode_attn_backend_group)"),
])
def test_what_switches_adaptive_speculation_off_by_release(version, extra, reason):
    answer = sglang(version, f"{CHAIN3} {extra}")
    said = [text for text in texts(answer) if text.startswith("speculative_adaptive disabled")]
    assert said == ([] if reason is None else [f"speculative_adaptive disabled: {reason}. Falling back to static speculative params."])
    assert answer.effective["adaptive"] == (reason is None) and answer.error is None


@pytest.mark.parametrize(("version", "note"), [
    ("0.5.11", "among [1, 3, 7] while the server runs, starting at 3"), ("0.5.12", "among [1, 2, 3, 7] while the server runs, starting at 2"), ("0.5.13", None)])
def test_a_step_count_outside_the_candidates_before_0_5_14(version, note):
    line = "--speculative-num-steps 2 --speculative-eagle-topk 1 --speculative-num-draft-tokens 3 --speculative-adaptive --disable-overlap-schedule"
    answer = sglang(version, line)
    if note is None:
        assert "candidate_steps [1, 3, 7]" in answer.error and answer.refusal == "value"
    else:
        assert answer.error is None and any(note in text for text in texts(answer, "note"))


def test_a_file_of_adaptive_candidates_is_said_to_be_unread():
    answer = sglang("0.5.23", "--speculative-adaptive --speculative-num-steps 2 --speculative-adaptive-config tiers.json")
    assert answer.error is None and answer.assumed and any("not read here" in text for text in texts(answer, "note"))


@pytest.mark.parametrize(("engine", "version", "line", "error", "refusal"), [
    ("sglang", "0.5.23", "--speculative-num-steps abc", "argument --speculative-num-steps: invalid int value: 'abc'", "usage"),
    ("sglang", "0.5.23", "--speculative-num-steps 3.5", "argument --speculative-num-steps: invalid int value: '3.5'", "usage"),
    ("sglang", "0.5.23", "--speculative-num-steps", "argument --speculative-num-steps: expected one argument", "usage"),
    ("sglang", "0.5.10", "--speculative-adaptive", "unrecognized arguments: --speculative-adaptive (it exists from SGLang 0.5.11 on)", "usage"),
    ("sglang", "0.5.23", "--speculative-num-steps 2 --speculative-eagle-topk 2 --speculative-num-draft-tokens 16", "out of range", "tree"),
    ("sglang", "0.5.23", "--speculative-num-draft-tokens 16", "AssertionError", "value"),
    ("vllm", "0.33.0", "--speculative-config {method:eagle3}", "is not JSON", "usage"),
    ("vllm", "0.33.0", """--speculative-config '{"method": "eagle3", "num_speculative_tokens": 0}'""", "greater than zero", "value"),
    ("vllm", "0.28.0", "--per-request-spec-decode-metrics summary", "it exists from vLLM 0.29.0 on", "usage"),
])
def test_what_kind_of_refusal_it_is(engine, version, line, error, refusal):
    answer = sglang(version, line) if engine == "sglang" else resolve_args("vllm", version, shlex.split(line))
    assert error in answer.error and answer.refusal == refusal


def test_a_flag_that_is_too_new_is_a_note_where_the_release_was_not_read():
    answer = sglang("0.5.10.post9", "--speculative-adaptive")
    assert answer.error is None and answer.assumed and any("it exists from SGLang 0.5.11 on" in text for text in texts(answer, "note"))


def test_an_accepted_launch_is_no_refusal():
    assert sglang("0.5.23", CHAIN3).refusal is None
