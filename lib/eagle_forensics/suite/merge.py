"""Joins what the notebooks of a run wrote into `findings.json`: findings, verdict, diagnosis; and `junit.xml` for CI."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from eagle_forensics.case import Case
from eagle_forensics.diagnosis import diagnose
from eagle_forensics.finding import SCHEMA, Finding, Status, verdict
from eagle_forensics.suite.execute import NotebookOutcome
from eagle_forensics.suite.files import plain, write_bytes, write_json
from eagle_forensics.suite.redact import redact_tree
from eagle_forensics.suite.runfolder import RunFolder

_ORDER = (Status.FAIL, Status.ERROR, Status.INCONCLUSIVE, Status.PASS, Status.SKIPPED)


def merge(folder: RunFolder, case: Case, outcomes: Mapping[str, NotebookOutcome] | None = None) -> dict[str, Any]:
    """Write `findings.json` and `junit.xml` of a run from its findings files; returns the content of the former.

    A notebook without a complete findings file adds an `error` finding that says why (from `outcomes`) and makes the
    verdict at best ERROR.
    """
    outcomes = outcomes or {}
    found: list[Finding] = []
    notebooks: dict[str, Any] = {}
    missing = 0
    for name in folder.manifest.notebooks:
        file = folder.read_findings(name)
        outcome = outcomes.get(name)
        own = list(file.findings) if file else []
        complete = bool(file and file.complete)
        if not complete:
            missing += 1
            own.append(_not_complete(name, outcome))
        found += own
        notebooks[name] = {
            "complete": complete, "verdict": verdict(own, 0 if complete else 1), "counts": counts(own),
            "ended": outcome.kind if outcome else None, "reason": outcome.reason if outcome else "",
            "seconds": round(outcome.seconds, 1) if outcome else None, "resumed": bool(outcome and outcome.resumed),
        }
    found = _unique(found)
    result = verdict(found, missing)
    merged = redact_tree(plain({
        "schema_version": SCHEMA, "run_id": folder.manifest.run_id, "case": folder.manifest.case.get("name"),
        "verdict": result, "exit_code": result.exit_code, "counts": counts(found), "notebooks": notebooks,
        "findings": sorted(found, key=lambda f: _ORDER.index(f.status)), "diagnosis": diagnose(found, folder.records(), case, missing),
    }))
    write_json(folder.path / "findings.json", merged)
    write_bytes(folder.path / "junit.xml", junit(merged))
    return merged


def counts(found: Iterable[Finding]) -> dict[str, int]:
    """How many findings of each status; every status is named, also with 0."""
    tally = Counter(f.status for f in found)
    return {status.value: tally.get(status, 0) for status in Status}


def _not_complete(name: str, outcome: NotebookOutcome | None) -> Finding:
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    reason = outcome.reason if outcome else f"{name} has not reached its last cell."
    return Finding(id=f"run.{slug}", question=f"Did {name} run to its end?", status=Status.ERROR, statement=reason, notebook=name,
                   next_step="Resolve the reason given here, then give the same command again.")


def _unique(found: Sequence[Finding]) -> list[Finding]:
    """Ids made unique across notebooks; a clash is a fault of the suite and must not hide a finding."""
    seen: Counter[str] = Counter()
    out = []
    for item in found:
        seen[item.id] += 1
        out.append(item if seen[item.id] == 1 else item.model_copy(update={"id": f"{item.id}.{seen[item.id]}"}))
    return out


_XML_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(merged: Mapping[str, Any]) -> bytes:
    """JUnit XML: one suite a notebook, one case a finding. Inconclusive and skipped are `skipped`, never a silent pass."""
    totals = merged["counts"]
    root = ElementTree.Element("testsuites", name=_xml(merged["case"]), tests=str(sum(totals.values())), failures=str(totals["fail"]),
                               errors=str(totals["error"]), skipped=str(totals["skipped"] + totals["inconclusive"]))
    for name, notebook in merged["notebooks"].items():
        own = [f for f in merged["findings"] if f["notebook"] == name]
        tally = Counter(f["status"] for f in own)
        suite = ElementTree.SubElement(root, "testsuite", name=_xml(name), tests=str(len(own)), failures=str(tally["fail"]),
                                       errors=str(tally["error"]), skipped=str(tally["skipped"] + tally["inconclusive"]),
                                       time=str(notebook["seconds"] or 0))
        for item in own:
            case = ElementTree.SubElement(suite, "testcase", classname=_xml(name), name=_xml(item["id"]))
            tag = {"fail": "failure", "error": "error", "skipped": "skipped", "inconclusive": "skipped"}.get(item["status"])
            if tag:
                message = item["statement"] if item["status"] != "inconclusive" else f"inconclusive: {item['statement']}"
                node = ElementTree.SubElement(case, tag, message=_xml(message))
                node.text = _xml("\n".join(f"{k}: {item[k]}" for k in ("fault", "refuted_by", "remedy", "next_step") if item.get(k)))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)


def _xml(text: Any) -> str:
    return _XML_FORBIDDEN.sub("\ufffd", str(text))
