"""The catalogue: every slug, complete, with rivals that exist."""

import pytest

from eagle_forensics.faults import catalogue, fault


def test_seventy_four_faults_in_eleven_groups():
    slugs = list(catalogue())
    assert len(slugs) == 74
    assert len({s.split(".")[0] for s in slugs}) == 11


@pytest.mark.parametrize("item", catalogue().values(), ids=lambda f: f.slug)
def test_an_entry_is_complete(item):
    for text in (item.title, item.looks_like, item.told_apart, item.remedy, item.refuted_if):
        assert len(text) > 6 and "*" not in text.replace(" * ", "").replace("steps*topk", "")
    assert item.seen_by and set(item.seen_by) <= {1, 2, 3, 4, 5}
    assert item.rival in catalogue() or " " in item.rival
    assert item.rival != item.slug


def test_an_unknown_slug_gets_a_suggestion():
    with pytest.raises(KeyError, match=r"wiring\.layer-offset"):
        fault("wiring.layer-ofset")
