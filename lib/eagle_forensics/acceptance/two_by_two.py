"""What did the change of environment bring, and what speculation? Needs tokens/s of all four: {old, new environment} x {without, with speculation}."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from eagle_forensics import stats
from eagle_forensics.acceptance.ceiling import hull, ratio
from eagle_forensics.acceptance.confounds import SPECULATION, compare
from eagle_forensics.acceptance.runs import Run
from eagle_forensics.acceptance.words import NOTEBOOK
from eagle_forensics.finding import Evidence, Finding, Status

UNDER_TEST = SPECULATION | {"env_hash"}


def two_by_two(runs: Sequence[Run]) -> Finding | None:
    """Speculation's gain in each of two environments, in the order of the table; None unless the four kinds of runs are there and nothing else differs."""
    timed = [r for r in runs if r.env_hash and r.tokens_per_second is not None]
    hashes = tuple(dict.fromkeys(r.env_hash for r in timed))
    kinds = [[r for r in timed if r.env_hash == env and r.is_baseline is plain] for env in hashes for plain in (True, False)]
    if len(hashes) != 2 or not all(kinds) or any(compare(a, b, UNDER_TEST).differ for a, b in pairwise(timed)):
        return None
    base_old, best_old, base_new, best_new = (max(k, key=lambda r: r.tokens_per_second.value).tokens_per_second if i % 2 else hull([r.tokens_per_second for r in k])
                                              for i, k in enumerate(kinds))
    old, new = ratio(best_old, base_old), ratio(best_new, base_new)
    environment, total = ratio(base_new, base_old), ratio(best_new, base_old)
    text = (f"From {hashes[0]} without speculation to {hashes[1]} with it: {_said(total)} times the tokens/s. The environment alone brings {_said(environment)}; "
            f"speculation {_said(old)} in the old one and {_said(new)} in the new one")
    lost = total.low > 1 and new.high < 1
    return Finding(
        id="acceptance.two-by-two", notebook=NOTEBOOK, required=False, unit="ratio of tokens/s", question="What did the environment bring, and what speculation?",
        status=Status.INCONCLUSIVE if lost or not new.excludes(1.0) else Status.PASS, observed=new.value, expected=1.0, interval=new.interval, n=len(timed),
        statement=f"{text}: " + ("all of the gain is the environment's, and speculation costs some of it." if lost else "speculation and environment are told apart." if new.excludes(1.0)
                                 else "whether speculation adds anything in the new one is not known at this precision."),
        evidence=(Evidence(note="best run with speculation of each environment; intervals: printing of the figures and range of repeats"),),
        next_step="Serve the new environment without speculation, or find the step count that pays in it." if lost else None)


def _said(e: stats.Estimate) -> str:
    return f"{e.value:.3f} [{e.low:.3f}, {e.high:.3f}]"
