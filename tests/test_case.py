"""The case file: typed, strict, helpful about typing errors, indifferent to missing files."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle_forensics.case import Case, CaseError, known_keys, load_case


def write(tmp_path, text):
    path = tmp_path / "case.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_name_is_enough(tmp_path):
    case = load_case(write(tmp_path, "name: tiny"))
    assert case.name == "tiny" and case.drafter is None and case.training.dumps == ()


def test_paths_are_relative_to_the_file(tmp_path):
    case = load_case(write(tmp_path, "name: a\ndrafter: {path: ./d}\ncaptures: [{path: c/x}]\nnccl: {tests: [t.txt]}\n"
                                     "training: {dump: [{path: e}, {path: /abs/f}]}"))
    assert case.drafter.path == tmp_path / "d" and case.captures[0].path == tmp_path / "c/x"
    assert case.nccl.tests == (tmp_path / "t.txt",)
    assert [str(d.path) for d in case.training.dumps] == [str(tmp_path / "e"), "/abs/f"]


def test_a_folder_stands_for_its_case_file(tmp_path):
    write(tmp_path, "name: a")
    assert load_case(tmp_path).file == (tmp_path / "case.yaml").resolve()


def test_missing_evidence_is_listed_with_its_key(tmp_path):
    case = load_case(write(tmp_path, "name: a\ndrafter: {path: nowhere}"))
    assert case.missing_evidence() == [("drafter.path", tmp_path / "nowhere")]


@pytest.mark.parametrize(("text", "says"), [
    ("name: a\ndraftr: {path: x}", "Did you mean `drafter`?"),
    ("name: a\ntraining: {trainr: {name: eagle}}", "Did you mean `trainer`?"),
    ("name: a\nserving: {engine: sglan}", "serving.engine"),
    ("name: a\nserving: {version: 0.5}", "put it in quotes"),
    ("name: ../../etc", "name"),
    ("- a\n- b", "expected a mapping"),
    ("", "expected a mapping"),
    ("name: [", "line"),
    ("schema: 9\nname: a", "schema 9 is not known"),
    ("drafter: {path: x}", "`name`"),
    ("name: a\nserving: {url: 'not a url'}", "serving.url"),
    ("name: a\nserving: {version: 2024-99-99}", "in quotes"),
    ("name: a\ntraining: {layer_ids: [" + "9" * 5000 + "]}", "cannot be read"),
    ("name: a\ntarget: {path: a}\ntarget: {path: b}", "line 3: not valid YAML (the key `target` stands twice"),
    ("name: a\nserving: {env: {A: [1]}}", "one value"),
    ("name: a\n#" + " " * (1 << 20), "more than any case file"),
])
def test_a_wrong_case_says_what_is_wrong(tmp_path, text, says):
    with pytest.raises(CaseError) as error:
        load_case(write(tmp_path, text))
    assert says in str(error.value) and "case.yaml" in str(error.value)


@pytest.mark.parametrize("place", ["name: *i", "name: a\ntraining: {metrics: *i}", "name: a\nserving: {env: {A: *i}}", "name: a\nschema: *i"])
def test_aliases_that_unfold_without_end_end_in_a_message(tmp_path, place):
    bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(f"{c}: &{c} [{','.join(['*' + p] * 9)}]\n" for p, c in zip("abcdefgh", "bcdefghi", strict=True))
    with pytest.raises(CaseError) as error:
        load_case(write(tmp_path, bomb + place))
    assert len(str(error.value)) < 5000


@pytest.mark.parametrize(("path", "says"), [('"a\\0b"', "zero byte"), ("~no-such-user/x", "home folder")])
def test_a_path_that_none_can_be_is_named(tmp_path, path, says):
    with pytest.raises(CaseError, match=says):
        load_case(write(tmp_path, f"name: a\ntarget: {{path: {path}}}"))


def test_a_pipe_is_no_case_file(tmp_path):
    import os

    os.mkfifo(tmp_path / "case.yaml")
    with pytest.raises(CaseError, match="regular file"):
        load_case(tmp_path)


def test_evidence_that_may_never_end_is_refused(tmp_path):
    with pytest.raises(CaseError, match=r"`nccl\.debug_log` is /dev/zero, a device or a pipe"):
        load_case(write(tmp_path, "name: a\nnccl: {debug_log: /dev/zero}"))


def test_a_missing_case_file_names_the_remedy(tmp_path):
    with pytest.raises(CaseError, match="eagle-forensics init"):
        load_case(tmp_path / "no.yaml")


def test_overrides_set_dotted_keys(tmp_path):
    case = load_case(write(tmp_path, "name: a"), {"drafter.path": "new", "serving.engine": "vllm"})
    assert case.drafter.path == tmp_path / "new" and case.serving.engine == "vllm"


def test_an_override_of_an_unknown_key_is_refused(tmp_path):
    with pytest.raises(CaseError, match="Did you mean `path`"):
        load_case(write(tmp_path, "name: a"), {"drafter.pat": "new"})


def test_known_keys_name_every_level():
    keys = known_keys()
    assert {"schema", "training.trainer.name", "serving.hardware.link", "captures.path_kind"} <= set(keys)
    assert "file" not in keys


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=20),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3), max_leaves=12))
def test_any_content_is_a_case_or_a_case_error(tmp_path_factory, content):
    import yaml

    path = tmp_path_factory.mktemp("c") / "case.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    try:
        assert isinstance(load_case(path), Case)
    except CaseError:
        pass


def test_the_reference_page_names_every_key():
    from pathlib import Path

    page = (Path(__file__).resolve().parents[1] / "docs" / "case-file.md").read_text(encoding="utf-8")
    assert not [key for key in known_keys() if f"`{key}`" not in page]
