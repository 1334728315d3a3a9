"""The findings of notebook 01 about the drafter's files: vocabulary map, tensor inventory, head flags. The width of fc is `widths.py`."""

from __future__ import annotations

import re

import numpy as np

from eagle_forensics.config.inspection import Inspection
from eagle_forensics.config.question import NOTEBOOK, Question, unless_assumed
from eagle_forensics.config.tables import comparable
from eagle_forensics.config.widths import width_finding
from eagle_forensics.engines.tensors import LoadAnswer
from eagle_forensics.evidence.names import LAYER
from eagle_forensics.evidence.records import Draft, TensorInfo
from eagle_forensics.evidence.tensors import load_array
from eagle_forensics.finding import Competitor, Evidence, Finding, Status

INVENTORY = Question("config.inventory", "Does every tensor of the checkpoint reach a parameter, and every parameter a tensor?")
VOCABULARY = Question("config.vocabulary", "Does the draft vocabulary map to the right target tokens?")
HEAD_ROWS = 32
"""Rows of lm_head compared with the target's; enough to tell a right map (cosine near 1 when the head started from the target) from a wrong one."""
PADDING = 0.01
"""Share of a vocabulary that may be padding: Qwen2.5 pads 0.3 % (152,064 rows for 151,643 tokens); the largest reduced vocabularies leave out far more."""
_RECORDED = {"use_aux_norm": "fc_norm"}
"""Older spelling of a head flag -> its name in DraftFlags."""
ROWS_APART = 0.3
"""Lead in median cosine by which another reading of d2t explains lm_head better. Right rows: 0.94, other rows: 0.19 to 0.49 (SmolLM2-135M and its drafter)."""


def checkpoint_findings(found: Inspection) -> list[Finding]:
    """Vocabulary map, inventory and widths; one `skipped` where there are no weights."""
    draft = found.draft
    if draft is None or not (draft.tensors or draft.unknown_tensors):
        return [Finding(id="config.checkpoint", question="Do the drafter's tensors fit its config and the engine?", status=Status.SKIPPED,
                        required=False, notebook=NOTEBOOK, statement="not examined: the case has no drafter weights",
                        next_step="Point drafter.path to a folder with the safetensors; headers and slices decide widths, vocabulary map, inventory, layer count, heads, "
                                  "dtype, embedding and head.")]
    widths = unless_assumed(width_finding(found, draft), {found.engine: found.served})
    return [widths, VOCABULARY.unless_unreadable(lambda: _vocabulary(found, draft)),
            *(unless_assumed(item, {found.engine: found.loads}) for item in _inventory(found, draft))]


