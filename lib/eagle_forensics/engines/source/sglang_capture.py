"""SGLang's capture loops against our table, read as text: how a boundary is captured, whether L is, by list or by flag, and on which path.

Nothing here runs: a layer loop needs tensors. What is found is the set of forms that the file uses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from eagle_forensics.engines import sglang
from eagle_forensics.engines.source.ledger import Ledger
from eagle_forensics.engines.source.sglang_layers import SETTER, Classes, Setter
from eagle_forensics.engines.source.trees import Tree
from eagle_forensics.engines.tables import current, table
from eagle_forensics.engines.versions import since

_GUARDED = re.compile(
    r"hidden_states \+ residual\s+if residual is not None|hidden_states if residual is None else hidden_states \+ residual"
    r"|if residual is None[^\n]*\n\s+aux_hidden_states\.append\(hidden_states\)|residual is not None\s+else hidden_states")
_FORMS = {
    "guarded": _GUARDED,
    "sum": re.compile(r"append\(\s*hidden_states \+ residual\s*\)"),
    "communicator": re.compile(r"captured_last_layer_outputs"),
    "boundary": re.compile(r"capture_output="),
    "snapshot": re.compile(r"snapshot\("),
    "stream": re.compile(r"aux_hidden_states\.append\(hidden_states\)"),
}
_IN_LOOP = re.compile(r"(?<!for )\b(i|layer_idx|layer_id) in self\.layers_to_capture")
_BY_FLAG = re.compile(r"getattr\(layer, \"_is_layer_to_capture\"")
_FLAG_SET = re.compile(r"setattr\(\s*self\.(?:model\.)?layers\[\w+\],\s*\"_is_layer_to_capture\"")
_GUARDED_FLAG = re.compile(r"if 0 <= layer_id < [^\n]+\n\s+setattr\(|if layer_id < [^\n]+\n\s+setattr\(")
_FINAL = re.compile(r"(self\.end_layer|num_layers|len\(self\.layers\)|num_hidden_layers|\bi \+ 1) in self\.layers_to_capture")


def check_capture(tree: Tree, ledger: Ledger, classes: Classes) -> None:
    """Every family of the table whose class has a setter: mechanism, boundary L, flags."""
    for row in table("sglang")["family"]:
        setter = next((s for name in row["architectures"] if name in classes.where and (s := classes.setter(name))), None)
        if setter is None or not since(row["setter"], tree.version):
            continue
        target = sglang.target_class(tree.version, row["model_types"][0], row["architectures"][0])
        file, line, text = _loop(classes, setter)
        at = f"sglang {tree.version} models/{file}.py:{line}"
        forms = [form for form, pattern in _FORMS.items() if pattern.search(text)]
        if _BY_FLAG.search(text) and not _IN_LOOP.search(text) and not _flagged(classes, setter, text):
            forms = ["nothing"]
        ledger.compare(f"{row['cls']}: mechanism of capture", target.mechanism, row["source"],
                       target.mechanism if target.mechanism in forms else "+".join(forms) or "none found", at)
        ledger.compare(f"{row['cls']}: captures boundary L", target.since("final_since"), row["source"], bool(_FINAL.search(text)), at)
        flags = bool(_FLAG_SET.search(text)) and not _IN_LOOP.search(text) and not _GUARDED_FLAG.search(text)
        ledger.compare(f"{row['cls']}: capture by an unguarded flag on self.layers[v]", target.since("flags_since"), row["source"], flags, at)


def check_graph(tree: Tree, ledger: Ledger) -> None:
    """Whether the runner calls the setter without ids before CUDA graphs are captured."""
    row = current(table("sglang")["graph"], tree.version)
    bare = [f"{file}:{text[:m.start()].count(chr(10)) + 1}" for file, text in tree.files("srt/model_executor")
            for m in re.finditer(rf"\.{SETTER}\(\)", text)]
    ledger.compare("CUDA-graph decode captures", row["ids"], row["source"], "default" if bare else "configured",
                   f"sglang {tree.version} " + (", ".join(bare).replace("srt/", "") or f"model_executor/: no {SETTER}() without ids"))


def _flagged(classes: Classes, setter: Setter, text: str) -> bool:
    return bool(_FLAG_SET.search(text) or _FLAG_SET.search(classes.tree.models[setter.file]))


def _loop(classes: Classes, setter: Setter) -> tuple[str, int, str]:
    """(file, line, text) of the nearest file along the imports that tests which layers to capture."""
    for file in _along_imports(classes, setter.file):
        text = classes.tree.models[file]
        match = _IN_LOOP.search(text) or _BY_FLAG.search(text) or _FINAL.search(text)
        if match:
            return file, text[:match.start()].count("\n") + 1, text
    return setter.file, setter.node.lineno, classes.tree.models[setter.file]


def _along_imports(classes: Classes, file: str) -> Iterator[str]:
    seen, queue = [], [file]
    while queue:
        here = queue.pop(0)
        if here in seen:
            continue
        seen.append(here)
        yield here
        queue += [classes.where[name] for name in classes.imported(here)]
        queue += re.findall(r"^from sglang\.srt\.models import (\w+)", classes.tree.models[here], re.MULTILINE)
        queue = [name for name in queue if name in classes.tree.models]
