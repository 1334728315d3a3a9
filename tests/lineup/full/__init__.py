"""The full table: the real pair through the notebooks, and tiny drafters that are really run."""

from tests.lineup.full import drafter, heads_run, tensors

CASES = (*tensors.CASES, *drafter.CASES, *heads_run.CASES)
