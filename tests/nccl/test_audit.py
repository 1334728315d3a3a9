"""The environment audit: 26 published environments, what NCCL does with each, and what it must not be accused of."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle_forensics.nccl import engine, grammar
from eagle_forensics.nccl.audit import Host, audit
from eagle_forensics.nccl.registry import rules, variables, version

FIXTURES = Path(__file__).parent / "fixtures"
CODES = {
    "allgather-has-no-algorithm": "ALGO_STARVES_COLLECTIVE", "function-prefix-needs-2.24": "ALGO_PREFIX_NEEDS_224", "later-entries-need-prefix": "ALGO_PREFIX_MISSING",
    "unknown-token": "ALGO_UNKNOWN_TOKEN", "pat-since-2.23": "ALGO_UNKNOWN_TOKEN", "ll128-on-pcie-data-corruption": "LL128_ON_PCIE",
    "large-message-penalty,nvls-disabled": "PROTO_LL_LARGE", "case-sensitive-ignored": "LEVEL_CASE", "not-an-nccl-level": "LEVEL_NODE",
    "legacy-int->PHB": "LEVEL_INT", "legacy-int->PIX": "LEVEL_INT", "disable-wins": "P2P_DISABLE_WINS", "unit-suffix-parsed-as-4-bytes": "INT_SUFFIX",
    "octal": "INT_OCTAL", "not-multiple-of-32->max": "NTHREADS_STEP", "min>max,NCCL": "CTAS_MIN_GT_MAX", "max": "CTAS_MIN_GT_MAX", "since-2.17": "NOT_YET",
    "unknown-variable": "UNKNOWN_VAR", "removed-2.5": "REMOVED", "deprecated": "DEPRECATED", "deprecated-2.9": "DEPRECATED",
}
"""First word of the expectation in the case file to the code of the audit."""


def cases():
    lines = (FIXTURES / "nccl_env_cases.tsv").read_text(encoding="utf-8").splitlines()
    return [line.split("\t") for line in lines if line and not line.startswith("#")]


def parsed(text):
    names = text.split(";") if text.count("=") > 1 else [text]
    return dict(part.split("=", 1) for part in names)


@pytest.mark.parametrize(("text", "release", "expected"), cases(), ids=lambda x: str(x)[:40])
def test_published_case(text, release, expected):
    link = "pcie" if release.endswith("+pcie") else "nvlink"
    found = [(i.severity, i.code) for i in audit(parsed(text), Host(nccl=release, link=link))]
    if expected == "ok":
        assert found == []
    else:
        severity, what = expected.split(":", 1)
        assert found == [(severity, CODES[what.split(" ")[0]])]


def test_all_cases_are_there():
    assert len(cases()) == 26 and len(variables()) == 261
    assert sum(v.kind == "int" for v in variables().values()) == 212


@pytest.mark.parametrize("env", [
    {}, {"NCCL_DEBUG": "INFO"}, {"NCCL_ALGO": "allreduce:ring"}, {"NCCL_P2P_LEVEL": "SYS"}, {"NCCL_BUFFSIZE": "4194304"}, {"NCCL_BUFFSIZE": "0x400000"},
    {"NCCL_PROTO": "allreduce:LL,Simple"}, {"NCCL_PROTO": "^LL128"}, {"NCCL_NTHREADS": "256"}, {"NCCL_VERSION": "2.27.5"}, {"NCCL_ASYNC_ERROR_HANDLING": "1"},
    {"NCCL_TUNER_CONFIG_FILE": "x"}, {"NCCL_INSPECTOR_ENABLE": "1"}, {"PATH": "4M"}, {"NCCL_SOCKET_IFNAME": "lo"}, {"NCCL_MIN_CTAS": "8", "NCCL_MAX_CTAS": "16"},
])
def test_a_sound_environment_is_not_accused(env):
    assert audit(env, Host(nccl="2.27.5", link="pcie")) == ()


@pytest.mark.parametrize(("env", "code"), [
    ({"NCCL_SHM_DISABLE": "1", "NCCL_P2P_DISABLE": "1"}, "P2P_AND_SHM_OFF"), ({"NCCL_BUFFSIZE": "abc"}, "INT_GARBAGE"), ({"NCCL_MAX_CTAS": "65"}, "RANGE"),
    ({"NCCL_ALGO": "broadcats:ring"}, "ALGO_UNKNOWN_TOKEN"), ({"NCCL_ALGO": "^ring"}, "ALGO_STARVES_COLLECTIVE"), ({"NCCL_P2P_LEVEL": "FAR"}, "LEVEL_UNKNOWN"),
    ({"NCCL_IB_HCA": "mlx5"}, "NO_EFFECT_SINGLE_NODE"), ({"NCCL_CONF_FILE": "x"}, "CONF_FILE_PRESENT"), ({"NCCL_PROTO": "LL,LL128,Simple"}, "LL128_ON_PCIE"),
    ({"NCCL_AGG_CHANNEL_SIZE": "1"}, "REMOVED"), ({"NCCL_PROTO": "LL, Simple"}, "ALGO_UNKNOWN_TOKEN"), ({"NCCL_ALGO": "allreduce:ring "}, "ALGO_UNKNOWN_TOKEN"),
    ({"NCCL_ALGO": "allreduce:nvls"}, "ALGO_STARVES_COLLECTIVE"), ({"nccl_proto": "LL"}, "UNKNOWN_VAR"),
])
def test_further_rules(env, code):
    assert [i.code for i in audit(env, Host(nccl="2.27.5", link="pcie"))] == [code]


@pytest.mark.parametrize(("value", "release", "forced"), [
    ("^LL", "2.27.5", True), ("^Simple", "2.27.5", True), ("^simple,ll", "2.21.5", True), ("^", "2.27.5", True), ("allreduce:^LL", "2.27.5", True),
    ("^LL;allreduce:LL,Simple", "2.27.5", True), ("LL,ll127,LL128", "2.21.5", True), ("^LL128", "2.27.5", False), ("^ll128,LL", "2.21.5", False),
    ("allreduce:^LL128,Simple", "2.27.5", False), ("LL,Simple", "2.27.5", False), ("^LL;" + ";".join(f"{f}:LL,Simple" for f in ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")), "2.27.5", False),
])
def test_an_exclusion_forces_what_it_does_not_name(value, release, forced):
    for link, severity in (("pcie", "error"), (None, "warn"), ("nvlink", None)):
        found = [i.severity for i in audit({"NCCL_PROTO": value}, Host(nccl=release, link=link)) if i.code == "LL128_ON_PCIE"]
        assert found == ([severity] if forced and severity else [])


def test_nvls_is_there_with_a_switch_or_beside_another():
    for value, link in (("allreduce:nvls", "nvswitch"), ("allreduce:nvls", None), ("allreduce:nvls,ring", "pcie")):
        assert audit({"NCCL_ALGO": value}, Host(nccl="2.27.5", link=link)) == ()


def test_range_depends_on_the_release():
    assert [i.code for i in audit({"NCCL_MAX_CTAS": "48"}, Host(nccl="2.21.5"))] == ["RANGE"]
    assert audit({"NCCL_MAX_CTAS": "48"}, Host(nccl="2.25.1")) == ()


def test_without_a_version_its_rules_keep_silent():
    assert audit({"NCCL_MIN_CTAS": "8"}) == ()
    assert [i.code for i in audit({"NCCL_BUFFSIZE": "4M"})] == ["INT_SUFFIX"]


def test_a_future_release_softens_an_unknown_name():
    assert [i.severity for i in audit({"NCCL_BRAND_NEW": "1"}, Host(nccl="2.40.1"))] == ["warn"]


def test_did_you_mean():
    assert "NCCL_PROTO?" in audit({"NCCL_PROTOS": "LL"})[0].fix


@pytest.mark.parametrize(("release", "codes"), [("0.5.3", ["error"]), ("0.5.4", []), ("0.5.10.post1", [])])
def test_sglang_overwrites_two_variables_up_to_0_5_3(release, codes):
    env = {"NCCL_CUMEM_ENABLE": "1", "NCCL_NVLS_ENABLE": "0", "CUDA_DEVICE_MAX_CONNECTIONS": "4" if release == "0.5.3" else "8"}
    assert [i.severity for i in audit(env, Host(engine="sglang", engine_release=release))] == codes


def test_sglang_forces_the_number_of_connections():
    env = {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "0"}
    assert [(i.code, i.severity) for i in audit(env, Host(engine="sglang", engine_release="0.5.9"))] == [("SET_BY_SGLANG", "warn")]
    assert "4" in audit({"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, Host(engine="sglang", engine_release="0.5.3"))[0].message


@pytest.mark.parametrize(("engine_name", "release", "flags", "env", "expected"), [
    ("sglang", "0.5.9", {}, {}, {"NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "0", "CUDA_DEVICE_MAX_CONNECTIONS": "8"}),
    ("sglang", "0.5.9", {}, {"NCCL_NVLS_ENABLE": "1"}, {"NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "8"}),
    ("sglang", "0.5.9", {"enable_nccl_nvls": True}, {"NCCL_NVLS_ENABLE": "0"}, {"NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "8"}),
    ("sglang", "0.5.23", {"enable_symm_mem": True}, {}, {"NCCL_CUMEM_ENABLE": "1", "NCCL_NVLS_ENABLE": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "8", "NCCL_GRAPH_REGISTER": "0"}),
    ("sglang", "0.5.3", {}, {"NCCL_CUMEM_ENABLE": "1"}, {"NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "0", "CUDA_DEVICE_MAX_CONNECTIONS": "4"}),
    ("vllm", "0.9.0.1", {}, {"NCCL_CUMEM_ENABLE": "1"}, {"NCCL_CUMEM_ENABLE": "0"}), ("vllm", "0.9.1", {}, {"NCCL_CUMEM_ENABLE": "1"}, {"NCCL_CUMEM_ENABLE": "1"}),
    ("vllm", "0.9.1", {}, {}, {"NCCL_CUMEM_ENABLE": "0"}), ("vllm", "0.10.2", {}, {}, {}), ("vllm", "0.32.0", {}, {}, {}), ("trtllm", "1.0", {}, {}, {}), (None, None, {}, {}, {}),
])
def test_what_an_engine_makes_of_an_environment(engine_name, release, flags, env, expected):
    assert engine.applied(env, engine.settings(engine_name, release, flags)) == expected


def test_a_flag_of_the_engine_overwrites_a_setting():
    flags = {"enable_deterministic_inference": True}
    found = audit({"NCCL_ALGO": "allreduce:ring", "NCCL_MIN_NCHANNELS": "2"}, Host(engine="sglang", engine_release="0.5.23", flags=flags, nccl="2.30.7"))
    errors = [(i.variable, i.code) for i in found if i.severity == "error"]
    assert errors == [("NCCL_ALGO", "SET_BY_SGLANG"), ("NCCL_MIN_NCHANNELS", "SET_BY_SGLANG")] and "--enable-deterministic-inference" in found[0].message


def test_an_engine_setting_that_its_own_nccl_cannot_take_is_named():
    found = audit({}, Host(engine="sglang", engine_release="0.4.6", flags={"enable_deterministic_inference": True}, nccl="2.21.5"))
    assert found[0].code == "ALGO_PREFIX_NEEDS_224"


@pytest.mark.skipif(not (INSTALLED := list((Path(__file__).parents[2] / ".venv-sglang").glob("lib/python3*/site-packages/sglang"))), reason="needs `make sglang-env`")
def test_the_installed_sglang_sets_what_the_table_says():
    text = (INSTALLED[0] / "srt/entrypoints/engine.py").read_text()
    assert 'os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "8"' in text and '"NCCL_NVLS_ENABLE" not in os.environ' in text
    hook = (INSTALLED[0] / "srt/arg_groups/attention_hook.py").read_text()
    assert 'os.environ["NCCL_ALGO"] = "allreduce:tree"' in hook and 'os.environ["NCCL_MIN_NCHANNELS"]' in hook
    assert 'os.environ.setdefault("NCCL_GRAPH_REGISTER", "0")' in (INSTALLED[0] / "srt/arg_groups/parallel_hook.py").read_text()


@pytest.mark.parametrize(("env", "release", "code"), [
    ({"NCCL_IB_DISABLE": "true"}, "2.27.5", "INT_GARBAGE"), ({"NCCL_NET_SHARED_BUFFERS": "1 # yes"}, "2.27.5", "INT_SUFFIX"), ({"NCCL_P2P_LEVEL": "P2C"}, "2.21.5", "LEVEL_UNKNOWN"),
    ({"NCCL_P2P_LEVEL": "SYS "}, "2.27.5", "LEVEL_CASE"), ({"NCCL_DEBUG": "DEBUG"}, "2.27.5", "WORD_UNKNOWN"), ({"NCCL_DEBUG_SUBSYS": "INIT,GRPAH"}, "2.27.5", "WORD_UNKNOWN"),
    ({"NCCL_BUFFSIZE": "99999999999999999999"}, "2.27.5", "RANGE"), ({"NCCL_IB_GDR_LEVEL": "1"}, "2.27.5", "REMOVED"), ({"NCCL_P2P_DISABLE": "2"}, "2.27.5", "RANGE"),
])
def test_values_of_all_kinds(env, release, code):
    assert [i.code for i in audit(env, Host(nccl=release, nodes=2))] == [code]


@pytest.mark.parametrize("env", [{"NCCL_NTHREADS": "-2"}, {"NCCL_DEBUG": "info"}, {"NCCL_DEBUG_SUBSYS": "^INIT,ENV"}, {"NCCL_CTA_POLICY": "EFFICIENCY|ZERO"}, {"NCCL_P2P_LEVEL": ""},
                                 {"NCCL_BUFFSIZE": ""}, {"NCCL_IB_TIMEOUT": "22"}, {"NCCL_COMM_BLOCKING": "-2147483648"}])
def test_further_values_that_are_sound(env):
    assert audit(env, Host(nccl="2.29.7", nodes=2)) == ()


@pytest.mark.parametrize("name", sorted(name for name, v in variables().items() if v.kind == "int"))
def test_every_integer_of_the_registry_refuses_a_unit(name):
    last = ".".join(map(str, variables()[name].last))
    codes = [i.code for i in audit({name: "4M"}, Host(nccl=last, nodes=2))]
    assert "INT_SUFFIX" in codes or codes == ["DEPRECATED"]


@pytest.mark.parametrize(("text", "value"), [("4M", 4), ("8x", 8), ("08", 0), ("abc", 0), ("010", 8), ("0x10", 16), (" 7", 7), ("-1", -1)])
def test_integers_as_c_reads_them(text, value):
    assert grammar.strtoll(text) == value


@given(st.integers(0, 2**40))
def test_a_plain_number_is_read_as_itself(number):
    assert grammar.strtoll(str(number)) == grammar.as_int(str(number)) == number


@given(st.dictionaries(st.sampled_from(["NCCL_ALGO", "NCCL_PROTO", "NCCL_P2P_LEVEL", "NCCL_BUFFSIZE", "NCCL_MIN_CTAS", "NCCL_X"]), st.text(max_size=20)))
def test_no_text_breaks_the_audit(env):
    for release in (None, "2.21.5", "2.27.5"):
        audit(env, Host(nccl=release))


def test_a_version_that_is_none_is_refused():
    with pytest.raises(ValueError, match=r"2\.27\.5"):
        version("cuda12")


def test_every_integer_rule_names_a_known_variable():
    assert all(variables()[name].kind == "int" for name in rules()["ranges"])
    assert set(rules()["words"]) | set(rules()["logged"]["names"]) <= set(variables())


def test_the_audit_needs_nothing_heavy():
    code = ("import sys; from eagle_forensics.nccl.live import gather, examine; from eagle_forensics.nccl.audit import Host; examine(gather({'NCCL_ALGO': 'Tree'}), Host()); "
            "sys.exit(any(m in sys.modules for m in ('torch', 'numpy', 'pandas', 'pydantic')))")
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
