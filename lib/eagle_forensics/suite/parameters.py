"""Parameters of a notebook: what it declares, and whether what is given fits.

The cell tagged `parameters` is read with `ast` (typed assignments) and `tokenize` (trailing comments). Values are coerced
to the declared type; an unknown name is refused with a did-you-mean instead of being run with the default.
"""

from __future__ import annotations

import ast
import difflib
import io
import itertools
import math
import tokenize
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

RESERVED = ("case", "run_dir")
"""Set by the runner: which case, and in which run folder."""
_INJECTED = "# Parameters\n"
"""First line of the cell that papermill writes."""
_TRUE, _FALSE, _NONE = {"true", "yes", "on", "1"}, {"false", "no", "off", "0"}, {"none", "null", ""}


class ParameterError(ValueError):
    """A parameter that no notebook declares, a value of the wrong type, or a malformed parameters cell."""


@dataclass(frozen=True)
class Parameter:
    """One line of a parameters cell."""

    name: str
    annotation: str
    """The type as written: `int`, `float | None`, `list[int]`."""
    default: Any
    help: str
    """The trailing comment: what it means, with its unit."""


def read_parameters(notebook: Path) -> dict[str, Parameter]:
    """The parameters a notebook declares, by name, in order. Raises ParameterError for a missing or malformed cell."""
    import nbformat

    try:
        node = nbformat.read(notebook, as_version=4)
    except FileNotFoundError:
        raise ParameterError(f"{notebook}: no such notebook.") from None
    except Exception as error:
        raise ParameterError(f"{notebook}: not a notebook ({' '.join(str(error).split())[:120]}).") from None
    cells = [c for c in node.cells if c.cell_type == "code" and "parameters" in c.metadata.get("tags", [])]
    if len(cells) != 1:
        raise ParameterError(f"{notebook.name}: expected exactly one code cell tagged `parameters`, found {len(cells)}.")
    return parse(cells[0].source, notebook.name)


def parse(source: str, where: str = "parameters") -> dict[str, Parameter]:
    """The parameters of a cell's source, by name."""
    try:
        body = ast.parse(source).body
    except SyntaxError as error:
        raise ParameterError(f"{where}: line {error.lineno} of the parameters cell is not Python: {error.msg}.") from None
    comments = {token.start[0]: token.string.lstrip("# ").strip()
                for token in tokenize.generate_tokens(io.StringIO(source).readline) if token.type == tokenize.COMMENT}
    found: dict[str, Parameter] = {}
    for node in body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # a docstring
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None):
            raise ParameterError(f"{where}: line {node.lineno} of the parameters cell is no typed default; "
                                 "write `name: type = value  # meaning`.")
        try:
            default = ast.literal_eval(node.value)
        except ValueError:
            raise ParameterError(f"{where}: the default of `{node.target.id}` is not a literal.") from None
        name = node.target.id
        if name in found:
            raise ParameterError(f"{where}: `{name}` is declared twice in the parameters cell.")
        found[name] = Parameter(name, ast.unparse(node.annotation), default, comments.get(node.end_lineno or 0, ""))
    return found


def assign(given: Mapping[str, Any], declared: Mapping[str, Mapping[str, Parameter]]) -> dict[str, dict[str, Any]]:
    """For each notebook the given parameters that it declares, coerced. Raises ParameterError for one that none declares."""
    names = sorted({name for parameters in declared.values() for name in parameters} - set(RESERVED))
    for name in given:
        if name in RESERVED:
            raise ParameterError(f"parameter `{name}` is set by the runner; name the case file and --out instead.")
        _require_known(name, names)
    return {notebook: {name: coerce(p, given[name]) for name, p in parameters.items() if name in given}
            for notebook, parameters in declared.items()}


def _require_known(name: str, names: Sequence[str]) -> None:
    if name not in names:
        near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
        raise ParameterError(f"no notebook has a parameter `{name}`. " + (f"Did you mean `{near[0]}`?" if near else f"Known: {', '.join(names) or 'none'}."))


def check_injected(history: Sequence[str], notebook: str) -> None:
    """Refuse what plain papermill injected and the notebook does not declare, from the cells that a kernel has run.

    papermill itself only warns of an unknown name, and the notebook would run with its default. It puts its cell after the
    one tagged `parameters`. Raises ParameterError.
    """
    for before, cell in itertools.pairwise(history):
        if cell.startswith(_INJECTED):
            given = {node.targets[0].id: ast.literal_eval(node.value) for node in ast.parse(cell).body
                     if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and _is_literal(node.value)}
            declared = parse(before, notebook)
            for name in given:
                _require_known(name, sorted(declared))
            assign({k: v for k, v in given.items() if k not in RESERVED}, {notebook: declared})


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except ValueError:  # float('nan'), which papermill writes so
        return False
    return True


def coerce(parameter: Parameter, value: Any) -> Any:
    """A value, or its text from a command line, as the declared type."""
    try:
        return _coerce(ast.parse(parameter.annotation, mode="eval").body, value)
    except (ValueError, yaml.YAMLError):
        raise ParameterError(f"parameter `{parameter.name}` is {parameter.annotation} ({parameter.help or 'no comment'}); "
                             f"found {type(value).__name__} {str(value)[:60]!r}.") from None


def _coerce(kind: ast.expr, value: Any) -> Any:
    if isinstance(kind, ast.BinOp):  # X | Y: the first that fits; None first, so that `none` is None and not text
        sides = sorted((kind.left, kind.right), key=lambda k: not _is_none(k))
        for side in sides:
            try:
                return _coerce(side, value)
            except (ValueError, yaml.YAMLError):
                continue
        raise ValueError
    if _is_none(kind):
        if value is None or (isinstance(value, str) and value.strip().lower() in _NONE):
            return None
        raise ValueError
    if isinstance(kind, ast.Subscript) and isinstance(kind.value, ast.Name) and kind.value.id in ("list", "tuple"):
        inner = kind.slice.elts[0] if isinstance(kind.slice, ast.Tuple) else kind.slice
        items = [_coerce(inner, item) for item in _items(value)]
        return items if kind.value.id == "list" else tuple(items)
    name = kind.id if isinstance(kind, ast.Name) else ""
    if name == "Path":
        name = "str"
    if name not in _SCALARS:
        raise ValueError
    return _SCALARS[name](value)


def _is_none(kind: ast.expr) -> bool:
    return isinstance(kind, ast.Constant) and kind.value is None


def _items(value: Any) -> list[Any]:
    if isinstance(value, str):
        loaded = yaml.safe_load(value) if value.strip().startswith("[") else [part.strip() for part in value.split(",") if part.strip()]
        value = loaded
    if not isinstance(value, list | tuple):
        raise ValueError
    return list(value)


def _bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = value.strip().lower() if isinstance(value, str) else str(value)
    if text in _TRUE | _FALSE:
        return text in _TRUE
    raise ValueError


def _int(value: Any) -> int:
    if isinstance(value, bool):
        raise ValueError
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            value = float(value)
    if isinstance(value, float):
        if not value.is_integer():
            raise ValueError
        return int(value)
    if isinstance(value, int):
        return value
    raise ValueError


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError
    number = float(value)
    if not math.isfinite(number):
        raise ValueError
    return number


def _str(value: Any) -> str:
    if isinstance(value, str):
        return value
    if (isinstance(value, int) and not isinstance(value, bool)) or isinstance(value, Path):
        return str(value)
    raise ValueError


_SCALARS = {"bool": _bool, "int": _int, "float": _float, "str": _str}
