"""Ways in which engines are known to compute a draft layer otherwise than its training did.

Residuals dropped and norms left out: vLLM #6830, #9565, #11672, #14464 (a dummy norm handed on the hidden state in place of hidden
state + residual: accepted 1.4 for 1.8 of 2; 0.308 for 0.619 of 1). Layers above the first: engines that read one alone, or ignore
the upper ones' residual.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from eagle_forensics.drafter.network.model import Drafter, Layer


@dataclass(frozen=True)
class Form:
    """One way to compute the layers."""

    fault: str
    change: Callable[[Layer], Layer]
    upper: bool = False
    """It changes the layers above the first alone."""


RESIDUAL, EXTRA = "drafter.residual", "drafter.extra-layers"
FIRST_ALONE = "the first draft layer alone"
FORMS = {
    "the MLP's output without the residual": Form(RESIDUAL, lambda layer: replace(layer, mlp_residual=False)),
    "the attention's output without the residual": Form(RESIDUAL, lambda layer: replace(layer, attention_residual=False)),
    "both outputs without the residual": Form(RESIDUAL, lambda layer: replace(layer, attention_residual=False, mlp_residual=False)),
    "the hidden state not normed": Form(RESIDUAL, lambda layer: replace(layer, hidden_norm=None)),
    "the embedding not normed": Form(RESIDUAL, lambda layer: replace(layer, embedding_norm=None)),
    "the upper draft layers without the residual": Form(EXTRA, lambda layer: replace(layer, attention_residual=False, mlp_residual=False), upper=True),
}
FAULTS = {name: form.fault for name, form in FORMS.items()} | {FIRST_ALONE: EXTRA}
"""Name of a form -> fault of an engine that computes so."""


def layer_forms(drafter: Drafter) -> tuple[str, ...]:
    """Names of the forms that differ from the reference for this drafter."""
    several = len(drafter.layers) > 1
    return (*(name for name, form in FORMS.items() if several or not form.upper), *([FIRST_ALONE] * several))


def computed(drafter: Drafter, name: str) -> Drafter:
    """The drafter computed in this form; KeyError for a name that is none."""
    if name == FIRST_ALONE:
        return replace(drafter, layers=drafter.layers[:1])
    form = FORMS[name]
    return replace(drafter, layers=tuple(form.change(layer) if bool(index) >= form.upper else layer for index, layer in enumerate(drafter.layers)))
