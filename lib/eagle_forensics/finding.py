"""Finding, Evidence, Status and the algebra that turns findings into one Verdict.

A finding is a claim with its rival: what was observed and expected, how many observations carry it, the interval, the
threshold and its reason, the nearest other explanation and why it is rejected, and what would refute it.
The verdict is never green by default: nothing evaluated is INCONCLUSIVE, a missing file is ERROR.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

SCHEMA = 1


class Status(StrEnum):
    """Outcome of one check. `skipped`: its evidence is absent. `inconclusive`: evaluated, but the data do not decide."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    SKIPPED = "skipped"
    ERROR = "error"


class Verdict(StrEnum):
    """Outcome of a notebook or a run."""

    PASS = "PASS"
    FAIL = "FAIL"
    ERROR = "ERROR"
    INCONCLUSIVE = "INCONCLUSIVE"

    @property
    def exit_code(self) -> int:
        """0 pass, 1 fail, 3 error, 4 inconclusive (2 is a usage error and never a verdict)."""
        return {Verdict.PASS: 0, Verdict.FAIL: 1, Verdict.ERROR: 3, Verdict.INCONCLUSIVE: 4}[self]


class Record(BaseModel):
    """Base of everything written as JSON: frozen, strict about unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class Evidence(Record):
    """Something a reader can look at to check a finding."""

    note: str
    """What it shows, in one line."""
    path: str | None = None
    """File inside the run folder (`evidence/03_match.csv`) or the input it was read from."""
    source: str | None = None
    """Where a rule comes from: `sglang 0.5.13 deepseek_v2.py:2752, PR 25454`."""


class Competitor(Record):
    """The nearest other explanation of the observation."""

    fault: str
    """Slug of the rival fault, or a few words where it is not a fault (`chance`, `a healthy drafter`)."""
    margin: str
    """How far it is from explaining the data, with its number and unit."""
    why_rejected: str
    """The observation that it cannot explain; `not rejected` where it stays possible."""


class Edit(Record):
    """One change of one file that applies a remedy; machine-readable so that the fix can be tried as printed."""

    file: str
    """Path of the file as named in the case, relative to the case file."""
    key: str
    """Dotted path inside it: `eagle_config.eagle_aux_hidden_state_layer_ids`."""
    value: Any
    """The new value; None removes the key."""
    applies_to: str = ""
    """Engine and version for which the edit is right: `sglang 0.5.23`."""


class Finding(Record):
    """One check, its outcome and everything needed to doubt it."""

    id: str = Field(pattern=r"^[a-z]+(\.[a-z0-9-]+)+$")
    """`<question>.<check>`, unique in a run: `layers.slot-0`."""
    fault: str | None = None
    """Slug of the fault catalogue if the check failed (or is suspected), else None."""
    question: str
    """What was asked, as a reader would ask it."""
    status: Status
    """pass, fail, inconclusive, skipped or error."""
    statement: str
    """The answer in one sentence, with its numbers."""
    observed: Any = None
    """The measured or read value."""
    expected: Any = None
    """What it should have been."""
    unit: str | None = None
    """Unit of observed and expected: `accuracy`, `tokens per verify`, `boundary`."""
    n: int | None = Field(default=None, ge=0)
    """Number of observations (tokens, rounds, files) behind `observed`."""
    interval: tuple[float, float] | None = None
    """95 % interval of `observed` or, where said in the statement, of the difference."""
    threshold: float | str | None = None
    """The value that separates pass from fail."""
    threshold_why: str | None = None
    """Why that threshold: the measurement or the definition behind it."""
    competitor: Competitor | None = None
    """The nearest rival explanation. Required for a fail."""
    refuted_by: str | None = None
    """The observation that would overturn this finding. Required for a fail."""
    evidence: tuple[Evidence, ...] = ()
    """Files, tables and sources a reader can check."""
    remedy: str | None = None
    """What to do about it."""
    edits: tuple[Edit, ...] = ()
    """The remedy as changes of files, where it can be written so."""
    predicted_effect: str | None = None
    """What the remedy will bring, with an interval where one exists."""
    next_step: str | None = None
    """The next command or observation for whoever reads this."""
    notebook: str
    """Notebook that evaluated it: `03_layer_matching`."""
    required: bool = True
    """False: an extra check whose `inconclusive` does not hold back a PASS."""

    @model_validator(mode="after")
    def _a_verdict_is_a_claim_with_its_rival(self) -> Finding:
        if self.status is Status.FAIL:
            missing = [name for name in ("fault", "competitor", "refuted_by") if getattr(self, name) is None]
            if missing:
                raise ValueError(f"finding {self.id!r} fails without {', '.join(missing)}: a fail names its rival")
        if self.threshold is not None and not self.threshold_why:
            raise ValueError(f"finding {self.id!r} has a threshold without a reason (threshold_why)")
        return self


class NotebookFindings(Record):
    """Content of `findings/NN.json`: written by the notebook's last cell, the only source of its verdict."""

    schema_version: int = SCHEMA
    notebook: str
    """`01_config_inspection`."""
    complete: bool
    """True once the notebook reached its last cell; False while it runs or after it stopped early."""
    findings: tuple[Finding, ...]

    @model_validator(mode="after")
    def _ids_are_unique(self) -> NotebookFindings:
        ids = [f.id for f in self.findings]
        double = sorted({i for i in ids if ids.count(i) > 1})
        if double:
            raise ValueError(f"finding ids appear twice: {', '.join(double)}")
        return self


def verdict(findings: Iterable[Finding], missing: int = 0) -> Verdict:
    """The verdict over findings, given how many expected finding files are `missing` or incomplete.

    Any fail -> FAIL; else any error or missing file -> ERROR; else any required inconclusive, or nothing evaluated ->
    INCONCLUSIVE; else PASS. `skipped` counts as not evaluated.
    """
    findings = list(findings)
    states = {f.status for f in findings}
    if Status.FAIL in states:
        return Verdict.FAIL
    if Status.ERROR in states or missing:
        return Verdict.ERROR
    undecided = any(f.status is Status.INCONCLUSIVE and f.required for f in findings)
    if undecided or Status.PASS not in states:
        return Verdict.INCONCLUSIVE
    return Verdict.PASS
