"""`init`: what it writes, what it refuses, and that it never writes through a link."""

import pytest
import yaml

from eagle_forensics.case import CaseError, load_case
from eagle_forensics.evidence.records import EvidenceError
from eagle_forensics.suite.initial import write_case
from tests.config.papers import papers


def test_a_link_that_points_outside_is_not_followed(tmp_path):
    folder, outside = tmp_path / "case", tmp_path / "outside.yaml"
    folder.mkdir()
    (folder / "case.yaml").symlink_to(outside)
    with pytest.raises(CaseError, match="exists; nothing was written"):
        write_case(folder)
    assert not outside.exists()


def test_a_linked_drafter_keeps_its_name_in_the_case(tmp_path):
    papers(tmp_path / "store")
    (tmp_path / "case").mkdir()
    (tmp_path / "case" / "drafter").symlink_to(tmp_path / "store" / "drafter")
    write_case(tmp_path / "case", drafter=tmp_path / "case" / "drafter")
    assert yaml.safe_load((tmp_path / "case" / "case.yaml").read_text())["drafter"] == {"path": "drafter"}
    assert not load_case(tmp_path / "case").missing_evidence()


@pytest.mark.parametrize("option", ["drafter", "target", "dump"])
def test_a_wrong_place_is_named_by_its_option(tmp_path, option):
    with pytest.raises(EvidenceError) as caught:
        write_case(tmp_path / "case", **{option: tmp_path / "nowhere"})
    assert str(caught.value).startswith(f"--{option}: {tmp_path / 'nowhere'}") and "in the case" not in str(caught.value)
    assert not (tmp_path / "case").exists()
