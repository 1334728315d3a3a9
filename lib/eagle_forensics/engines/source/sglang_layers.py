"""SGLang's source against our table: which boundary values its own setters write, and where it reads the ids from.

`set_eagle3_layers_to_capture` of every target class and the statement that reads the draft's config are executed; what is only read
as text (the capture loops, the graph path) is compared in `sglang_capture.py`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eagle_forensics.engines import sglang
from eagle_forensics.engines.source.execute import Refused, block_as_function, callable_of, outcome
from eagle_forensics.engines.source.ledger import Ledger
from eagle_forensics.engines.source.standins import Anything, target
from eagle_forensics.engines.source.trees import Tree
from eagle_forensics.engines.tables import table
from eagle_forensics.engines.versions import since
from eagle_forensics.evidence.records import ClaimedIds

SETTER = "set_eagle3_layers_to_capture"
KEY = "eagle_aux_hidden_state_layer_ids"
WRAPPERS = ("MindSporeForCausalLM",)
"""Classes with a setter that are no target of their own: they hand the ids to a model of another framework."""
GRID: tuple[tuple[int, tuple[int, ...] | None], ...] = (
    *((61, ids) for ids in (None, (2, 30, 58), (1, 29, 57), (3, 31, 59), (-1, 2, 30), (2, 30, 60), (24, 30, 61), (61, 1, 2))),
    *((36, ids) for ids in (None, (1, 17, 32), (2, 18, 33), (24, 30, 36))),
)
_CLASS = re.compile(r"^class\s+(\w+)\s*(?:\(([^)]*)\))?\s*:", re.MULTILINE)
_IMPORT = re.compile(r"^\s*from sglang\.srt\.models\.?(\w*) import \(?([^)\n]*(?:\n[^)]*?\))?)", re.MULTILINE)


@dataclass(frozen=True)
class Setter:
    """The setter that answers for a class: its own, or the one it inherits."""

    file: str
    node: ast.FunctionDef


class Classes:
    """Every model class of a tree, its bases, and the setter it ends up with."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.where: dict[str, str] = {}
        self.bases: dict[str, list[str]] = {}
        self.own: dict[str, Setter] = {}
        for file, text in tree.models.items():
            for name, bases in _CLASS.findall(text):
                self.where[name] = file
                self.bases[name] = [base.strip().rpartition(".")[2] for base in bases.split(",") if base.strip()]
            if f"def {SETTER}" in text:
                self._collect(file)

    def _collect(self, file: str) -> None:
        module = self.tree.parse(f"srt/models/{file}.py")
        for node in module.body if module else ():
            for part in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(part, ast.FunctionDef) and part.name == SETTER and not _is_inner(part):
                    self.own[node.name] = Setter(file, part)

    def setter(self, name: str, seen: tuple[str, ...] = ()) -> Setter | None:
        """Own or inherited; None if the class cannot be told which layers to capture."""
        if name in self.own:
            return self.own[name]
        for base in self.bases.get(name, ()):
            found = None if base in seen else self.setter(base, (*seen, name))
            if found:
                return found
        return None

    def imported(self, file: str) -> list[str]:
        """Model classes that a model file imports, in order."""
        names = []
        for _, listed in _IMPORT.findall(self.tree.models.get(file, "")):
            names += [n for n in re.findall(r"\w+", listed) if n in self.where]
        return names


def check_values(tree: Tree, ledger: Ledger, classes: Classes) -> None:
    """Every setter, run over a grid of lists and depths, against `sglang.capture`."""
    for name, setter in sorted(classes.own.items()):
        if name in WRAPPERS:
            continue
        at = tree.at(f"srt/models/{setter.file}.py", setter.node)
        for layers, ids in GRID:
            claimed = ClaimedIds() if ids is None else ClaimedIds(nested=ids, eagle_config="object")
            answer = sglang.capture(tree.version, model_type=name, layers=layers, claimed=claimed, architecture=name)
            what = f"{name}, L={layers}, ids {'absent' if ids is None else list(ids)}: values captured"
            ours = answer.values["eager"]
            try:
                theirs = _run(classes, setter, layers, ids)
            except Refused as refused:
                ledger.unread(what, ours, answer.sources[0], str(refused), at)
                continue
            ledger.compare(what, ours, answer.sources[0], theirs, at)


def check_setters(tree: Tree, ledger: Ledger, classes: Classes) -> None:
    """Which classes have a setter at all, own or inherited, against the `setter` column."""
    for row in table("sglang")["family"]:
        name = next((name for name in (row["cls"], *row["architectures"]) if name in classes.where), row["cls"])
        found = classes.setter(name)
        at = tree.at(f"srt/models/{found.file}.py", found.node) if found else f"sglang {tree.version} models/"
        ledger.compare(f"{name}: has {SETTER}", since(row["setter"], tree.version), row["source"], found is not None, at)


