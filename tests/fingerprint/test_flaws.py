"""What is wrong with a capture itself: damaged forms and lost rows are named, what training shows as well or chance explains is not."""

from __future__ import annotations

import pytest
import torch

from eagle_forensics.finding import Status
from eagle_forensics.fingerprint.findings import norm_state_finding, slot_findings
from eagle_forensics.fingerprint.flaws import flaw_findings
from eagle_forensics.fingerprint.identify import identify
from eagle_forensics.fingerprint.pages import empty_rows
from eagle_forensics.fingerprint.trained import Rule, capture_finding

from .tiny import LAYERS, TinyBank, TinyTarget, samples, sequences

TRAINED = (1, 3, 5)
TARGET = TinyTarget()
IDS = sequences(3, length=150)


def at(ids, *boundaries):
    return [TARGET.run(ids)[0][b].clone() for b in boundaries]


def lost(value, *spans):
    def planes(ids):
        x = at(ids, *TRAINED)
        for start, stop in spans:
            x[1][start:stop] = value
        return x

    return planes


CHUNKS = sequences(1, length=3400)


def look(planes):
    found = samples(lambda ids: [p.bfloat16() for p in planes(ids)], IDS)
    return found, identify(found, bank=TinyBank(TARGET, IDS), weights=TARGET.weights(), layers=LAYERS)


def flaws(planes, dump=None, trained=TRAINED, **more):
    held, capture = look(planes)
    return flaw_findings(0, capture, held, look(dump or (lambda ids: [*at(ids, *TRAINED), at(ids, LAYERS)[0]]))[1], trained, **more)


def one_normed(ids):
    a, b, c = at(ids, *TRAINED)
    return [a, TARGET.final(b), c]


@pytest.mark.parametrize("planes, status, fault", [
    (one_normed, Status.FAIL, "feature.norm-state"),
    (lambda ids: [2 * x for x in at(ids, *TRAINED)], Status.FAIL, "feature.partial-sum"),
    (lambda ids: [x[:, :16] for x in at(ids, *TRAINED)], Status.FAIL, "feature.tp-slice"),
    (lambda ids: [torch.zeros_like(x) if i == 0 else x for i, x in enumerate(at(ids, *TRAINED))], Status.FAIL, "feature.missing-stage"),
    (lambda ids: at(ids, 1, 5, 5), Status.FAIL, "feature.aliased-buffer"),
    (lost(float("nan"), (40, 42)), Status.FAIL, "feature.non-finite"),
    (lost(0.0, (32, 64), (96, 112)), Status.FAIL, "runtime.page-units"),
    (lost(0.5, (32, 64), (96, 112)), Status.FAIL, "runtime.page-units"),
    (lost(0.0, (33, 65), (96, 112)), Status.INCONCLUSIVE, None),
    (lost(0.0, (32, 64)), Status.INCONCLUSIVE, None),
    (lambda ids: [x.roll(1, 0) for x in at(ids, *TRAINED)], Status.INCONCLUSIVE, "data.hidden-shift"),
])
def test_a_flaw_is_named_with_its_rival(planes, status, fault):
    finding, = flaws(planes)
    assert (finding.status, finding.fault) == (status, fault), finding.statement
    assert finding.competitor is None or finding.competitor.fault != fault


@pytest.mark.parametrize("planes", [lambda ids: at(ids, *TRAINED), lost(0.0, (140, 160)), lost(0.0, (0, 32)), lambda ids: at(ids, 0, 2, 4)], ids=["sound", "padding", "cached prefix", "other layers"])
def test_sound_states_of_any_layers_have_no_flaw(planes):
    assert flaws(planes) == []


def test_what_training_shows_as_well_is_no_difference_to_serving():
    assert flaws(one_normed, dump=lambda ids: [*one_normed(ids), at(ids, LAYERS)[0]]) == []


def test_equal_slots_are_right_where_training_had_them_equal_and_unknown_without_training():
    twice = lambda ids: at(ids, 1, 5, 5)  # noqa: E731
    assert flaws(twice, trained=(1, 5, 5)) == [] and flaws(twice, trained=None) == []


def test_rows_that_other_ranks_hold_are_not_lost():
    assert flaws(lambda ids: [x * (torch.arange(len(ids)) % 2 == 0)[:, None] for x in at(ids, *TRAINED)], scattered=True) == []


def test_a_last_state_after_the_norm_where_training_had_it_before():
    finding, = flaws(lambda ids: [*at(ids, 1, 3), TARGET.final(at(ids, LAYERS)[0])], trained=(1, 3, LAYERS))
    assert (finding.status, finding.fault, finding.competitor.fault) == (Status.FAIL, "feature.norm-state", "data.norm-twice")


