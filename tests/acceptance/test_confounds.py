"""Two runs are comparable only if nothing but the thing under test differs."""

import pandas as pd

from eagle_forensics.acceptance.confounds import baseline_for, compare
from eagle_forensics.acceptance.runs import runs

BASE = {"label": "base", "speculative": 0, "steps": 0, "draft_tokens": 1, "engine": "sglang", "engine_version": "0.5.9", "temperature": 0.0, "concurrency": 1,
        "prompts_hash": "p", "env_hash": "e", "tokens_per_second": 90.0}
SPEC = {**BASE, "label": "spec", "speculative": 1, "steps": 3, "topk": 1, "draft_tokens": 4, "accept_length": 2.0}


def pair(**changes):
    return runs(pd.DataFrame([BASE, {**SPEC, **changes}]))


def test_speculation_and_its_settings_are_one_variable():
    found = compare(*pair())
    assert not found.confounded and found.unrecorded == ()


def test_a_second_difference_is_named_with_both_values():
    found = compare(*pair(env_hash="tuned", temperature=1.0))
    assert found.confounded
    assert found.differ == (("temperature", 0.0, 1.0), ("env_hash", "e", "tuned"))


def test_what_is_not_recorded_is_not_called_equal():
    assert compare(*pair(prompts_hash=None)).unrecorded == ("prompts_hash",)


def test_in_a_chain_draft_tokens_follow_the_steps_and_in_a_tree_they_do_not():
    chain = runs(pd.DataFrame([SPEC, {**SPEC, "steps": 5, "draft_tokens": 6}]))
    tree = runs(pd.DataFrame([{**SPEC, "topk": 4}, {**SPEC, "topk": 4, "steps": 5, "draft_tokens": 6}]))
    assert not compare(*chain).confounded
    assert [name for name, _, _ in compare(*tree).differ] == ["draft_tokens"]


def test_no_baseline_is_invented():
    assert baseline_for(pair()[1], pair()[1:]) == ((), ())


def test_another_spelling_is_no_difference():
    plain, spec, other = runs(pd.DataFrame([
        {**BASE, "engine": "SGLang", "engine_version": "v0.5.23", "dataset": "MT-Bench", "drafter": "none"}, {**SPEC, "engine_version": "0.5.23", "dataset": "mt-bench", "drafter": "head"},
        {**SPEC, "engine_version": "0.5.23", "dataset": "mt-bench", "drafter": "public"}]))
    assert not compare(plain, spec).confounded
    assert [name for name, _, _ in compare(spec, other).differ] == ["drafter"], "with speculation the head is a difference"
