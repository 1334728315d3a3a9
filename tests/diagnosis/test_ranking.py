"""Order of the faults: tensors before claims, gates and causes first, independent lines add up."""

import re
from pathlib import Path

import pytest

from eagle_forensics.diagnosis.rules import link_of, question, rules, slugs, weight, words
from eagle_forensics.faults import catalogue
from tests.diagnosis.builders import LOSS, OFFSET, finding, of, told


def ranked(*findings):
    return [f.slug for f in of(*findings).faults]


def test_tensors_outrank_claims_and_lines_of_evidence_add_up():
    result = of(finding("config.x", "fail", "args.unit-confusion"), OFFSET, LOSS)
    assert [f.slug for f in result.faults] == ["wiring.layer-offset", "args.unit-confusion"]
    first = result.faults[0]
    assert first.weight == 5 and first.findings == ("layers.served", "drafter.served-wiring")
    assert [line.text for line in first.lines] == ["the tensors", "the drafter's behaviour"]
    assert first.if_fixed.text == "`args.unit-confusion`" and first.if_fixed.findings == ("config.x",)


def test_findings_of_one_kind_are_one_line_of_evidence():
    result = of(*(finding(f"layers.slot-{i}", "fail", "feature.tp-slice") for i in range(3)))
    assert result.faults[0].weight == 3
    assert "1 line of evidence carries it: the tensors (layers.slot-0, layers.slot-1, layers.slot-2)" in told(result)


@pytest.mark.parametrize("gate", [g.fault for g in rules().gates])
def test_a_gate_comes_before_what_rests_on_its_figures_alone(gate):
    behaviour = finding("acceptance.ceiling", "fail", "cost.cannot-win")
    lost = (finding("drafter.served-wiring", "fail", "wiring.layer-offset"), OFFSET)
    result = of(behaviour, *lost, finding("config.x", "fail", gate))
    names = [f.slug for f in result.faults]
    assert names.index(gate) < names.index("cost.cannot-win") and names[0] == "wiring.layer-offset", "a tensor needs no measurement"
    by = {f.slug: f for f in result.faults}
    assert gate in by["cost.cannot-win"].spoiled_by and by["wiring.layer-offset"].spoiled_by is None
    assert "with care" in told(result)


@pytest.mark.parametrize("rule", [r for r in rules().relations if r.kind == "produces"], ids=lambda r: f"{r.cause} -> {r.effect}")
def test_a_cause_comes_before_what_it_produces(rule):
    result = of(finding("layers.a", "fail", rule.effect), finding("config.b", "fail", rule.cause))
    assert [f.slug for f in result.faults] == [rule.cause, rule.effect]
    cause, effect = result.faults
    assert rule.why in effect.relations[0].text and effect.relations[0].findings == ("config.b",)
    assert cause.if_fixed.text == "nothing that was examined", "what it produces goes with it"


@pytest.mark.parametrize("rule", [r for r in rules().relations if r.kind != "produces"], ids=lambda r: f"{r.cause} -> {r.effect}")
def test_an_origin_or_a_part_keeps_its_rank_and_is_said(rule):
    cause = slugs([rule.cause])[0]
    result = of(finding("layers.a", "fail", rule.effect), finding("config.b", "fail", cause))
    assert [f.slug for f in result.faults] == [rule.effect, cause]
    assert rule.why in told(result) and cause in result.faults[0].if_fixed.text, "each needs its own remedy"


def test_every_fault_has_a_link_and_a_plain_sentence():
    assert set(rules().plain) == set(catalogue()) and all(link_of(s) for s in catalogue())
    assert all(p.endswith(".") for p in rules().plain.values())
    assert link_of("wiring.mislabelled-dump").name == "training data" and link_of("wiring.layer-offset").name == "states fed"


def test_every_rule_has_its_source():
    table = rules()
    assert all(row.source for group in (table.lines.values(), table.links, table.relations, table.gates, table.contradictions, table.cells.values(), table.clears, table.without, table.deciders) for row in group)


def test_every_row_of_the_battery_and_step_of_the_incident_that_is_cited_exists():
    page, table = (Path(__file__).parents[2] / "docs" / "battery.md").read_text(encoding="utf-8"), rules()
    cited = " ".join(r.source for g in (table.links, table.relations, table.gates, table.contradictions, table.cells.values(), table.clears, table.deciders) for r in g)
    assert set(re.findall(r"T\d\d", cited)) <= set(re.findall(r"^\| (T\d\d) \|", page, re.MULTILINE))
    assert {*re.findall(r"\b\d\b", " ".join(re.findall(r"the incident, steps? [\d, and]+", cited)))} <= set(re.findall(r"^\| (\d) \|", page, re.MULTILINE))
    assert set(re.findall(r"`(\w+\.[a-z0-9-]+)`", page)) <= set(catalogue())


def test_weights_put_numbers_over_labels():
    assert weight(["layers"]) > weight(["drafter"]) > weight(["config"]) and weight(["layers", "layers"]) == weight(["layers"])
    assert question("layers.slot-0") == "layers" and words("config") == "the papers"


def test_the_tables_name_known_faults_only(monkeypatch):
    from eagle_forensics.diagnosis import rules as module

    read = module._read
    monkeypatch.setattr(module, "_read", lambda name: read(name) | ({"wiring.typo": "x."} if name == "plain.toml" else {}))
    with pytest.raises(KeyError, match=r"wiring\.typo"):
        module.rules.__wrapped__()
