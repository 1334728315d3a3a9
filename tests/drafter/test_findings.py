"""Findings: the right fault with its rival, no accusation of the healthy, abstention where the data do not decide."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from eagle_forensics import stats
from eagle_forensics.drafter.correctness import Correctness
from eagle_forensics.drafter.findings import accuracy_finding, metric_finding, prediction_finding
from eagle_forensics.drafter.recorded import Problem
from eagle_forensics.drafter.served.states import served_finding
from eagle_forensics.drafter.wirings.battery import run_battery
from eagle_forensics.drafter.wirings.candidates import standard_battery
from eagle_forensics.drafter.wirings.contract import boundaries_finding, wiring_findings
from eagle_forensics.drafter.wirings.derived import FINAL, UNIT
from eagle_forensics.drafter.wirings.wiring import Wiring, evaluate
from eagle_forensics.drafter.wording import tokens_needed
from eagle_forensics.evidence.records import DraftFlags
from eagle_forensics.finding import Status, Verdict, verdict
from tests.drafter.planted import MODEL, TRAINED, battery, investigated, planted, slots
from tests.drafter.test_correctness import by_hand, recorded

OWN = Wiring(TRAINED)
CONTRACT = "speculators 0.3.0, which concatenates all planes but the last"


def measured(kind: str, truth: Wiring = OWN):
    return evaluate(MODEL, planted(truth), Wiring(tuple(f"{kind} {i}" for i in range(3))), 2)


@cache
def trained(truth: Wiring = OWN):
    return evaluate(MODEL, planted(truth), Wiring(TRAINED), 2)


def served(kind, served_boundaries, **more):
    arguments = {"control": measured("same"), "trained_boundaries": (2, 15, 27)} | more
    return served_finding(trained(), measured(kind), served_boundaries=served_boundaries, **arguments)


def wiring(results, contract=CONTRACT, **more):
    return wiring_findings(results, contract=contract, **more)[0]


def test_a_healthy_drafter_is_not_accused():
    results = battery(Wiring(TRAINED))
    zero = next(r for r in results if set(r.wiring.planes) == {"zero"})
    own = results[0].correctness
    findings = [accuracy_finding(results[0], zero), metric_finding({f"acc_{k}": own.accuracy(k).value for k in range(2)}, own), *wiring_findings(results, contract=CONTRACT),
                served("same", (2, 15, 27)), prediction_finding(own, measured("same"))]
    assert [f.id for f in findings] == ["drafter.accuracy", "drafter.metric", "drafter.wiring", "drafter.served-wiring", "drafter.prediction"]
    assert all(f.status is Status.PASS and f.fault is None for f in findings), [(f.id, f.status, f.statement) for f in findings]
    assert verdict(findings) is Verdict.PASS


def test_two_sequences_are_too_few_to_say_how_many_tokens_are_needed():
    two, many = (stats.paired_difference_t([5, 6] * n, [8, 7] * n, [20, 20] * n, level=0.9999) for n in (1, 8))
    assert "2 sequences are too few" in tokens_needed(two) and "tokens of like text" in tokens_needed(many)


def test_states_that_mislead_are_not_said_to_make_no_difference():
    results = battery(Wiring(slots(1, 2, 3)))
    zero = next(r for r in results if set(r.wiring.planes) == {"zero"})
    swapped = accuracy_finding(zero, results[0])
    assert swapped.status is Status.INCONCLUSIVE and "mislead" in swapped.statement and "does not exclude" not in swapped.statement
    assert "wiring battery" in swapped.next_step


@pytest.mark.parametrize("truth,slug", [
    (Wiring(slots(1, 0, 2)), "wiring.plane-order"), (Wiring(slots(1, 2, 3)), "wiring.plane-order"), (Wiring(TRAINED, flags=DraftFlags(norm_output=True)), "drafter.norm-flags"),
    (Wiring(TRAINED, d2t="ignored"), "vocab.map-semantics"), (Wiring(TRAINED).formed(UNIT), "feature.norm-state"), (Wiring(TRAINED, token_shift=0), "data.hidden-shift"),
], ids=lambda x: x if isinstance(x, str) else x.label)
def test_a_wrong_wiring_is_named_with_its_rival(truth, slug):
    found = wiring(battery(truth), contract=CONTRACT)
    assert (found.status, found.fault) == (Status.FAIL, slug)
    assert truth.label in found.observed and CONTRACT in found.statement
    assert found.competitor.margin.count("[") == 1 and found.refuted_by and found.remedy and found.predicted_effect
    assert ("planes" in found.next_step) is (slug == "wiring.plane-order")


@pytest.mark.parametrize("truth,slugs", [
    (Wiring(slots(2, 0, 1), flags=DraftFlags(norm_before_residual=True)), ["drafter.norm-flags", "wiring.plane-order"]),
    (Wiring(slots(1, 2, 3), token_shift=0), ["data.hidden-shift", "wiring.plane-order"]), (Wiring(slots(0, 1, 3)).formed(FINAL), ["feature.norm-state", "wiring.plane-order"]),
], ids=lambda x: x.label if isinstance(x, Wiring) else "")
def test_two_faults_at_once_are_two_findings(truth, slugs):
    found = wiring_findings(investigated(truth), contract=CONTRACT)
    assert [f.fault for f in found] == slugs and {f.status for f in found} == {Status.FAIL} and len({f.id for f in found}) == 2
    assert all(f.competitor.margin and truth.label in f.statement for f in found)
    assert all("2 things are wrong at once" in f.statement for f in found) and f"{slugs[1]} beside {slugs[0]}" in found[1].statement
    assert wiring_findings(investigated(truth), contract=None)[0].status is Status.INCONCLUSIVE


def test_only_what_all_candidates_share_is_accused():
    """slot 0 doubled under another name: the order is wrong for certain, which of the two stood there is not."""
    truth = Wiring(slots(1, 0, 2))
    wirings = [Wiring(TRAINED, name="trained"), truth, Wiring(("slot 1", "same 0", "slot 2")), Wiring(slots(2, 1, 0))]
    results = run_battery(MODEL, planted(truth), wirings, 2)
    found = wiring_findings(results, contract=CONTRACT)
    assert [f.fault for f in found] == ["wiring.plane-order"] and "cannot be told from it" in found[0].statement
    other = [replace(r, wiring=Wiring(TRAINED, d2t="ignored")) if r.wiring.planes[1] == "same 0" else r for r in results]
    one = wiring_findings(other, contract=CONTRACT)
    assert [f.status for f in one] == [Status.INCONCLUSIVE] and "depart from it in other ways" in one[0].statement


def test_a_plane_nobody_recorded_is_told_but_decides_nothing():
    """Feeding another plane in place of slot 0 costs nothing: no trainer that reads the dump can have done it."""
    wirings = [Wiring(TRAINED, name="trained"), Wiring(("hair 0", "slot 1", "slot 2")), Wiring(slots(1, 0, 2))]
    results = run_battery(MODEL, planted(OWN), wirings, 2)
    found = wiring(results, recorded=slots(0, 1, 2, 3))
    assert found.status is Status.PASS and "hair 0, slot 1, slot 2 cannot be told from it" in found.statement
    assert wiring(results).status is Status.INCONCLUSIVE


def test_a_best_wiring_that_reads_what_nobody_recorded_accuses_nobody():
    truth = Wiring(slots(1, 0, 2))
    results = run_battery(MODEL, planted(truth), [Wiring(TRAINED, name="trained"), truth, Wiring(slots(2, 1, 0))], 2)
    found = wiring(results, recorded=("slot 0", "slot 2"))
    assert found.status is Status.INCONCLUSIVE and "the dump does not hold" in found.statement and "which dump" in found.next_step
    assert wiring(results, recorded=slots(0, 1, 2)).fault == "wiring.plane-order"


def test_without_a_known_contract_nobody_is_accused():
    found = wiring(battery(Wiring(slots(1, 2, 3))), contract=None)
    assert found.status is Status.INCONCLUSIVE and "how the trainer read the dump is not known" in found.statement


def test_a_drafter_that_reads_nothing_proves_no_wiring():
    noise = [replace(i, input_ids=torch.randint(0, 11, (len(i),), generator=torch.Generator().manual_seed(n))) for n, i in enumerate(planted(Wiring(TRAINED)))]
    results = run_battery(MODEL, noise, standard_battery(MODEL, TRAINED, slots(0, 1, 2)), 2, screen_tokens=160)
    zero = next(r for r in results if set(r.wiring.planes) == {"zero"})
    found = [wiring(results), accuracy_finding(next(r for r in results if r.wiring.name == "trained"), zero)]
    assert {f.status for f in found} == {Status.INCONCLUSIVE} and all("tokens of like text" in f.next_step for f in found)


def test_equal_planes_cannot_be_told_apart():
    wirings = [Wiring(TRAINED, name="trained"), Wiring(("same 0", "slot 1", "slot 2"))]
    found = wiring(run_battery(MODEL, planted(Wiring(TRAINED)), wirings, 2), contract=CONTRACT)
    assert found.status is Status.INCONCLUSIVE and "no number of tokens" in found.next_step


def test_a_training_that_saw_its_answers_is_not_called_healthy():
    found = wiring(battery(Wiring(TRAINED, hidden_shift=1)), contract=CONTRACT)
    assert found.status is Status.INCONCLUSIVE and "may have seen" in found.statement


def test_served_layers_that_cost_accuracy_are_a_layer_offset():
    found = served("near", (1, 14, 26))
    assert (found.status, found.fault) == (Status.FAIL, "wiring.layer-offset")
    assert "1 boundary(s) early" in found.statement and found.interval[1] < 0 and found.competitor.fault == "data.too-little"
    assert f"{trained().accept_length().value:.3f}" in found.predicted_effect
    assert "boundary(s)" not in served("far", (0, 2, 15)).statement
    assert served("far", (15, 2, 27)).fault == "wiring.plane-order"


@pytest.mark.parametrize("arguments,words", [
    ({"kind": "near", "served_boundaries": (2, 15, 27)}, "boundaries agree"),
    ({"kind": "near", "served_boundaries": (1, 14, 26), "control": None}, "no control"),
    ({"kind": "hair", "served_boundaries": (1, 14, 26)}, "cannot tell"),
], ids=["same boundaries", "no control", "too close"])
def test_a_loss_with_another_explanation_accuses_nobody(arguments, words):
    found = served(**arguments)
    assert found.status is Status.INCONCLUSIVE and found.fault is None and words in found.statement and found.next_step


def test_states_computed_wrongly_are_no_wiring_fault():
    found = served_finding(trained(), measured("near"), trained_boundaries=(2, 15, 27), served_boundaries=(1, 14, 26), control=measured("near"))
    assert found.status is Status.INCONCLUSIVE and "computation may be to blame" in found.statement


def test_captured_states_need_no_control():
    assert served("near", (1, 14, 26), control=None, captured=True).status is Status.FAIL


def test_better_served_than_recorded_puts_the_dump_in_doubt():
    found = served_finding(measured("near"), trained(), trained_boundaries=(2, 15, 27), served_boundaries=(3, 16, 28), control=trained())
    assert found.status is Status.INCONCLUSIVE and "dump" in found.statement


def test_absent_served_states_are_skipped():
    found = served_finding(trained(), None, trained_boundaries=(2, 15, 27), served_boundaries=None)
    assert found.status is Status.SKIPPED and found.next_step


def test_nothing_at_hand_is_never_green():
    findings = [accuracy_finding(None, None, (Problem("a", "no loss_mask"),)), metric_finding({"acc_0": 0.5}, None), *wiring_findings((), contract=CONTRACT),
                served_finding(None, None, trained_boundaries=None, served_boundaries=None), prediction_finding(None), boundaries_finding(None, None)]
    assert {f.status for f in findings} == {Status.SKIPPED}
    assert "no loss_mask" in findings[0].next_step and verdict(findings) is Verdict.INCONCLUSIVE


def test_metrics_above_what_the_dump_shows_are_not_believed():
    value = trained().accuracy(0).value
    assert metric_finding({"acc_0": value - 0.2}, trained()).status is Status.PASS
    high = metric_finding({"acc_0": min(value + 0.3, 0.99)}, trained())
    assert high.status is Status.INCONCLUSIVE and high.fault is None
    named = metric_finding({"full_acc_1": trained().accuracy(1).value}, trained())
    assert named.status is Status.INCONCLUSIVE and named.fault == "data.metric-definition" and "marginal" in named.statement
    assert metric_finding({"loss": 0.1}, trained()).status is Status.SKIPPED and metric_finding({}, trained()).status is Status.SKIPPED


def test_rates_counted_otherwise_than_named_are_accused_where_the_first_step_reproduces():
    first, second = (trained().accuracy(k).value for k in range(2))
    found = metric_finding({"full_acc_0": first, "full_acc_1": second}, trained(), clean=True)
    assert found.status is Status.FAIL and found.fault == "data.metric-definition" and "marginal" in found.statement and found.competitor.fault == "wiring.layer-offset"
    assert metric_finding({"full_acc_0": first, "full_acc_1": second}, trained()).status is Status.INCONCLUSIVE, "another wiring may explain it"
    assert metric_finding({"full_acc_0": first + 0.2, "full_acc_1": second}, trained(), clean=True).status is Status.INCONCLUSIVE, "other text moves both"
    assert metric_finding({"full_acc_1": second}, trained(), clean=True).status is Status.INCONCLUSIVE, "nothing says that the text is the same"
    assert metric_finding({"full_acc_0": first, "full_acc_1": trained().survival(1).value}, trained(), clean=True).status is Status.PASS
    assert metric_finding({"acc_0": 0.99}, trained(), clean=True).fault == "data.serving-mismatch"


@cache
def conditional_like_true_states():
    """Step 1 right on 60 % of positions; step 2 on 60 % of those, else on 30 %: fed true states the later step would log what is its conditional rate here."""
    rng, items = np.random.default_rng(4), []
    for number in range(40):
        first, then = rng.random(80) < 0.6, rng.random(80)
        right = {(t, 0): first[t] for t in range(80)} | {(t, 1): then[t] < (0.6 if first[t] else 0.3) for t in range(80)}
        item = recorded((1 + np.arange(80) % 49).tolist(), [0] * 4 + [1] * 76, f"s{number}")
        items.append(by_hand(item, lambda t, k, right=right: right.get((t, k), False)))
    return Correctness(tuple(items), 2)


def test_a_training_forward_that_was_fed_true_states_may_log_what_looks_counted_otherwise():
    found = conditional_like_true_states()
    logged = {"acc_0": found.accuracy(0).value, "acc_1": found.conditional(1).value}
    open_ = metric_finding(logged, found, clean=True)
    assert (open_.status, open_.fault, open_.competitor.fault) == (Status.INCONCLUSIVE, "data.metric-definition", "data.serving-mismatch"), open_.statement
    assert "true states" in open_.statement and "not rejected" in open_.competitor.why_rejected and open_.next_step
    between = metric_finding({"full_acc_0": found.accuracy(0).value, "full_acc_1": found.accuracy(1).value}, found, clean=True)
    assert (between.status, between.fault) == (Status.FAIL, "data.metric-definition") and "true states" in between.statement, between.statement


def test_left_out_sequences_are_counted_in_the_finding():
    found = accuracy_finding(battery(Wiring(TRAINED))[0], None, (Problem("bad", "non-finite"),))
    assert any("1 sequence(s) left out" in e.note and "non-finite" in e.note for e in found.evidence)


def test_prediction_carries_interval_and_effect_but_never_decides():
    found = prediction_finding(trained(), measured("near"), steps=2)
    assert not found.required and found.observed == pytest.approx(measured("near").accept_length(2).value, abs=1e-4)
    assert f"{trained().accept_length(2).value:.3f}" in found.predicted_effect and found.interval
    single = evaluate(MODEL, planted(Wiring(TRAINED))[:1], Wiring(TRAINED), 2)
    assert prediction_finding(single).status is Status.INCONCLUSIVE
