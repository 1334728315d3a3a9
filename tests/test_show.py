"""What is shown is escaped, has a text alternative, and never speaks by colour alone."""

import pandas as pd
import pytest

from eagle_forensics import show
from eagle_forensics.finding import Competitor, Edit, Finding, Status

HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e"


def finding(**more):
    return Finding(**{"id": "layers.slot-0", "fault": "wiring.layer-offset", "question": HOSTILE, "status": Status.FAIL, "statement": HOSTILE,
                      "competitor": Competitor(fault=HOSTILE, margin=HOSTILE, why_rejected=HOSTILE), "refuted_by": HOSTILE, "remedy": HOSTILE,
                      "edits": (Edit(file=HOSTILE, key=HOSTILE, value=HOSTILE),), "notebook": "03_layer_matching", "observed": HOSTILE, **more})


def test_hostile_text_is_inert_everywhere():
    page = show.finding_html(finding()) + show.table_html(pd.DataFrame({HOSTILE: [HOSTILE]}), HOSTILE)
    assert "<script" not in page and "\x1b" not in page and "\u202e" not in page
    assert "&lt;script&gt;" in page


def test_long_text_is_cut_and_says_so():
    assert show.safe("x" * 5000).endswith("(1000 characters more)")


@pytest.mark.parametrize("status", Status)
def test_a_status_is_a_word_and_an_icon(status):
    icon, _ = show.STATUS_LOOK[status]
    page = show.finding_html(finding(status=status))
    assert f"{icon} {status}" in page


def test_what_is_missing_is_a_dash_whatever_pandas_calls_it():
    frame = pd.DataFrame({"a": [1.5, float("nan")], "b": pd.array([3, None], dtype="Int64"), "c": ["x", None], "d": pd.to_datetime(["2024-01-01", None])})
    page = show.table_html(frame, "gaps")
    assert page.count("–") == 4 and not any(word in page for word in ("NA", "nan", "None", "NaT")) and '<td class=num>3</td>' in page


def test_a_table_has_caption_scopes_and_marks():
    page = show.table_html(pd.DataFrame({"slot": ["a", "b"], "error": [0.1, float("nan")]}), "two slots", formats={"error": ".2f"}, mark=[True, False])
    assert "<caption>two slots</caption>" in page and page.count('scope="col"') == 2 and page.count('scope="row"') == 2
    assert "▸\u00a0a" in page and "0.10" in page and "–" in page
