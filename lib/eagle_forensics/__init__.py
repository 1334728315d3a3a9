"""Eagle Forensics: names the broken link between an EAGLE-3 drafter's training data and its served tokens."""

__version__ = "0.1.0"
