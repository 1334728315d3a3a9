"""The executed notebooks as HTML for the post-mortem: figures first, code folded away, nothing that could run or load.

nbconvert's preprocessors and a template of our own (templates/cells/). Markdown and HTML outputs pass an allow-list;
live widgets, scripts, inline SVG, ids and references to other hosts do not.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import bleach
import nbformat
from bleach.css_sanitizer import CSSSanitizer
from markupsafe import Markup
from nbconvert import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbconvert.preprocessors import Preprocessor, TagRemovePreprocessor
from traitlets.config import Config

from eagle_forensics import show
from eagle_forensics.suite.terminal import without_escapes

HIDE_INPUT, SKIP = "hide-input", "skip-execution"
SHOWN = ("text/html", "image/png", "image/jpeg", "text/markdown", "text/plain")
"""Kinds of output shown, best first; scripts, SVG and widgets are not among them."""
_TAGS = {
    "a", "abbr", "b", "blockquote", "br", "caption", "code", "col", "colgroup", "dd", "del", "details", "div", "dl", "dt",
    "em", "figcaption", "figure", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "i", "img", "kbd", "li", "mark", "ol", "p",
    "pre", "s", "small", "span", "strong", "sub", "summary", "sup", "table", "tbody", "td", "tfoot", "th", "thead", "tr",
    "u", "ul",
}
_ATTRIBUTES = {"class", "title", "alt", "scope", "colspan", "rowspan", "open", "lang", "style"}
_STYLES = CSSSanitizer(allowed_css_properties=["color", "background-color", "border-left-color", "text-align", "font-weight", "font-style",
                                               "width", "max-width", "white-space"])
_LINK = re.compile(r'<a href="([^"]*)"[^>]*>(.*?)</a>', re.DOTALL)
_MATH = re.compile("\ue000(\\d+)\ue001")
TEXT_LIMIT = 20_000


def cells_html(notebook: Path, prefix: str) -> str:
    """One executed notebook as an HTML fragment; heading ids start with `prefix` (`nb03`)."""
    node = nbformat.read(notebook, as_version=4)
    config = Config()
    config.TagRemovePreprocessor.enabled = True
    config.TagRemovePreprocessor.remove_cell_tags = {SKIP, "papermill-error-cell-tag"}
    config.TagRemovePreprocessor.remove_input_tags = {HIDE_INPUT, "injected-parameters"}
    config.NbConvertBase.display_data_priority = list(SHOWN)
    config.HTMLExporter.preprocessors = [_DropLive, TagRemovePreprocessor]
    config.HTMLExporter.default_preprocessors = []
    exporter = HTMLExporter(config=config, template_name="cells", filters={
        "ef_markdown": _markdown(prefix), "ef_html": lambda text: Markup(sanitize(text)), "ef_text": lambda text: Markup(plain_text(text)),
        "ef_base64": lambda text: Markup(re.sub(r"[^A-Za-z0-9+/=]", "", text)),
        "ef_alt": lambda output: Markup(show.safe(output["data"].get("text/plain", "Figure without a description."), 400)),
    }, extra_template_basedirs=[str(resources.files(__package__).joinpath("templates"))])
    return exporter.from_notebook_node(node)[0]


class _DropLive(Preprocessor):
    """A saved page has no kernel behind it: drop widgets and empty outputs, collapse progress lines."""

    def preprocess(self, nb: Any, resources: Any) -> tuple[Any, Any]:
        nb.metadata.pop("widgets", None)
        for cell in nb.cells:
            if cell.cell_type == "code":
                cell.outputs = [o for o in cell.outputs if o.output_type in ("stream", "error") or _shown(o.data)]
        nb.cells = [c for c in nb.cells if c.source.strip() or c.get("outputs")]
        return nb, resources


def _shown(data: Any) -> bool:
    """Whether an output is worth showing: no live widget, and not only the path that `record` or `save_table` returned."""
    if "application/vnd.jupyter.widget-view+json" in data or not any(mime in data for mime in SHOWN):
        return False
    return len(data) > 1 or not re.fullmatch(r"'evidence/\d\d_[^']*'", data.get("text/plain", ""))


def sanitize(markup: str) -> str:
    """HTML of an output with only allowed tags and attributes; ids and everything that could run or load are removed."""
    markup = re.sub(r"<(style|script)\b.*?</\1\s*>", "", markup, flags=re.DOTALL | re.IGNORECASE)
    clean = bleach.clean(markup, tags=_TAGS, attributes=_allowed, protocols={"data"}, css_sanitizer=_STYLES, strip_comments=True)
    return re.sub(r"<img(?![^>]*\balt=)", '<img alt="Image without a description."', clean)


def _allowed(tag: str, name: str, value: str) -> bool:
    if name == "src":
        return tag == "img" and re.match(r"data:image/(png|jpeg|gif);base64,", value) is not None
    if name == "href":
        return tag == "a" and value.startswith("#")
    return name in _ATTRIBUTES


def plain_text(text: str) -> str:
    """Terminal text as escaped text: escape sequences dropped, of each carriage-return line the last state kept."""
    text = without_escapes(text)
    text = "\n".join(line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.split("\n"))
    return show.safe(text, TEXT_LIMIT)


def _markdown(prefix: str) -> Callable[[str], Markup]:
    """Renderer of markdown cells: headings one level down with unique ids (the title is the page's), LaTeX as MathML, links kept inside the page."""
    count = 0

    def render(source: str) -> Markup:
        nonlocal count
        renderer = _Renderer()
        body = bleach.clean(_LINK.sub(_local_link, MarkdownWithMath(renderer=renderer).render(source)), tags=_TAGS, attributes=_allowed,
                            protocols={"data"}, css_sanitizer=_STYLES)

        def heading(match: re.Match[str]) -> str:
            nonlocal count
            count += 1
            if int(match[1]) == 1 and count == 1:
                return ""  # the notebook's title: the page gives it to the section
            level = min(int(match[1]) + 1, 6)
            return f'<h{level} id="{prefix}-{count}">{match[2]}</h{level}>'

        body = re.sub(r"<h([1-6])>(.*?)</h\1>", heading, body, flags=re.DOTALL)
        return Markup(_MATH.sub(lambda m: renderer.math[int(m[1])] if int(m[1]) < len(renderer.math) else "", body))

    return render


class _Renderer(IPythonRenderer):
    """nbconvert's renderer with math set aside as MathML until the rest has been sanitised."""

    def __init__(self) -> None:
        super().__init__(escape=False, exclude_anchor_links=True)
        self.math: list[str] = []

    def _aside(self, latex: str, display: str) -> str:
        from latex2mathml.converter import convert

        try:
            self.math.append(convert(latex.strip(), display=display))
        except Exception:  # latex2mathml has no common error class; the source is shown instead
            self.math.append(f"<code>{show.safe(latex)}</code>")
        return f"\ue000{len(self.math) - 1}\ue001"

    def inline_math(self, body: str) -> str:
        return self._aside(body, "inline")

    def block_math(self, body: str) -> str:
        return self._aside(body, "block")

    def latex_environment(self, name: str, body: str) -> str:
        return self._aside(f"\\begin{{{name}}}{body}\\end{{{name}}}", "block")


def _local_link(match: re.Match[str]) -> str:
    """A link into another notebook becomes a link into this page; one to another host is written out."""
    target, text = html.unescape(match[1]), match[2]
    other = re.match(r"(?:\./)?(\d\d)_[A-Za-z0-9_]+\.ipynb", target)
    if other:
        return f'<a href="#nb{other[1]}">{text}</a>'
    if target.startswith("#"):
        return text
    shown = html.escape(target)
    return text if html.unescape(text) == target else f"{text} (<code>{shown}</code>)"
