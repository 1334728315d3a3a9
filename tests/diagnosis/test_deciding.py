"""What would decide between explanations, and that every command printed exists."""

import shlex
from pathlib import Path

import pytest
import typer

from eagle_forensics.case import Case
from eagle_forensics.cli import app
from eagle_forensics.diagnosis.deciding import MOST, rule_for
from eagle_forensics.diagnosis.rules import rules
from eagle_forensics.engines.arguments import resolve_args
from tests.diagnosis.builders import OFFSET, finding, met, of, prediction

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
PLACES = {"case": "case.yaml", "url": "http://h:1", "dump": "dump", "engine": "sglang", "version": "0.5.23", "model_type": "llama", "layers": "30"}


@pytest.fixture(scope="module")
def options():
    """Options of each command of the suite."""
    commands = typer.main.get_command(app).commands
    return {name: {flag for p in commands[name].params for flag in p.opts} for name in ("run", "capture", "compare", "layers")}


@pytest.fixture(scope="module")
def parameters():
    from eagle_forensics.suite.parameters import read_parameters

    return {int(p.name[:2]): set(read_parameters(p)) for p in NOTEBOOKS}


@pytest.mark.parametrize("rule", rules().deciders, ids=lambda r: f"{r.suspicion} or {r.rival}")
def test_every_command_exists(rule, options, parameters):
    words = shlex.split(rule.command.format_map(PLACES))
    assert words[0] == "eagle-forensics" and words[1] in options
    assert {w for w in words if w.startswith("--")} <= options[words[1]]
    only = [int(n) for n in words[words.index("--only") + 1].split(",")] if "--only" in words else list(parameters)
    for given in (words[i + 1] for i, w in enumerate(words) if w == "--set"):
        assert any(given.split("=")[0] in parameters[n] for n in only), given


@pytest.mark.parametrize(("engine", "text"), sorted({(e, t) for r in rules().deciders for e, t in r.restart.items()}))
def test_every_engine_flag_is_known(engine, text):
    argv = [w for w in text.split() if w not in ("with", "without")]
    base = ["--model", "m"] if engine == "vllm" else ["--model-path", "m"]
    answer = resolve_args(engine, {"sglang": "0.5.23", "vllm": "0.33.0"}[engine], [*base, *argv])
    assert argv[0].startswith("--") and not answer.error
    assert not [m for m in answer.messages if argv[0] in m.text and "not" in m.text], answer.messages


def test_a_rival_that_nothing_rejects_gets_its_observation():
    openly = finding("config.served-boundaries", "fail", "wiring.layer-offset", rival=("wiring.mislabelled-dump", "not rejected here: the tensors decide"))
    one = of(openly, case=Case(name="a")).deciders[0]
    assert (one.suspicion, one.rival, one.findings) == ("wiring.layer-offset", "wiring.mislabelled-dump", ("config.served-boundaries",))
    assert one.command == "eagle-forensics run CASE.yaml --only 3"
    rejected = finding("layers.served", "fail", "wiring.layer-offset", rival=("wiring.mislabelled-dump", "the planes were identified"))
    assert of(openly, rejected).deciders == (), "another finding rejects it"


def test_a_fault_on_paper_alone_gets_an_observation_of_its_own():
    graph = finding("config.served-boundaries", "fail", "wiring.graph-default-layers", rival=("wiring.layer-offset", "eager path right"))
    one = of(graph, case=Case.model_validate({"name": "a", "serving": {"engine": "vllm", "version": "0.33.0"}})).deciders[0]
    assert one.restart == "with --enforce-eager"
    assert of(graph).deciders[0].restart == "with --disable-cuda-graph (sglang) or with --enforce-eager (vllm)", "the engine is not known"
    assert of(OFFSET).deciders == ()


def test_suspicions_are_listed_apart_and_accuse_nobody():
    result = of(finding("acceptance.split-length", "inconclusive", "drafter.rope"), finding("layers.trained"))
    assert result.faults == () and [s.slug for s in result.suspicions] == ["drafter.rope"]
    assert result.suspicions[0].findings[0].findings == ("acceptance.split-length",)
    assert "prompt_lengths" in result.deciders[0].command and "without proving it" in result.story[0].text
    proven = of(finding("acceptance.split-length", "inconclusive", "drafter.rope"), finding("config.rope", "fail", "drafter.rope"))
    assert proven.suspicions == () and [f.slug for f in proven.faults] == ["drafter.rope"]


def test_an_upgrade_hazard_is_no_suspicion():
    assert of(finding("config.upgrade", "inconclusive", "wiring.layer-offset", required=False)).suspicions == ()


def test_a_side_remark_does_not_make_a_healthy_case_suspect():
    result = of(finding("layers.trained"), finding("acceptance.by-context", "inconclusive", "drafter.rope", required=False))
    assert result.verdict == "PASS" and "drafter.rope" not in result.story[0].text and result.suspicions


def test_elimination_proposes_a_few_observations_each_once():
    result = of(finding("drafter.metric"), met(1.1, status="inconclusive"), prediction=prediction())
    commands = [(d.restart, d.command) for d in result.deciders]
    assert 1 < len(commands) <= MOST and len(set(commands)) == len(commands)


def test_the_rule_for_a_pair_before_the_catalogues_rival_before_any():
    assert rule_for("wiring.layer-offset", "data.too-little").rival == "data.too-little"
    assert rule_for("wiring.layer-offset", "chance").rival == "feature.partial-sum"
    assert rule_for("runtime.stale-draft-cache", None).rival == "wiring.graph-default-layers"
    assert rule_for("nccl.algorithm", None).suspicion == "nccl.*" and rule_for("args.refused", None) is None


def test_an_observation_is_printed_for_the_pair_that_it_decides():
    openly = finding("config.served-boundaries", "fail", "wiring.layer-offset", rival=("a patched engine", "not rejected here"))
    one = of(openly).deciders[0]
    assert (one.rival, one.command.split()[1]) == ("feature.partial-sum", "capture"), "no row decides against a patched engine"


def test_places_of_the_case_are_filled_in_and_quoted(tmp_path):
    case = Case.model_validate({"name": "a", "serving": {"url": "http://127.0.0.1:30000"}, "training": {"dump": {"path": "my dump"}}})
    openly = finding("layers.capture-0", "fail", "wiring.layer-offset", rival=("feature.partial-sum", "not rejected: one rank"))
    assert of(openly, case=case).deciders[0].command == "eagle-forensics capture http://127.0.0.1:30000/ --out captures --dump 'my dump'"