def _vocabulary(found: Inspection, draft: Draft) -> Finding:
    """target id = draft id + d2t[draft id] (offset semantics; EAGLE cnets.py, sglang 0.5.23 llama_eagle3.py:350, vllm llama_eagle3.py:391)."""
    head, d2t, t2d = (draft.tensors.get(k) for k in ("lm_head.weight", "d2t", "t2d"))
    vocab = draft.vocab or (found.target.vocab if found.target else None)
    rows = head.shape[0] if head else draft.draft_vocab
    common = {"id": VOCABULARY.id, "question": VOCABULARY.text, "notebook": NOTEBOOK}
    if d2t is None:
        stated = draft.config.get("draft_vocab_size")
        reduced = rows is not None and vocab is not None and (2 * rows < vocab or (isinstance(stated, int) and stated == rows < (1 - PADDING) * vocab))
        if rows is not None and vocab is not None and rows < vocab and not reduced:
            return Finding(**common, status=Status.INCONCLUSIVE, required=False, observed=rows, expected=vocab, unit="rows of lm_head",
                           statement=f"lm_head has {rows} rows for a vocabulary of {vocab} and there is no d2t: right if the {vocab - rows} missing rows are padding, "
                           "as several families have it", next_step="Look whether the target's tokenizer uses the missing ids.")
        if reduced:
            return Finding(**common, fault="vocab.map-missing", status=Status.FAIL, observed=rows, expected=vocab, unit="rows of lm_head",
                           statement=f"lm_head has {rows} rows for a vocabulary of {vocab} and there is no d2t: draft id k would be served as target id k",
                           competitor=Competitor(fault="wiring.plane-order", margin="also a position-0 acceptance near chance",
                                                 why_rejected="the inventory decides: the map is not in the file"),
                           refuted_by="a d2t tensor in another file that the engine loads", remedy="Store d2t (offsets) and t2d in the safetensors.")
        if rows is None:
            return VOCABULARY.passes("the checkpoint brings neither a head nor a map: the target's head speaks of the target's own tokens")
        return VOCABULARY.passes(f"full vocabulary of {rows}: no map needed", observed=rows, expected=vocab)
    if len(d2t.shape) != 1 or 0 in d2t.shape or d2t.dtype not in ("I64", "I32", "I16", "U64", "U32", "U16", "U8", "I8"):
        return VOCABULARY.fails(
            "vocab.map-semantics", f"d2t is {d2t.dtype} {list(d2t.shape)}; expected integers, one for each draft token", observed=list(d2t.shape), expected=[rows],
            rival=("vocab.map-missing", "a tensor of that name is there", "it exists, but holds no list of offsets"), refuted_by="the engine maps draft tokens with this tensor",
            evidence=(Evidence(note=f"{d2t.name} {d2t.dtype} {list(d2t.shape)}", path=d2t.file.name),), remedy="Export d2t again: int64 [draft vocabulary], d2t[i] = target_id - i.")
    offsets = load_array(d2t).astype(np.int64)
    image = np.arange(len(offsets)) + offsets
    proofs = [f"{len(offsets)} draft tokens map to {len(np.unique(image))} target tokens in {image.min()}..{image.max()}"]
    wrong = []
    if rows is not None and len(offsets) != rows:
        wrong.append(f"d2t has {len(offsets)} entries for {rows} rows of lm_head")
    if len(np.unique(image)) != len(image):
        wrong.append(f"{len(image) - len(np.unique(image))} target tokens are hit twice")
    if vocab is not None and (image.min() < 0 or image.max() >= vocab):
        wrong.append(f"ids reach {image.max()}, beyond the vocabulary of {vocab}")
    if t2d is not None:
        marked = np.flatnonzero(load_array(t2d))
        same = len(marked) == len(image) and bool((np.sort(image) == marked).all())
        (proofs if same else wrong).append(f"{{i + d2t[i]}} {'equals' if same else 'differs from'} the {len(marked)} tokens of t2d")
    cosine = _head_cosine(found, draft, image, offsets)
    if cosine is not None:
        mapped, raw, same_id = cosine
        words = f"lm_head rows against the target's: median cosine {mapped:.2f} at i + d2t[i], {raw:.2f} at d2t[i], {same_id:.2f} at i, n = {HEAD_ROWS}"
        (wrong if max(raw, same_id) - mapped > ROWS_APART else proofs).append(words)
    evidence = tuple(Evidence(note=p, path=d2t.file.name) for p in proofs)
    if wrong:
        absolute = vocab is not None and offsets.max() < vocab and bool((np.diff(offsets) > 0).all())
        return Finding(**common, fault="vocab.map-semantics", status=Status.FAIL, observed=wrong, expected="a bijection onto t2d",
                       n=len(offsets), unit="draft tokens",
                       statement="d2t is not an offset map: " + "; ".join(wrong) + (" (its values look like absolute ids)" if absolute else ""),
                       competitor=Competitor(fault="vocab.map-missing", margin=f"{len(offsets)} entries are there", why_rejected="the map exists; its meaning is wrong"),
                       refuted_by="{i + d2t[i]} equals nonzero(t2d)", evidence=evidence,
                       remedy="Write d2t[i] = target_id - i." if absolute else "Export d2t again from the training vocabulary.")
    if t2d is None and not offsets.any() and vocab is not None and len(offsets) < vocab:
        return VOCABULARY.suspects(
            "vocab.map-semantics", f"d2t is zero everywhere: the draft vocabulary is the first {len(offsets)} of {vocab} tokens, or the map was never filled; no t2d tells which",
            n=len(offsets), unit="draft tokens", evidence=evidence, rival=("a healthy drafter", "a map of the first tokens is all zeros too", "not rejected: t2d or the head's rows decide"),
            next_step="Add t2d or the target's weights, or count the distinct tokens that the drafter proposes.")
    return Finding(**common, status=Status.PASS, n=len(offsets), unit="draft tokens", observed=len(np.unique(image)), expected=len(offsets),
                   statement="d2t is a valid offset map: " + "; ".join(proofs), evidence=evidence)


