"""Prompts: the built-in ones, own ones and replayed logs, rendered once and hashed."""

import json

import pytest

from eagle_forensics.acceptance.live.workload import Prompt, read_prompts, render
from eagle_forensics.evidence.records import EvidenceError


def lines(tmp_path, *rows):
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<unk>", "user", "assistant", "hello", "world", ":"]
    raw = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    made = PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="<unk>")
    made.chat_template = "{% for m in messages %}{{ m.role }} : {{ m.content }} {% endfor %}{% if add_generation_prompt %}assistant :{% endif %}"
    folder = tmp_path_factory.mktemp("tokenizer")
    made.save_pretrained(folder)
    return folder


def test_the_built_in_prompts_take_turns_by_domain():
    prompts = read_prompts()
    domains = [p.domain for p in prompts]
    assert len(prompts) == 40 == len({p.id for p in prompts}) and len({json.dumps(p.messages) for p in prompts}) == 40
    assert set(domains[:5]) == {"chat", "code", "maths", "extraction", "german"} and domains == domains[:5] * 8


def test_every_form_of_a_log_is_read(tmp_path):
    found = read_prompts(lines(
        tmp_path, {"prompt": "hello"}, {"id": "b", "category": "coding", "messages": [{"role": "user", "content": "hello"}]}, {"input_ids": [1, 2]}, {"prompt": [3, 4]},
        "", {"custom_id": "c", "body": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 7, "temperature": 0.5}},
        {"rid": "d", "obj": {"text": "hello", "sampling_params": {"max_new_tokens": 9, "temperature": 0}}}))
    assert [p.id for p in found] == ["line 1", "b", "line 3", "line 4", "c", "d"] and found[1].domain == "coding"
    assert (found[2].ids, found[3].ids) == ((1, 2), (3, 4))
    assert (found[4].max_tokens, found[4].temperature, found[5].max_tokens, found[5].temperature) == (7, 0.5, 9, 0.0)


@pytest.mark.parametrize("row, message", [
    ("{", "line 2: not JSON"), ([1], "line 2: list; expected an object"), ({"question": "x"}, "line 2: no prompt in it"), ({"input_ids": [-1]}, "no prompt in it"),
    ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "no prompt in it"), ({"id": "a", "prompt": "y"}, "'a' stands twice")])
def test_a_bad_line_is_named(tmp_path, row, message):
    with pytest.raises(EvidenceError, match=message):
        read_prompts(lines(tmp_path, {"id": "a", "prompt": "x"}, row))


def test_a_file_without_prompts_or_without_a_file(tmp_path):
    with pytest.raises(EvidenceError, match="no prompt in it"):
        read_prompts(lines(tmp_path, ""))
    with pytest.raises(EvidenceError, match="cannot be read"):
        read_prompts(tmp_path / "absent.jsonl")


def test_messages_go_through_the_chat_template_and_text_does_not(tokenizer_folder):
    work = render([Prompt("a", "d", messages=({"role": "user", "content": "hello world"},)), Prompt("b", "d", text="hello world"), Prompt("c", "d", ids=(9,))],
                  tokenizer_folder)
    assert [p.ids for p in work.prompts] == [(1, 5, 3, 4, 2, 5), (3, 4), (9,)]
    assert work.template_hash and len(work.prompts_hash) == 12
    only = render([Prompt("b", "d", text="hello world")], tokenizer_folder)
    assert only.template_hash is None and only.prompts_hash != work.prompts_hash


def test_token_ids_need_no_tokenizer_and_text_does(tmp_path):
    work = render([Prompt("a", "x", ids=(1, 2)), Prompt("b", "y", ids=(3,))], None)
    assert work.domains == ("x", "y") and len(work.first(1).prompts) == 1 and work.first(1).prompts_hash != work.prompts_hash and work.first(5) is work
    with pytest.raises(EvidenceError, match=r"Fill in target.path"):
        render([Prompt("a", "x", text="hello")], None)
    with pytest.raises(EvidenceError, match="holds no tokenizer"):
        render([Prompt("a", "x", text="hello")], tmp_path)


def test_a_tokenizer_without_template_cannot_render_messages(tokenizer_folder, tmp_path):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_text((tokenizer_folder / name).read_text())
    with pytest.raises(EvidenceError, match="no chat template"):
        render([Prompt("a", "d", messages=({"role": "user", "content": "hello"},))], tmp_path)
