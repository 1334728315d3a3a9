"""Double faults: what would still be wrong if one fault alone were fixed?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eagle_forensics.diagnosis.effect import figure
from eagle_forensics.diagnosis.ranking import Supported, produced_by
from eagle_forensics.diagnosis.records import Conclusion, Effect

BUDGET = "args.draft-budget-overridden"


def if_only(fault: Supported, found: Sequence[Supported], gain: Effect | None, records: Mapping[str, Any]) -> Conclusion:
    """What would still be wrong if this fault alone were fixed: other faults that it does not produce, and what the measurement leaves unexplained."""
    others = [s for s in found if s.slug != fault.slug and fault.slug not in produced_by(s, found)]
    parts = [", ".join(f"`{s.slug}`" for s in others)] if others else []
    ids = [i for s in others for i in s.ids]
    if gain is not None and gain.unexplained is not None and set(fault.ids) & set(gain.findings):
        parts.append(unexplained(gain))
        ids += gain.findings
    if fault.slug == BUDGET and (more := _more_steps(records)):
        parts.append(more)
        ids.append("acceptance.ceiling")
    return Conclusion(text="; ".join(parts) or "nothing that was examined", findings=tuple(dict.fromkeys(ids)))


def unexplained(gain: Effect) -> str:
    """Whether the served states explain the whole measured loss, in tokens a round."""
    u = gain.unexplained
    lost = f"{gain.accept_length_after.value - gain.accept_length_now.value:.2f} tokens a round are lost"
    if u is None or u.low is None or u.high is None:
        return f"{lost}; how many of them this explains has no interval"
    if u.low > 0:
        return f"{lost}, and {u.text()} of them stay unexplained: something else is wrong as well"
    if u.high < 0:
        return f"{lost}, {-u.value:.2f} fewer than these states should cost: the served text is easier than the recorded one, or other states are served"
    explained = gain.accept_length_after.value - gain.accept_length_now.value - u.value
    return f"{lost}; the served states explain {explained:.2f} of them, and the rest is within the uncertainty ({u.text()}): no sign of a second fault in the states"


def _more_steps(records: Mapping[str, Any]) -> str | None:
    """Whether a larger draft budget would pay by itself: runs that were measured with more steps and lose as well; None without any."""
    budget = (records.get("arguments") or {}).get("num_steps")
    runs = [r for r in (records.get("acceptance") or {}).get("runs") or () if budget and (r.get("steps") or 0) > budget and r.get("comparable")]
    lost = [(r, length) for r in runs if (length := figure(r.get("accept_length"))) and length.high < r["break_even"]]
    if not runs or len(lost) < len(runs):
        return None
    said = ", ".join(f"{r['steps']} draft steps give {length.value:.2f} tokens a round of {r['break_even']:.2f} needed" for r, length in lost)
    return f"a larger draft budget alone does not pay: {said}"
