"""Self-contained HTML pages: templates, style and script from templates/, under a policy that forbids every request.

The policy names the script by its hash, so that no other script runs even if evidence smuggled one in.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from eagle_forensics import show
from eagle_forensics.finding import Status

VERDICT_LOOK = {"PASS": "✓", "FAIL": "✗", "ERROR": "!", "INCONCLUSIVE": "?"}
"""Icon of each verdict; the word always stands beside it."""


@cache
def asset(name: str) -> str:
    """Text of a file in templates/."""
    return resources.files(__package__).joinpath("templates", name).read_text(encoding="utf-8")


@cache
def _environment() -> jinja2.Environment:
    loader = jinja2.FunctionLoader(asset)
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True,
                                     undefined=jinja2.StrictUndefined, finalize=_visible)
    environment.filters.update(prose=lambda text: Markup(show.prose(text)), status=_status, verdict=_verdict, verdict_icon=_verdict_icon, value=value_text,
                               status_or_value=_status_or_value)
    return environment


def render(template: str | Path, **context: Any) -> str:
    """A page from a template that extends `page.html.j2`: a name in templates/, or a file elsewhere."""
    script = asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
              "base-uri 'none'; form-action 'none'")
    style = asset("notebook.css") + asset("page.css")
    environment = _environment()
    page = environment.from_string(template.read_text(encoding="utf-8")) if isinstance(template, Path) else environment.get_template(template)
    return page.render(script=Markup(script), style=Markup(style), policy=policy, **context)


def _visible(value: Any) -> Any:
    """What a template prints: control characters made visible, the rest left to autoescape."""
    return Markup(show.safe(value, limit=200_000)) if isinstance(value, str) and not isinstance(value, Markup) else value


def _status(value: str, count: int | None = None) -> Markup:
    icon, _ = show.STATUS_LOOK[Status(value)]
    number = f" {count}" if count is not None else ""
    return Markup(f'<span class="ef-status ef-{value}">{icon} {value}{number}</span>')


def _verdict(value: str | None) -> Markup:
    if value not in VERDICT_LOOK:
        return Markup('<span class="ef-status ef-skipped">– none</span>')
    return Markup(f'<span class="ef-status ef-{value.lower()}">{VERDICT_LOOK[value]} {value}</span>')


def _verdict_icon(value: str | None) -> Markup:
    """The icon alone, with the word for who cannot see it and as a tooltip."""
    if value not in VERDICT_LOOK:
        return Markup('<span class="ef-status ef-skipped" title="not run">–</span>')
    return Markup(f'<span class="ef-status ef-{value.lower()}" title="{value}" role="img" aria-label="{value}">{VERDICT_LOOK[value]}</span>')


def _status_or_value(value: Any) -> Any:
    if isinstance(value, str) and value in VERDICT_LOOK:
        return _verdict(value)
    return _status(value) if isinstance(value, str) and value in set(Status) else value_text(value)


def value_text(value: Any) -> str:
    """A figure or list of a finding as text."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(value_text, value)) + "]"
    if isinstance(value, dict):
        return ", ".join(f"{k} {value_text(v)}" for k, v in value.items())
    return str(value)
