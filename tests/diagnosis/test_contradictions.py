"""Which side of a contradiction holds, and what elimination leaves where offline is fine and live is low."""

import pytest

from eagle_forensics.diagnosis.rules import by_rule, rules, slugs
from tests.diagnosis.builders import LOSS, OFFSET, finding, met, of, prediction, told


def sample(id):
    return id.replace("-*", "-0").replace(".*", ".a").replace("[0-9]", "0")


@pytest.mark.parametrize("rule", rules().contradictions, ids=lambda r: r.name)
def test_each_pair_is_seen_and_neither_side_alone(rule):
    def side(ids, states):
        fault = next((s for s in slugs(rule.faults or ["wiring.*"]) if s.startswith("wiring")), None)
        return finding(sample(ids[0]), states[0], fault if states[0] == "fail" else None)

    first = side(rule.first, rule.first_is)
    both = [first, *([side(rule.second, rule.second_is)] if rule.second else [])]
    seen = [c for c in of(*both).contradictions if c.name == rule.name]
    assert len(seen) == 1 and seen[0].findings == tuple(f.id for f in both) and seen[0].holds == rule.holds
    assert f"{rule.holds}: {rule.why}" in told(of(*both))
    if rule.second:
        assert not [c for one in both for c in of(one).contradictions if c.name == rule.name]


def test_a_capture_of_prefill_does_not_contradict_graphs_of_decode():
    graph = finding("config.served-boundaries", "fail", "wiring.graph-default-layers")
    assert not of(graph, finding("layers.served")).contradictions


def offline_fine_live_low(*more, **records):
    return of(finding("drafter.metric"), met(1.1, status="inconclusive"), *more, prediction=prediction(), **records).elimination


def test_offline_fine_live_low_leaves_what_nothing_excludes():
    left = offline_fine_live_low()
    assert left.cell == "good_low" and left.findings == ("drafter.metric", "acceptance.prediction")
    assert {"wiring.layer-offset", "feature.partial-sum", "runtime.stale-draft-cache", "load.dtype"} <= set(left.remains)
    assert "data.too-little" not in left.remains, "a weak drafter is weak offline as well"


@pytest.mark.parametrize("rule", rules().clears, ids=lambda r: r.finding)
def test_a_pass_excludes_its_faults_a_paper_only_on_paper(rule):
    passed = finding(sample(rule.finding))
    before, after = offline_fine_live_low(), offline_fine_live_low(passed)
    mine = set(rule.faults) & set(before.remains)
    gone = {e.text for e in after.excluded} | set(after.on_paper)
    assert mine == gone and not mine & set(after.remains)
    on_paper = by_rule(rule.finding)
    assert set(after.on_paper) == (mine if on_paper else set())
    assert all(e.findings == (passed.id,) for e in after.excluded)


@pytest.mark.parametrize("rule", rules().without, ids=lambda r: r.argument)
def test_an_argument_excludes_what_it_makes_impossible(rule):
    left = offline_fine_live_low(arguments={rule.argument: rule.value})
    assert not set(rule.faults) & set(left.remains) and all(rule.source in e.text for e in left.excluded)
    other = offline_fine_live_low(arguments={rule.argument: 8 if rule.value == 1 else not rule.value})
    assert set(rule.faults) <= set(other.remains)


@pytest.mark.parametrize(("offline", "measured", "status", "cell"), [
    ("pass", 1.98, "pass", "good_good"), ("pass", 1.1, "inconclusive", "good_low"), ("inconclusive", 1.98, "pass", "bad_good"), ("inconclusive", 1.1, "inconclusive", "bad_low")])
def test_two_by_two_of_offline_and_live(offline, measured, status, cell):
    left = of(finding("drafter.metric", offline), met(measured, status=status), prediction=prediction()).elimination
    assert left.cell == cell and left.says == rules().cells[cell].says
    assert bool(left.remains) == (cell == "good_low")


def test_a_dump_against_the_engines_rules_excludes_no_damage_of_what_is_fed():
    by_rules, seen = offline_fine_live_low(finding("layers.served")), offline_fine_live_low(finding("layers.capture-0"))
    assert "feature.aliased-buffer" in by_rules.remains and "wiring.layer-offset" in by_rules.on_paper, "nobody saw the server"
    assert {"feature.aliased-buffer", "wiring.layer-offset"} <= {c.text for c in seen.excluded}
    assert "feature.aliased-buffer" in offline_fine_live_low(finding("layers.capture-0-rows")).remains, "another question about the same capture"


def test_a_log_that_counts_otherwise_is_no_poor_drafter():
    wrong_log = finding("drafter.metric", "fail", "data.metric-definition")
    assert of(wrong_log, met(1.1, status="inconclusive"), prediction=prediction()).elimination is None
    assert of(wrong_log, finding("drafter.accuracy"), met(1.1, status="inconclusive"), prediction=prediction()).elimination.cell == "good_low"


def test_a_loss_whose_explanation_is_not_known_leaves_the_others_open():
    record = prediction(2.0, 1.1) | {"trees": {"3,4,16": {"value": 2.6, "low": 2.5, "high": 2.7}}}
    result = of(OFFSET, finding("drafter.metric"), met(1.3, trained=2.6), prediction=record)
    assert result.effect.unexplained is None and "runtime.stale-draft-cache" in result.elimination.remains


def test_without_both_sides_nothing_is_eliminated():
    assert of(finding("drafter.metric")).elimination is None
    assert of(met(1.1), prediction=prediction()).elimination is None
    better = met(2.6, status="inconclusive")
    assert of(finding("drafter.metric"), better, prediction=prediction()).elimination is None, "better than predicted is another question"
    near = met(1.92, status="inconclusive")
    assert of(finding("drafter.metric"), near, prediction=prediction()).elimination is None, "intervals that meet show no loss"


def test_a_good_drafter_badly_fed_is_said_so_only_where_the_loss_is_proven():
    assert "The drafter is fine" in told(of(OFFSET, LOSS, prediction=prediction()))
    assert "The drafter is fine" not in told(of(OFFSET, prediction=prediction()))
    assert "the drafter is fine, what it is fed is not" in told(of(finding("drafter.metric"), LOSS))


def test_a_believed_label_is_the_origin_of_wrong_ids():
    result = of(finding("layers.labels", "fail", "wiring.mislabelled-dump"), OFFSET, LOSS)
    assert "wiring.mislabelled-dump" in result.faults[0].relations[0].text and result.faults[0].relations[0].findings == ("layers.labels",)
    assert any("tensors decide" in c.holds for c in result.contradictions)
