"""Tiny notebooks and cases for the suite's own tests."""

from __future__ import annotations

from pathlib import Path

import nbformat

from eagle_forensics.case import Case
from eagle_forensics.finding import Competitor, Finding, NotebookFindings
from eagle_forensics.suite import runfolder
from eagle_forensics.suite.files import write_json
from eagle_forensics.suite.runfolder import NOTEBOOKS
from eagle_forensics.suite.runner import finish

PARAMETERS = 'case: str = ""  # case file\nrun_dir: str = ""  # run folder\nsamples: int = 20  # samples read'
OPEN = 'from eagle_forensics.suite.session import open_run\nrun = open_run("{name}", case=case, run_dir=run_dir)'
PASS = ('from eagle_forensics.finding import Finding\n'
        'run.add(Finding(id="{q}.check", question="Is it well?", status="pass", statement="It is well.", notebook="{name}"))')
FINISH = "run.finish()"


def notebook(folder: Path, name: str, cells: list | None = None, *, parameters: str = PARAMETERS, opened: bool = True) -> Path:
    """Write a notebook: parameters, open, `cells` (source, or (source, tags), or ("md", source)), and no finish of its own."""
    node = nbformat.v4.new_notebook()
    node.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    letters = "".join(c for c in name if c.isalpha())
    for i, cell in enumerate([(parameters, ["parameters"]), *([OPEN] if opened else []), *([PASS, FINISH] if cells is None else cells)]):
        if isinstance(cell, tuple) and cell[0] == "md":
            node.cells.append(nbformat.v4.new_markdown_cell(cell[1], id=f"c{i}"))
            continue
        source, tags = cell if isinstance(cell, tuple) else (cell, [])
        source = source.replace("{name}", name).replace("{q}", letters)
        node.cells.append(nbformat.v4.new_code_cell(source, id=f"c{i}", metadata={"tags": tags}))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.ipynb"
    nbformat.write(node, path)
    return path


def five(folder: Path, **changed: list) -> Path:
    """The five notebooks, passing ones unless `changed` gives the cells of `nb3` and the like."""
    for name in NOTEBOOKS:
        notebook(folder, name, changed.get(f"nb{int(name[:2])}"))
    return folder


def case(folder: Path, text: str = "name: tiny\n") -> Path:
    """Write a case file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "case.yaml"
    path.write_text(text)
    return path


def finding(id: str = "layers.check", status: str = "pass", **fields) -> Finding:
    """A finding; a fail gets the fields that a fail needs."""
    if status == "fail":
        fields = {"fault": "wiring.layer-offset", "refuted_by": "an equal capture",
                  "competitor": Competitor(fault="data.too-little", margin="52 %", why_rejected="the weights are good")} | fields
    return Finding(**{"id": id, "status": status, "question": "Is it so?", "statement": "It is so.", "notebook": "03_layer_matching"} | fields)


def executed(*outputs, markdown: str = "# Layer matching", source: str = "look()", tags: list | None = None):
    """An executed notebook: one markdown cell and one code cell with these outputs."""
    node = nbformat.v4.new_notebook()
    node.cells = [nbformat.v4.new_markdown_cell(markdown, id="m"),
                  nbformat.v4.new_code_cell(source, id="c", outputs=list(outputs), execution_count=1, metadata={"tags": tags or []})]
    return node


def finished(folder: Path, *findings: Finding, node=None, name: str = "tiny", **fields) -> Path:
    """A finished run folder made without a kernel."""
    notebook_name = "03_layer_matching"
    run = runfolder.create_at(folder, fingerprint="f" * 64, started="2026-11-29T11:07:35Z",
                              **{"origin": "run", "case": {"name": name, "file": None, "sha256": None}, "notebooks": (notebook_name,)} | fields)
    write_json(run.findings_file(notebook_name), NotebookFindings(notebook=notebook_name, complete=True, findings=findings or (finding(),)))
    nbformat.write(node or executed(), folder / "notebooks" / f"{notebook_name}.ipynb")
    finish(run, Case(name=name), {})
    run.unlock()
    return folder
