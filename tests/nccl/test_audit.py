"""The environment audit: 26 published environments, what NCCL does with each, and what it must not be accused of."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle_forensics.nccl import grammar
from eagle_forensics.nccl.audit import Host, audit, not_live
from eagle_forensics.nccl.registry import bundled_nccl, rules, variables, version

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
    ({"NCCL_AGG_CHANNEL_SIZE": "1"}, "REMOVED"),
])
def test_further_rules(env, code):
    assert [i.code for i in audit(env, Host(nccl="2.27.5", link="pcie"))] == [code]


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
    env = {"NCCL_CUMEM_ENABLE": "1", "NCCL_NVLS_ENABLE": "0"}
    assert [i.severity for i in audit(env, Host(sglang=release))] == codes


def test_sglang_forces_the_number_of_connections():
    assert [i.code for i in audit({"CUDA_DEVICE_MAX_CONNECTIONS": "1", "NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "0"}, Host(sglang="0.5.9"))] == ["SET_BY_SGLANG"]
    assert "4" in audit({"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, Host(sglang="0.5.3"))[0].message


def test_what_does_not_reach_the_process_is_named():
    found = not_live({"NCCL_PROTO": "LL", "NCCL_ALGO": "ring", "NCCL_DEBUG": "INFO", "HOME": "x"}, {"NCCL_DEBUG": "INFO", "NCCL_ALGO": "tree"})
    assert [(i.code, i.variable) for i in found] == [("NOT_LIVE", "NCCL_ALGO"), ("NOT_LIVE", "NCCL_PROTO")]


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
    assert set(rules()["integers"]) <= set(variables())
    assert bundled_nccl("2.9.1+cu128") == "2.27.5" and bundled_nccl("9.9") is None


def test_the_audit_needs_nothing_heavy():
    code = ("import sys; from eagle_forensics.nccl.audit import audit; audit({'NCCL_ALGO': 'Tree'}); "
            "sys.exit(any(m in sys.modules for m in ('torch', 'numpy', 'pandas', 'pydantic')))")
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
