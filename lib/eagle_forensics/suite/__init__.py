"""The suite: run folders, headless execution of the five notebooks, the post-mortem, comparison and index of runs."""

from eagle_forensics.suite.session import Session, open_run

__all__ = ["Session", "open_run"]
