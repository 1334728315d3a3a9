"""One look for every figure, table and finding, in JupyterLab and in the offline HTML.

Everything displayed carries its text alternative: figures an alt text and a caption, tables a caption and header scopes.
All text is escaped; control characters are made visible, so that evidence cannot break the page.
"""

from __future__ import annotations

import base64
import html
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from eagle_forensics.finding import Finding, Status

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

# Okabe-Ito: distinguishable with every common colour-vision deficiency.
BLUE, ORANGE, GREEN, RED, PURPLE, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#6b7280"
STATUS_LOOK: dict[Status, tuple[str, str]] = {
    Status.PASS: ("✓", GREEN),
    Status.FAIL: ("✗", RED),
    Status.INCONCLUSIVE: ("?", ORANGE),
    Status.SKIPPED: ("–", GREY),
    Status.ERROR: ("!", PURPLE),
}
"""Icon and colour of each status; never the colour alone."""

MARKED = "▸\u00a0"
FINDING_MIME = "application/vnd.eagle-forensics.finding+json"
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def safe(text: object, limit: int = 4000) -> str:
    """Text for HTML: control and bidi characters made visible, cut at `limit` characters, escaped."""
    raw = _CONTROL.sub(lambda m: f"\\x{ord(m[0]):02x}", str(text))
    if len(raw) > limit:
        raw = raw[:limit] + f" … ({len(raw) - limit} characters more)"
    return html.escape(raw)


def prose(text: object) -> str:
    """`safe`, with what stands between backticks as code."""
    return re.sub(r"`([^`\n]+)`", r"<code>\1</code>", safe(text))


def theme() -> None:
    """Set the seaborn theme of all figures: quiet grid, colour-blind palette, titles that carry the answer."""
    import matplotlib as mpl
    import seaborn as sns

    sns.set_theme(context="notebook", style="whitegrid", palette=[BLUE, ORANGE, GREEN, RED, PURPLE, GREY])
    mpl.rcParams.update({
        "figure.figsize": (8.5, 4.2), "figure.dpi": 110, "savefig.bbox": "tight", "axes.titlelocation": "left",
        "axes.titleweight": "bold", "axes.titlesize": 12, "axes.titlepad": 12, "axes.spines.top": False,
        "axes.spines.right": False, "grid.color": "#e5e7eb", "axes.edgecolor": "#9ca3af", "font.size": 10.5,
        "text.parse_math": False,
    })


def figure(fig: Figure, alt: str, caption: str) -> None:
    """Display a matplotlib figure with alt text and caption, and close it."""
    import matplotlib.pyplot as plt
    from IPython.display import display

    buffer = io.BytesIO()
    fig.savefig(buffer, format="png")
    plt.close(fig)
    data = base64.b64encode(buffer.getvalue()).decode()
    markup = (f'<figure class="ef-figure"><img alt="{safe(alt)}" src="data:image/png;base64,{data}">'
              f"<figcaption>{safe(caption)}</figcaption></figure>")
    display({"text/html": markup, "image/png": data, "text/plain": alt}, raw=True)


def picture(content: tuple[Figure, str, str] | None) -> None:
    """Display a figure that comes with its alt text and caption; nothing for None."""
    if content is not None:
        figure(*content)


def markup(content: str | None, text: str) -> None:
    """Display HTML made by this suite (its parts escaped by `safe`), with `text` for readers without HTML; nothing for None."""
    from IPython.display import display

    if content is not None:
        display({"text/html": content, "text/plain": text}, raw=True)


def table(frame: pd.DataFrame | None, caption: str, *, formats: Mapping[str, str] | None = None, mark: Sequence[bool] | None = None) -> None:
    """Display a data frame as an escaped HTML table with a caption.

    `formats` maps a column to a format spec (`.3f`); `mark` highlights rows (with a ▸ sign, not by colour alone). Nothing is
    displayed for None or a frame without rows.
    """
    from IPython.display import display

    if frame is None or frame.empty:
        return
    display({"text/html": table_html(frame, caption, formats=formats, mark=mark), "text/plain": frame.to_string()}, raw=True)