def check_reading(tree: Tree, ledger: Ledger) -> None:
    """The statement that takes the ids from the draft's config, run on every place they may stand."""
    found = _reading_statement(tree)
    for place, config in (
        ("nested", {"eagle_config": {KEY: [2, 30, 58]}}),
        ("top_level", {KEY: [2, 30, 58]}),
        ("nested_layer_ids", {"eagle_config": {"layer_ids": [2, 30, 58]}}),
        ("null", {"eagle_config": None}),
        ("switch", {"eagle_config": {KEY: [2, 30, 58], "use_aux_hidden_state": False}}),
    ):
        claimed = ClaimedIds(
            nested=(2, 30, 58) if place in ("nested", "switch") else None, top_level=(2, 30, 58) if place == "top_level" else None,
            nested_layer_ids=(2, 30, 58) if place == "nested_layer_ids" else None, eagle_config="null" if place == "null" else "object",
            use_aux_hidden_state=False if place == "switch" else None)
        answer = sglang.capture(tree.version, model_type="llama", layers=61, claimed=claimed, cuda_graph=False)
        captures = answer.values["eager"] != ()
        ours = {"ids read": captures and answer.read_from == "nested", "captures": captures}
        what, source = f"draft config with {config}: ids read", answer.sources[-1]
        if found is None:
            ledger.compare(what, ours, source, {"ids read": False, "captures": True}, f"sglang {tree.version}: {KEY} is not read")
            continue
        file, node = found
        holder = Anything(hf_config=_Config(config))
        state = Anything(eagle_use_aux_hidden_state=True, **{KEY: None})
        names = {"draft_model_config": holder, "config": state, "self": state}
        try:
            function = callable_of(block_as_function([node], ("draft_model_config", "config", "self")), names)
            _, error = outcome(lambda function=function, state=state, holder=holder: function(holder, state, state))
        except Refused as refused:
            ledger.unread(what, ours, source, str(refused), tree.at(file, node))
            continue
        captures = bool(state.eagle_use_aux_hidden_state) and error is None
        theirs = {"ids read": captures and getattr(state, KEY) == [2, 30, 58], "captures": captures}
        ledger.compare(what, ours, source, theirs, tree.at(file, node))


class _Config:
    def __init__(self, values: dict[str, Any]) -> None:
        vars(self).update(values)


def _reading_statement(tree: Tree) -> tuple[str, ast.Try] | None:
    for file, text in tree.files("srt/model_executor"):
        if f'"{KEY}"' not in text:
            continue
        module = tree.parse(file)
        tries = [n for n in ast.walk(module) if isinstance(n, ast.Try) and f"'{KEY}'" in ast.unparse(n)] if module else []
        if tries:
            return file, _recording(min(tries, key=lambda n: n.end_lineno - n.lineno))
    return None


def _recording(node: ast.Try) -> ast.Try:
    """The oldest form assigns a plain name: make it an attribute, so that the result can be seen."""
    class Rename(ast.NodeTransformer):
        def visit_Name(self, name: ast.Name) -> ast.expr:
            if name.id != KEY or not isinstance(name.ctx, ast.Store):
                return name
            return ast.copy_location(ast.Attribute(ast.Name("self", ast.Load()), KEY, ast.Store()), name)
    return Rename().visit(node)


def _is_inner(node: ast.FunctionDef) -> bool:
    """The setter of an inner model: it takes values that are already converted."""
    return len(node.args.args) > 1 and node.args.args[1].arg == "layers_to_capture"


def _run(classes: Classes, setter: Setter, layers: int, ids: Sequence[int] | None, depth: int = 0) -> tuple[int, ...] | str:
    """The values one setter writes; those of the class it delegates to; or the exception it raises."""
    model, got = target(layers), {}

    def inner(values: Sequence[int] | None = None) -> None:
        got["values"] = values

    def delegate(values: Sequence[int] | None = None) -> None:
        got["delegated"] = values

    setattr(model.model, SETTER, inner)
    setattr(model.language_model, SETTER, delegate)
    function = callable_of(setter.node, {"get_parallel": Anything(), "get_pp_group": Anything(), "torch": Anything()})
    takes_ids = len(setter.node.args.args) > 1
    _, error = outcome(lambda: function(model, None if ids is None else list(ids)) if takes_ids else function(model))
    if "delegated" in got:
        following = next((s for n in classes.imported(setter.file) if (s := classes.setter(n)) and s.file != setter.file), None)
        if following is None or depth > 3:
            raise Refused("it delegates to a language model whose class was not found")
        return _run(classes, following, layers, got["delegated"], depth + 1)
    if error and not error.startswith("IndexError"):
        return error
    for values in (got.get("values"), *(vars(h).get("layers_to_capture") for h in (model.model, model.language_model, model))):
        if isinstance(values, list | tuple):
            return tuple(values)
    return error or "nothing is set"
