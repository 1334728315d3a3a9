"""How many samples of a dump are enough: drawn at random, each says what every slot is, until a majority of the whole dump is certain for every slot.

A sample's vote for a slot is the state that explains its rows cleanly (`match`: error, ratio, votes of its tokens), or that none does. The draw ends when
for every slot the evidence that more than half of the dump's samples vote alike reaches 2 slots / rate. Two: of all the answers that fewer than half of the
samples give, two may come close to half; the others add less than 1e-9 (each needs at least ten hits, which a share p gives a tenth and 1.8 p of the
evidence a draw at most). Rows of the first samples are pooled for everything else; memory does not grow with the dump.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from eagle_forensics import stats
from eagle_forensics.evidence.dumps import read_sample
from eagle_forensics.evidence.records import DumpInfo, EvidenceError
from eagle_forensics.finding import Finding, Status
from eagle_forensics.fingerprint.index import Entry, Index, Vote
from eagle_forensics.fingerprint.match import match
from eagle_forensics.fingerprint.rows import BUDGET_BYTES, SPREAD, Bank, Reference, Rows, Weights, cut, join

RATE = 0.001
"""Chance that any slot's answer is not that of most samples. A wrong accusation is worse than none, and 0.001 costs 14 or 15 samples of four slots, 0.01 costs 11."""
LEAST = 12
"""Samples read in any case, also where nothing can vote or half of a small dump is a majority: every interval is over samples."""

BankOf = Callable[[Sequence[Rows]], Bank]


@dataclass(frozen=True)
class Ballot:
    """The votes of the samples on one slot."""

    slot: int
    votes: tuple[Vote, ...]
    """In the order drawn."""
    evidence: float
    """That more than half of the dump's samples vote as most of these do (`stats.majority_evidence`)."""
    settled: bool

    @property
    def leading(self) -> Vote:
        """What most of them say."""
        return Counter(self.votes).most_common(1)[0][0]

    @property
    def hits(self) -> int:
        """How many say it."""
        return sum(v == self.leading for v in self.votes)

    def text(self) -> str:
        """`slot 0: 13 of 15 samples hold b=2, 2 b=3`."""
        counts = [f"{count} {vote or 'no clean state'}" for vote, count in Counter(self.votes).most_common()]
        return f"slot {self.slot}: of {len(self.votes)} samples " + ", ".join(counts)


@dataclass(frozen=True)
class Sampling:
    """What was looked at, and whether it is enough."""

    existing: int
    """Samples of the dump."""
    population: int
    """Samples that could be drawn: all of the dump, or those whose tokens the bank holds."""
    looked: int
    read: int
    """Of these, samples read from the dump now; the others were known from an earlier run."""
    ballots: tuple[Ballot, ...]
    """One a slot; empty without a bank."""
    names: tuple[str, ...]
    """Samples that voted, in the order of the votes."""
    rate: float
    why_not: str | None
    """What is missing where a slot is not settled, or why nothing was to be settled."""
    left_out: int = 0
    """Samples that were drawn and could not be used."""

    @property
    def settled(self) -> bool:
        """True if every slot is settled."""
        return bool(self.ballots) and all(b.settled for b in self.ballots)

    @property
    def odd(self) -> tuple[tuple[str, int, Vote], ...]:
        """Sample, slot and vote of every sample that says something else than most."""
        return tuple((name, b.slot, vote) for b in self.ballots for name, vote in zip(self.names, b.votes, strict=True) if vote != b.leading)

    def text(self) -> str:
        """How many of how many samples, what that settles and what it leaves open."""
        of = f"{self.looked} of {self.population} samples" + (f" whose tokens the bank holds (the dump has {self.existing})" if self.population < self.existing else "")
        known = f", {self.looked - self.read} known from an earlier run" if self.looked > self.read else ""
        known += f", {self.left_out} more could not be used and {'is' if self.left_out == 1 else 'are'} named" if self.left_out else ""
        if not self.settled:
            return f"{of} looked at{known}; {self.why_not}"
        if self.looked == self.population:
            return f"all {of} looked at{known}: every slot is settled"
        if self.looked + self.left_out == self.population:
            return f"{of} looked at{known}: every slot is settled"
        left = f"; a kind of sample that makes up less than {stats.unseen_share(self.looked):.0%} of them may not be among these" if not self.odd else ""
        return (f"{of} drawn at random{known}: every slot is settled, the chance that any answer is not that of most samples is at most "
                f"{self.rate:.1%}{left}")