def _head_cosine(found: Inspection, draft: Draft, image: np.ndarray, offsets: np.ndarray) -> tuple[float, float, float] | None:
    """Median cosine of lm_head rows i with the target's rows i + d2t[i], d2t[i] and i; None where they cannot be compared."""
    head, target = draft.tensors.get("lm_head.weight"), found.target
    rows = target and (target.tensors.get("lm_head.weight") or target.tensors.get("embed_tokens.weight"))
    if head is None or not rows or not comparable(head, rows):
        return None
    picked = np.linspace(0, min(len(image), head.shape[0]) - 1, HEAD_ROWS).astype(int)
    if not all(ids[picked].min() >= 0 and ids[picked].max() < rows.shape[0] for ids in (image, offsets)):
        return None
    ours = load_array(head, rows=picked)

    def median(ids: np.ndarray) -> float:
        theirs = load_array(rows, rows=ids)
        return float(np.median((ours * theirs).sum(1) / (np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1) + 1e-12)))

    return median(image[picked]), median(offsets[picked]), median(picked)


def _inventory(found: Inspection, draft: Draft) -> list[Finding]:
    answer = found.loads
    return [INVENTORY.needs(found, "serving.engine", "serving.version", decides="which tensors are loaded, dropped or stay random")] if answer is None else [*([] if answer.error else [_tensors(found, draft, answer)]), *_flags(found, draft, answer)]


