"""A live server, asked about itself: `read_live(url)` gives its engine, version and the arguments that took effect.

Nothing of a reply is kept but what is read out of it. Endpoints: SGLang `/server_info` (0.5.6 and later) and `/get_server_info` (all;
deprecated), vLLM `/version`, `/v1/models`, and `/server_info?config_format=json` where it was started with VLLM_SERVER_DEV_MODE=1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from eagle_forensics.evidence import configs
from eagle_forensics.evidence.launch import read_effective, read_launch
from eagle_forensics.evidence.records import EvidenceError, LaunchLine
from eagle_forensics.evidence.transport import KEY_VARIABLE, Failure, Patience, Transport, shown

PATIENCE = Patience(connect_s=5.0, silence_s=5.0, total_s=5.0, busy_tries=0)
"""These replies are read from memory and take milliseconds."""
MAX_REPLY = 4_000_000
"""Bytes; /server_info of SGLang 0.5.23 has 547 fields and 20 kB."""


class LiveError(EvidenceError):
    """A server that does not answer as expected; the message names the URL, what came and what to do."""


@dataclass(frozen=True)
class LiveServer:
    """What a server says about itself."""

    url: str
    """As shown: without user and password."""
    engine: str
    """`sglang` or `vllm`, by the endpoints it has."""
    version: str | None
    arguments: LaunchLine | None
    """Arguments as resolved by the engine; None where this server does not tell."""
    asked: LaunchLine | None
    """The launch line as typed (`launch_command`, SGLang 0.5.20 and later)."""
    endpoint: str
    """Where the arguments, else the version, were read."""
    notes: tuple[str, ...] = ()


def read_live(url: str) -> LiveServer:
    """Ask the server at `url` for its effective arguments. LiveError if it is not there, hangs, or answers something else."""
    base = str(url).rstrip("/")
    with ThreadPoolExecutor(1) as apart:  # a notebook has an event loop of its own
        return apart.submit(asyncio.run, _ask(base, shown(base))).result()


async def _ask(base: str, where: str) -> LiveServer:
    try:
        transport = Transport(base, PATIENCE, most=MAX_REPLY)
    except Failure as failure:
        raise _error(where, failure) from None
    async with transport:
        for path in ("/server_info", "/get_server_info"):
            reply = await _object(transport, where, f"{path}?config_format=json" if path == "/server_info" else path)
            if reply is not None:
                return await _with_version(transport, _vllm_config(where, reply, path)) if "vllm_config" in reply else _sglang(where, reply, path)
        version, models = await _object(transport, where, "/version"), await _object(transport, where, "/v1/models")
    if version is None or not isinstance(version.get("version"), str):
        raise LiveError(f"{where}: answers, but has neither /server_info (SGLang) nor /version (vLLM). Is `serving.url` the address of the server itself?")
    return LiveServer(where, "vllm", version["version"][:60], _served_model(models, where), None, "/version", (
        "vLLM tells its arguments only with VLLM_SERVER_DEV_MODE=1 (/server_info); name its log in `serving.log`.",))


async def _with_version(transport: Transport, server: LiveServer) -> LiveServer:
    """vLLM's configuration does not name the release, `/version` does."""
    said = None if server.version else await _object(transport, server.url, "/version")
    return replace(server, version=said["version"][:60]) if said and isinstance(said.get("version"), str) else server


async def _object(transport: Transport, base: str, path: str) -> dict[str, Any] | None:
    """The JSON object at a path; None where the server has no such endpoint."""
    where = base + path.split("?")[0]
    try:
        return configs.parse_object(await transport.content("GET", path), where)
    except Failure as failure:
        if failure.status in (404, 405):
            return None
        raise _error(where, failure) from None


def _error(where: str, failure: Failure) -> LiveError:
    if failure.status in (401, 403):
        return LiveError(f"{where}: asks for a key (status {failure.status}). Put it into the environment variable {KEY_VARIABLE}, or save the reply as a "
                         "file and name it in `serving.log`.")
    match failure.kind:
        case "redirect":
            return LiveError(f"{where}: redirects elsewhere (status {failure.status}), which is not followed: only the URL of the case is contacted. "
                             "Name the server itself in `serving.url`.")
        case "large":
            return LiveError(f"{where}: more than {MAX_REPLY} bytes; expected a server's description of itself. Is this another service?")
        case "hang":
            return LiveError(f"{where}: no whole reply within {PATIENCE.total_s:g} s. Is the server busy starting, or another service? Try it with curl, then run again.")
        case "status" | "busy":
            return LiveError(f"{where}: status {failure.status}; expected 200. Look into the server's log, then run again.")
    return LiveError(f"{where}: no answer ({str(failure)[:160]}). Start the server, correct `serving.url`, or save the reply of /server_info as a file and "
                     "name it in `serving.log`.")


def _sglang(where: str, reply: Mapping[str, Any], path: str) -> LiveServer:
    version, command = reply.get("version"), reply.get("launch_command")
    try:
        asked = read_launch(command) if isinstance(command, str) and command.startswith("-") else None
    except EvidenceError:
        asked = None
    return LiveServer(where, "sglang", version[:60] if isinstance(version, str) else None, read_effective(reply, where + path), asked, path)


def _vllm_config(where: str, reply: Mapping[str, Any], path: str) -> LiveServer:
    """vLLM's own configuration object, by the flags that set it; its environment is not looked at."""
    config = reply["vllm_config"]
    if not isinstance(config, Mapping):
        raise LiveError(f"{where}{path}: `vllm_config` is text; expected an object, which vLLM gives for config_format=json. Name its log in `serving.log` instead.")
    flags: dict[str, Any] = {}
    for part, fields in _VLLM_FLAGS.items():
        inner = config.get(part)
        flags |= {flag: inner.get(name) for name, flag in fields.items()} if isinstance(inner, Mapping) else {}
    spec = config.get("speculative_config")
    if isinstance(spec, Mapping):
        flags["speculative_config"] = {k: spec[k] for k in ("method", "model", "num_speculative_tokens") if isinstance(spec.get(k), str | int)}
    version = reply.get("version")
    return LiveServer(where, "vllm", version[:60] if isinstance(version, str) else None, read_effective(flags, where + path), None, path)


_VLLM_FLAGS = {
    "model_config": {"model": "model", "dtype": "dtype", "max_model_len": "max_model_len", "quantization": "quantization", "enforce_eager": "enforce_eager"},
    "parallel_config": {"tensor_parallel_size": "tensor_parallel_size"}, "scheduler_config": {"max_num_seqs": "max_num_seqs"},
}
"""Part of vLLM's configuration -> its field -> the flag of `vllm serve` that sets it."""


def _served_model(models: Mapping[str, Any] | None, where: str) -> LaunchLine | None:
    data = models.get("data") if models else None
    first = data[0] if isinstance(data, list) and data and isinstance(data[0], Mapping) else {}
    fields = {"model": first.get("root") or first.get("id"), "max_model_len": first.get("max_model_len")}
    return read_effective(fields, f"{where}/v1/models") if isinstance(fields["model"], str) else None
