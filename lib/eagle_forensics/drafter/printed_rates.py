"""Which definition printed rates follow, from the rates r_1..r_k and the accept length beside them alone.

    survival      AL = 1 + sum r_i
    conditional   AL = 1 + sum of running products
    no bonus      AL + 1 = either of them: the printed length leaves out the target's own token
    draft rate    a single rate r = (AL - 1) / drafted tokens
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eagle_forensics.drafter.metric import named
from eagle_forensics.engines.metrics import accept_length_from_conditional, accept_length_from_survival
from eagle_forensics.finding import Evidence, Finding, Status

TOLERANCE = 0.03
"""Accept length by which a card's figures may miss their own definition: rates and lengths are often averaged over different requests.
Of the published Kimi-K2.6 cards the right reading misses by .001 and 0, the other one by .34 and .35."""


@dataclass(frozen=True)
class RateReading:
    """Printed rates under every definition."""

    implied: Mapping[str, float]
    """Definition -> the accept length that the rates would mean."""
    accept_length: float
    fits: tuple[str, ...]
    """Definitions within TOLERANCE of the printed accept length, nearest first."""
    equivalent: bool
    """All that fit say the same about these rates (one step: survival and conditional coincide)."""

    @property
    def definition(self) -> str | None:
        """The one that fits; None if none or several fit."""
        return self.fits[0] if len(self.fits) == 1 else None

    @property
    def text(self) -> str:
        figures = ", ".join(f"{name} {value:.3f}" for name, value in self.implied.items())
        if self.definition:
            return f"The rates are {self.definition} rates: only so read they give the printed accept length {self.accept_length:g} ({figures})."
        if not self.fits:
            return f"No known definition gives the printed accept length {self.accept_length:g} ({figures}): rates and length are of different runs, or another definition."
        return f"{' and '.join(self.fits)} both give the printed accept length {self.accept_length:g} ({figures}): these figures cannot tell them apart."


def read_rates(rates: Sequence[float], accept_length: float, *, drafted: int | None = None) -> RateReading:
    """The definitions under which `rates` (shares, not percent) give `accept_length`. `drafted`: draft tokens a round, for a single rate.

    ValueError for no rate, a rate outside 0..1, or a negative length.
    """
    if not rates or any(not 0 <= r <= 1 for r in rates):
        raise ValueError(f"rates are {list(rates)}; expected at least one share from 0 to 1 (divide percentages by 100)")
    if not accept_length >= 0:
        raise ValueError(f"accept length is {accept_length}; expected at least 0")
    survival, conditional = accept_length_from_survival(rates), accept_length_from_conditional(rates)
    implied = {"conditional": conditional, "conditional, no bonus": conditional - 1}
    if all(later <= earlier for earlier, later in itertools.pairwise(rates)):  # survival never rises
        implied = {"survival": survival, "survival, no bonus": survival - 1} | implied
    if len(rates) == 1 and drafted:
        implied["draft rate"] = 1 + rates[0] * drafted
    near = sorted((abs(v - accept_length), name) for name, v in implied.items() if abs(v - accept_length) <= TOLERANCE + 1e-9)
    fits = tuple(name for _, name in near)
    return RateReading(implied, accept_length, fits, len(fits) > 1 and len({round(implied[n], 9) for n in fits}) == 1)


def printed_finding(logged: Mapping[str, float], *, trainer: str | None = None) -> Finding | None:
    """`drafter.printed-rates`: do logged rates of steps 0..k and a logged accept length fit the definition of the rates' name?

    None where the log holds no accept length beside rates of all its steps. It needs neither weights nor a dump.
    """
    known = {name: n for name in logged if (n := named(name, trainer)) is not None}
    lengths = [name for name, n in known.items() if n.step is None and n.definition.count == "walk"]
    series: dict[str, dict[int, float]] = {}
    for name, n in known.items():
        if n.step is not None:
            series.setdefault(n.definition.count, {})[n.step] = logged[name] / 100 if logged[name] > 1 else logged[name]
    for count, rates in series.items():
        ordered = [rates[k] for k in range(len(rates)) if k in rates]
        if not lengths or len(ordered) < len(rates) or len(rates) < 2 or not all(0 <= r <= 1 for r in ordered):
            continue
        reading = read_rates(ordered, logged[lengths[0]])
        common = {"id": "drafter.printed-rates", "question": "Do the logged rates and the logged accept length mean the same?", "notebook": "02_drafter_accuracy",
                  "required": False, "observed": logged[lengths[0]], "expected": {name: round(v, 4) for name, v in reading.implied.items()}, "unit": "tokens per verify round",
                  "evidence": tuple(Evidence(note=f"{name} = {logged[name]:g}: {n.source}", source=n.source) for name, n in known.items())}
        if reading.definition is None or reading.definition.startswith(count):
            return Finding(**common, status=Status.PASS if reading.definition else Status.INCONCLUSIVE, statement=reading.text,
                           next_step=None if reading.definition else "print the rates and the accept length of the same requests")
        return Finding(**common, status=Status.INCONCLUSIVE, fault="data.metric-definition", statement=f"{reading.text} Their name stands for {count} rates.",
                       next_step=f"read in the trainer's source whether {', '.join(n for n in known if n not in lengths)} are {count} rates")
    return None
