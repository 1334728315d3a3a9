"""What a live server is asked: the built-in prompts by domain, own prompts, or a request log replayed; rendered once, hashed.

Prompts are sent as token ids, so that the text every server sees is known and two servers see the same. The target's own
tokenizer renders them with its chat template; its hash is recorded with every run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eagle_forensics.evidence.answers import CONSTRAINTS
from eagle_forensics.evidence.records import EvidenceError

BUILTIN = Path(__file__).with_name("prompts.jsonl")
STRUCTURED = Path(__file__).with_name("prompts_structured.jsonl")
"""Eight prompts, each with the JSON schema that its answer has to keep to."""
MAX_BYTES = 200_000_000
MAX_LINE = 4_000_000
MOST_TOKENS = 1 << 20
"""Longest prompt or answer that is asked for; prompts of longer contexts are not made here."""
HOTTEST = 100.0
"""Temperature above which no request log is believed; engines take 2 at most in their own clients."""


@dataclass(frozen=True)
class Prompt:
    """One thing to ask, in exactly one of three forms."""

    id: str
    domain: str
    messages: tuple[Mapping[str, str], ...] | None = None
    text: str | None = None
    """Sent as it is, without a chat template."""
    ids: tuple[int, ...] | None = None
    max_tokens: int | None = None
    """Recorded in a replayed log; overrides the run's length."""
    temperature: float | None = None
    json_schema: str | None = None
    """The answer has to keep to this JSON schema (as JSON text): the server constrains it by a grammar."""
    regex: str | None = None
    """The answer has to match this expression."""

    @property
    def constraint(self) -> dict[str, str]:
        """What the answer has to keep to, by the engines' own names; empty for a free one."""
        return {k: v for k in CONSTRAINTS if (v := getattr(self, k)) is not None}

    @property
    def free(self) -> Prompt:
        """The same prompt without a constraint."""
        return replace(self, json_schema=None, regex=None)


@dataclass(frozen=True)
class Workload:
    """Prompts as token ids, and what makes two workloads the same."""

    prompts: tuple[Prompt, ...]
    """All with `ids`."""
    prompts_hash: str
    """Over the token ids, in order."""
    template_hash: str | None
    """Of the chat template that rendered them; None where none was used."""
    name: str

    @property
    def domains(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(p.domain for p in self.prompts))

    def first(self, n: int) -> Workload:
        """The first n prompts, hashed anew."""
        return self if n >= len(self.prompts) else self.of(self.prompts[:n])

    def of(self, prompts: Sequence[Prompt], name: str = "") -> Workload:
        """Other rendered prompts in place of these, hashed anew."""
        return _workload(prompts, self.template_hash, name or self.name)


def read_prompts(path: Path | str | None = None) -> tuple[Prompt, ...]:
    """Prompts of a JSONL file, the built-in 40 without one. EvidenceError for a line that holds no prompt.

    A line is an object with `messages`, `prompt` (text, token ids or messages), `text` or `input_ids`, optional `id` and `domain`
    (or `category`). A request log replays too: the request may stand under `body`, `request` or `obj`, with `max_tokens` or
    `max_new_tokens` and `temperature`, as OpenAI batch files and the engines' own logs write it. A constraint on the answer is `json_schema`
    or `regex` (vLLM: under `structured_outputs`, SGLang: among the sampling parameters), or OpenAI's `response_format`.
    """
    path = Path(path) if path is not None else BUILTIN
    found, seen = [], set()
    for number, row in _rows(path):
        prompt = _prompt(row, number, path)
        if prompt.id in seen:
            raise EvidenceError(f"{path}, line {number}: the id {prompt.id!r:.60} stands twice. Give every prompt its own.")
        seen.add(prompt.id)
        found.append(prompt)
    if not found:
        raise EvidenceError(f"{path}: no prompt in it; expected one JSON object a line with `messages`, `prompt`, `text` or `input_ids`.")
    return tuple(found)


