"""The catalogue: every slug, complete, with rivals that exist."""

from pathlib import Path

import pytest

from eagle_forensics.faults import catalogue, fault
from eagle_forensics.suite.fault_pages import catalogue_markdown, fault_text


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


def test_the_page_in_the_docs_is_the_catalogue():
    page = Path(__file__).resolve().parents[1] / "docs" / "faults.md"
    assert page.read_text() == catalogue_markdown(), "make it again: eagle-forensics faults --markdown > docs/faults.md"
    assert page.read_text().count("\n### ") == len(catalogue())


def test_one_fault_as_text():
    text = fault_text("wiring.layer-offset")
    assert text.startswith("wiring.layer-offset\n") and "Against its rival `feature.partial-sum`" in text and "03 Layer matching" in text
    assert len(fault_text(None).splitlines()) == len(catalogue())
    with pytest.raises(ValueError, match=r"did you mean 'wiring\.layer-offset'"):
        fault_text("wiring.layer-ofset")
