"""Everything notebook 03 looks at: a few samples of the dump, the target's states for the same tokens, its weights by slice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from eagle_forensics.boundary import Boundary
from eagle_forensics.case import Case
from eagle_forensics.evidence.captures import read_capture
from eagle_forensics.evidence.dumps import find_dump, iter_samples
from eagle_forensics.evidence.records import DumpInfo, EvidenceError, Sample, Target
from eagle_forensics.evidence.states import States, fits, read_states, target_states
from eagle_forensics.evidence.targets import read_target
from eagle_forensics.fingerprint.rows import Weights, weights_of


@dataclass(frozen=True)
class Sources:
    """What a fingerprint can be taken from and held against."""

    info: DumpInfo
    samples: tuple[Sample, ...]
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


def gather(case: Case, *, max_samples: int = 12, seed: int = 0, progress: Callable[[str], None] | None = None) -> Sources:
    """Samples, bank and weights. EvidenceError if the case has no dump or none of it can be read."""
    if not case.training.dumps:
        raise EvidenceError("the fingerprint needs training.dump: the tensors that are to be identified")
    dump = case.training.dumps[0]
    info, problems = find_dump(dump.path, dump.format), []
    if others := [d.path.name for d in case.training.dumps[1:]]:
        info = replace(info, notes=(*info.notes, f"only {dump.path.name} is looked at, not {', '.join(others)}"))
    target = read_target(case.target.path) if case.target else None
    bank, notes = None, []
    if case.reference is not None:
        bank = read_states(case.reference.path)
        samples = _in_bank(info, bank, max_samples, problems)
        notes.append(f"bank of {len(bank.sequences)} sequences at {len(bank.boundaries)} boundaries, {bank.origin}; {len(samples)} of them in the dump")
    if bank is None or not samples:
        samples = tuple(iter_samples(info, limit=max_samples, seed=seed, problems=problems))
        bank = _computed(target, samples, notes, progress)
    if not samples:
        raise EvidenceError(f"{info.path}: no sample could be read. {'; '.join(problems[:3])}")
    return Sources(info, samples, target, weights_of(target) if target and target.tensors else None, bank, tuple(problems), tuple(notes))


Captured = tuple[Path, str, str | None, tuple[Sample, ...] | EvidenceError]
"""Path, execution path, label, and the samples or the reader's error."""


def captures(case: Case, hidden: int | None = None) -> list[Captured]:
    """Every capture of the case: path, execution path, label, and its samples or the reader's error. `hidden`: width at which joined planes are split."""
    found = []
    for capture in case.captures:
        try:
            read = read_capture(capture.path, hidden)
            result: tuple[Sample, ...] | EvidenceError = tuple(replace(s, rank=capture.tp_rank) if s.rank is None else s for s in read)
        except EvidenceError as error:
            result = error
        found.append((capture.path, capture.path_kind, capture.label, result))
    return found


def _in_bank(info: DumpInfo, bank: States, most: int, problems: list[str]) -> tuple[Sample, ...]:
    wanted, found = set(bank.sequences), []
    for sample in iter_samples(info, problems=problems):
        if sample.input_ids is not None and tuple(sample.input_ids.tolist()) in wanted:
            found.append(sample)
            if len(found) >= most:
                break
    return tuple(found)


def _computed(target: Target | None, samples: tuple[Sample, ...], notes: list[str], progress: Callable[[str], None] | None) -> States | None:
    reason = "the case names no target" if target is None else fits(target)
    tokens = [s.input_ids.tolist() for s in samples if s.input_ids is not None]
    if reason is not None or not tokens:
        notes.append(f"no bank: {reason or 'the samples hold no token ids'}; what follows needs no layer of the target")
        return None
    boundaries = [*(Boundary(i) for i in range(target.layers + 1)), Boundary(target.layers, normed=True)]
    bank = target_states(target, tokens, boundaries, progress=progress)
    notes.append(f"bank of {len(tokens)} sequences at {len(boundaries)} boundaries, {bank.origin}")
    return bank
