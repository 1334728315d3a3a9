"""House rules that can be read off the tree: arrows, imports, pins, notebooks, module length."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
LIB = ROOT / "lib" / "eagle_forensics"
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
FIVE = {"config", "drafter", "fingerprint", "acceptance", "nccl"}
NOUNS = {"address", "boundary", "case", "faults", "finding", "show", "stats"}
ORDER = [NOUNS, {"evidence"}, {"engines"}, FIVE | {"demo"}, {"diagnosis"}, {"suite"}, {"cli", "__main__"}]


def room(path: Path) -> str:
    return path.relative_to(LIB).parts[0].removesuffix(".py")


def level(name: str) -> int:
    return next(i for i, rooms in enumerate(ORDER) if name in rooms)


def imported_rooms(path: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        modules = [node.module] if isinstance(node, ast.ImportFrom) and node.module else \
            [a.name for a in node.names] if isinstance(node, ast.Import) else []
        for module in modules:
            parts = module.split(".")
            if parts[0] == "eagle_forensics" and len(parts) > 1:
                rooms.add(parts[1])
            elif module == "eagle_forensics":
                rooms |= {a.name for a in node.names} - {"__version__"}
    return rooms


@pytest.mark.parametrize("path", [p for p in LIB.rglob("*.py") if p.name != "__init__.py" or room(p) != "__init__"], ids=lambda p: str(p.relative_to(LIB)))
def test_arrows_point_one_way(path):
    own = room(path)
    for other in imported_rooms(path) - {own}:
        assert level(other) <= level(own), f"{own} imports {other}"
        if own in NOUNS:
            assert other in NOUNS
        if own in FIVE:
            assert other not in FIVE - {own} and other != "demo", f"{own} imports {other}: the five never import each other"


@pytest.mark.parametrize("path", sorted(LIB.rglob("*.py")), ids=lambda p: str(p.relative_to(LIB)))
def test_a_module_answers_one_question(path):
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= 400, f"{lines} lines: does it answer two questions?"


def test_help_and_import_never_touch_torch():
    code = ("import sys, eagle_forensics, eagle_forensics.cli\n"
            "heavy = {'torch', 'pandas', 'matplotlib', 'transformers', 'pydantic', 'scipy', 'numpy'} & set(sys.modules)\n"
            "assert not heavy, heavy")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_match_imports_torch_and_little_else():
    """What runs on one slot against one bank starts in the time torch takes: read off the imports at the top of its modules."""
    todo, seen, foreign = ["evidence.dumps", "evidence.states", "fingerprint.identify"], set(), set()
    while todo:
        name = todo.pop()
        file = LIB.joinpath(*name.split(".")).with_suffix(".py")
        if name in seen or not file.exists():
            continue
        seen.add(name)
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            modules = [node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names] if isinstance(node, ast.Import) else []
            own = [m.removeprefix("eagle_forensics").lstrip(".") for m in modules if m.startswith("eagle_forensics")]
            todo += own + [f"{m}.{a.name}".lstrip(".") for m in own for a in node.names]
            foreign |= {m.split(".")[0] for m in modules if not m.startswith("eagle_forensics")} - sys.stdlib_module_names
    assert {"evidence.tensors", "fingerprint.match", "stats"} <= seen
    assert foreign == {"torch", "numpy", "safetensors"}


def pins(lines) -> dict[str, str]:
    return dict(m.groups() for line in lines if (m := re.match(r"\s*([A-Za-z0-9_.-]+)==(\S+)$", line)))


def test_requirements_are_exact_and_environment_repeats_them():
    required = pins((ROOT / "requirements.txt").read_text().splitlines())
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    pip = next(d["pip"] for d in environment["dependencies"] if isinstance(d, dict))
    assert required == pins(pip) and "-e ." in pip
    loose = [line for line in (ROOT / "requirements.txt").read_text().splitlines()
             if line and not line.startswith("#") and line != "-e ." and "==" not in line]
    assert not loose


def test_every_dependency_of_the_package_is_pinned():
    import tomllib

    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {re.match(r"[A-Za-z0-9_.-]+", d)[0] for d in declared}
    assert names <= set(pins((ROOT / "requirements.txt").read_text().splitlines()))


def test_five_notebooks_exist():
    assert [n.stem[:2] for n in NOTEBOOKS] == ["01", "02", "03", "04", "05"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_is_stripped_thin_and_narrated(path):
    book = json.loads(path.read_text(encoding="utf-8"))
    assert book["metadata"]["kernelspec"]["name"] == "python3" and "papermill" not in book["metadata"]
    assert len({c["id"] for c in book["cells"]}) == len(book["cells"])
    code = [c for c in book["cells"] if c["cell_type"] == "code"]
    assert sum("parameters" in c["metadata"].get("tags", []) for c in code) == 1
    assert "".join(code[-1]["source"]).strip() == "run.finish()"
    for previous, cell in zip(book["cells"], book["cells"][1:], strict=False):
        if cell["cell_type"] == "code":
            assert previous["cell_type"] == "markdown" or "parameters" in cell["metadata"].get("tags", []), f"cell {cell['id']} has no words before it"
    for cell in code:
        source = "".join(cell["source"])
        assert not cell["outputs"] and cell["execution_count"] is None
        assert len(source.splitlines()) <= 14 or "parameters" in cell["metadata"].get("tags", []), f"cell {cell['id']} is long: one idea a cell"
        nodes = list(ast.walk(ast.parse(source)))
        assert not any(isinstance(n, ast.FunctionDef | ast.ClassDef | ast.Try | ast.While) for n in nodes), f"cell {cell['id']} holds logic"
        assert "sys.path" not in source and not source.lstrip().startswith(("!", "%"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_every_parameter_is_typed_and_explained(path):
    from eagle_forensics.suite.parameters import read_parameters

    parameters = read_parameters(path)
    assert {"case", "run_dir"} <= set(parameters)
    for p in parameters.values():
        assert p.annotation and p.help, p


def test_no_path_of_a_machine_in_the_tree():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("not a git checkout")
    needle = re.compile("|".join(re.escape(f"{place}/") for place in {ROOT, Path.home()} - {Path("/")}) + r"|/home/[a-z]+/")
    for name in tracked.stdout.splitlines():
        if name.endswith((".py", ".md", ".toml", ".yml", ".yaml", ".ipynb", ".json", ".html", ".txt", ".csv", "Makefile")) and (ROOT / name).exists() and name != "tests/test_house.py":
            found = needle.search((ROOT / name).read_text(encoding="utf-8", errors="replace"))
            assert not found, f"{name} contains {found[0]}"
