"""The opening of the post-mortem: chain, fix on each release, verification, and words that end once."""

import pytest

from eagle_forensics.case import Case
from eagle_forensics.diagnosis import diagnose
from eagle_forensics.diagnosis.rules import rules
from eagle_forensics.finding import Edit, Verdict
from tests.diagnosis.builders import CASE, LOSS, OFFSET, finding, met, of, prediction, told

SERVED = {"served": {"model_type": "llama", "layers": 30}, "engine": "sglang 0.5.23"}
SGLANG = Case.model_validate({"name": "a", "serving": {"engine": "sglang", "version": "0.5.23"}})
IDS = Edit(file="drafter/config.json", key="eagle_config.eagle_aux_hidden_state_layer_ids", value=[1, 14, 26], applies_to="SGLang 0.5.23")


def states(*findings, **records):
    return {link.name: link.state for link in of(*findings, **records).chain}


def test_a_healthy_case_is_not_accused():
    result = of(finding("layers.trained"), finding("drafter.metric"))
    assert result.verdict is Verdict.PASS and not result.faults and result.headline.startswith("No fault found: 2 checks pass")
    assert result.story[0].text.startswith("No fault was found in what was examined") and result.story[0].findings == ("layers.trained", "drafter.metric")


def test_nothing_examined_says_what_is_missing():
    result = of(finding("layers.evidence", "skipped", next_step="Add a dump"))
    assert result.verdict is Verdict.INCONCLUSIVE and result.headline.startswith("Not enough evidence")
    assert result.not_examined[0].findings == ("layers.evidence",) and result.next_steps == ("Add a dump.",)
    assert "not enough evidence" in result.story[0].text and {link.state for link in result.chain} == {"not examined"}


def test_unfinished_notebooks_are_an_error():
    result = diagnose([finding("layers.trained")], {}, CASE, missing=2)
    assert result.verdict is Verdict.ERROR and "2 notebook(s)" in result.headline and "nothing is concluded" in result.story[0].text


def test_sentences_end_once():
    result = of(finding("layers.served", "fail", "wiring.layer-offset", statement="It is off.", refuted_by="an equal capture.", remedy="Write it."))
    assert ".." not in " ".join((result.headline, told(result)))


@pytest.mark.parametrize("rule", rules().links, ids=lambda r: r.name)
def test_a_link_holds_by_what_decides_it_and_breaks_by_its_fault(rule):
    from eagle_forensics.diagnosis.rules import link_of, slugs

    assert states()[rule.name] == "not examined"
    assert states(finding(rule.decides[0]))[rule.name] == "holds"
    fault = next(s for s in slugs(rule.faults) if link_of(s) is rule)
    assert states(finding(rule.decides[0]), finding("layers.z", "fail", fault))[rule.name] == "broken"
    assert states(finding(rule.decides[0]), finding("layers.z", "inconclusive", fault))[rule.name] == "undecided"
    only = [i for i in rule.says if not i.endswith("*")]
    if only:
        assert states(finding(only[0]))[rule.name] == "not examined", "a side check alone lets nothing hold"


def test_a_link_that_holds_by_papers_alone_says_so():
    def fed(*f):
        return next(link for link in of(*f).chain if link.name == "states fed")

    assert fed(finding("config.served-boundaries")).because == "on paper only"
    assert fed(finding("config.served-boundaries"), finding("layers.served")).because == "by the tensors, the papers, if the server follows its release's rules"
    assert fed(finding("layers.served"), finding("layers.capture-0")).because == "by the tensors"


def test_the_first_paragraph_has_no_jargon_and_the_numbers():
    result = of(finding("layers.served", "fail", "wiring.layer-offset", edits=(IDS,), remedy="Write the ids"), LOSS, met(1.1), prediction=prediction())
    text = result.story[0].text
    assert text.startswith(rules().plain["wiring.layer-offset"]) and "1.10 [1.05, 1.15] tokens where 2.00 [1.95, 2.05] are possible" in text
    assert "set `eagle_config.eagle_aux_hidden_state_layer_ids` to [1, 14, 26] in `drafter/config.json`" in text
    assert "The tensors, the drafter's behaviour and the measurement say so independently of each other." in text
    assert set(result.story[0].findings) == {"layers.served", "drafter.served-wiring", "acceptance.prediction"}


def test_lines_that_share_the_engines_rules_are_not_called_independent():
    assert "they all take from the engine's rules" in of(OFFSET, LOSS).story[0].text
    assert "independently of each other" in of(OFFSET, LOSS, finding("layers.capture-0", "fail", "wiring.layer-offset")).story[0].text


def test_one_line_of_evidence_is_admitted():
    assert "a second, independent line of evidence is missing" in of(OFFSET).story[0].text


def test_a_second_fault_is_announced_and_told():
    result = of(OFFSET, finding("config.draft-budget", "fail", "args.draft-budget-overridden"))
    assert "1 more was found" in result.story[0].text and "Also found (`args.draft-budget-overridden`)" in told(result)


def test_every_conclusion_names_findings_of_the_run():
    given = (OFFSET, LOSS, met(1.1), finding("drafter.metric"), finding("layers.labels", "fail", "wiring.mislabelled-dump"), finding("config.x", "inconclusive", "data.domain"),
             finding("nccl.path", "skipped"))
    result, ids = of(*given, prediction=prediction()), {f.id for f in given}
    rests = [c.findings for c in (*result.story, *result.contradictions, *result.suspicions[0].findings, *result.not_examined, *(f.if_fixed for f in result.faults))]
    assert all(r and set(r) <= ids for r in rests)


def test_the_fix_is_spelled_for_other_releases():
    fault = diagnose([finding("layers.served", "fail", "wiring.layer-offset", edits=(IDS,))], {"layers": SERVED}, SGLANG).faults[0]
    spelled = dict(fault.elsewhere)
    assert any(k.startswith("vLLM") and v == "[2, 15, 27]" for k, v in spelled.items()) and any(k.startswith("SGLang") for k in spelled)
    assert diagnose([finding("layers.served", "fail", "wiring.layer-offset", edits=(IDS,))], {}, SGLANG).faults[0].elsewhere == ()
    other = Edit(file="m", key="planes", value=["b2"])
    assert diagnose([finding("layers.served", "fail", "wiring.layer-offset", edits=(other,))], {"layers": SERVED}, SGLANG).faults[0].elsewhere == ()


def test_the_same_edit_is_printed_once():
    twice = [finding(i, "fail", "wiring.layer-offset", edits=(IDS,)) for i in ("layers.served", "drafter.served-wiring")]
    assert of(*twice).faults[0].edits == (IDS,)


def test_the_behaviours_own_prediction_comes_before_other_words():
    tensor = finding("layers.served", "fail", "wiring.layer-offset", predicted_effect="more")
    walk = finding("drafter.served-wiring", "fail", "wiring.layer-offset", predicted_effect="2.0 instead of 1.1")
    assert of(tensor, walk).faults[0].predicted_effect == "2.0 instead of 1.1"


def test_the_fix_says_how_it_is_verified():
    fault = of(OFFSET, met(1.1), prediction=prediction()).faults[0]
    assert fault.verify == "eagle-forensics run CASE.yaml"
    assert fault.see == ("`layers.served`, `acceptance.prediction` pass", "an accept length of 2.00 [1.95, 2.05] tokens a round at 3 draft steps")
    assert of(finding("nccl.graph", "fail", "nccl.graph-fallback")).faults[0].see == ("`nccl.graph` passes",)
