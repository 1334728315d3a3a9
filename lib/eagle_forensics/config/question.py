"""One question of notebook 01 and the four ways to answer it, so that every finding carries what a finding must."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eagle_forensics.evidence.records import EvidenceError
from eagle_forensics.finding import Competitor, Evidence, Finding, Status

if TYPE_CHECKING:
    from eagle_forensics.config.inspection import Inspection

NOTEBOOK = "01_config_inspection"


@dataclass(frozen=True)
class Question:
    """A check of notebook 01: its id (`config.rope`) and what it asks."""

    id: str
    text: str

    def passes(self, statement: str, **more: Any) -> Finding:
        """Yes; `more` are fields of Finding."""
        return self._finding(Status.PASS, statement, more)

    def fails(self, fault: str, statement: str, *, rival: tuple[str, str, str], refuted_by: str, **more: Any) -> Finding:
        """No: the fault, and its rival as (slug or words, margin, why rejected)."""
        return self._finding(Status.FAIL, statement, {"fault": fault, "competitor": _competitor(rival), "refuted_by": refuted_by, **more})

    def suspects(self, fault: str | None, statement: str, *, rival: tuple[str, str, str] | None = None, required: bool = False, **more: Any) -> Finding:
        """The papers do not decide; `required` where a PASS of the notebook would hide it."""
        given = {"competitor": _competitor(rival)} if rival else {}
        return self._finding(Status.INCONCLUSIVE, statement, {"fault": fault, "required": required, **given, **more})

    def skips(self, missing: str, decides: str) -> Finding:
        """The case lacks `missing`, which would decide `decides`."""
        return self._finding(Status.SKIPPED, f"not examined: the case has no {missing}", {
            "required": False, "next_step": f"Add it to the case; it decides {decides}."})

    def absent(self, reason: str, next_step: str) -> Finding:
        """Skipped for a reason that no key of the case would mend."""
        return self._finding(Status.SKIPPED, f"not examined: {reason}", {"required": False, "next_step": next_step})

    def needs(self, found: Inspection, *keys: str, decides: str) -> Finding:
        """Skipped: names those of `keys` that the case does not give or whose evidence could not be read, and no other."""
        absent, broken = found.lacking(*keys)
        parts = [f"the case has no {_listed(absent)}"] if absent else []
        parts += [f"{_listed(broken)} could not be read"] if broken else []
        do = [f"add {_listed(absent)}"] if absent else []
        do += [f"correct {_listed(broken)}"] if broken else []
        words = " and ".join(parts) or f"no rule is known for {found.engine} and this evidence"
        step = f"{' and '.join(do)} in the case file" if do else "compare with a release that is known"
        return self._finding(Status.SKIPPED, f"not examined: {words}", {"required": False, "next_step": f"{step[0].upper()}{step[1:]}; it decides {decides}."})

    def unless_unreadable(self, answer: Callable[[], Finding]) -> Finding:
        """What `answer` says; an error of this question where a tensor it loads cannot be read."""
        try:
            return answer()
        except EvidenceError as error:
            return self._finding(Status.ERROR, str(error), {"next_step": "Correct the file, then run again."})

    def _finding(self, status: Status, statement: str, more: dict[str, Any]) -> Finding:
        return Finding(id=self.id, question=self.text, status=status, notebook=NOTEBOOK, statement=statement, **more)


def unless_assumed(finding: Finding, rules: Mapping[str, Any]) -> Finding:
    """A rule that was not read for this release accuses nobody: a fail by it becomes an open question. `rules`: who -> the answer (or None)."""
    assumed = [who for who, answer in rules.items() if answer is not None and answer.assumed]
    if finding.status is not Status.FAIL or not assumed:
        return finding
    statement = f"{finding.statement}; that is so if {' and '.join(assumed)} follow(s) the nearest release whose source was read, which is an assumption"
    return finding.model_copy(update={"status": Status.INCONCLUSIVE, "statement": statement, "edits": ()})


def rules(*sources: str) -> tuple[Evidence, ...]:
    """Sources of engine and trainer rules as evidence."""
    return tuple(Evidence(note="rule", source=source) for source in sources)


def _listed(keys: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(keys[:-1]), keys[-1]]))


def _competitor(rival: tuple[str, str, str]) -> Competitor:
    fault, margin, why = rival
    return Competitor(fault=fault, margin=margin, why_rejected=why)
