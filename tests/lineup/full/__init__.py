"""The full table: the real pair through the notebooks."""

from tests.lineup.full import drafter, tensors

CASES = (*tensors.CASES, *drafter.CASES)
