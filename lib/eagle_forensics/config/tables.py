"""Embedding and head: how the draft's tables relate to the target's, and which of them this engine really uses.

A random table in the file is harmless where the engine puts the target's in its place, and ruinous where it keeps it: the verdict
belongs to an engine, never to the file alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from eagle_forensics.config.inspection import Inspection
from eagle_forensics.config.question import Question, rules, unless_assumed
from eagle_forensics.evidence.records import Draft, Target, TensorInfo
from eagle_forensics.evidence.tensors import load_array
from eagle_forensics.finding import Evidence, Finding

EMBEDDING = Question("config.embedding", "Does the draft run on the embedding it was trained with?")
HEAD = Question("config.head-source", "Does the draft run on the head it was trained with?")
ROWS = 32
"""Rows read of each table: at width 7168 in bf16 that is 448 KiB a table."""
ALIGNED = 2.0
"""Median row cosine times sqrt(H): at most 0.4 between noise and a real embedding, 11 between different rows of one (SmolLM2-135M, 32 and 64 rows)."""
SPREAD = 1.5
"""Spread of row norms over their mean, times sqrt(H): 0.45 (uniform) to 0.73 for noise, 3.8 to 4.8 for a real embedding (SmolLM2-135M)."""
ROUNDING = 2.0**-7
"""Relative row difference of two copies of one table in bf16 or fp16: at most one unit in the last place of bf16."""


@dataclass(frozen=True)
class Relation:
    """How two tables relate, by rows of the same ids."""

    kind: str
    """`shared`, `trained` (aligned but not equal), `random` (noise), `other` (structured, but not aligned)."""
    cosine: float
    """Median row cosine."""
    difference: float
    """Median relative difference of rows."""
    spread: float
    """Spread of the first table's row norms over their mean, times sqrt(H)."""
    rows: int

    def __str__(self) -> str:
        return f"{self.kind}: median row cosine {self.cosine:.3f}, relative difference {self.difference:.3g}, norm spread {self.spread:.2f}, n = {self.rows}"


def table_findings(found: Inspection) -> list[Finding]:
    """Embedding and head of a draft with weights; nothing without."""
    draft = found.draft
    if draft is None or not draft.tensors:
        return []
    items = EMBEDDING.unless_unreadable(lambda: _embedding(found, draft)), HEAD.unless_unreadable(lambda: _head(found, draft))
    return [unless_assumed(item, {found.engine: found.loads}) for item in items]


def comparable(ours: TensorInfo, theirs: TensorInfo) -> bool:
    """Whether both are tables `[rows, H]` of one width H, with rows."""
    return len(ours.shape) == len(theirs.shape) == 2 and ours.shape[1] == theirs.shape[1] and 0 not in (*ours.shape, *theirs.shape)


def relate(ours: TensorInfo, theirs: TensorInfo, rows: np.ndarray | None = None, their_rows: np.ndarray | None = None) -> Relation:
    """Relation of two tables `[rows, H]` over ROWS spread rows (or those given); reads only these rows."""
    picked = np.linspace(0, min(ours.shape[0], theirs.shape[0]) - 1, ROWS).astype(int) if rows is None else rows
    a = load_array(ours, rows=picked).astype(np.float64)
    b = load_array(theirs, rows=picked if their_rows is None else their_rows).astype(np.float64)
    norm_a, norm_b = np.linalg.norm(a, axis=1) + 1e-30, np.linalg.norm(b, axis=1) + 1e-30
    root = a.shape[1] ** 0.5
    cosine = float(np.median((a * b).sum(1) / norm_a / norm_b))
    difference, spread = float(np.median(np.linalg.norm(a - b, axis=1) / norm_b)), float(norm_a.std() / norm_a.mean() * root)
    aligned = abs(cosine) * root > ALIGNED
    kind = "shared" if difference <= ROUNDING else "trained" if aligned else "random" if spread < SPREAD else "other"
    return Relation(kind, cosine, difference, spread, len(picked))


