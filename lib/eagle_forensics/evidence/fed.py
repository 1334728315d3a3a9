"""The states a live server hands out for given prompts, as its drafter is fed them: one prompt at a time, the cache flushed before, prompt rows only.

SGLang answers `/generate` with `return_hidden_states` in JSON: of the joined aux planes where it captures them, else of the last state. vLLM's
extraction connector writes a file on the serving host and names it in the reply: it must be readable here, under that path or in the folder `states`.
Decoded rows are not kept: releases before 0.5.14 mix them up under speculation.
"""

from __future__ import annotations

import asyncio
import fcntl
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from eagle_forensics.evidence.containers import open_file
from eagle_forensics.evidence.layouts import VLLM_EXTRACT
from eagle_forensics.evidence.layouts.parts import rank_in
from eagle_forensics.evidence.layouts.sglang_reply import SGLANG_REPLY
from eagle_forensics.evidence.records import EvidenceError, Sample
from eagle_forensics.evidence.samples import members_of, read_member
from eagle_forensics.evidence.transport import Failure, Patience, Transport

MOST_BYTES = 256 << 20
"""One JSON reply; 64 tokens of three planes of 7,168 numbers have about 20 MB."""
WRITTEN_S = 30.0
"""How long a file that the connector promised may take to appear."""
PATIENCE = Patience(busy_tries=4)

Progress = Callable[[str], None]


class NotReturned(EvidenceError):
    """A server that answers, but not with the fed states. `lacks`: `states`, `aux` (only the last state came), `rows`, `file`."""

    def __init__(self, lacks: str, text: str) -> None:
        super().__init__(text)
        self.lacks = lacks


@dataclass(frozen=True)
class Fed:
    """What a server returned for one prompt."""

    ids: tuple[int, ...]
    states: torch.Tensor
    """[T, k, H], or [T, W] where the hidden size is not known."""
    rank: int = 0
    ranks: int = 1


@dataclass(frozen=True)
class Asked:
    """What was fetched and what could not be made sure."""

    fed: tuple[Fed, ...]
    notes: tuple[str, ...]


def fetch(url: str, engine: str, prompts: Sequence[str | Sequence[int]], *, hidden: int | None = None, most_tokens: int = 32,
          states: Path | None = None, progress: Progress | None = None) -> Asked:
    """The states of the first `most_tokens` tokens of every prompt (a text, which the server tokenizes, or token ids).

    `hidden`: the target's hidden size, by which joined planes are taken apart. `states`: the folder of vLLM's connector as seen from here.
    NotReturned if the server gives no such states, EvidenceError if it does not answer.
    """
    with ThreadPoolExecutor(1) as apart:  # a notebook has an event loop of its own
        return apart.submit(asyncio.run, _fetch(str(url), engine, prompts, hidden, most_tokens, states, progress or (lambda _: None))).result()


async def _fetch(url: str, engine: str, prompts: Sequence[str | Sequence[int]], hidden: int | None, most: int, folder: Path | None, say: Progress) -> Asked:
    fed: list[Fed] = []
    notes: dict[str, None] = {}
    try:
        async with Transport(url, PATIENCE, most=MOST_BYTES) as server:
            model = await _model(server) if engine == "vllm" else None
            for number, prompt in enumerate(prompts):
                ids = (await _tokens(server, prompt, model) if isinstance(prompt, str) else tuple(map(int, prompt)))[:most]
                if not ids:
                    raise EvidenceError(f"prompt {number} has no tokens; leave it out.")
                if note := await _flush(server, engine):
                    notes[note] = None
                fed += await (_vllm(server, model or "", ids, folder) if engine == "vllm" else _sglang(server, ids, hidden))
                say(f"states of prompt {number + 1} of {len(prompts)}: {len(ids)} tokens")
    except Failure as failure:
        raise EvidenceError(f"{server.url if 'server' in locals() else url}: {failure}. Look into the server's log, then capture again.") from None
    return Asked(tuple(fed), tuple(notes))


