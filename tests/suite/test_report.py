"""The post-mortem: one file, nothing loaded, nothing run, everything escaped, readable without colours and pictures."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from itertools import pairwise

import nbformat
import pytest

from eagle_forensics import show
from eagle_forensics.finding import Edit
from eagle_forensics.suite.report import post_mortem
from eagle_forensics.suite.runfolder import RunFolderError, open_folder
from tests.suite import tiny

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>"
PIXEL = base64.b64encode(b"\x89PNG\r\n").decode()
out = nbformat.v4.new_output


class Page(HTMLParser):
    """Tags with their attributes, and the text of scripts."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts, self._in_script = [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._in_script = tag == "script"

    def handle_endtag(self, tag):
        self._in_script = False

    def handle_data(self, data):
        if self._in_script:
            self.scripts.append(data)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run full of hostile text."""
    figure = f'<figure class="ef-figure" id="twice"><img alt="A heatmap" src="data:image/png;base64,{PIXEL}"><figcaption>c</figcaption></figure>'
    node = tiny.executed(
        out("display_data", {"text/html": figure, "image/png": PIXEL, "text/plain": "A heatmap"}),
        out("display_data", {"text/html": EVIL + '<a href="https://x.example/a">go</a><div style="background:url(https://x.example/b)" id="twice">d</div>'
                             "<svg onload=alert(3)></svg><iframe src=//x.example></iframe>"}),
        out("display_data", {"image/png": PIXEL, "text/plain": "Figure " + EVIL}),
        out("display_data", {"application/javascript": "alert(4)", "text/plain": "js"}),
        out("display_data", {"image/svg+xml": "<svg><script>alert(5)</script></svg>", "text/plain": "svg"}),
        out("display_data", {"application/vnd.jupyter.widget-view+json": {"model_id": "1"}, "text/plain": "widget-text"}),
        out("execute_result", {"text/plain": "'evidence/03_match.json'"}),
        out("stream", name="stdout", text="0/50\r50/50 " + EVIL + "\x1b[31m red\x1b[0m\n"),
        out("error", ename="ValueError", evalue=EVIL, traceback=["\x1b[31mTraceback\x1b[0m " + EVIL]),
        markdown=f"# Title {EVIL}\n\n$K+1$ and [docs](https://x.example/docs) and [next](04_accept_length.ipynb)\n\n## Part\n\n## Part\n\n`$HOME`",
        source="secret_source()")
    node.cells.append(nbformat.v4.new_code_cell("hidden_source()", metadata={"tags": ["hide-input"]}, id="h", outputs=[out("stream", name="stdout", text="kept")]))
    node.cells.append(nbformat.v4.new_code_cell("skipped_source()", metadata={"tags": ["skip-execution"]}, id="s"))
    return tiny.finished(
        tmp_path_factory.mktemp("runs") / "r",
        tiny.finding("layers.slot-0", "fail", statement="Slot 0 is " + EVIL, observed=EVIL, remedy="Relabel `planes`.",
                     edits=(Edit(file="config.json", key="a.b", value=[1, 14, 26], applies_to="sglang 0.5.23"),)),
        tiny.finding("layers.slot-1", "skipped", statement="Not examined for want of a dump."), tiny.finding("layers.slot-2"),
        node=node, overrides={"drafter.path": EVIL})


@pytest.fixture(scope="module")
def text(run):
    return (run / "post_mortem.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


def test_nothing_is_loaded_from_anywhere(text, page):
    outside = [(t, n, v) for t, attrs in page.tags for n, v in attrs.items() if n in ("src", "href", "srcset", "action", "data", "poster")
               and not (v or "").startswith(("#", "data:image/"))]
    assert not outside
    assert "@import" not in text and not re.search(r"url\(", text)
    assert not {t for t, _ in page.tags} & {"iframe", "object", "embed", "link", "base", "form", "svg", "video", "audio"}


def test_the_policy_allows_our_script_and_no_other(page):
    policy = next(a["content"] for t, a in page.tags if t == "meta" and a.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy and "'unsafe-inline'" not in policy.split("script-src")[1]
    assert len(page.scripts) == 1
    digest = base64.b64encode(hashlib.sha256(page.scripts[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy


def test_no_evidence_text_becomes_markup(text, page):
    assert sum(t == "script" for t, _ in page.tags) == 1 and "<script>alert" not in text
    assert not [(t, n) for t, attrs in page.tags for n in attrs if n.startswith("on")]
    assert "alert(4)" not in text and "alert(5)" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text, "shown as text instead"


def test_pictures_ids_and_headings(page):
    pictures = [a for t, a in page.tags if t == "img"]
    assert len(pictures) >= 2 and all(p.get("alt") for p in pictures) and all(p["src"].startswith("data:image/") for p in pictures if "src" in p)
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))
    targets = {a["href"][1:] for t, a in page.tags if t == "a" and a.get("href", "").startswith("#")}
    assert targets - {"nb04"} <= set(ids), "every link has its target"
    levels = [int(t[1]) for t, _ in page.tags if re.fullmatch("h[1-6]", t)]
    assert levels.count(1) == 1 and all(b - a <= 1 for a, b in pairwise(levels))
    assert all(a.get("scope") in ("row", "col") for t, a in page.tags if t == "th")


def test_the_notebook_part_shows_results_and_folds_code(text):
    assert "kept" in text and "hidden_source" not in text and "skipped_source" not in text and "widget-text" not in text
    assert "03_match.json" not in text and "Code, not run" not in text
    assert '<details class="nb-code">' in text and "secret_source" in text
    assert "50/50" in text and "0/50\n" not in text and "\x1b" not in text
    assert "<math" in text and "$HOME" in text and "https://x.example/docs" in text
    assert '<a href="#nb04">next</a>' in text


def test_the_opening_says_verdict_story_fix_and_what_was_not_examined(text):
    order = [text.index(mark) for mark in ("✗ FAIL", 'id="story"', 'id="chain"', 'id="fix"', 'id="rivals"', 'id="findings"', 'id="not-examined"', 'id="nb03"', 'id="provenance"')]
    assert order == sorted(order)
    assert "[1, 14, 26]" in text and "<code>planes</code>" in text and 'href="#finding-layers.slot-0"' in text
    assert "eagle-forensics run" in text and "prefers-color-scheme: dark" in text and "@media print" in text


def test_the_same_run_gives_the_same_bytes(run, text):
    assert post_mortem(open_folder(run)) == text


def test_an_unfinished_run_has_no_page(tmp_path):
    run = tiny.finished(tmp_path / "r")
    (run / "findings.json").unlink()
    with pytest.raises(RunFolderError, match="not finished"):
        post_mortem(open_folder(run))


def test_every_status_class_of_a_card_has_a_style():
    from eagle_forensics.suite.page import asset

    for status in show.STATUS_LOOK:
        assert f".ef-status.ef-{status}" in asset("notebook.css")


def test_findings_json_and_junit_carry_the_verdict(run):
    merged = json.loads((run / "findings.json").read_text())
    assert merged["verdict"] == "FAIL" and merged["exit_code"] == 1 and merged["counts"] == {"pass": 1, "fail": 1, "inconclusive": 0, "skipped": 1, "error": 0}
    assert merged["findings"][0]["id"] == "layers.slot-0" and merged["diagnosis"]["headline"]
    junit = (run / "junit.xml").read_text()
    assert 'failures="1"' in junit and "<script>" not in junit
