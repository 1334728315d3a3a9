"""Do target and draft speak of the same tokens? Compares the tokenizers that lie in both folders, id by id.

Engines tokenize with the target's files only; a tokenizer beside the draft is evidence of what it was trained with.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eagle_forensics.config.inspection import Inspection
from eagle_forensics.config.question import Question
from eagle_forensics.evidence.configs import read_object
from eagle_forensics.evidence.records import EvidenceError
from eagle_forensics.finding import Evidence, Finding

TOKENIZER = Question("config.tokenizer", "Do target and draft use the same tokenizer?")
FILE = "tokenizer.json"
SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")


def tokenizer_findings(found: Inspection) -> list[Finding]:
    """One finding; skipped where the draft brings no tokenizer."""
    draft, target = found.draft, found.target
    if draft is None or target is None:
        return [TOKENIZER.needs(found, "drafter.path", "target.path", decides="whether ids mean the same text")]
    notes = tuple(Evidence(note=f"{key}: target {target.config[key]}, draft config {draft.config[key]} (engines read the target's)")
                  for key in SPECIAL if key in target.config and key in draft.config and target.config[key] != draft.config[key])
    try:
        ours, theirs = _ids(draft.path), _ids(target.path)
    except EvidenceError as error:
        return [TOKENIZER.suspects(None, f"a tokenizer cannot be read: {error}", next_step="Copy tokenizer.json again.")]
    if not ours or not theirs:
        sizes = f"the vocabularies are {draft.vocab} and {target.vocab}"
        if draft.vocab is not None and draft.vocab != target.vocab:
            return [TOKENIZER.suspects("vocab.tokenizer", f"{sizes}: padding, or another tokenizer", observed=draft.vocab, expected=target.vocab, unit="tokens", evidence=notes,
                                       rival=("a healthy drafter", f"{abs(draft.vocab - target.vocab)} rows", "not rejected: padded tables differ in size too"),
                                       next_step="Put the tokenizer.json the drafter was trained with beside it.")]
        absent = " and ".join(side for side, ids in (("the drafter", ours), ("the target", theirs)) if not ids)
        return [TOKENIZER.absent(f"there is no {FILE} beside {absent}", f"Put it there; it decides whether ids mean the same text ({sizes}).")]
    shared = ours.keys() & theirs.keys()
    conflicts = sorted(i for i in shared if ours[i] != theirs[i])
    common = {"observed": len(conflicts), "expected": 0, "n": len(shared), "unit": "ids with another text", "evidence": notes}
    if not conflicts:
        return [TOKENIZER.passes(f"the {len(shared)} ids of both tokenizers mean the same text", **common)]
    first = conflicts[0]
    if set(conflicts) <= (_added(draft.path) & _added(target.path)):
        return [TOKENIZER.suspects(
            "vocab.tokenizer", f"{len(conflicts)} of {len(shared)} ids, all added tokens, have another name: {first} is {ours[first]!r} for the draft, {theirs[first]!r} for the target", **common,
            rival=("a healthy drafter", f"{len(conflicts)} of {len(shared)} ids", "not rejected: a reserved token that was named later is the same id to the drafter"),
            next_step="See whether these tokens occur in the training data (a chat template uses them).")]
    return [TOKENIZER.fails(
        "vocab.tokenizer", f"{len(conflicts)} of {len(shared)} ids mean another text: {first} is {ours[first]!r} for the draft, {theirs[first]!r} for the target", **common,
        rival=("data.template", f"{len(conflicts)} ids differ", "a template changes which ids are sent, not what an id means"),
        refuted_by="the drafter was trained on ids of the target's tokenizer and the file beside it is a leftover", remedy="Train with the target's tokenizer, or serve the target the drafter was trained for.",
        predicted_effect="Ids mean again what the drafter learned.", next_step="Compare the ids of one training sample with the target's tokenizer.")]


def _ids(folder: Path) -> dict[int, str]:
    """Token by id of a tokenizer.json with a `model.vocab` mapping; empty where there is none."""
    file = Path(folder) / FILE
    if not file.is_file():
        return {}
    content = read_object(file)
    model = content.get("model")
    vocab: Any = model.get("vocab") if isinstance(model, Mapping) else None
    ids = {i: token for token, i in vocab.items() if isinstance(i, int)} if isinstance(vocab, Mapping) else {}
    if isinstance(vocab, list):  # unigram: [[token, score], ...]
        ids = {i: str(entry[0]) for i, entry in enumerate(vocab) if isinstance(entry, list) and entry}
    return ids | _named(content)


def _added(folder: Path) -> set[int]:
    """Ids of the tokens that were added beside the learned vocabulary."""
    return set(_named(read_object(Path(folder) / FILE)))


def _named(content: Mapping[str, Any]) -> dict[int, str]:
    added = content.get("added_tokens")
    entries = [e for e in added if isinstance(e, Mapping) and isinstance(e.get("id"), int)] if isinstance(added, list) else []
    return {entry["id"]: str(entry.get("content")) for entry in entries}
