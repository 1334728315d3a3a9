"""Our rule tables against an engine's own source text: every difference quotes both sides.

Works on an installed engine (`installed`) or any unpacked wheel; neither torch nor the engine is imported. See `execute.py` for what is
run from the tree and what is not.
"""

from __future__ import annotations

from pathlib import Path

from eagle_forensics.engines.source.ledger import Difference, Ledger
from eagle_forensics.engines.source.trees import Tree, installed, open_tree

__all__ = ["Difference", "Ledger", "Tree", "check_arguments", "check_layers", "differences", "examine", "installed", "open_tree"]


def differences(engine: str, tree: Tree | Path | str, version: str | None = None) -> tuple[Difference, ...]:
    """Everything in which our tables and this tree disagree; empty when they agree. ValueError if there is no such engine here."""
    return tuple(examine(engine, tree, version).differences)


def examine(engine: str, tree: Tree | Path | str, version: str | None = None) -> Ledger:
    """As `differences`, with the number of comparisons made."""
    opened = tree if isinstance(tree, Tree) else open_tree(engine, tree, version)
    ledger = Ledger()
    _layers(opened, ledger)
    _arguments(opened, ledger)
    return ledger


def check_layers(tree: Tree) -> tuple[Difference, ...]:
    """Layer rules: ids to boundary values of every class, where ids are read, what the graph path does, how capture works,
    which draft tensors load and which head flags are read."""
    ledger = Ledger()
    _layers(tree, ledger)
    return tuple(ledger.differences)


def check_arguments(tree: Tree) -> tuple[Difference, ...]:
    """Argument rules: numbers, switches, log lines and exceptions over a grid of combinations; what switches
    adaptive speculation off; the list of the all-reduce fusion (SGLang only)."""
    ledger = Ledger()
    _arguments(tree, ledger)
    return tuple(ledger.differences)


def _layers(tree: Tree, ledger: Ledger) -> None:
    if tree.engine == "vllm":
        from eagle_forensics.engines.source import vllm_layers

        for check in (vllm_layers.check_resolvers, vllm_layers.check_default, vllm_layers.check_runner, vllm_layers.check_capture):
            check(tree, ledger)
        return
    from eagle_forensics.engines.source import sglang_capture, sglang_layers, sglang_tensors

    classes = sglang_layers.Classes(tree)
    sglang_layers.check_setters(tree, ledger, classes)
    sglang_layers.check_values(tree, ledger, classes)
    sglang_layers.check_reading(tree, ledger)
    sglang_capture.check_capture(tree, ledger, classes)
    sglang_capture.check_graph(tree, ledger)
    sglang_tensors.check_loading(tree, ledger)
    sglang_tensors.check_flags(tree, ledger)


def _arguments(tree: Tree, ledger: Ledger) -> None:
    if tree.engine == "sglang":
        ledger.topic = "arguments"
        from eagle_forensics.engines.source import sglang_adaptive, sglang_arguments, sglang_fusion

        sglang_arguments.check_eagle_arguments(tree, ledger)
        sglang_adaptive.check_adaptive(tree, ledger)
        sglang_fusion.check_fusion(tree, ledger)
