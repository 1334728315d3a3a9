"""Findings and records by hand: what the notebooks would have left."""

from eagle_forensics.case import Case
from eagle_forensics.diagnosis import diagnose
from eagle_forensics.finding import Competitor, Finding

CASE = Case(name="a")


def finding(id, status="pass", fault=None, rival=("data.too-little", "it is as good as trained"), **more):
    if status == "fail":
        more = {"competitor": Competitor(fault=rival[0], margin="0.5", why_rejected=rival[1]), "refuted_by": "equal captures", **more}
    return Finding(**{"id": id, "question": "which?", "status": status, "fault": fault, "statement": f"statement of {id}", "notebook": "03_layer_matching", **more})


def cell(value, half=0.05):
    return {"value": value, "low": value - half, "high": value + half}


def prediction(trained=2.0, served=1.1, half=0.05):
    """Record of notebook 02 with both feeds at 3 steps."""
    def part(length):
        return {"accuracy": {"value": 0.5, "n": 9}, "accept_length": {"value": length}}

    return {"steps": {"3": cell(trained, half)}, "wirings": {"b=0, b=2": {"3": cell(served, half)}}, "served_wiring": "b=0, b=2", "trained": part(trained), "served": part(served)}


def met(measured, trained=2.0, half=0.05, status="fail", id="acceptance.prediction", fault="wiring.layer-offset"):
    """Notebook 04's finding: measured against predicted."""
    return finding(id, status, fault if status == "fail" else None, observed=measured, expected=trained, interval=(measured - half, measured + half))


def timed(measured=1.1, cycle=30.0, base=40.0, steps=3, half=0.05, **more):
    """A run of notebook 04's record."""
    return {"label": "r", "steps": steps, "cycle_ms": cycle, "break_even": cycle * base / 1e3, "ceiling": steps + 1, "outcome": "loses", "comparable": True,
            "accept_length": cell(measured, half), "cycle_ms_interval": cell(cycle, 0.5), "baseline_tokens_per_second": cell(base, 0.5), **more}


OFFSET = finding("layers.served", "fail", "wiring.layer-offset")
LOSS = finding("drafter.served-wiring", "fail", "wiring.layer-offset")


def told(result):
    """The whole story as one text."""
    return " ".join(p.text for p in result.story)


def of(*findings, case=CASE, **records):
    return diagnose(findings, records, case)