def draw(info: DumpInfo, numbers: Iterable[int], population: int, *, bank_of: BankOf | None, against: str, weights: Weights, layers: int | None, most: int,
         reach: int | None = None, vocab: int | None = None, rate: float = RATE, problems: list[str]) -> tuple[Rows, Sampling]:
    """Look at samples `numbers` (in random order) until every slot is settled, none can be any more, or `most` were looked at.

    `bank_of`: the bank that holds the tokens of some samples; None: there is none, so nothing votes. `against`: what the votes depend on, as a key.
    `reach`: see `rows.cut`. `vocab`: size of the vocabulary of the target that is to run over the tokens. Samples that cannot be read or run go
    to `problems`. Raises EvidenceError if none is left.
    """
    desk = _Desk(info, against, reach, vocab, problems)
    stream = desk.look(numbers)
    bound = rate / (2 * max(1, len(info.widths)))
    want: int | None = min(most, LEAST)
    if bank_of is not None:
        want = stats.draws_needed((), population, bound, most)
        want = most if want is None else min(most, max(want, LEAST))
    exhausted = False
    while want and not exhausted:
        batch = list(islice(stream, min(want, SPREAD)))
        exhausted = len(batch) < min(want, SPREAD)
        if bank_of is None:
            want -= len(batch)
            continue
        desk.vote(batch, bank_of, weights, layers)
        want = _further(desk, population, bound, most)
    desk.settle()
    ballots = tuple(_ballots(desk, population, bound, exhausted))
    if not desk.pool and desk.left_out:
        raise EvidenceError(f"no sample with hidden states can be compared: {desk.left_out} were drawn, none can be used. The last one: {problems[-1]}")
    rows = join(desk.pool, labels=info.labels)
    return rows, Sampling(len(info.files), population, desk.looked, desk.read, ballots, tuple(desk.voters), rate, _why_not(desk, ballots, population, bound, most),
                          desk.left_out)


def sampling_finding(sampling: Sampling, notebook: str, held: Sequence[Vote] = ()) -> Finding:
    """Were enough samples read? Pass: every slot settled and no sample says otherwise.

    `held`: what every slot is, of all samples together: under the noise of quantised weights a sample that is clean by itself says the same.
    """
    others = [o for o in sampling.odd if o[2] is None or tuple(held[o[1]:o[1] + 1]) != (o[2],)]
    status = Status.SKIPPED if not sampling.ballots else Status.PASS if sampling.settled and not others else Status.INCONCLUSIVE
    odd = "; ".join(f"{name}: slot {slot} {f'holds {vote}' if vote else 'is no clean state'}" for name, slot, vote in others[:6])
    mixed = f". Not all are alike: {'; '.join(b.text() for b in sampling.ballots if b.hits < len(b.votes))} ({odd}{', ...' if len(others) > 6 else ''})" if odd else ""
    text = (sampling.text() + mixed).rstrip(".")
    next_step = {Status.PASS: None, Status.SKIPPED: "Give the target's weights or a reference bank: only then can samples be told to agree."}.get(
        status, "Look at the samples named here: two recordings may lie in one dump." if others else "Raise max_samples, or record samples that can be read.")
    return Finding(id="layers.sampling", question="Do enough samples of the dump say the same?", status=status, notebook=notebook, n=sampling.looked,
                   statement=text[0].upper() + text[1:] + ".", threshold=sampling.rate if sampling.ballots else None,
                   threshold_why="chance that the answer for any slot is not that of most samples; a rate ten times as high saves four samples" if sampling.ballots else None,
                   next_step=next_step)


