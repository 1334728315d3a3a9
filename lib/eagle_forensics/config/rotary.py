"""Do trainer and engine rotate the draft alike, and does it reach as far as the server's context?

A draft may have another base than its target: both are only shown. What counts is that the engine rotates as training did.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from eagle_forensics.config.inspection import Inspection
from eagle_forensics.config.question import Question, rules
from eagle_forensics.engines.rotary import RopeReading, engine_rope, inverse_frequencies, trained_rope
from eagle_forensics.evidence.records import Draft, Rope
from eagle_forensics.finding import Evidence, Finding

SAME = 1e-4
"""Relative difference of two inverse frequencies below which they are one: bases are stored exactly, float32 tables round at 1e-7."""

ROTATED = Question("config.rope", "Does the engine rotate the draft as training did?")
REACH = Question("config.context", "Does the draft's rotary range cover the served context?")


@dataclass(frozen=True)
class Side:
    """One party's rotation of the draft, or the target's own."""

    who: str
    rope: Rope
    head_dim: int | None
    inverse: tuple[float, ...] | None
    """None where a config does not give what the scaling needs."""
    factor: float = 1.0
    problem: str = ""


def rotary_findings(found: Inspection) -> list[Finding]:
    """Rotation as trained against as served, and the length it covers."""
    draft = found.draft
    if draft is None:
        return [ROTATED.needs(found, "drafter.path", decides="the rotary base and scaling of both sides")]
    return [_rotation(found, draft), *_reach(found, draft)]


def rope_frame(found: Inspection) -> pd.DataFrame:
    """The rotation of the target, of the draft as trained and of the draft as the engine reads it, side by side."""
    rows = []
    for side in _sides(found):
        waves = [2 * math.pi / f for f in side.inverse] if side.inverse else []
        rows.append({"side": side.who, "theta": f"{side.rope.theta:g}", "scaling": _scaling(side.rope), "rotated of head": f"{_dims(side)} of {side.head_dim}" if side.head_dim else "unknown",
                     "longest wave (tokens)": round(max(waves)) if waves else None, "theta from": side.rope.origin if not side.problem else side.problem})
    return pd.DataFrame(rows, columns=["side", "theta", "scaling", "rotated of head", "longest wave (tokens)", "theta from"])


def _sides(found: Inspection) -> list[Side]:
    draft, target, sides = found.draft, found.target, []
    if target is not None:
        heads, hidden = target.config.get("num_attention_heads"), target.hidden
        dim = target.config.get("qk_rope_head_dim") or target.config.get("head_dim") or (hidden // heads if isinstance(heads, int) and heads else None)
        sides.append(_side("target, its own layers", target.rope, dim if isinstance(dim, int) else None, target.config.get("max_position_embeddings")))
    if draft is not None:
        trained, served = _readings(found, draft)
        sides.append(_side(f"draft, {trained.who}", trained.rope, _head_dim(draft), draft.max_positions))
        if served is not None:
            sides.append(_side(f"draft, {served.who}", served.rope, _head_dim(draft), draft.max_positions))
    return sides


def _readings(found: Inspection, draft: Draft) -> tuple[RopeReading, RopeReading | None]:
    trainer, serving, file = found.case.training.trainer, found.case.serving, Path(draft.path) / "config.json"
    name = trainer.name if trainer else draft.source_format if draft.source_format in ("eagle", "modelopt") else None
    trained = trained_rope(name, trainer.version if trainer else None, draft.config, file)
    if trainer is None and name:
        trained = replace(trained, who=f"{trained.who} (by the look of the checkpoint)", certain=False)
    seen = (found.draft_as_served or draft).config
    served = engine_rope(serving.engine, serving.version, seen, file) if serving.engine and serving.version else None
    return trained, served


def _rotation(found: Inspection, draft: Draft) -> Finding:
    trained, served = _readings(found, draft)
    if served is None:
        return ROTATED.needs(found, "serving.engine", "serving.version", decides="which rotary fields of the config are read")
    ours, theirs = (_side(r.who, r.rope, _head_dim(draft), draft.max_positions) for r in (trained, served))
    evidence = (*rules(trained.source, served.source), Evidence(note=f"{ours.who}: {_words(ours)}"), Evidence(note=f"{theirs.who}: {_words(theirs)}"))
    if ours.inverse is None or theirs.inverse is None:
        if (ours.rope.theta, ours.rope.scaling, ours.rope.partial) == (theirs.rope.theta, theirs.rope.scaling, theirs.rope.partial):
            return ROTATED.passes(f"training and {found.engine} read the same rotary fields: theta {ours.rope.theta:g}, {_scaling(ours.rope)}", evidence=evidence)
        return ROTATED.suspects(None, f"the frequencies cannot be computed: {ours.problem or theirs.problem}", evidence=evidence,
                                next_step="Give head_dim and the scaling's parameters in the drafter's config.json.")
    common = {"observed": _words(theirs), "expected": _words(ours), "n": len(ours.inverse), "unit": "inverse frequencies", "threshold": SAME,
              "threshold_why": "bases and factors are stored exactly; float32 tables differ by 1e-7", "evidence": evidence}
    apart = _difference(ours, theirs)
    if apart is None:
        beside = _beside_target(found, ours)
        return ROTATED.passes(f"training and {found.engine} rotate the draft alike: {_words(theirs)}{beside}", **common)
    words = f"trained with {_words(ours)} ({ours.who}), {found.engine} rotates by {_words(theirs)}: {apart}"
    if not (trained.certain and served.certain):
        return ROTATED.suspects("drafter.rope", f"possibly {words}; one of the two rules is not certain", **common,
                                next_step="Compare both rotations in notebook 02 on the same tokens.")
    return ROTATED.fails(
        "drafter.rope", words, **common, rival=_rival(ours, theirs), refuted_by="notebook 02 finds the same accuracy with both rotations",
        remedy=_remedy(ours, theirs, found.engine), predicted_effect="Accuracy at the first step stays; what falls with position is regained.",
        next_step="Compare both rotations in notebook 02, and the accept length by context length in notebook 04.")


def _reach(found: Inspection, draft: Draft) -> list[Finding]:
    arguments = found.arguments.effective if found.arguments and not found.arguments.error else {}
    asked = arguments.get("context_length")
    own = found.target.config.get("max_position_embeddings") if found.target else None
    served = asked if isinstance(asked, int) else own if isinstance(own, int) else None
    if served is None or draft.max_positions is None:
        lacks = [what for what, value in (("context length (launch line or target config)", served), ("max_position_embeddings of the draft", draft.max_positions)) if value is None]
        return [REACH.skips(" and no ".join(lacks), "whether long prompts leave the draft's range")]
    common = {"observed": draft.max_positions, "expected": served, "unit": "tokens"}
    if draft.max_positions >= served:
        return [REACH.passes(f"the draft covers {draft.max_positions} positions, {served} are served", **common)]
    refuses = " SGLang refuses that at start unless SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1." if found.case.serving.engine == "sglang" else ""
    return [REACH.suspects(
        "drafter.rope", f"the draft was made for {draft.max_positions} positions, up to {served} are served: beyond {draft.max_positions} the accept length may fall."
        + refuses, **common, rival=("data.domain", "no measurement by length here", "not rejected: equal contents at two lengths tell them apart"),
        evidence=rules("sglang 0.5.9 eagle_worker.py:107, model_config._derive_context_length"), remedy="Train on long contexts, or limit the context.",
        next_step="Bin the accept length by context length (notebook 04); short prompts are not touched by this.")]


def _side(who: str, rope: Rope, head_dim: int | None, max_positions: object) -> Side:
    if head_dim is None:
        return Side(who, rope, None, None, problem="no head_dim and no num_attention_heads")
    try:
        inverse, factor = inverse_frequencies(rope, head_dim, max_positions if isinstance(max_positions, int) else None)
    except (ValueError, TypeError, ArithmeticError) as error:
        return Side(who, rope, head_dim, None, problem=str(error))
    return Side(who, rope, head_dim, tuple(inverse), factor)


def _head_dim(draft: Draft) -> int | None:
    """The dimension that is rotated: the rope part of a latent-attention head, else the head."""
    part = draft.config.get("qk_rope_head_dim")
    return part if isinstance(part, int) and not isinstance(part, bool) else draft.head_dim


def _difference(ours: Side, theirs: Side) -> str | None:
    if len(ours.inverse) != len(theirs.inverse):
        return f"{2 * len(ours.inverse)} dimensions against {2 * len(theirs.inverse)}"
    worst = max(abs(a - b) / max(a, b) for a, b in zip(ours.inverse, theirs.inverse, strict=True))
    if worst > SAME:
        return f"inverse frequencies differ by up to {worst:.0%}"
    return None if math.isclose(ours.factor, theirs.factor, rel_tol=SAME) else f"attention factor {ours.factor:.4g} against {theirs.factor:.4g}"


def _rival(ours: Side, theirs: Side) -> tuple[str, str, str]:
    if len(ours.inverse) != len(theirs.inverse):
        return ("another theta", f"theta {ours.rope.theta:g} on both sides" if ours.rope.theta == theirs.rope.theta else "theta differs as well",
                f"the number of rotated dimensions differs ({2 * len(ours.inverse)}, {2 * len(theirs.inverse)}); no theta repairs that")
    return ("data.domain", f"first wave equal, last wave {ours.inverse[-1] / theirs.inverse[-1]:.3g} times apart",
            "the two rules decide this without any text; contents would change the accuracy at equal length")


def _remedy(ours: Side, theirs: Side, engine: str) -> str:
    if len(ours.inverse) != len(theirs.inverse):
        share = 2 * len(ours.inverse) / (ours.head_dim or 1)
        return f"Set partial_rotary_factor to {share:g} in the drafter's config.json, as it was trained."
    if ours.rope.theta != theirs.rope.theta:
        return f"Write `rope_theta: {ours.rope.theta:g}` at the top level of the drafter's config.json (beside rope_parameters), so that {engine} reads it."
    return "Write the scaling that training used into the drafter's config.json."


def _beside_target(found: Inspection, ours: Side) -> str:
    sides = _sides(found)
    if found.target is None or sides[0].inverse is None or (len(sides[0].inverse) == len(ours.inverse) and _difference(sides[0], ours) is None):
        return ""
    return f" (the target's own: {_words(sides[0])}; a draft may differ from its target)"


def _dims(side: Side) -> int | str:
    return 2 * len(side.inverse) if side.inverse else "?"


def _words(side: Side) -> str:
    return f"theta {side.rope.theta:g}, {_scaling(side.rope)}, {_dims(side)} of {side.head_dim or '?'} dimensions"


def _scaling(rope: Rope) -> str:
    scaling = rope.scaling or {}
    kind = str(scaling.get("rope_type", scaling.get("type", "default")))
    factor = scaling.get("factor")
    return "no scaling" if kind == "default" else kind + (f" x{factor:g}" if isinstance(factor, int | float) and abs(factor) < 2**53 else "")
