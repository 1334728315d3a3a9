"""What is the story of a run? Joins the findings of all five notebooks: proof, rivals, contradictions, fix, effect and what remains.

    rules           the tables: rules.toml, decide.toml, plain.toml
    ranking         which faults are supported, and which comes first
    contradictions  which findings contradict each other, and what remains by elimination
    effect          what the fix brings, and what it leaves unexplained
    deciding        what would decide between what is still open
    chain           which links hold
    fixing          what to write, here and on other releases, and how to check it
    story           all of it in words
"""

from eagle_forensics.diagnosis.joining import diagnose
from eagle_forensics.diagnosis.records import DiagnosedFault, Diagnosis

__all__ = ["DiagnosedFault", "Diagnosis", "diagnose"]