class _Desk:
    """Samples taken up one by one, from the index or from the dump; rows pooled as far as the budget goes."""

    def __init__(self, info: DumpInfo, against: str, reach: int | None, vocab: int | None, problems: list[str]) -> None:
        self.info, self.against, self.reach, self.vocab, self.problems = info, against, reach, vocab, problems
        self.index = Index(info, f"{reach} {BUDGET_BYTES}")
        self.pool: list[Rows] = []
        self.voters: list[str] = []
        self.votes: list[tuple[Vote, ...]] = []
        self.mute: list[str] = []
        """Samples without token ids."""
        self.looked = self.read = self.left_out = self._held = 0

    def look(self, numbers: Iterable[int]) -> Iterator[tuple[int, str, Entry]]:
        """Number, state of the file, and rows or votes of every sample that can be read."""
        for number in numbers:
            try:
                stamp, entry = self._entry(number)
            except EvidenceError as error:
                self.problems.append(str(error))
                self.left_out += 1
                continue
            if entry.rows is not None and self._fits(entry.rows):
                self.pool.append(entry.rows)
                self._held += entry.rows.nbytes
            self.looked += 1
            if entry.rows is not None and entry.rows.tokens is None:
                self.mute.append(entry.sample)
            yield number, stamp, entry

    def settle(self) -> None:
        """Name the samples without token ids, where others have them: their rows have no place in any bank."""
        if len(self.mute) < self.looked:
            self.problems += [f"{name}: has no token ids, the others have. Its rows are left out: record it again, or remove it from the dump." for name in self.mute]
            self.pool = [rows for rows in self.pool if rows.tokens is not None]
            self.looked, self.left_out = self.looked - len(self.mute), self.left_out + len(self.mute)

    def _entry(self, number: int) -> tuple[str, Entry]:
        """State of the file, and what the index knows of it or what is read now. EvidenceError for a sample that cannot be used."""
        stamp, known = self.index.stamp(number), self.index.find(number)
        if known is not None and (known.rows is not None or self.against in known.votes):
            self._check(known)
            return stamp, known
        sample = read_sample(self.info, number)
        stamp = self.index.stamp(number)
        rows = cut(sample, reach=self.reach)
        if self.index.stamp(number) != stamp:
            raise EvidenceError(f"{sample.source}: was changed while it was read. Wait until the dump is written.")
        entry = Entry(rows, known.votes if known else {}, sample.sample_id, tuple(p.data.dtype for p in sample.planes))
        self._check(entry)
        self.read += 1
        self.index.keep(number, entry if self._fits(rows) else replace(entry, rows=None), stamp)
        return stamp, entry

    def _check(self, entry: Entry) -> None:
        if self.vocab is None or entry.rows is None or not entry.rows.texts:
            return
        odd = [int(i) for i in entry.rows.texts[0].aminmax() if not 0 <= i < self.vocab]
        if odd:
            raise EvidenceError(f"{entry.sample}: holds token {odd[-1]}, outside the target's vocabulary of {self.vocab}. It comes from another model or is damaged: "
                                "move it out of the dump.")

    def _fits(self, rows: Rows) -> bool:
        return not self.pool or self._held + rows.nbytes <= BUDGET_BYTES

    def vote(self, batch: Sequence[tuple[int, str, Entry]], bank_of: BankOf, weights: Weights, layers: int | None) -> None:
        """Count the votes of a batch; those of an earlier run hold as long as nothing they depend on changed."""
        new = [entry.rows for _, _, entry in batch if self.against not in entry.votes and entry.rows.tokens is not None]
        bank = bank_of(new) if new else None
        for number, stamp, entry in batch:
            votes = entry.votes.get(self.against)
            if votes is None and entry.rows.tokens is None:
                continue
            if votes is None:
                try:
                    table = match(Reference(bank, entry.rows, weights, layers))
                except ValueError as error:
                    self.problems.append(f"{entry.sample}: {error}")
                    continue
                votes = tuple(str(m.best) if m and m.clean else None for m in table.matches)
                kept = entry.rows if any(entry.rows is p for p in self.pool) else None
                self.index.keep(number, replace(entry, rows=kept, votes={**entry.votes, self.against: votes}), stamp)
            self.voters.append(entry.sample)
            self.votes.append(votes)


def _ballots(desk: _Desk, population: int, bound: float, exhausted: bool) -> Iterator[Ballot]:
    for slot, votes in enumerate(zip(*desk.votes, strict=True)):
        leading = Counter(votes).most_common(1)[0]
        evidence = float(stats.majority_evidence([v == leading[0] for v in votes], population)[-1])
        yield Ballot(slot, votes, evidence, evidence >= 1 / bound or (exhausted and leading[1] > len(votes) / 2))


def _further(desk: _Desk, population: int, bound: float, most: int) -> int | None:
    """Samples after which every slot can be settled at best; None if one cannot be within `most`, 0 if all are."""
    if not desk.votes:
        return max(0, min(most, LEAST) - desk.looked)
    wanted = [stats.draws_needed([v == b.leading for v in b.votes], population, bound, most - desk.looked)
              for b in _ballots(desk, population, bound, False)]
    return None if None in wanted else max(wanted)


def _why_not(desk: _Desk, ballots: Sequence[Ballot], population: int, bound: float, most: int) -> str | None:
    open_ = [b for b in ballots if not b.settled]
    if not ballots:
        return "no sample could be held against a bank, so how many are enough is not known"
    if not open_:
        return None
    needs = [stats.draws_needed([v == b.leading for v in b.votes], population, bound, population) for b in open_]
    further = "" if None in needs else f" {max(needs)} further samples that agree would settle it (max_samples is {most})."
    return "not settled: " + "; ".join(b.text() for b in open_) + "." + (further or " All samples do not make a majority certain.")