def _tensors(found: Inspection, draft: Draft, answer: LoadAnswer) -> Finding:
    """The engine's loader drops unknown names and leaves missing parameters uninitialised without a message."""
    common = {"id": INVENTORY.id, "question": INVENTORY.text, "notebook": NOTEBOOK, "n": len(answer.loaded) + len(answer.dropped) + len(answer.replaced), "unit": "tensors",
              "evidence": (*(Evidence(note="rule", source=s) for s in answer.sources), *(Evidence(note=f"{n}: {why}") for n, why in answer.dropped.items()),
                           *(Evidence(note=f"{n}: replaced by {by}") for n, by in answer.replaced.items()))}
    if answer.missing:
        return Finding(**common, fault="load.tensor-inventory", status=Status.FAIL, observed=list(answer.missing), expected=[],
                       statement=f"{found.engine} loads this drafter without a word, but nothing fills {len(answer.missing)} of its parameters: {', '.join(answer.missing[:4])}"
                       + (" ..." if len(answer.missing) > 4 else ""),
                       competitor=Competitor(fault="load.architecture", margin=f"{len(answer.loaded)} tensors load, {len(answer.dropped)} are dropped",
                                             why_rejected="the class accepts the config and the other names map"),
                       refuted_by="the engine fills these parameters from the checkpoint", remedy="Rename or export the tensors for this engine version.",
                       predicted_effect="Random weights in a draft layer keep the accept length near 1.00.")
    lost = {name: tensor for name, tensor in draft.tensors.items() if tensor.name in answer.dropped and _matters(name, tensor, draft)}
    if lost:
        return Finding(**common, fault="load.tensor-inventory", status=Status.FAIL, observed=[t.name for t in lost.values()], expected=[],
                       statement=f"{found.engine} drops {len(lost)} tensors of the draft layer without a word: {', '.join(t.name for t in [*lost.values()][:4])}",
                       competitor=Competitor(fault="load.architecture", margin=f"{len(answer.loaded)} tensors load, {len(lost)} of a layer do not",
                                             why_rejected="the class accepts the config; its layer has no place for these"),
                       refuted_by="the engine's draft layer has parameters of these names", remedy="Serve with an engine whose draft class has them (vLLM: a Qwen3 draft), or train without.",
                       predicted_effect="The draft layer computes what it was trained to compute.")
    unasked = [t.name for name, t in draft.tensors.items() if t.name in answer.dropped and re.match(r"(input_norm|fc_norm\.\d+)\.", name)]
    if unasked and not (draft.flags.norm_before_fc or draft.flags.fc_norm):
        return INVENTORY.suspects(
            "drafter.norm-flags", f"the checkpoint holds {', '.join(unasked[:4])} but the config sets neither norm_before_fc nor fc_norm: {found.engine} leaves the norm out", required=True,
            observed=unasked, expected=[], evidence=common["evidence"], rival=("a healthy drafter", f"{len(unasked)} norms in the file", "not rejected: a trainer may save a norm it does not apply"),
            next_step="Notebook 02 shows the accuracy with and without it.")
    ignored = "" if not answer.dropped else f"; not used: {', '.join(answer.dropped)}"
    return Finding(**common, status=Status.PASS, observed=len(answer.loaded), expected=len(answer.loaded),
                   statement=f"every parameter of the drafter in {found.engine} is filled by one of {len(answer.loaded)} tensors{ignored}")


def _matters(name: str, tensor: TensorInfo, draft: Draft) -> bool:
    """Whether a draft layer without this tensor computes something else: not for a bias of zeros, a table of frequencies, or what the layer has after all."""
    if not LAYER.match(name) or name.endswith("inv_freq"):
        return False
    if name.endswith("o_proj.bias") and (draft.config.get("attention_bias") or draft.config.get("bias")):
        return False  # sglang 0.5.23 llama.py: LlamaAttention gives o_proj the bias of the config; q, k and v get none in llama_eagle3.py
    return not name.endswith(".bias") or bool(load_array(tensor).any())


def _flags(found: Inspection, draft: Draft, answer: LoadAnswer) -> list[Finding]:
    """Head flags of the config that this release does not honour."""
    common = {"id": "config.flags", "question": "Does the engine honour the head's flags?", "notebook": NOTEBOOK,
              "evidence": tuple(Evidence(note=f"{flag}: {fate}") for flag, fate in answer.flags.items())}
    lost = {flag: fate for flag, fate in answer.flags.items() if fate.startswith("ignored") and getattr(draft.flags, _RECORDED.get(flag, flag), None)}
    if not lost:
        return [Finding(**common, status=Status.PASS, observed=sorted(answer.flags), statement=f"{found.engine} ignores none of the head flags that are set"
                        + (f" ({', '.join(f'{k}: {v}' for k, v in answer.flags.items())})" if answer.flags else " (none is set)"))]
    names = ", ".join(lost)
    return [Finding(**common, fault="drafter.norm-flags", status=Status.FAIL, observed=list(lost), expected=[], unit="ignored flags",
                    statement=f"{found.engine} ignores {names}, which the drafter was trained with: {'; '.join(lost.values())}",
                    competitor=Competitor(fault="wiring.plane-order", margin=f"{len(lost)} flag(s) set and not read", why_rejected="the flag is in the config and not in the engine's source; no order of planes is involved"),
                    refuted_by="notebook 02 finds the same accuracy with the flag off", remedy="Serve with a release that reads the flag, or retrain without it.",
                    next_step="Notebook 02 shows the accuracy under every flag combination.")]