def table_html(frame: pd.DataFrame, caption: str, *, formats: Mapping[str, str] | None = None, mark: Sequence[bool] | None = None) -> str:
    """The HTML of `table`."""
    formats = formats or {}
    frame = frame.astype(object).where(frame.notna(), None)
    numeric = {c: all(isinstance(v, int | float) and not isinstance(v, bool) for v in frame[c].dropna()) for c in frame.columns}
    head = "".join(f'<th scope="col"{" class=num" if numeric[c] else ""}>{safe(c)}</th>' for c in frame.columns)
    rows = []
    for i, row in enumerate(frame.itertuples(index=False)):
        marked = bool(mark is not None and mark[i])
        cells = []
        for j, (column, value) in enumerate(zip(frame.columns, row, strict=True)):
            text = _cell(value, formats.get(column))
            if j == 0:
                cells.append(f'<th scope="row">{MARKED if marked else ""}{text}</th>')
            else:
                cells.append(f'<td{" class=num" if numeric[column] else ""}>{text}</td>')
        rows.append(f'<tr{" class=marked" if marked else ""}>{"".join(cells)}</tr>')
    return (f'<div class="ef-table"><table class="dataframe"><caption>{safe(caption)}</caption><thead><tr>{head}</tr></thead>'
            f"<tbody>{''.join(rows)}</tbody></table></div>")


def _cell(value: Any, spec: str | None) -> str:
    if value is None:
        return "–"
    if isinstance(value, Status):
        icon, colour = STATUS_LOOK[value]
        return f'<span class="ef-status ef-{value}" style="color:{colour}">{icon} {value}</span>'
    if spec and isinstance(value, int | float):
        return safe(format(value, spec))
    if isinstance(value, float):
        return safe(f"{value:.4g}")
    if isinstance(value, list | tuple):
        return safe(", ".join(str(v) for v in value))
    return safe(value)


def findings(items: Iterable[Finding]) -> None:
    """Display findings as cards, and carry each as machine-readable output of the cell."""
    from IPython.display import display

    for item in items:
        display({FINDING_MIME: item.model_dump(mode="json"), "text/html": finding_html(item),
                 "text/plain": f"[{item.status}] {item.id}: {item.statement}"}, raw=True)


def finding_html(item: Finding) -> str:
    """One finding as a card: status, statement, figures, rival, refutation, remedy."""
    icon, colour = STATUS_LOOK[item.status]
    rows: list[tuple[str, str]] = [("Question", prose(item.question))]
    if item.observed is not None:
        rows.append(("Observed", safe(_number(item.observed)) + _carried(item)))
    if item.expected is not None:
        rows.append(("Expected", safe(_number(item.expected))))
    if item.threshold is not None:
        rows.append(("Threshold", f"{safe(_number(item.threshold))} – {safe(item.threshold_why)}"))
    if item.competitor:
        c = item.competitor
        rows.append(("Nearest rival", f"<code>{safe(c.fault)}</code>: {prose(c.margin)}. {prose(c.why_rejected)}"))
    for label, value in (("Refuted by", item.refuted_by), ("Remedy", item.remedy), ("Predicted effect", item.predicted_effect),
                         ("Next step", item.next_step)):
        if value:
            rows.append((label, prose(value)))
    if item.edits:
        rows.append(("Edits", "<br>".join(f"<code>{safe(e.file)}: {safe(e.key)} = {safe(json.dumps(e.value, ensure_ascii=False))}</code>"
                                          + (f" ({safe(e.applies_to)})" if e.applies_to else "") for e in item.edits)))
    if item.evidence:
        rows.append(("Evidence", "<br>".join(
            safe(e.note) + "".join(f" – <code>{safe(x)}</code>" for x in (e.path, e.source) if x) for e in item.evidence)))
    body = "".join(f"<dt>{label}</dt><dd>{value}</dd>" for label, value in rows)
    fault = f' <code class="ef-fault">{safe(item.fault)}</code>' if item.fault else ""
    opened = " open" if item.status in (Status.FAIL, Status.ERROR, Status.INCONCLUSIVE) else ""
    return (f'<details class="ef-finding ef-{item.status}" id="finding-{safe(item.id)}" style="border-left-color:{colour}"{opened}>'
            f'<summary><span class="ef-status ef-{item.status}" style="color:{colour}">{icon} {item.status}</span> '
            f"<strong>{prose(item.statement)}</strong>{fault}</summary><dl>{body}</dl></details>")


def _number(value: Any) -> Any:
    """A figure as text: floats short, lists of words without quotes, mappings as `key: value`."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        inner = ", ".join(str(_number(v)) for v in value)
        return inner if any(isinstance(v, str) for v in value) else f"[{inner}]"
    if isinstance(value, dict):
        return "; ".join(f"{k}: {_number(v)}" for k, v in value.items())
    return value


def _carried(item: Finding) -> str:
    parts = [item.unit] if item.unit else []
    if item.interval:
        parts.append(f"95 % interval {item.interval[0]:.4g} to {item.interval[1]:.4g}")
    if item.n is not None:
        parts.append(f"n = {item.n}")
    return f" <small>({safe('; '.join(parts))})</small>" if parts else ""
