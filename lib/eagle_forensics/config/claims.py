"""Who says what about the layers: every claim as written, and what it means in boundaries."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from eagle_forensics.boundary import default_boundaries
from eagle_forensics.config.inspection import Inspection
from eagle_forensics.engines.versions import engine_label
from eagle_forensics.evidence.labels import label_claim
from eagle_forensics.evidence.live import LiveServer


@dataclass(frozen=True)
class Claim:
    """One statement about which states were trained on or are served."""

    about: str
    """`trained` or `served`."""
    who: str
    says: str
    """As written."""
    means: tuple[frozenset[int], ...] | None
    """Per plane the boundaries it allows (one where the reading is unique); None where it says nothing."""
    rule: str
    """How the words became boundaries, with the source."""

    @property
    def boundaries(self) -> tuple[int, ...] | None:
        """The boundaries where every plane has exactly one reading, else None."""
        if self.means is None or any(len(m) != 1 for m in self.means):
            return None
        return tuple(next(iter(m)) for m in self.means)


def claims(found: Inspection) -> list[Claim]:
    """All claims of a case, trained first."""
    result = []
    layers = found.target.layers if found.target else None
    if found.trained:
        t = found.trained
        fixed = t.rule == "fixed"
        result.append(Claim("trained", f"{t.trainer}, which takes no layer ids," if fixed else "trainer's layer ids", "always the same" if fixed else _text(found.case.training.layer_ids),
                            tuple(frozenset({b}) for b in t.boundaries), f"{t.rule} ({t.source})"))
    for dump in found.dumps:
        if dump.labels and layers:
            planes = dump.labels[:-1] if len(dump.labels) > 1 else dump.labels
            means = tuple(frozenset(b.index for b in label_claim(text, layers)) for text in planes)
            result.append(Claim("trained", f"labels of {dump.path.name}", ", ".join(dump.labels),
                                means if all(means) else None,
                                "a label `layerN` can mean the state before layer N or its output; the last plane is the teacher's"))
    if found.served:
        s = found.served
        for path, boundaries in s.boundaries.items():
            if boundaries is None and s.error is None:
                continue
            result.append(Claim("served", f"{found.engine}, {path} path", f"ids {_text(s.ids)}, " + ("not read: the default" if s.read_from == "default" else f"read from the {s.read_from} list")
                                + ("; the server stops" if boundaries is None else ""),
                                None if boundaries is None else tuple(frozenset({b}) for b in boundaries),
                                s.sources[0] + (f" (+{len(s.sources) - 1} more)" if len(s.sources) > 1 else "") if s.sources else ""))
    if found.live:
        result.append(_live_claim(found, found.live))
    for line in found.log.lines if found.log else ():
        if line.layers is not None:
            result.append(Claim("served", f"server log, byte {line.byte}", line.text, tuple(frozenset({b}) for b in sorted(line.layers)),
                                "vllm 0.33.0 prints the ids it captures; its ids are boundaries"))
    if layers and not result:
        result.append(Claim("served", "default of every engine", "no ids", tuple(frozenset({b}) for b in default_boundaries(layers)),
                            "(2, L//2, L-3) where a config names no ids"))
    return result


def _live_claim(found: Inspection, live: LiveServer) -> Claim:
    """A server tells its release and arguments; the layers follow from the rule of that release."""
    told = live.arguments.arguments if live.arguments else {}
    spoken = {k.removeprefix("speculative_"): v for k, v in told.items() if k in ("speculative_algorithm", "speculative_num_steps", "speculative_num_draft_tokens", "speculative_config")}
    eager = found.live_served.boundaries.get("eager") if found.live_served else None
    means = None if eager is None else tuple(frozenset({b}) for b in eager)
    return Claim("served", f"live server, {engine_label(live.engine, live.version)}", ", ".join(f"{k} {v}" for k, v in spoken.items()) or "no arguments", means,
                 f"{live.url}{live.endpoint}; the layers by the rule of its release")


def claims_frame(items: list[Claim]) -> pd.DataFrame:
    """The claims as a table."""
    def meaning(claim: Claim) -> str:
        if claim.means is None:
            return "nothing"
        return "{" + ", ".join("|".join(map(str, sorted(m))) for m in claim.means) + "}"

    return pd.DataFrame([{"about": c.about, "who says": c.who, "says": c.says, "means boundaries": meaning(c), "by the rule": c.rule}
                         for c in items], columns=["about", "who says", "says", "means boundaries", "by the rule"])


def compatible(first: Claim, second: Claim) -> bool | None:
    """Can both be true? None where one says nothing."""
    if first.means is None or second.means is None:
        return None
    return len(first.means) == len(second.means) and all(a & b for a, b in zip(first.means, second.means, strict=True))


def _text(ids: object) -> str:
    return "absent" if ids is None else str(list(ids)) if isinstance(ids, tuple) else str(ids)
