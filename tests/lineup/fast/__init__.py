"""The fast table: what the suite must say from papers, headers, tables, logs and tiny tensors alone."""

from tests.lineup.fast import config, measured

CASES = (*config.CASES, *measured.CASES)
