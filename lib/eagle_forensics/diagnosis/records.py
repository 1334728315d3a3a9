"""What a diagnosis consists of. Every conclusion names the findings it rests on."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from eagle_forensics.finding import Competitor, Edit, Record, Verdict


class Conclusion(Record):
    """A sentence or paragraph, and what carries it."""

    text: str
    findings: tuple[str, ...] = ()
    """Ids of the findings it rests on."""


class Figure(Record):
    """A number with its interval; both ends None where none is known."""

    value: float
    low: float | None = None
    high: float | None = None

    def text(self, digits: int = 2) -> str:
        """`2.05 [1.98, 2.11]`."""
        ends = "" if self.low is None or self.high is None else f" [{self.low:.{digits}f}, {self.high:.{digits}f}]"
        return f"{self.value:.{digits}f}{ends}"


class Effect(Record):
    """What serving the trained states brings: accept length in tokens a round, speed in tokens/s."""

    steps: int | None
    """Draft steps it holds for; None for a setting whose prediction carries none (above temperature 0)."""
    accept_length_now: Figure
    """Measured where it was measured, else predicted for the states that are served."""
    measured: bool
    accept_length_after: Figure
    """Predicted for the trained states by the walk of notebook 02."""
    unexplained: Figure | None = None
    """Tokens a round by which the measured loss is larger than the served states explain; None without a measurement."""
    tokens_per_second_now: Figure | None = None
    tokens_per_second_after: Figure | None = None
    """Accept length after, over the measured time of a round."""
    break_even: Figure | None = None
    """Accept length at which speculation pays at the measured time of a round."""
    baseline_tokens_per_second: Figure | None = None
    wins: bool | None = None
    """Whether speculation then beats the baseline; None where the intervals do not decide, or nothing was timed."""
    findings: tuple[str, ...]

    @property
    def explained(self) -> bool:
        """Whether the served states explain the whole measured loss within the uncertainty: then nothing else is left to look for. False where that is not known."""
        return self.unexplained is not None and self.unexplained.low is not None and self.unexplained.low <= 0


class State(StrEnum):
    """State of one link. `undecided`: looked at, but the data do not decide."""

    HOLDS = "holds"
    BROKEN = "broken"
    UNDECIDED = "undecided"
    NOT_EXAMINED = "not examined"


class Link(Record):
    """One link of the chain from training data to served token."""

    name: str
    asks: str
    state: State
    because: str
    """Why it is in that state: the faults, the lines of evidence, or what is missing."""
    findings: tuple[str, ...]


class Decider(Record):
    """The observation that decides between two explanations, and one command that makes it."""

    suspicion: str
    rival: str
    observation: str
    restart: str = ""
    """How the server is started for it: `with --disable-cuda-graph`; empty where it stays as it is."""
    command: str
    source: str
    findings: tuple[str, ...]

    @property
    def text(self) -> str:
        """As one line: `Restart the server with --x, then: eagle-forensics run case.yaml --only 4`."""
        return f"Restart the server {self.restart}, then: {self.command}" if self.restart else self.command


class Suspicion(Record):
    """Something that the evidence points to and does not prove: no accusation."""

    slug: str
    title: str
    findings: tuple[Conclusion, ...]
    """What points to it."""


class Contradiction(Record):
    """Statements that cannot both be taken at their word."""

    name: str
    says: str
    holds: str
    """Which side holds, in words: `The tensors decide`."""
    why: str
    findings: tuple[str, ...]
    source: str


class Elimination(Record):
    """Offline against live, and what is left of the explanations."""

    cell: str
    """`good_low`: good offline, low live."""
    says: str
    findings: tuple[str, ...]
    remains: tuple[str, ...] = ()
    """Faults that nothing excludes."""
    on_paper: tuple[str, ...] = ()
    """Faults that only papers and the engine's rules exclude: possible if the server does not do what they say."""
    excluded: tuple[Conclusion, ...] = ()
    """Faults that a tensor, a behaviour or an argument excludes, each with the finding."""


class DiagnosedFault(Record):
    """One supported fault with everything that carries and limits it."""

    slug: str
    title: str
    plain: str
    """In one sentence, for a reader who was not there."""
    link: str
    """Which link of the chain is broken."""
    statement: str
    """The strongest finding's sentence."""
    findings: tuple[str, ...]
    """Ids of the findings that carry it, strongest first."""
    weight: int
    """Sum of the weights of the independent lines of evidence."""
    lines: tuple[Conclusion, ...]
    """The lines of evidence that carry it, strongest first."""
    competitor: Competitor | None
    refuted_by: str | None
    relations: tuple[Conclusion, ...] = ()
    """How other faults of this run bear on it."""
    spoiled_by: str | None = None
    """A gate whose failure makes this fault's figures meaningless."""
    remedy: str | None
    edits: tuple[Edit, ...]
    elsewhere: tuple[tuple[str, str], ...] = ()
    """(engine releases, the list of layer ids to write there)."""
    predicted_effect: str | None
    if_fixed: Conclusion
    """What would still be wrong if only this were fixed."""
    verify: str
    """The command to give after the fix: the whole suite, since a second fault may show only now."""
    see: tuple[str, ...]
    """What it must show then."""


class Diagnosis(Record):
    """The opening of the post-mortem."""

    verdict: Verdict
    headline: str
    """One sentence with the strongest finding."""
    story: tuple[Conclusion, ...] = Field(min_length=1)
    """The first paragraph is for a tired reader; the others are proof, rival, fix and what remains."""
    chain: tuple[Link, ...]
    faults: tuple[DiagnosedFault, ...]
    """Supported faults: gates first, then causes before consequences, then by weight."""
    suspicions: tuple[Suspicion, ...]
    effect: Effect | None
    contradictions: tuple[Contradiction, ...]
    elimination: Elimination | None
    deciders: tuple[Decider, ...]
    next_steps: tuple[str, ...]
    not_examined: tuple[Conclusion, ...]
    """Questions without evidence, and what would answer them."""
