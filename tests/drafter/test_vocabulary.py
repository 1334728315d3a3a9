"""A draft vocabulary without its map: what it accepts as it stands, and what a learnt map says about the rest."""

from dataclasses import replace

import torch

from eagle_forensics.drafter.vocabulary import map_finding, try_map
from eagle_forensics.drafter.wirings.wiring import Wiring, evaluate
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


def test_without_two_texts_nobody_is_accused():
    """A head that is shorter than the embedding by its padding needs no map, and the inventory alone does not tell it from one that does."""
    one = evaluate(bare(), planted(TRUTH)[:1], TRUTH, 2)
    assert map_finding(bare(), None).status is map_finding(bare(), one).status is Status.INCONCLUSIVE


def test_a_padded_embedding_is_no_missing_map():
    full = weights(44, draft_vocab=11)
    padded = drafter(full | {"embed_tokens.weight": torch.cat([full["embed_tokens.weight"], full["embed_tokens.weight"][:5]])})
    found = map_finding(padded, evaluate(padded, planted(TRUTH, padded), TRUTH, 2))
    assert found.status is Status.PASS and found.fault is None and "holds 11 of 16 tokens" in found.statement


def test_a_map_or_a_full_head_is_no_fault():
    assert map_finding(MODEL, None).status is Status.PASS
    full = drafter(weights(3, draft_vocab=11))
    assert map_finding(full, None).status is Status.SKIPPED
