"""The full table: the real pair through the notebooks, and tiny drafters that are really run."""

from tests.lineup.full import captures, drafter, heads_run, tensors

CASES = (*tensors.CASES, *captures.CASES, *drafter.CASES, *heads_run.CASES)
