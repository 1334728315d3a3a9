"""SGLang's list of classes for which it switches the all-reduce fusion on by itself, read as text from 0.5.7 on, against `fusion.toml`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from eagle_forensics.engines.source.ledger import Ledger
from eagle_forensics.engines.source.trees import Tree
from eagle_forensics.engines.tables import current, table
from eagle_forensics.engines.versions import since

OVERRIDES, SERVER = "srt/arg_groups/overrides.py", "srt/server_args.py"
LIST, FUNCTION = "_FLASHINFER_ALLREDUCE_FUSION_ARCHS", "_flashinfer_allreduce_fusion_auto_enable"
FLAGS = ("enable_flashinfer_allreduce_fusion", "flashinfer_allreduce_fusion_backend")


def check_fusion(tree: Tree, ledger: Ledger) -> None:
    """Classes of the list, by release. Before 0.5.7 the switch stands in the branches of two models and is not read here."""
    if not since("0.5.7", tree.version):
        return
    rules = table("fusion")
    ours = sorted(current(rules["auto"], tree.version)["architectures"])
    for file in (OVERRIDES, SERVER):
        module = tree.parse(file) if tree.read(file) is not None else None
        found = list(_named(module) if file == OVERRIDES else _inline(module)) if module else []
        if found:
            names = sorted({name for node in found for name in _strings(node)})
            ledger.compare("classes for which the all-reduce fusion is switched on", ours, rules["source"], names, tree.at(file, found[0]))
            return
    ledger.unread("classes for which the all-reduce fusion is switched on", ours, rules["source"], "no list was found",
                  f"sglang {tree.version} {OVERRIDES}, {SERVER}")


def _named(module: ast.Module) -> Iterator[ast.AST]:
    """The named list, and classes the function adds by `name = model_arch in (...)`."""
    for node in module.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == LIST:
            yield node
        if isinstance(node, ast.FunctionDef) and node.name == FUNCTION:
            yield from (part for part in ast.walk(node) if isinstance(part, ast.Assign) and isinstance(part.value, ast.Compare))


def _inline(module: ast.Module) -> Iterator[ast.AST]:
    """The condition `model_arch in [...]` of the block that sets the flag."""
    for node in ast.walk(module):
        if isinstance(node, ast.If) and any(isinstance(part, ast.Assign) and getattr(part.targets[0], "attr", "") in FLAGS for part in node.body):
            yield from (part for part in ast.walk(node.test) if isinstance(part, ast.Compare) and _strings(part))


def _strings(node: ast.AST) -> list[str]:
    return [part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value[:1].isupper()]
