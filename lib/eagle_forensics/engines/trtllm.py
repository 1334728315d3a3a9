"""TensorRT-LLM: which boundaries `eagle3_layers_to_capture` names. Read in excerpts only, so every answer is an assumption.

The option is a set: sorted, order lost. Id i is the output of layer i (b = i + 1); -1 is the last layer *after* the final norm,
moved to the end by the two-model implementation and by the recorder. Source: TensorRT-LLM EagleDecodingConfig.eagle3_layers_to_capture,
SaveHiddenStatesDecodingConfig, _torch/speculative/eagle3.py Eagle3SpecMetadata and Eagle3OneModelSpecMetadata.
"""

from __future__ import annotations

from collections.abc import Sequence

from eagle_forensics.engines.answers import Capture, WriteAnswer
from eagle_forensics.evidence.records import ClaimedIds

ENGINE = "trtllm"
KEY = "eagle3_layers_to_capture"
SOURCE = "TensorRT-LLM EagleDecodingConfig.eagle3_layers_to_capture (excerpts; releases are not told apart)"


def releases() -> tuple[str, ...]:
    """One nominal release: its versions are not told apart."""
    return ("1.0",)


def capture(version: str, *, layers: int, claimed: ClaimedIds) -> Capture:
    """What TensorRT-LLM captures for these ids: post-layer, sorted, -1 last and after the final norm."""
    notes = [f"TensorRT-LLM was read in excerpts; its rule is assumed for {version}"]
    ids = claimed.nested if claimed.nested is not None else claimed.top_level
    read_from = "argument" if ids is not None else "default"
    both = dict.fromkeys(("eager", "graph"))
    if ids is None:
        if layers <= 5:
            error = "ValueError: Not enough hidden layers for default EAGLE3 capture"
            return Capture(version, read_from, both, both, both, error, tuple(notes), (SOURCE,), True)
        ids = (1, layers // 2 - 1, layers - 4)
    else:
        notes.append("the ids are taken as eagle3_layers_to_capture; the draft's config is not searched for them in the code that was read")
    bad = next((item for item in ids if isinstance(item, bool) or not isinstance(item, int)), None)
    if bad is not None:
        return Capture(version, read_from, both, both, both, f"layer ids must be integers; got {bad!r}", tuple(notes), (SOURCE,), True)
    if list(ids) != sorted(set(ids)):
        notes.append("the option is a set: duplicates collapse and the order is lost")
    values = tuple(sorted({i + 1 for i in ids if i != -1})) + ((layers,) if -1 in ids else ())
    post_norm = (layers,) if -1 in ids else ()
    if post_norm:
        notes.append(f"-1 is the last layer: plane b={layers} is taken after the final norm and stands last; the one-model implementation does "
                     "not move it, its order there is not verified")
    outside = [v - 1 for v in values if not 1 <= v <= layers]
    error = f"ids {outside} are outside 0..{layers - 1} (and not -1)" if outside else None
    paths = dict.fromkeys(("eager", "graph"), values)
    return Capture(version, read_from, paths, both if error else paths, both if error else paths, error, tuple(notes), (SOURCE,), True,
                   post_norm=post_norm)


def write(*, boundaries: Sequence[int]) -> WriteAnswer:
    """The set of ids that captures `boundaries`; the embedding cannot be asked for."""
    if 0 in boundaries:
        return WriteAnswer(None, KEY, error="TensorRT-LLM cannot capture the embedding: id -1 means the last layer")
    return WriteAnswer(tuple(sorted(b - 1 for b in boundaries)), KEY)
