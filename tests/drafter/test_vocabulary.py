"""A draft vocabulary without its map: what it accepts as it stands, and what a learnt map says about the rest."""

from dataclasses import replace

import torch

from eagle_forensics.drafter.vocabulary import lacks_map, map_finding, try_map
from eagle_forensics.drafter.wiring import Wiring, evaluate
from eagle_forensics.finding import Status
from tests.drafter.planted import MODEL, TRAINED, planted
from tests.drafter.tiny import drafter, weights

TRUTH = Wiring(TRAINED)


def bare():
    """The planted drafter without its d2t: 7 draft ids of 11 tokens."""
    return replace(MODEL, d2t=None)


def test_a_missing_map_is_named_and_a_learnt_one_brings_the_drafts_back():
    read = evaluate(bare(), planted(TRUTH), TRUTH, 2)
    whole = evaluate(MODEL, planted(TRUTH), TRUTH, 2)
    found, trial = map_finding(bare(), read), try_map(read)
    assert lacks_map(bare()) and not lacks_map(MODEL)
    assert (found.status, found.fault) == (Status.FAIL, "vocab.map-missing") and "tokens a round" in found.statement
    assert trial.gain.low > 0 and abs(trial.learnt.value - whole.accuracy(0).value) < 0.1
    assert read.accept_length().value < whole.accept_length().value


def test_bad_states_are_not_mended_by_a_map():
    """Text that no wiring explains: the map is missing, but nothing says that it is all that is missing."""
    noise = tuple(item.with_planes({n: torch.randn(p.shape, generator=torch.Generator().manual_seed(i), dtype=p.dtype) for i, (n, p) in enumerate(item.planes.items())})
                  for item in planted(TRUTH))
    shuffled = tuple(replace(item, input_ids=torch.randint(0, 11, item.input_ids.shape, generator=torch.Generator().manual_seed(100 + i))) for i, item in enumerate(noise))
    found = map_finding(bare(), evaluate(bare(), shuffled, TRUTH, 2))
    assert (found.status, found.fault) == (Status.INCONCLUSIVE, "vocab.map-missing")


def test_the_inventory_alone_decides_without_text():
    assert map_finding(bare(), None).status is Status.FAIL


def test_a_map_or_a_full_head_is_no_fault():
    assert map_finding(MODEL, None).status is Status.PASS
    full = drafter(weights(3, draft_vocab=11))
    assert map_finding(full, None).status is Status.SKIPPED
