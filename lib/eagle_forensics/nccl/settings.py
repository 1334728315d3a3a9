"""The findings on NCCL's settings: taken as meant, live in the served process, and harmless.

A setting that is not taken is one fault, one that can corrupt data another, one that takes away every direct transport a third:
their remedies and rivals differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eagle_forensics.evidence.nccl.records import NcclLog
from eagle_forensics.finding import Competitor, Evidence, Finding, Status
from eagle_forensics.nccl.audit import Host
from eagle_forensics.nccl.issue import ERROR, INFO, Issue
from eagle_forensics.nccl.live import Live, examine, would_print

NOTEBOOK = "05_nccl_tuning"
LOG_ENV = "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH,TUNING NCCL_DEBUG_FILE=nccl.%h.%p.log"
SOURCE = "NCCL source of the release, nccl/rules.toml"
_HARM: Mapping[str, tuple[str, str, Competitor, str]] = {
    "LL128_ON_PCIE": ("nccl.ll128-unsafe", "Can a setting corrupt data?", Competitor(
        fault="a defective GPU or link", margin="the setting alone suffices, no error of hardware is needed",
        why_rejected="a defect stays when the setting is taken away; NCCL itself never chooses LL128 on this link"),
        "nccl-tests with `-c 1` counts 0 wrong values at every size under this setting, on every pair of GPUs, over hours."),
    "P2P_AND_SHM_OFF": ("nccl.no-direct-transport", "Do ranks of one node have a direct way to each other?", Competitor(
        fault="nccl.graph-fallback", margin="two settings of two, against a failed search",
        why_rejected="there the search for a way fails and shared memory still carries the data; here both ways are switched off by name"),
        "NCCL's log shows `via P2P` or `via SHM` between the ranks."),
}
"""Code to fault, question, rival and refutation, for issues that are more than a setting not taken."""


def settings(live: Live | None, host: Host, *, meant: Mapping[str, str] | None = None, log: NcclLog | None = None, off: str | None = None) -> list[Finding]:
    """Does NCCL take its settings as they were meant, are they live, and is none harmful? `off`: why nothing reads them."""
    common: dict[str, Any] = {"id": "nccl.environment", "question": "Does NCCL take its environment as it was meant?", "notebook": NOTEBOOK}
    if off:
        return [Finding(**common, status=Status.SKIPPED, statement=f"Nothing reads it: {off}.")]
    if live is None and log is not None and log.environment:
        shown = Live(log.environment, proven=True)
        return [_of_log(common, shown, host, log), *(_harm(i, shown, log) for i in examine(shown, host) if i.severity == ERROR and i.code in _HARM)]
    if live is None:
        return [Finding(**common, status=Status.SKIPPED, statement="The environment of the served process is not in the case: it was not audited.",
                        next_step="Save it on the serving host: tr '\\0' '\\n' < /proc/PID/environ, of a scheduler process, and name the file as serving.env.")]
    issues = examine(live, host, meant=meant, log=log)
    errors = [i for i in issues if i.severity == ERROR]
    return [_taken(common, live, host, [i for i in errors if i.code not in _HARM], issues, log), *(_harm(i, live, log) for i in errors if i.code in _HARM)]


def _of_log(common: Mapping[str, Any], shown: Live, host: Host, log: NcclLog) -> Finding:
    """What NCCL's own log names: a misspelt variable is not in it, so this is never a pass."""
    errors = [i for i in examine(shown, host) if i.severity == ERROR and i.code not in _HARM]
    if errors:
        return _taken(common, shown, host, errors, errors, log)
    return Finding(**common, status=Status.SKIPPED, evidence=(Evidence(note=", ".join(f"{k}={v}" for k, v in log.environment.items()), path=str(log.path)),),
                   statement=f"The {len(log.environment)} variables that NCCL's log names are taken as written; the log names no misspelt one, and the environment of the served process is not in the case.",
                   next_step="Save it on the serving host: tr '\\0' '\\n' < /proc/PID/environ, of a scheduler process, and name the file as serving.env.")


