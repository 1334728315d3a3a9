"""`post_mortem.md`: the post-mortem as text for an issue tracker, without figures."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from eagle_forensics.suite.page import VERDICT_LOOK
from eagle_forensics.suite.terminal import visible

_SPECIAL = re.compile(r"([\\*_\[\]<>|#~!@])")


def markdown(merged: Mapping[str, Any], rerun: str) -> str:
    """The text from the content of `findings.json`; evidence is escaped, so that it makes no markup, mention or link."""
    return "\n".join(_lines(merged, rerun)) + "\n"


def _lines(merged: Mapping[str, Any], rerun: str) -> Iterator[str]:
    diagnosis: Mapping[str, Any] = merged["diagnosis"] or {}
    story = diagnosis.get("story") or []
    yield from (f"## {VERDICT_LOOK[merged['verdict']]} {merged['verdict']}: {_text(diagnosis.get('headline') or merged['case'])}", "")
    yield from (f"Case {_code(merged['case'])}, run {_code(merged['run_id'])}.", "")
    for paragraph in story[:1]:
        yield from (_text(paragraph["text"]), "")
    if diagnosis.get("chain"):
        yield from ("### The chain", "", *(f"- {link['state']}: {_text(link['name'])} – {_text(link['because'])}" for link in diagnosis["chain"]), "")
    if len(story) > 1:
        yield from ("### The proof", "")
        for paragraph in story[1:]:
            yield from (f"{_text(paragraph['text'])} ({', '.join(map(_code, paragraph['findings']))})" if paragraph["findings"] else _text(paragraph["text"]), "")
    edits = [e for fault in diagnosis.get("faults") or [] for e in fault["edits"]]
    if edits:
        yield from ("### The fix", "", "| file | key | new value | applies to |", "|---|---|---|---|")
        for e in edits:
            yield f"| {_code(e['file'])} | {_code(e['key'])} | {'remove the key' if e['value'] is None else _code(e['value'])} | {_text(e['applies_to']) or '–'} |"
        yield ""
    if diagnosis.get("next_steps"):
        yield from ("### Next", "", *(f"{i}. {_text(step)}" for i, step in enumerate(diagnosis["next_steps"], 1)), "")
    shown = [f for f in merged["findings"] if f["status"] in ("fail", "error", "inconclusive")] or merged["findings"]
    yield from ("### Findings", "", "| status | finding | answer |", "|---|---|---|")
    yield from (f"| {f['status']} | {_code(f['id'])} | {_text(f['statement'])} |" for f in shown)
    rest = len(merged["findings"]) - len(shown)
    yield from ("", *([f"{rest} more pass or were not examined.", ""] if rest else []), "### How to rerun", "", f"    {visible(rerun)}")


def _text(value: Any) -> str:
    """One line of text; an at sign gets a zero-width space, as trackers mention people even where it is escaped."""
    line = " ".join(visible(value, 4000).split())
    parts = re.split(r"(`[^`]*`)", line)
    return "".join(_code(p[1:-1]) if p.startswith("`") and len(p) > 2 else _SPECIAL.sub(r"\\\1", p).replace("`", "\\`").replace("\\@", "@\u200b") for p in parts)


def _code(value: Any) -> str:
    """Inline code; a pipe would end a table's cell."""
    text = " ".join(visible(value, 400).split()).replace("|", "\\|")
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}{' ' if '`' in text else ''}{text}{' ' if '`' in text else ''}{fence}"
