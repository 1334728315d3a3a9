"""The built-in case: a real target, a really trained drafter, real hidden states, and the faults planted in copies of it.

`prepare` makes everything in the cache folder once; `case_file` names a variant's case file; `build("fixed", edits)` makes
the fixed variant from the edits that a run on the broken one printed. Nothing here imports torch until it computes.
"""

from eagle_forensics.demo.cases import VARIANTS, apply_edits, build, case_file, prepare
from eagle_forensics.demo.target import DemoError

__all__ = ["VARIANTS", "DemoError", "apply_edits", "build", "case_file", "prepare"]
