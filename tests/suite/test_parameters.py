"""Parameters: what a cell declares, coercion, and refusals."""

from pathlib import Path

import pytest

from eagle_forensics.suite.parameters import Parameter, ParameterError, assign, coerce, parse, read_parameters
from tests.suite import tiny


def test_types_defaults_and_comments_are_read():
    found = parse('x: str | None = None  # a # b\nname: str = "a # b"  # label\nrate: float = 1.0; y: int = 2  # both\n'
                  "ids: list[int] = [\n  1,\n  2,\n]  # layers")
    assert list(found.values()) == [
        Parameter("x", "str | None", None, "a # b"), Parameter("name", "str", "a # b", "label"), Parameter("rate", "float", 1.0, "both"),
        Parameter("y", "int", 2, "both"), Parameter("ids", "list[int]", [1, 2], "layers")]


@pytest.mark.parametrize(("source", "says"), [
    ("x = 1", "no typed default"), ("x: int", "no typed default"), ("x: int = f()", "not a literal"), ("x: int =", "not Python"),
    ("import os", "no typed default"), ("x: int = 1\nx: int = 2", "declared twice"),
])
def test_a_malformed_cell_is_refused(source, says):
    with pytest.raises(ParameterError, match=says):
        parse(source)


@pytest.mark.parametrize(("annotation", "value", "expected"), [
    ("int", "5", 5), ("int", "1e3", 1000), ("int", 1000.0, 1000), ("float", "1e3", 1000.0), ("float", 2, 2.0), ("str", 5, "5"), ("str", "true", "true"),
    ("bool", "true", True), ("bool", "0", False), ("list[int]", "[1, 2]", [1, 2]), ("list[int]", "1,2", [1, 2]), ("list[str]", ["a"], ["a"]),
    ("int | None", "none", None), ("int | None", "3", 3), ("str | None", "x", "x"), ("tuple[int, ...]", "1", (1,)),
])
def test_values_become_the_declared_type(annotation, value, expected):
    got = coerce(Parameter("p", annotation, None, "help"), value)
    assert got == expected and type(got) is type(expected)


@pytest.mark.parametrize(("annotation", "value"), [
    ("int", "five"), ("int", 1.5), ("int", True), ("float", "nan"), ("float", "fast"), ("bool", "maybe"), ("str", 1.5), ("list[int]", "[a]"),
    ("list[int]", 3), ("int", None), ("dict", {}),
])
def test_values_of_another_type_are_refused(annotation, value):
    with pytest.raises(ParameterError, match="parameter `p`"):
        coerce(Parameter("p", annotation, None, "help"), value)


def test_each_notebook_gets_what_it_declares(tmp_path):
    one = read_parameters(tiny.notebook(tmp_path, "01_config_inspection"))
    two = read_parameters(tiny.notebook(tmp_path, "02_drafter_accuracy", parameters='case: str = ""  # c\nseed: int = 1  # s'))
    assert assign({"samples": "3", "seed": 2}, {"one": one, "two": two}) == {"one": {"samples": 3}, "two": {"seed": 2}}
    with pytest.raises(ParameterError, match="Did you mean `seed`"):
        assign({"sed": 2}, {"one": one, "two": two})


def test_the_page_on_cases_tells_every_parameter_of_a_live_measurement():
    root = Path(__file__).resolve().parents[2]
    page = (root / "docs" / "case-file.md").read_text(encoding="utf-8")
    for p in read_parameters(root / "notebooks" / "04_accept_length.ipynb").values():
        assert p.name in ("case", "run_dir") or f"| `{p.name}` | `{p.default!r}` | {p.help} |" in page, p.name


def test_a_notebook_without_the_cell_is_named(tmp_path):
    path = tiny.notebook(tmp_path, "01_config_inspection")
    path.write_text(path.read_text().replace('"parameters"', '"other"'))
    with pytest.raises(ParameterError, match=r"01_config_inspection\.ipynb: expected exactly one"):
        read_parameters(path)