async def _sglang(server: Transport, ids: tuple[int, ...], hidden: int | None) -> list[Fed]:
    body = {"input_ids": list(ids), "return_hidden_states": True, "sampling_params": {"temperature": 0, "max_new_tokens": 1}}
    try:
        reply = await server.json("POST", "/generate", body)
    except Failure as failure:
        if failure.status == 400 and "hidden state" in str(failure):
            raise NotReturned("states", f"{server.url}: {failure}") from None
        raise
    inner = reply if isinstance(reply, dict) else {}
    if not (inner.get("meta_info") or {}).get("hidden_states"):
        raise NotReturned("states", f"{server.url}: its reply holds no hidden states")
    sample = read_member(SGLANG_REPLY, inner, Path("/generate"))
    prompt = sample.planes[0].data[~sample.loss_mask]
    if len(prompt) != len(ids):
        raise NotReturned("rows", f"{server.url}: {len(prompt)} rows for a prompt of {len(ids)} tokens: the others came out of the prefix cache")
    if hidden and prompt.shape[1] == hidden:
        raise NotReturned("aux", f"{server.url}: the rows are {hidden} wide, the target's hidden size: this server returns its last state, not what a drafter is fed")
    if hidden and prompt.shape[1] % hidden:
        raise EvidenceError(f"{server.url}: its rows are {prompt.shape[1]} wide, no multiple of the target's hidden size {hidden}. Does it serve this target?")
    return [Fed(ids, prompt.reshape(len(ids), -1, hidden) if hidden else prompt)]


async def _vllm(server: Transport, model: str, ids: tuple[int, ...], folder: Path | None) -> list[Fed]:
    reply = await server.json("POST", "/v1/completions", {"model": model, "prompt": list(ids), "max_tokens": 1, "temperature": 0})
    named = ((reply if isinstance(reply, dict) else {}).get("kv_transfer_params") or {}).get("hidden_states_path")
    if not isinstance(named, str):
        raise NotReturned("states", f"{server.url}: its reply names no file of hidden states (kv_transfer_params.hidden_states_path)")
    file = Path(named) if folder is None else folder / Path(named).name
    if file.suffix != ".safetensors":
        raise EvidenceError(f"{server.url}: names {file.name[:80]!r} as its file of hidden states, expected one that ends in .safetensors.")
    files = [file]
    if (found := rank_in(file))[2] is not None:
        files = [file.with_name(f"{found[0]}.rank{rank}of{found[2]}.safetensors") for rank in range(min(found[2], 1024))]
    return [_written(await asyncio.to_thread(_wait, f), ids) for f in files]


def _wait(file: Path) -> Path:
    """The file once its writer is done: vLLM holds `<file>.lock` until then."""
    until = time.monotonic() + WRITTEN_S
    while True:
        if file.is_file() and not _locked(Path(f"{file}.lock")):
            return file
        if time.monotonic() > until:
            raise NotReturned("file", f"{file}: the server says that it wrote the states there, and no such file is readable here")
        time.sleep(0.05)


def _locked(lock: Path) -> bool:
    try:
        with lock.open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def _written(file: Path, ids: tuple[int, ...]) -> Fed:
    content = open_file(file)
    sample: Sample = read_member(VLLM_EXTRACT, members_of(VLLM_EXTRACT, content, file)[0], file)
    if tuple(sample.input_ids.tolist()) != ids:
        raise NotReturned("rows", f"{file}: {len(sample.input_ids)} tokens, which are not the {len(ids)} of the prompt")
    return Fed(ids, torch.stack([p.data for p in sample.planes], 1), sample.rank or 0, sample.ranks or 1)


async def _flush(server: Transport, engine: str) -> str | None:
    """Empty the prefix cache; what is in the way, if it cannot be."""
    ways = (("POST", "/reset_prefix_cache"),) if engine == "vllm" else (("POST", "/flush_cache"), ("GET", "/flush_cache"))
    for method, path in ways:
        try:
            await server.content(method, path)
            return None
        except Failure as failure:
            if failure.status not in (404, 405):
                return f"the prefix cache was not flushed: {failure}"
    return "the prefix cache was not flushed (no such endpoint); rows that come out of it would be missing and would be noticed"


async def _tokens(server: Transport, text: str, model: str | None) -> tuple[int, ...]:
    try:
        reply: Any = await server.json("POST", "/tokenize", {"prompt": text, **({"model": model} if model else {})})
    except Failure as failure:
        raise EvidenceError(f"{server.url}: cannot tokenize a text ({failure}). Give prompts as token ids (`input_ids`, a JSON object a line).") from None
    tokens = reply.get("tokens") if isinstance(reply, dict) else None
    if not isinstance(tokens, list) or not all(type(t) is int and 0 <= t < 1 << 31 for t in tokens):
        raise EvidenceError(f"{server.url}: /tokenize gave no list of tokens. Give prompts as token ids (`input_ids`, a JSON object a line).")
    return tuple(tokens)


async def _model(server: Transport) -> str:
    reply = await server.json("GET", "/v1/models")
    data = reply.get("data") if isinstance(reply, dict) else None
    if not isinstance(data, list) or not data or not isinstance(data[0], dict) or not isinstance(data[0].get("id"), str):
        raise EvidenceError(f"{server.url}: /v1/models names no model; expected vLLM's OpenAI server.")
    return data[0]["id"]
