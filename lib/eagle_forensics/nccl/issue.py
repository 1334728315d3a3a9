"""One thing wrong with one environment variable: the record that every rule of the audit yields."""

from __future__ import annotations

from dataclasses import dataclass

ERROR, WARN, INFO = "error", "warn", "info"


@dataclass(frozen=True)
class Issue:
    """One thing wrong with one variable."""

    code: str
    """Name of the rule: `INT_SUFFIX`, `LEVEL_CASE`."""
    severity: str
    """`error`: not what was meant, or harmful; `warn`: works with a side effect; `info`: worth knowing."""
    variable: str
    message: str
    """What NCCL does with it."""
    fix: str