def test_runs_of_empty_rows_are_counted_once_for_all_slots_and_the_chance_is_said():
    rows = empty_rows(samples(lambda ids: [torch.cat([x[:16], x[16:32] * 0, x[32:48], x[48:64] * 0, x[64:]]) for x in at(ids, *TRAINED)], IDS))
    assert (rows.inside, rows.page, rows.runs) == (3 * 3 * 32, 16, 2) and rows.chance == 16.0**-4


def emptied(*spans):
    states = torch.randn(4, 3400, 8, generator=torch.Generator().manual_seed(5))
    for start, stop in spans:
        states[1, start:stop] = 0
    return samples(lambda ids: list(states), CHUNKS)


@pytest.mark.parametrize("spans, page", [
    (((512, 1024), (1536, 2048)), None), (((1024, 2048), (3072, 3328)), None), (((576, 1152), (1728, 2304)), None), (((256, 512), (1024, 1280)), None),
    (((128, 256), (640, 1280)), 128), (((64, 640), (704, 768)), 64)],
    ids=["chunks of 512", "multiples of 256", "chunks that begin on multiples of 64", "no page is 256", "pages of 128", "pages of 64"])
def test_runs_as_long_as_a_chunk_of_a_prefill_are_no_pages(spans, page):
    assert (found := empty_rows(emptied(*spans))).page == page and found.chunks is (page is None)


def test_lost_chunks_of_a_prefill_are_named_and_accuse_nobody():
    held = samples(lambda ids: [p.bfloat16() for p in lost(0.0, (512, 1024), (1536, 2048))(ids)], CHUNKS)
    capture = identify(held, bank=TinyBank(TARGET, CHUNKS), weights=TARGET.weights(), layers=LAYERS)
    finding, = flaw_findings(0, capture, held, look(lambda ids: [*at(ids, *TRAINED), at(ids, LAYERS)[0]])[1], TRAINED)
    assert (finding.status, finding.fault) == (Status.INCONCLUSIVE, "runtime.page-units") and "chunked prefill" in finding.statement and finding.next_step


@pytest.mark.parametrize("rule, served, fault", [
    (TRAINED, (2, 3, 6), "feature.aliased-buffer"), (None, (2, 3, 6), "wiring.layer-offset"), ((0, 2, 4), (2, 3, 6), "wiring.layer-offset"),
    (TRAINED, (2, 4, 6), "wiring.layer-offset"), (TRAINED, (0, 3, 6), "wiring.layer-offset")])
def test_planes_moved_later_by_different_numbers_against_the_rule_were_overwritten(rule, served, fault):
    capture = identify(samples(lambda ids: at(ids, *served), IDS), bank=TinyBank(TARGET, IDS), weights=TARGET.weights(), layers=7)  # b=6 is an inner state of it
    finding = capture_finding(0, capture, TRAINED, path_kind="eager", rule=rule and Rule(rule, (2, 3, 4)))
    assert (finding.status, finding.fault) == (Status.FAIL, fault), finding.statement


def test_a_dump_of_every_module_is_no_capture_of_what_the_drafter_reads():
    every = [*range(LAYERS + 1)]
    named = [f"model.layers.{b}.input_layernorm[1]" for b in every]
    found = {labels is None: identify(samples(lambda ids: at(ids, *every), IDS, labels), bank=TinyBank(TARGET, IDS), weights=TARGET.weights(), layers=LAYERS) for labels in (None, tuple(named))}
    status = {bare: capture_finding(0, seen, TRAINED, path_kind="eager").status for bare, seen in found.items()}
    assert status == {True: Status.INCONCLUSIVE, False: Status.SKIPPED}


def test_a_plane_of_zeros_names_another_fault_as_its_rival():
    finding = slot_findings(look(lambda ids: [torch.zeros_like(at(ids, 1)[0]), *at(ids, 3, 5)])[1])[0]
    assert (finding.fault, finding.competitor.fault) == ("feature.missing-stage", "wiring.plane-count")


@pytest.mark.parametrize("asked, status", [(4, Status.FAIL), (3, Status.INCONCLUSIVE), (None, Status.INCONCLUSIVE)])
def test_a_listed_layer_without_a_plane_is_missing(asked, status):
    finding = norm_state_finding(look(lambda ids: at(ids, *TRAINED))[1], "pre", "speculators 0.4.0", 3, asked)
    assert (finding.status, finding.fault) == (status, "wiring.plane-count"), finding.statement
