"""The diagnosis: tensors before claims, causes before consequences, nothing invented for a healthy or empty case."""

from eagle_forensics.case import Case
from eagle_forensics.diagnosis import diagnose
from eagle_forensics.finding import Competitor, Edit, Finding, Verdict

CASE = Case(name="a")


def finding(id, status="pass", fault=None, **more):
    if status == "fail":
        more = {"competitor": Competitor(fault="data.too-little", margin="0.5", why_rejected="it is as good as trained"), "refuted_by": "equal captures", **more}
    return Finding(**{"id": id, "question": "which?", "status": status, "fault": fault, "statement": f"statement of {id}", "notebook": "03_layer_matching", **more})


def test_tensors_outrank_claims_and_lines_of_evidence_add_up():
    result = diagnose([finding("config.x", "fail", "args.unit-confusion"), finding("layers.served", "fail", "wiring.layer-offset"),
                       finding("drafter.served-wiring", "fail", "wiring.layer-offset", predicted_effect="accept length 2.0 instead of 1.1")], {}, CASE)
    assert [f.slug for f in result.faults] == ["wiring.layer-offset", "args.unit-confusion"]
    first = result.faults[0]
    assert first.weight == 5 and first.findings == ("layers.served", "drafter.served-wiring")
    assert first.predicted_effect == "accept length 2.0 instead of 1.1" and first.if_fixed == "args.unit-confusion"
    assert "statement of layers.served" in result.story[0].lower() and "data.too-little" in " ".join(result.story)


def test_a_believed_label_explains_the_wrong_ids():
    edit = Edit(file="drafter/config.json", key="k", value=[1])
    result = diagnose([finding("layers.labels", "fail", "wiring.mislabelled-dump", edits=(Edit(file="m", key="planes", value=["b2"]),)),
                       finding("layers.served", "fail", "wiring.layer-offset", edits=(edit,)),
                       finding("drafter.served-wiring", "fail", "wiring.layer-offset", edits=(edit,))], {}, CASE)
    by_slug = {f.slug: f for f in result.faults}
    assert by_slug["wiring.layer-offset"].caused_by.startswith("wiring.mislabelled-dump")
    assert by_slug["wiring.layer-offset"].edits == (edit,), "the same edit is printed once"
    assert any("tensors decide" in c for c in result.contradictions)


def test_a_good_drafter_badly_fed_is_a_contradiction_named_so():
    result = diagnose([finding("drafter.metric"), finding("drafter.served-wiring", "fail", "wiring.layer-offset")], {}, CASE)
    assert any("the drafter is fine, what it is fed is not" in c for c in result.contradictions)


def test_a_healthy_case_is_not_accused():
    result = diagnose([finding("layers.trained"), finding("drafter.metric")], {}, CASE)
    assert result.verdict is Verdict.PASS and not result.faults and result.headline.startswith("No fault found: 2 checks pass")


def test_nothing_examined_says_what_is_missing():
    result = diagnose([finding("layers.evidence", "skipped")], {}, CASE)
    assert result.verdict is Verdict.INCONCLUSIVE and result.headline.startswith("Not enough evidence")
    assert len(result.not_examined) == 1


def test_unfinished_notebooks_are_an_error():
    result = diagnose([finding("layers.trained")], {}, CASE, missing=2)
    assert result.verdict is Verdict.ERROR and "2 notebook(s)" in result.headline


def test_sentences_end_once():
    result = diagnose([finding("layers.served", "fail", "wiring.layer-offset", statement="It is off.", refuted_by="an equal capture.")], {}, CASE)
    assert ".." not in " ".join((result.headline, *result.story))
    assert result.faults[0].findings == ("layers.served",)


def feeds(served):
    def part(accuracy, length):
        return {"accuracy": {"value": accuracy, "n": 9}, "accept_length": {"value": length}}

    return {"prediction": {"trained": part(0.6, 2.0), "served": part(*served), "served_wiring": "b=0, b=2, b=15"}}


def test_the_drafter_is_called_fine_only_where_the_loss_is_proven():
    offset = finding("layers.served", "fail", "wiring.layer-offset")
    loss = finding("drafter.served-wiring", "fail", "wiring.layer-offset")
    assert "The drafter is fine" in " ".join(diagnose([offset, loss], feeds((0.1, 1.1)), CASE).story)
    assert "The drafter is fine" not in " ".join(diagnose([offset], feeds((0.59, 1.98)), CASE).story)


def test_findings_of_one_kind_are_one_line_of_evidence():
    slots = [finding(f"layers.slot-{i}", "fail", "feature.tp-slice") for i in range(3)]
    assert "1 line of evidence carries it: the tensors (layers.slot-0, layers.slot-1, layers.slot-2)" in " ".join(diagnose(slots, {}, CASE).story)
