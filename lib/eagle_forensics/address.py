"""Is a path of the case on this machine, or the URL of a folder elsewhere?"""

from __future__ import annotations

import re
from pathlib import Path


def url_of(path: str | Path) -> str | None:
    """The fsspec URL (`s3://bucket/dump`) that a path of the case spells, None for a path on this machine. pathlib takes one of the slashes."""
    text = str(path)
    found = re.match(r"([a-z][a-z0-9+.-]+):/+(?=[^/])", text)
    return f"{found[1]}://{text[found.end():]}" if found and found[1] not in ("file", "local") else None
