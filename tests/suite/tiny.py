"""Tiny notebooks and cases for the suite's own tests."""

from __future__ import annotations

from pathlib import Path

import nbformat

from eagle_forensics.suite.runfolder import NOTEBOOKS

PARAMETERS = 'case: str = ""  # case file\nrun_dir: str = ""  # run folder\nsamples: int = 20  # samples read'
OPEN = 'from eagle_forensics.suite.session import open_run\nrun = open_run("{name}", case=case, run_dir=run_dir)'
PASS = ('from eagle_forensics.finding import Finding\n'
        'run.add(Finding(id="{q}.check", question="Is it well?", status="pass", statement="It is well.", notebook="{name}"))')
FINISH = "run.finish()"


def notebook(folder: Path, name: str, cells: list | None = None, *, parameters: str = PARAMETERS) -> Path:
    """Write a notebook: parameters, open, `cells` (source, or (source, tags), or ("md", source)), and no finish of its own."""
    node = nbformat.v4.new_notebook()
    node.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    letters = "".join(c for c in name if c.isalpha())
    for i, cell in enumerate([(parameters, ["parameters"]), OPEN, *([PASS, FINISH] if cells is None else cells)]):
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
