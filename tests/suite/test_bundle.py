"""Bundles: a run mailed and opened elsewhere; hostile archives; the post-mortem as Markdown."""

import json
import shutil
import stat
import zipfile

import pytest

from eagle_forensics.finding import Edit
from eagle_forensics.suite.bundle import bundle_text, opened, write_bundle
from eagle_forensics.suite.markdown import markdown
from eagle_forensics.suite.runfolder import RunFolderError
from eagle_forensics.suite.show_run import show_run
from tests.suite import tiny


def test_a_bundle_shows_elsewhere_and_names_what_it_left_out(tmp_path):
    run = tiny.finished(tmp_path / "runs" / "one", tiny.finding(status="fail", statement="The states are one layer early."))
    (run / "evidence").mkdir(exist_ok=True)
    (run / "evidence" / "03_small.csv").write_text("a,b\n1,2\n")
    (run / "evidence" / "03_large.bin").write_bytes(bytes(range(256)) * 8000)
    (run / "evidence" / "03_link.bin").symlink_to("/etc/hostname")
    said = bundle_text(run, tmp_path / "out" / "one.zip", most_mb=1.0)
    assert "left out: evidence/03_large.bin (2.0 MB)" in said and "evidence/03_link" not in said
    shutil.rmtree(run)
    assert "one layer early" in show_run(tmp_path / "out" / "one.zip")
    with opened(tmp_path / "out" / "one.zip") as folder:
        assert (folder.path / "evidence" / "03_small.csv").read_text() == "a,b\n1,2\n"
        left = json.loads((folder.path / "left_out.json").read_text())
        assert [r["file"] for r in left] == ["evidence/03_large.bin"] and left[0]["bytes"] == 2048000
        assert (folder.path / "post_mortem.html").is_file() and not (folder.path / "evidence" / "03_link.bin").exists()


def test_what_cannot_be_bundled_is_said(tmp_path):
    run = tiny.finished(tmp_path / "one")
    with pytest.raises(RunFolderError, match="larger than"):
        write_bundle(run, tmp_path / "x.zip", most_mb=0.001)
    with pytest.raises(RunFolderError, match="in the run folder itself"):
        write_bundle(run, run / "x.zip")
    (run / "findings.json").unlink()
    with pytest.raises(RunFolderError, match="not finished"):
        write_bundle(run)
    assert not (tmp_path / "x.zip").exists()


def _entry(name, mode=None):
    info = zipfile.ZipInfo(name)
    if mode:
        info.external_attr = mode << 16
    return info


@pytest.mark.parametrize("entries", [
    [("../evil", b"x")], [("/abs/evil", b"x")], [("a/../../evil", b"x")], [("a\\..\\evil", b"x")], [("a/x", b"x"), ("b/x", b"x")],
    [(_entry("a/link", stat.S_IFLNK | 0o777), b"/etc")], [], [("a/bomb", b"\0" * 501_000_000)],
])
def test_a_hostile_archive_writes_nothing(tmp_path, entries):
    bad = tmp_path / "bad.zip"
    with zipfile.ZipFile(bad, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, data in entries:
            archive.writestr(name, data)
    with pytest.raises(RunFolderError, match=r"no bundle|unpacks to more|no manifest"), opened(bad):
        raise AssertionError("was opened")
    assert [p.name for p in tmp_path.iterdir()] == ["bad.zip"]


def test_a_damaged_archive_and_another_file_are_named(tmp_path):
    run = tiny.finished(tmp_path / "one")
    target, _ = write_bundle(run)
    data = bytearray(target.read_bytes())
    data[60:80] = b"\xff" * 20
    target.write_bytes(data)
    with pytest.raises(RunFolderError, match=r"cannot be unpacked|no bundle"):
        show_run(target)
    (tmp_path / "text.zip").write_text("hello")
    with pytest.raises(RunFolderError, match="no run folder"):
        show_run(tmp_path / "text.zip")


def test_the_markdown_carries_verdict_fix_and_findings_and_no_markup_of_the_evidence(tmp_path):
    hostile = "<img src=x onerror=alert(1)> [click](http://evil) @everyone | `cell` \x1b[31m#1 a*b*"
    fix = Edit(file="drafter/config.json", key="eagle_config.ids", value=[1, 14, 26], applies_to="sglang 0.5.23")
    run = tiny.finished(tmp_path / "one", tiny.finding(status="fail", statement=hostile, edits=(fix,), remedy="Write the ids."), name="tiny")
    text = (run / "post_mortem.md").read_text()
    assert text == markdown(json.loads((run / "findings.json").read_text()), text.rsplit("    ", 1)[1].strip())
    assert text.startswith("## ✗ FAIL: ") and "| `drafter/config.json` | `eagle_config.ids` | `[1, 14, 26]` | sglang 0.5.23 |" in text
    assert "<img" not in text.replace("\\<img", "") and "](http" not in text.replace("\\](http", "") and "@everyone" not in text and "\x1b" not in text
    rows = [line for line in text.splitlines() if line.startswith("| fail |")]
    assert len(rows) == 1 and rows[0].replace("\\|", "").count("|") == 4
