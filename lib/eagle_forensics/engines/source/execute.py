"""Runs a small function of an engine, taken by name from its source text, in a namespace of stand-ins.

This executes text of the tree that the user named, but never imports it. Only the named functions are compiled; their imports are
dropped; the built-ins are the few that such code needs (no open, eval, exec, __import__); reaching for special attributes, frames or
code objects, and `while` loops, are refused before anything runs. This keeps honest code from reaching further than it must.
It is no jail for hostile code: name only a tree that you would install.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any

_ALLOWED = (
    abs, all, any, bool, dict, enumerate, float, frozenset, int, isinstance, len, list, max, min, range, repr, reversed, round, set, sorted,
    str, sum, tuple, zip, AssertionError, AttributeError, Exception, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError,
    ValueError)
_INTERNAL = ("__", "gi_", "f_", "cr_", "ag_", "tb_", "co_", "func_", "mro")
_DUNDER_OK = ("__name__",)


class Refused(Exception):
    """The function is not of the small kind that is run here."""


def call_by_name(module: ast.Module, name: str, namespace: Mapping[str, Any]) -> Callable[..., Any] | None:
    """The function `name` of `module`, with the module's own functions that it calls; `namespace` wins over both. None if absent."""
    functions = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
    if name not in functions:
        return None
    env = _environment(namespace)
    wanted = [name]
    while wanted:
        node = functions[wanted.pop()]
        if node.name in env and node.name != name:
            continue
        _define(node, env)
        wanted += [other for other in node.reads if other in functions and other not in env]
    return env[name]


def callable_of(node: ast.FunctionDef, namespace: Mapping[str, Any]) -> Callable[..., Any]:
    """One function or method as a callable. Refused if it is not of the kind that is run here."""
    env = _environment(namespace)
    _define(node, env)
    return env[node.name]


def block_as_function(statements: list[ast.stmt], arguments: tuple[str, ...]) -> ast.FunctionDef:
    """Statements cut out of a longer method, as a function of the names they read."""
    args = ast.arguments(posonlyargs=[], args=[ast.arg(a) for a in arguments], kwonlyargs=[], kw_defaults=[], defaults=[])
    node = ast.FunctionDef(name="block", args=args, body=statements, decorator_list=[], returns=None)
    return ast.copy_location(node, statements[0])


def outcome(function: Callable[[], Any]) -> tuple[Any, str | None]:
    """(result, None), or (None, `TypeError: ...`) for what the engine's code raises. Refused and a missing name pass through as Refused."""
    try:
        return function(), None
    except (Refused, NameError, ImportError, RecursionError) as error:
        raise Refused(f"{type(error).__name__}: {error}") from error
    except Exception as error:
        return None, f"{type(error).__name__}: {error}".removesuffix(": ")


def _environment(namespace: Mapping[str, Any]) -> dict[str, Any]:
    safe = {thing.__name__: thing for thing in _ALLOWED}
    return {"__builtins__": {**safe, "getattr": _getattr, "hasattr": _hasattr, "setattr": _setattr, "type": type_of}, **namespace}


def _define(node: ast.FunctionDef, env: dict[str, Any]) -> None:
    exec(_compiled(node), env)


def _compiled(node: ast.FunctionDef) -> CodeType:
    """Screened and compiled once a node."""
    if not hasattr(node, "compiled"):
        bare = _Bare().visit(copy.deepcopy(node))
        _screen(bare)
        module = ast.fix_missing_locations(ast.Module([bare], []))
        node.compiled = compile(module, f"<{node.name}>", "exec", dont_inherit=True)
        node.reads = tuple({part.id for part in ast.walk(node) if isinstance(part, ast.Name)})
    return node.compiled


def _screen(node: ast.FunctionDef) -> None:
    for part in ast.walk(node):
        if isinstance(part, ast.While | ast.Global | ast.Nonlocal | ast.Await | ast.Yield | ast.YieldFrom | ast.ClassDef):
            raise Refused(f"{node.name} has a {type(part).__name__}, which is not run here")
        name = part.attr if isinstance(part, ast.Attribute) else part.id if isinstance(part, ast.Name) else ""
        if _internal(name):
            raise Refused(f"{node.name} reaches for {name}, which is not run here")


def _internal(name: str) -> bool:
    return name not in _DUNDER_OK and name.startswith(_INTERNAL)


class _Bare(ast.NodeTransformer):
    """Without imports, annotations, decorators and docstrings."""

    def visit_Import(self, node: ast.Import) -> ast.stmt:
        return ast.copy_location(ast.Pass(), node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.stmt:
        return ast.copy_location(ast.Pass(), node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.stmt:
        node.decorator_list, node.returns = [], None
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        return ast.copy_location(ast.Assign([node.target], self.visit(node.value)), node)


def _checked(name: str) -> str:
    if not isinstance(name, str) or _internal(name):
        raise Refused(f"reaches for {name!r}")
    return name


def _getattr(thing: Any, name: str, *default: Any) -> Any:
    return getattr(thing, _checked(name), *default)


def _hasattr(thing: Any, name: str) -> bool:
    return hasattr(thing, _checked(name))


def _setattr(thing: Any, name: str, value: Any) -> None:
    setattr(thing, _checked(name), value)


class _TypeName:
    def __init__(self, name: str) -> None:
        self.__name__ = name


def type_of(thing: Any) -> Any:
    """Stands for `type(x)`, of which such code only reads `__name__`, in messages."""
    return _TypeName(type(thing).__name__)
