"""All that runs of the table tell against each other, beside the case's papers."""

from __future__ import annotations

from collections.abc import Sequence

from eagle_forensics.acceptance.papers import Papers
from eagle_forensics.acceptance.runs import Run
from eagle_forensics.acceptance.tabled.contexts import by_context
from eagle_forensics.acceptance.tabled.heads import by_head
from eagle_forensics.acceptance.tabled.loads import by_load
from eagle_forensics.acceptance.tabled.reuse import reuse
from eagle_forensics.acceptance.tabled.switches import switched
from eagle_forensics.acceptance.tabled.versions import by_version
from eagle_forensics.finding import Finding


def splits(runs: Sequence[Run], papers: Papers) -> list[Finding]:
    """A finding for each thing that runs with speculation differ in alone; none where there is no such pair."""
    return [*by_context(runs, papers.said, papers.reach), *by_load(runs, bool(papers.arguments.get("adaptive")), papers.arguments.get("max_running_requests")), *switched(runs, papers.layers),
            *filter(None, [by_version(runs, papers.layers), by_head(runs, papers.head, papers.answers), reuse(runs)])]
