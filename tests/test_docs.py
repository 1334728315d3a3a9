"""The docs name commands, files and faults that exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from eagle_forensics.diagnosis.rules import slugs
from eagle_forensics.suite.matrix import plan
from tests.suite import tiny

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_to_files_and_slugs_to_faults(page):
    text = page.read_text()
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
        assert (page.parent / target).exists(), target
    if page.name in ("start.md", "battery.md", "lineup.md"):
        for slug in re.findall(r"`((?:args|wiring|feature|drafter|vocab|load|data|runtime|measure|cost|nccl)\.(?:[a-z0-9-]+|\*))`", text):
            assert slugs([slug]), slug


def test_every_command_of_the_start_page_is_one_of_ours():
    text = (ROOT / "docs" / "start.md").read_text()
    known = subprocess.run([sys.executable, "-m", "eagle_forensics", "--help"], capture_output=True, text=True, check=True).stdout
    options = subprocess.run([sys.executable, "-m", "eagle_forensics", "run", "--help"], capture_output=True, text=True, check=True).stdout
    for command in re.findall(r"eagle-forensics (\w+)", text):
        assert re.search(rf"^  {command}\b", known, re.M), command
    for option in re.findall(r"eagle-forensics run .*", text):
        for flag in re.findall(r"--[a-z-]+", option):
            assert flag in options, flag


def test_the_recipes_are_yaml_and_their_matrix_is_a_plan(tmp_path):
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "start.md").read_text(), re.S)
    matrix, action = (yaml.safe_load(b) for b in blocks)
    assert [s for s in action["jobs"]["drafter"]["steps"] if "--matrix" in s.get("run", "")]
    for step in (10, 9):
        (tmp_path / f"ckpt-{step}").mkdir()
    (tmp_path / "m.yaml").write_text(yaml.safe_dump(matrix))
    assert [Path(p.overrides["drafter.path"]).name for p in plan([tiny.case(tmp_path)], {}, tmp_path / "m.yaml")] == ["ckpt-9", "ckpt-10"]
