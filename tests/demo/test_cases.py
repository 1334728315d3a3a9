"""The demo's cases: edits stay inside the folder, the fixed case is only what was printed, incident needs no tensors."""

import csv
import json

import pytest
import yaml

from eagle_forensics import demo
from eagle_forensics.case import load_case
from eagle_forensics.demo import cases, stage
from eagle_forensics.demo.cases import apply_edits, build, case_file
from eagle_forensics.demo.target import DemoError
from eagle_forensics.finding import Edit

IDS = Edit(file="drafter/config.json", key="eagle_config.eagle_aux_hidden_state_layer_ids", value=[1, 14, 26], applies_to="sglang 0.5.23")
LABELS = Edit(file="./dump/manifest.json", key="planes", value=["b2", "b15", "b27", "b30"])


@pytest.fixture(autouse=True)
def staged(tmp_path, monkeypatch):
    """A stage of empty files in the place of the real one."""
    monkeypatch.setenv("EAGLE_FORENSICS_CACHE", str(tmp_path / "cache"))
    made = stage.Stage(stage.root(), tmp_path / "cache/demo/target")
    for file in (made.target / "model.safetensors", made.drafter / "model.safetensors", made.drafter / "config.json",
                 made.dump / "data_0.pt", made.bank / "bank.json"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(file.name)
    monkeypatch.setattr(cases, "stage", lambda progress=None, offline=False: made)
    return made


def rows(file):
    with (file.parent / "runs.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.parametrize("name", ["broken", "vllm-shift", "incident"])
def test_a_case_folder_stands_for_itself(name):
    file = case_file(name)
    case = load_case(file)
    assert case.missing_evidence() == []
    assert all(path.is_relative_to(file.parent) for _, path in case.paths())
    assert str(file.parent) not in file.read_text()


def test_the_broken_case_holds_the_incidents_wrong_fix():
    folder = case_file("broken").parent
    assert json.loads((folder / "drafter/config.json").read_text())["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [-1, 1, 14]
    assert json.loads((folder / "dump/manifest.json").read_text()) == {"planes": ["embed", "layer2", "layer15", "final"]}
    assert load_case(folder).training.layer_ids is None


def test_the_fixed_case_is_the_broken_one_with_the_given_edits():
    broken, fixed = case_file("broken"), build("fixed", [IDS, LABELS])
    assert load_case(fixed).name == "smollm2-fixed"
    config, before = (json.loads((f.parent / "drafter/config.json").read_text()) for f in (fixed, broken))
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 14, 26]
    before["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [1, 14, 26]
    assert config == before
    assert json.loads((fixed.parent / "dump/manifest.json").read_text())["planes"] == ["b2", "b15", "b27", "b30"]
    assert "sglang 0.5.23" in (fixed.parent / "README.md").read_text()
    assert case_file("fixed") == fixed


def test_the_fix_is_not_written_in_the_product():
    fixed = build("fixed", [])
    config = json.loads((fixed.parent / "drafter/config.json").read_text())
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [-1, 1, 14]
    wrong = build("fixed", [IDS.model_copy(update={"value": [5, 6, 7]})])
    assert [r["speculative"] for r in rows(wrong)] == ["0"], "no run was measured with these ids"


def test_the_fixed_case_needs_edits():
    with pytest.raises(DemoError, match="edits that a run on the broken one prints"):
        case_file("fixed")
    with pytest.raises(DemoError, match="built from edits"):
        build("fixed")
    with pytest.raises(DemoError, match="without edits"):
        build("broken", [IDS])
    with pytest.raises(DemoError, match="known: broken"):
        case_file("brken")


def test_measured_runs_follow_the_ids_that_stand_in_the_config():
    assert [(r["rounds"], r["accept_length"]) for r in rows(case_file("broken")) if r["speculative"] == "1"] == [("1353", "1.106")]
    assert [(r["rounds"], r["accept_length"]) for r in rows(build("fixed", [IDS])) if r["speculative"] == "1"] == [("707", "2.153")]
    shift = rows(case_file("vllm-shift"))
    assert [(r["accept_length"], r["accepted_per_position"], r["tokens_per_second"]) for r in shift] == [("1.907", "0.499;0.267;0.141", "")]
    assert all("ids" not in r for r in shift)


def test_the_incident_has_the_figures_of_its_record():
    case = load_case(case_file("incident"))
    assert [(r["steps"], r["accept_length"], r["tokens_per_second"]) for r in rows(case.file)] == [
        ("", "", "90.0"), ("1", "1.6", "56.8"), ("15", "1.9", "46.7"), ("5", "1.8", "54.8")]
    assert case.training.metrics == {"full_acc_0": 0.747}
    assert "--speculative-num-draft-tokens 16" in case.serving.launch


def test_the_incident_needs_no_preparation(monkeypatch):
    monkeypatch.setattr(cases, "stage", None)
    assert load_case(case_file("incident")).missing_evidence() == []


def test_building_again_repairs_a_changed_case_and_leaves_an_equal_one(tmp_path):
    file = case_file("broken")
    before = file.parent.stat().st_ino
    build("broken")
    assert file.parent.stat().st_ino == before
    file.write_text("name: other")
    build("broken")
    assert load_case(file).name == "smollm2-broken"
    assert not [p for p in file.parent.parent.iterdir() if p.name.startswith(".")]


def test_edits_do_not_reach_the_shared_files(staged):
    fixed = build("fixed", [IDS, Edit(file="bank/x.json", key="a", value=1)][:1])
    link = fixed.parent / "target/edit.json"
    (staged.target / "edit.json").write_text("{}")
    link.hardlink_to(staged.target / "edit.json")
    apply_edits(fixed.parent, [Edit(file="target/edit.json", key="a", value=1)])
    assert json.loads(link.read_text()) == {"a": 1}
    assert (staged.target / "edit.json").read_text() == "{}"


@pytest.mark.parametrize(("edit", "message"), [
    (Edit(file="../outside.json", key="a", value=1), "outside the case folder"),
    (Edit(file="/etc/hosts.json", key="a", value=1), "outside the case folder"),
    (Edit(file="link.json", key="a", value=1), "outside the case folder"),
    (Edit(file="drafter/model.safetensors", key="a", value=1), "expected a JSON or YAML file"),
    (Edit(file="absent.json", key="a", value=1), "expected a JSON or YAML file"),
    (Edit(file="drafter/config.json", key="model_type.x", value=1), "is no mapping"),
    (Edit(file="list.json", key="a", value=1), "not a mapping"),
])
def test_edits_that_leave_the_case_or_fit_nothing_are_refused_and_nothing_is_written(tmp_path, edit, message):
    folder = case_file("broken").parent
    (tmp_path / "outside.json").write_text("{}")
    (folder.parent / "outside.json").write_text("{}")
    (folder / "link.json").symlink_to(tmp_path / "outside.json")
    (folder / "list.json").write_text("[]")
    with pytest.raises(ValueError, match=message):
        apply_edits(folder, [IDS, edit])
    assert json.loads((folder / "drafter/config.json").read_text())["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [-1, 1, 14]
    assert (tmp_path / "outside.json").read_text() == (folder.parent / "outside.json").read_text() == "{}"


def test_edits_reach_yaml_create_mappings_and_remove_keys():
    file = case_file("broken")
    apply_edits(file.parent, [Edit(file="case.yaml", key="serving.env.NCCL_PROTO", value="LL"), Edit(file="case.yaml", key="measurements", value=None),
                              Edit(file="case.yaml", key="captures", value=None)])
    content = yaml.safe_load(file.read_text())
    assert content["serving"]["env"] == {"NCCL_PROTO": "LL"}
    assert "measurements" not in content
    assert load_case(file).name == "smollm2-broken"


def test_the_data_are_what_their_readme_says():
    test, train = stage.sequences("test"), stage.sequences("train")
    assert (len(test), len(train)) == (79, 903)
    assert sum(len(r.gen_ids) for r in test) == 10_879
    assert {r.family for r in test[:: stage.BANK_EVERY]} == {"story", "explain", "code", "tips"}


def test_a_finished_stage_is_recognised_by_its_files(tmp_path):
    listing = stage.root() / "prepared.json"
    file = tmp_path / "cache/demo/x"
    file.write_text("abc")
    listing.write_text(json.dumps({"demo/x": 3}))
    assert stage._complete(listing)
    file.write_text("ab")
    assert not stage._complete(listing)
    file.unlink()
    assert not stage._complete(listing)


def test_public_names():
    assert demo.case_file is case_file and demo.VARIANTS == ("broken", "fixed", "vllm-shift", "incident")
