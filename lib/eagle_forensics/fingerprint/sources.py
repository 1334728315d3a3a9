"""Everything notebook 03 looks at: a few samples of the dump, the target's states for the same tokens, its weights by slice."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from eagle_forensics.boundary import Boundary
from eagle_forensics.case import Case
from eagle_forensics.evidence.captures import read_capture
from eagle_forensics.evidence.dumps import find_dump, read_sample
from eagle_forensics.evidence.records import DumpInfo, EvidenceError, Sample, Target
from eagle_forensics.evidence.states import States, fits, read_states, target_key, target_states
from eagle_forensics.evidence.targets import read_target
from eagle_forensics.fingerprint.rows import Rows, Weights, weights_of
from eagle_forensics.fingerprint.sampling import Sampling, draw

REACH = 4096
"""Positions of a sample that are compared where the bank is computed: the target runs over all tokens before them."""
LOOKS = 4096
"""Samples whose tokens are looked up in a bank that names none of them."""


@dataclass(frozen=True)
class Sources:
    """What a fingerprint can be taken from and held against."""

    info: DumpInfo
    rows: Rows
    """What of the samples is compared."""
    sampling: Sampling
    target: Target | None
    weights: Weights | None
    bank: States | None
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def layers(self) -> int | None:
        return self.target.layers if self.target else None

    def manifest(self, case: Case) -> str | None:
        """Path of the dump's manifest as an edit of the case names it; None without one inside the case folder."""
        folder = self.info.path if self.info.path.is_dir() else self.info.path.parent
        file = folder / "manifest.json"
        base = case.file.parent if case.file else None
        if base is None or not file.is_file() or not file.resolve().is_relative_to(base.resolve()):
            return None
        return str(file.resolve().relative_to(base.resolve()))


def gather(case: Case, *, max_samples: int = 200, seed: int = 0, progress: Callable[[str], None] | None = None) -> Sources:
    """Rows of as many samples as it takes, at most `max_samples`, bank and weights. EvidenceError if the case has no dump or none of it can be read."""
    if not case.training.dumps:
        raise EvidenceError("the fingerprint needs training.dump: the tensors that are to be identified")
    if max_samples < 1:
        raise ValueError(f"max_samples={max_samples}: expected 1 or more")
    dump = case.training.dumps[0]
    info, problems, notes = find_dump(dump.path, dump.format), [], []
    if others := [d.path.name for d in case.training.dumps[1:]]:
        info = replace(info, notes=(*info.notes, f"only {dump.path.name} is looked at, not {', '.join(others)}"))
    target = read_target(case.target.path) if case.target else None
    weights = weights_of(target) if target and target.tensors else None
    order = list(range(len(info.files)))
    random.Random(seed).shuffle(order)
    common = {"weights": weights or Weights(), "layers": target.layers if target else None, "most": max_samples, "problems": problems}

    bank = read_states(case.reference.path) if case.reference is not None else None
    held = _in_bank(info, order, bank, max_samples, problems) if bank is not None else []
    if held:
        notes.append(f"bank of {len(bank.sequences)} sequences at {len(bank.boundaries)} boundaries, {bank.origin}; {len(held)} of them in the dump")
        written = (case.reference.path / "bank.json").stat().st_mtime_ns
        rows, sampling = draw(info, held, len(held), bank_of=lambda _: bank, against=f"{case.reference.path.resolve()} {written}", **common)
        return Sources(info, rows, sampling, target, weights, bank, tuple(dict.fromkeys(problems)), tuple(notes))
    if bank is not None:
        notes.append(f"none of the bank's {len(bank.sequences)} sequences is among the {min(len(order), LOOKS)} samples looked up of {len(order)}")
    why_not = "the case names no target" if target is None else fits(target)
    every = _every(target) if why_not is None else ()
    compute = None if why_not is not None else lambda parts: target_states(target, _tokens(parts), every, progress=progress)
    rows, sampling = draw(info, order, len(order), bank_of=compute, against=f"{target_key(target)} {len(every)}" if compute else "", reach=REACH,
                          vocab=target.vocab if compute else None, **common)
    bank = compute([rows]) if compute and rows.texts else None
    if bank is None:
        notes.append(f"no bank: {why_not or 'the samples hold no token ids'}; what follows needs no layer of the target")
    else:
        notes.append(f"bank of {len(bank.sequences)} sequences at {len(bank.boundaries)} boundaries, {bank.origin}")
    return Sources(info, rows, sampling, target, weights, bank, tuple(dict.fromkeys(problems)), tuple(notes))


Captured = tuple[Path, str, str | None, tuple[Sample, ...] | EvidenceError]
"""Path, execution path, label, and the samples or the reader's error."""


def captures(case: Case, hidden: int | None = None) -> list[Captured]:
    """Every capture of the case: path, execution path, label, and its samples or the reader's error. `hidden`: width at which joined planes are split."""
    found = []
    for capture in case.captures:
        try:
            read = read_capture(capture.path, hidden)
            result: tuple[Sample, ...] | EvidenceError = tuple(replace(s, rank=capture.tp_rank) if s.rank is None else s for s in read)
            told = {s.provenance.path_kind for s in read}
        except EvidenceError as error:
            result, told = error, set()
        kind = next(iter(told)) if capture.path_kind == "unknown" and told == {"eager"} else capture.path_kind
        found.append((capture.path, kind, capture.label, result))
    return found


def _in_bank(info: DumpInfo, order: Sequence[int], bank: States, most: int, problems: list[str]) -> list[int]:
    """Numbers of samples that go together with a sequence of the bank: one is the beginning of the other."""
    by_start: dict[tuple[int, ...], list[tuple[int, ...]]] = defaultdict(list)
    for sequence in bank.sequences:
        by_start[sequence[:8]].append(sequence)
    found = []
    for number in order[:LOOKS]:
        try:
            ids = read_sample(info, number).input_ids
        except EvidenceError as error:
            problems.append(str(error))
            continue
        tokens = () if ids is None else tuple(ids.tolist())
        if any(tokens[: len(s)] == s[: len(tokens)] for s in by_start.get(tokens[:8], ())):
            found.append(number)
            if len(found) >= min(most, len(bank.sequences)):
                break
    return found


def _every(target: Target) -> tuple[Boundary, ...]:
    return (*(Boundary(i) for i in range(target.layers + 1)), Boundary(target.layers, normed=True))


def _tokens(parts: Sequence[Rows]) -> list[list[int]]:
    return [text.tolist() for part in parts for text in part.texts]