def _taken(common: Mapping[str, Any], live: Live, host: Host, errors: Sequence[Issue], issues: Sequence[Issue], log: NcclLog | None) -> Finding:
    names = sorted(n for n in live.env if n.startswith("NCCL_"))
    release = f"NCCL {host.nccl}" if host.nccl else "an unknown NCCL version (rules that depend on it were not applied)"
    evidence = tuple(Evidence(note=f"{i.severity}: {i.variable}: {i.message}. {i.fix} [{i.code}]", source=SOURCE) for i in issues)
    if errors:
        wrong = len({i.variable for i in errors})
        return Finding(
            **common, status=Status.FAIL, fault="nccl.env-ignored", observed=[i.code for i in errors], expected=[], n=len(names), evidence=evidence,
            statement=f"{wrong} NCCL setting{'s' * (wrong > 1)} of {max(len(names), wrong)} {'do' if wrong > 1 else 'does'} not do what {'they say' if wrong > 1 else 'it says'}, for {release}: "
                      + "; ".join(f"{i.variable}: {i.message}" for i in errors) + ".",
            competitor=Competitor(fault="nccl.wrong-size", margin=f"{len(errors)} rules of NCCL's own parser broken before any message is sent",
                                  why_rejected="there the setting is live and only large messages gain; these are not taken as meant at any size"),
            refuted_by=f"The log of the served process (NCCL_DEBUG_SUBSYS with ENV) shows {errors[0].variable} set and the choice of algorithm changed by it.",
            remedy=" ".join(dict.fromkeys(f"{i.variable}: {i.fix}" for i in errors)), next_step=f"Start again with {LOG_ENV} and look for \"set by environment\".")
    if not names:
        return Finding(**common, status=Status.PASS, observed=[], expected=[], n=0, evidence=evidence, statement="No NCCL variable is set: NCCL's defaults apply." + _told(issues))
    shown = [n for n in names if log and n in log.environment]
    live_text = (f" NCCL's log names {len(shown)} of them." if shown else "") + ("" if live.proven or shown else " That they reach the process is not proven.")
    return Finding(**common, status=Status.PASS, observed=[], expected=[], n=len(names), evidence=evidence,
                   statement=f"{len(names)} NCCL setting{'s' * (len(names) > 1)} ({', '.join(names)}) {'are' if len(names) > 1 else 'is'} taken as written, for {release}.{_told(issues)}{live_text}")


def _told(issues: Sequence[Issue]) -> str:
    notes = [i for i in issues if i.severity not in (ERROR, INFO)]
    return " Side effects: " + "; ".join(f"{i.variable}: {i.message}" for i in notes) + "." if notes else ""


def _harm(issue: Issue, live: Live, log: NcclLog | None) -> Finding:
    fault, question, competitor, refuted_by = _HARM[issue.code]
    value, name = live.env.get(issue.variable), f"nccl.{issue.code.lower().replace('_', '-')}"
    if log is not None and issue.variable not in log.environment and would_print(issue.variable, log):
        return Finding(id=name, question=question, notebook=NOTEBOOK, status=Status.INCONCLUSIVE, observed=f"{issue.variable}={value}", evidence=(Evidence(note=issue.code, path=str(log.path)),),
                       statement=f"{issue.variable}={value} would be harmful ({issue.message}), but NCCL's log, which names every variable it reads at start, does not name it.",
                       next_step="Is the log of the same start? Then the setting does not reach the process; take it away all the same.")
    return Finding(id=name, question=question, notebook=NOTEBOOK, status=Status.FAIL, fault=fault, observed=f"{issue.variable}={value}",
                   statement=f"{issue.variable}={value}: {issue.message}.", competitor=competitor, refuted_by=refuted_by, evidence=(Evidence(note=issue.code, source=SOURCE),),
                   remedy=issue.fix, next_step="Take the setting away, start again, and compare the greedy outputs and nccl-tests -c 1 before and after.")