def render(prompts: Sequence[Prompt], tokenizer_folder: Path | str | None, *, name: str = "built-in") -> Workload:
    """The prompts as token ids, by the tokenizer and chat template of the target's folder (local files, none of its code is run).

    EvidenceError where a prompt needs a tokenizer or a template that is not there. Prompts of token ids need neither.
    """
    if all(p.ids is not None for p in prompts):
        return _workload(prompts, None, name)
    if tokenizer_folder is None:
        raise EvidenceError("the prompts are text and the case names no target: its tokenizer is needed to render them. Fill in target.path, "
                            "or give prompts of token ids (`input_ids`).")
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(tokenizer_folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise EvidenceError(f"{tokenizer_folder}: holds no tokenizer that can be loaded ({' '.join(str(error).split())[:160]}). Copy tokenizer.json and "
                            "tokenizer_config.json there, or give prompts of token ids.") from None
    template = tokenizer.chat_template
    rendered = tuple(_rendered(p, tokenizer, tokenizer_folder) for p in prompts)
    used = template is not None and any(p.messages for p in prompts)
    return _workload(rendered, hashlib.sha256(str(template).encode()).hexdigest()[:12] if used else None, name)


def _rendered(prompt: Prompt, tokenizer: Any, folder: Path | str) -> Prompt:
    if prompt.ids is not None:
        return prompt
    if prompt.messages is None:
        ids = tokenizer(prompt.text)["input_ids"]
    else:
        if tokenizer.chat_template is None:
            raise EvidenceError(f"{folder}: its tokenizer has no chat template; give prompts as `text`.")
        ids = tokenizer.apply_chat_template([dict(m) for m in prompt.messages], add_generation_prompt=True, return_dict=True)["input_ids"]
    return replace(prompt, messages=None, text=None, ids=tuple(map(int, ids)))


def _workload(prompts: Sequence[Prompt], template_hash: str | None, name: str) -> Workload:
    digest = hashlib.sha256(json.dumps([p.ids for p in prompts]).encode()).hexdigest()[:12]
    return Workload(tuple(prompts), digest, template_hash, name)


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise EvidenceError(f"{path}: {path.stat().st_size} bytes; a prompt file of more than {MAX_BYTES} is not read. Take a sample of its lines.")
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                if len(line) > MAX_LINE:
                    raise EvidenceError(f"{path}, line {number}: {len(line)} characters; expected one request.")
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError):
                    raise EvidenceError(f"{path}, line {number}: not JSON: {line.strip()[:60]!r}. Expected one object a line.") from None
                if not isinstance(row, dict):
                    raise EvidenceError(f"{path}, line {number}: {type(row).__name__}; expected an object.")
                yield number, row
    except UnicodeDecodeError as error:
        raise EvidenceError(f"{path}: not UTF-8 at byte {error.start}. Save it as UTF-8.") from None
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read ({error.strerror or error}). Correct the path of the prompts.") from None


def _prompt(row: dict[str, Any], number: int, path: Path) -> Prompt:
    request = next((row[k] for k in ("body", "request", "obj") if isinstance(row.get(k), dict)), row)
    sampling = request.get("sampling_params") if isinstance(request.get("sampling_params"), dict) else request
    said = next((request[k] for k in ("messages", "input_ids", "prompt", "text") if request.get(k)), None)
    name = str(next((row[k] for k in ("id", "custom_id", "rid") if row.get(k) is not None), f"line {number}"))
    common = {"id": name, "domain": str(row.get("domain") or row.get("category") or "own"),
              "max_tokens": next((sampling[k] for k in ("max_tokens", "max_completion_tokens", "max_new_tokens") if sampling.get(k) is not None), None),
              "temperature": sampling.get("temperature"), **_constraint(request, sampling)}
    if common["max_tokens"] is not None and not (type(common["max_tokens"]) is int and 1 <= common["max_tokens"] <= MOST_TOKENS):
        raise EvidenceError(f"{path}, line {number}: max_tokens is {common['max_tokens']!r:.60}; expected a whole number from 1 to {MOST_TOKENS}.")
    if common["temperature"] is not None and not (type(common["temperature"]) in (int, float) and 0 <= common["temperature"] < HOTTEST):
        raise EvidenceError(f"{path}, line {number}: temperature is {common['temperature']!r:.60}; expected a number from 0 to {HOTTEST:g}.")
    if isinstance(said, str):
        return Prompt(**common, text=said)
    if isinstance(said, list) and said and all(isinstance(t, int) and not isinstance(t, bool) and t >= 0 for t in said):
        return Prompt(**common, ids=tuple(said))
    if isinstance(said, list) and said and all(isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str) for m in said):
        return Prompt(**common, messages=tuple({"role": m["role"], "content": m["content"]} for m in said))
    raise EvidenceError(f"{path}, line {number}: no prompt in it; expected `messages` (role and text content), `prompt`, `text` or `input_ids`.")


def _constraint(request: Mapping[str, Any], sampling: Mapping[str, Any]) -> dict[str, str]:
    """`json_schema` as JSON text or `regex`, wherever the request's API puts it; other grammars are left out."""
    vllm = request.get("structured_outputs") if isinstance(request.get("structured_outputs"), dict) else {}
    form = request.get("response_format") if isinstance(request.get("response_format"), dict) else {}
    named = form.get("json_schema") if isinstance(form.get("json_schema"), dict) else {}
    schema = next((v for v in (sampling.get("json_schema"), vllm.get("json"), named.get("schema"), {"type": "object"} if form.get("type") == "json_object" else None) if v), None)
    regex = next((v for v in (sampling.get("regex"), vllm.get("regex")) if isinstance(v, str) and v), None)
    if schema is not None:
        return {"json_schema": schema if isinstance(schema, str) else json.dumps(schema, ensure_ascii=False)}
    return {"regex": regex} if regex else {}
