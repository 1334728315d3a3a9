"""Comparison, index and show of runs."""

import pytest

from eagle_forensics.suite.compare import compare_runs, compare_text, write_comparison
from eagle_forensics.suite.index import write_index
from eagle_forensics.suite.runfolder import RunFolderError
from eagle_forensics.suite.show_run import show_run
from tests.suite import tiny


def accuracy(value, low, high, status="pass"):
    return tiny.finding("drafter.served-wiring", status, observed=value, interval=(low, high), n=100, unit="accuracy of step 1")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    a = tiny.finished(folder / "20261129T110735Z-a-1", accuracy(0.16, 0.15, 0.17, "fail"), tiny.finding("layers.labels"), tiny.finding("layers.same"), name="a",
                      parameters={"03_layer_matching": {"samples": {"value": 3, "source": "given"}}})
    b = tiny.finished(folder / "20261129T110736Z-b-2", accuracy(0.53, 0.52, 0.54), tiny.finding("layers.labels", "inconclusive", statement="\x1b[31mNo <b>idea\x07"),
                      tiny.finding("layers.same"), name="b", parameters={"03_layer_matching": {"samples": {"value": 4, "source": "given"}}})
    return folder, a, b


def test_regressions_come_first_and_equal_rows_are_left_out(runs):
    _, a, b = runs
    comparison = compare_runs([a, b])
    rows = {(r.kind, r.name): r for r in comparison.rows}
    assert comparison.rows[0].name == "layers.labels" and comparison.rows[0].change == "regression"
    assert rows["finding", "drafter.served-wiring"].change == "improvement" and rows["figure", "drafter.served-wiring"].change == "improvement"
    assert rows["parameter", "03_layer_matching.samples"].values == (3, 4) and ("finding", "layers.same") not in rows
    assert comparison.hidden and len(compare_runs([a, b], all_rows=True).rows) == len(comparison.rows) + comparison.hidden
    assert list(comparison.frame().columns) == ["change", "kind", "name", a.name, b.name, "note"]


def test_the_baseline_turns_the_judgement(runs):
    _, a, b = runs
    rows = {(r.kind, r.name): r.change for r in compare_runs([a, b], baseline=1).rows}
    assert rows["finding", "drafter.served-wiring"] == "regression" and rows["verdict", "run"] == "regression"


def test_overlapping_intervals_are_no_improvement(tmp_path):
    a, b = (tiny.finished(tmp_path / n, accuracy(v, v - 0.1, v + 0.1)) for n, v in (("a", 0.5), ("b", 0.55)))
    assert {r.change for r in compare_runs([a, b]).rows if r.kind == "figure"} == {"changed"}


def test_what_was_not_looked_at_has_not_improved(tmp_path):
    a = tiny.finished(tmp_path / "a", tiny.finding("layers.x", "fail"), tiny.finding("layers.y"))
    b = tiny.finished(tmp_path / "b", tiny.finding("layers.y"))
    rows = {r.name: r for r in compare_runs([a, b]).rows if r.kind == "finding"}
    assert rows["layers.x"].change == "changed" and rows["layers.x"].values == ("fail", "absent")
    assert {r.name: r.change for r in compare_runs([b, a]).rows if r.kind == "finding"}["layers.x"] == "regression"


def test_pages_are_self_contained_and_escaped(runs):
    folder, a, b = runs
    page = write_comparison([a, b], folder / "cmp.html").read_text()
    assert "Content-Security-Policy" in page and "//" not in "".join(part.split('"')[0] for part in page.split('href="')[1:])
    assert f'href="{a.name}/post_mortem.html"' in page and page.index("▼ worse") < page.index("▲ better")
    index = write_index(folder).read_text()
    assert index.index(b.name) < index.index(a.name), "newest first"
    assert f'href="{b.name}/post_mortem.html"' in index and "0.53" in index and "<b>idea" not in index and "✗ FAIL" in index


def test_terminal_text_has_no_escapes_of_the_evidence(runs):
    folder, a, b = runs
    shown = show_run(b)
    assert "INCONCLUSIVE" in shown and "No <b>idea" in shown and "\x1b" not in shown and "\x07" not in shown and "post_mortem.html" in shown
    text = compare_text([a, b], out=folder / "c2.html")
    assert "regression" in text and "\x1b" not in text and (folder / "c2.html").is_file()


def test_wrong_folders_say_what_to_do(runs, tmp_path):
    _, a, _ = runs
    with pytest.raises(RunFolderError, match="two runs or more"):
        compare_runs([a])
    with pytest.raises(RunFolderError, match=r"has no manifest\.json"):
        compare_runs([a, tmp_path])
    with pytest.raises(RunFolderError, match=r"has no manifest\.json"):
        show_run(tmp_path)
    with pytest.raises(RunFolderError, match="no such folder"):
        write_index(tmp_path / "none")


@pytest.mark.parametrize("content", ['{"verdict": "PASS", "find', "{}", "[]", '{"verdict": "WEIRD", "findings": [{"id": 1}], "diagnosis": 5, "notebooks": []}'])
def test_a_damaged_run_is_named_and_does_not_hide_the_others(tmp_path, content):
    good = tiny.finished(tmp_path / "20261129T110735Z-a-1", tiny.finding("layers.x"), name="a")
    bad = tiny.finished(tmp_path / "20261129T110736Z-b-2", tiny.finding("layers.x"), name="b")
    (bad / "findings.json").write_text(content)
    for use in (lambda: show_run(bad), lambda: compare_runs([good, bad])):
        with pytest.raises(RunFolderError, match="damaged"):
            use()
    index = write_index(tmp_path).read_text()
    assert good.name in index and bad.name in index and "✓ PASS" in index