def _embedding(found: Inspection, draft: Draft) -> Finding:
    own, answer = draft.tensors.get("embed_tokens.weight"), found.loads
    if own is None:
        return EMBEDDING.passes("the checkpoint has no embedding: the engine takes the target's, as the trainers that leave it out expect")
    theirs = found.target.tensors.get("embed_tokens.weight") if found.target else None
    if theirs is None:
        return EMBEDDING.skips("embedding of the target" if found.target else "target.path that can be read", "whether the draft's embedding is the target's, trained, or noise")
    if answer is None:
        return EMBEDDING.needs(found, "serving.engine", "serving.version", decides="whether the draft's embedding or the target's is used")
    if len(own.shape) != 2 or len(theirs.shape) != 2 or 0 in (*own.shape, *theirs.shape):
        return EMBEDDING.suspects("load.tensor-inventory", f"an embedding is no table of rows: the draft's is {list(own.shape)}, the target's {list(theirs.shape)}", required=True,
                                  next_step="Export the checkpoint again, or leave embed_tokens.weight out of it.")
    if own.shape[1] != theirs.shape[1]:
        return EMBEDDING.passes(f"the draft has an embedding of its own width {own.shape[1]} (target {theirs.shape[1]}), which no engine replaces")
    relation, replaced = relate(own, theirs), own.name in answer.replaced
    fate = "puts the target's in its place" if replaced else "keeps the draft's own where it differs"
    common = {"observed": round(relation.cosine, 4), "expected": 1.0, "unit": "median row cosine", "n": relation.rows,
              "evidence": (*rules(*answer.sources), Evidence(note=str(relation), path=own.file.name))}
    harmless = relation.kind == "shared" or (relation.kind == "random" if replaced else relation.kind in ("trained", "other"))
    if harmless:
        elsewhere = " (an engine that keeps it would serve noise: vLLM does)" if relation.kind == "random" else ""
        return EMBEDDING.passes(f"the draft's embedding is {relation.kind} (median row cosine {relation.cosine:.2f}) and {found.engine} {fate}{elsewhere}", **common)
    if relation.kind == "random":
        return EMBEDDING.fails(
            "vocab.shared-tables", f"the draft's embedding is noise (median row cosine to the target's {relation.cosine:.3f}, norm spread {relation.spread:.2f}) "
            f"and {found.engine} {fate}", **common,
            rival=("vocab.tokenizer", f"rows of equal norm to {relation.spread / own.shape[1] ** 0.5:.1%}, where a trained table varies",
                   "a table for another tokenizer keeps the spread of a trained one; only noise is this even"),
            threshold=SPREAD, threshold_why="norm spread times sqrt(H): at most 0.73 for noise, at least 3.8 for a real embedding (SmolLM2-135M)",
            refuted_by="the training run logs an embedding of its own with these values, or row cosine 1 after a new export",
            remedy="Leave embed_tokens.weight out of the checkpoint (the engine then shares the target's), or export the target's rows.",
            predicted_effect="The draft reads the tokens it was trained on; on SGLang nothing changes.", next_step="Export again without embed_tokens and measure once.")
    return EMBEDDING.suspects(
        "vocab.shared-tables", f"the draft's embedding is its own ({relation.kind}, median row cosine {relation.cosine:.3f}) and {found.engine} {fate}: "
        "what training changed in it is lost", **common, rival=("a healthy drafter", "the size of the loss is not known here", "not rejected: the trainer may have frozen the target's"),
        next_step="Notebook 02 compares the accuracy with either embedding.")


def _head(found: Inspection, draft: Draft) -> Finding:
    own, answer = draft.tensors.get("lm_head.weight"), found.loads
    tied, absent = bool(draft.config.get("tie_word_embeddings")), "draft_vocab_size" not in draft.config
    null = not absent and draft.config["draft_vocab_size"] is None
    if answer is None:
        return HEAD.needs(found, "serving.engine", "serving.version", decides="which head the engine uses")
    evidence = rules(*answer.sources)
    if own is None:
        source = "the embedding (tied)" if tied else "the target's"
        ready = tied or null or found.case.serving.engine == "vllm"
        return HEAD.passes(f"the checkpoint has no lm_head: {found.engine} uses {source}", evidence=evidence) if ready else HEAD.suspects(
            "load.tensor-inventory", "the checkpoint has no lm_head and the config does not say that the target's is meant", evidence=evidence,
            next_step="Write `draft_vocab_size: null` for the target's head; config.inventory names what stays random.")
    if own.name not in answer.dropped:
        note = (". The config has no draft_vocab_size: SGLang reads that attribute without a default and stops at start (AttributeError)"
                if absent and found.case.serving.engine == "sglang" else "")
        return HEAD.passes(f"{found.engine} uses the draft's own head of {own.shape[0]} rows{note}", observed=own.shape[0], unit="rows", evidence=evidence)
    instead = "the embedding (tie_word_embeddings is true)" if tied else "the target's (draft_vocab_size is null)"
    theirs = _instead(found.target, tied)
    if theirs is None or not comparable(own, theirs) or theirs.shape[0] != own.shape[0]:
        return HEAD.suspects("vocab.shared-tables", f"the checkpoint's lm_head {list(own.shape)} is not used by {found.engine}, which takes {instead}", evidence=evidence,
                             next_step="Add the target's weights, or set the config key and measure once.")
    relation = relate(own, theirs)
    common = {"observed": round(relation.cosine, 4), "expected": 1.0, "unit": "median row cosine", "n": relation.rows,
              "evidence": (*evidence, Evidence(note=str(relation), path=own.file.name))}
    if relation.kind == "shared":
        return HEAD.passes(f"{found.engine} takes {instead} instead of the checkpoint's lm_head; the rows are equal", **common)
    key, value = ("tie_word_embeddings", False) if tied else ("draft_vocab_size", own.shape[0])
    return HEAD.fails(
        "vocab.shared-tables", f"{found.engine} takes {instead} instead of the checkpoint's own lm_head, which differs (median row cosine {relation.cosine:.3f})", **common,
        rival=("vocab.map-semantics", f"{own.shape[0]} rows on both sides", "rows of the same ids differ; no map of ids is involved"),
        threshold=ROUNDING, threshold_why="relative row difference of two copies of one table in bf16", refuted_by="the engine's log says that it keeps the draft's lm_head",
        remedy=f"Write `{key}: {str(value).lower()}` in the drafter's config.json.", edits=found.edit(key, value),
        predicted_effect="The draft answers with the head it was trained with.", next_step="Apply the edit and run again.")


def _instead(target: Target | None, tied: bool) -> TensorInfo | None:
    if target is None:
        return None
    return target.tensors.get("embed_tokens.weight") if tied else target.tensors.get("lm_head.weight") or target.tensors.get("embed_tokens.weight")

