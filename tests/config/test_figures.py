"""The boundary matrix: its title says the answer, its alt text the boundaries; the tables of notebook 01 say both directions."""

import matplotlib

from eagle_forensics.config.claims import claims
from eagle_forensics.config.figures import matrix_figure
from eagle_forensics.config.frames import inventory_frame, log_frame
from eagle_forensics.config.inspection import inspect
from tests.config.papers import DEEPSEEK_TARGET, papers
from tests.evidence import builders

matplotlib.use("Agg")


def drawn(case):
    found = inspect(case)
    picture = matrix_figure(found, claims(found))
    if picture:
        matplotlib.pyplot.close(picture[0])
    return picture


def texts(axis):
    return [t.get_text() for t in axis.texts]


def test_a_right_wiring_has_zeros_on_the_diagonal(tmp_path):
    fig, alt, _ = drawn(papers(tmp_path))
    for axis in fig.axes:
        assert texts(axis)[0::4] == ["0", "0", "0"]
    assert alt.startswith("Each trained plane meets")


def test_the_graph_path_is_drawn_apart(tmp_path):
    fig, alt, caption = drawn(papers(tmp_path, target=DEEPSEEK_TARGET, ids=[2, 30, 58], version="0.5.8", layer_ids=[2, 30, 58, 60]))
    eager, graph = fig.axes
    assert texts(eager)[0::4] == ["0", "0", "0"] and texts(graph)[0::4] == ["-1", "-1", "-1"]
    assert "On the graph path" in alt and "graph serves 2, 30, 58: does not fit" in alt and "served - trained" in caption


def test_one_side_alone_is_no_matrix(tmp_path):
    assert drawn(papers(tmp_path, trainer=None, layer_ids=None)) is None


def test_a_path_that_crashes_is_not_drawn(tmp_path):
    assert drawn(papers(tmp_path, target=DEEPSEEK_TARGET, ids=[-1, 2, 30], version="0.5.13", layer_ids=[2, 30, 58, 60])) is None


def test_another_order_shows_zeros_beside_the_diagonal(tmp_path):
    fig, alt, _ = drawn(papers(tmp_path, layer_ids=[14, 1, 26, 29]))
    assert texts(fig.axes[0])[:5] == ["-13", "0", "+12", "0", "+13"] and "does not fit" in alt


def test_the_inventory_goes_both_ways(tmp_path):
    weights = builders.head("layers.0.")
    frame = inventory_frame(inspect(papers(tmp_path, weights=weights, version="0.5.9")))
    outcome = dict(zip(frame["in the file"], frame["outcome"], strict=False))
    assert outcome["layers.0.mlp.down_proj.weight"] == "dropped" and outcome["fc.weight"] == "loaded"
    assert (frame["outcome"] == "stays random").sum() > 3 and set(frame.loc[frame["outcome"] == "stays random", "in the file"]) == {"nothing"}


def test_log_lines_are_a_table(tmp_path):
    (tmp_path / "a.log").write_text("tokens is adjusted to 2\n")
    assert list(log_frame(inspect(papers(tmp_path, serving={"log": "a.log"})))["about"]) == ["arguments"]
