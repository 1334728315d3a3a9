"""A live vLLM server: streamed `/v1/completions` by token ids, counters of `/metrics`, per-request counters where they are on.

Counters (v1/spec_decode/metrics.py): drafts, draft tokens, accepted tokens without the bonus, accepted per position; they exist
only with speculation and count a round before it is trimmed at a stop. Per request from 0.29 on with
`--per-request-spec-decode-metrics summary`; else the counters are read around single requests (`live`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any, ClassVar

from prometheus_client.parser import text_string_to_metric_families

from eagle_forensics.acceptance.clients import counters, simulation
from eagle_forensics.acceptance.clients.counters import count
from eagle_forensics.acceptance.clients.records import (
    PLAIN,
    Answer,
    Choice,
    Sampling,
    Server,
    digest,
    rounds_in_order,
    shown_arguments,
    token_ids,
    within,
    words,
)
from eagle_forensics.evidence.transport import Failure, Transport

FIELDS: Mapping[str, tuple[str, ...]] = {
    "rounds": ("num_spec_steps",), "accepted": ("num_accepted_draft_tokens",), "proposed": ("num_draft_tokens",), "histogram": ("acceptance_histogram",)}
COUNTERS, STARTED = "vllm:spec_decode_num_", "process_start_time_seconds"
"""What is read of /metrics; other lines are not even parsed."""


class VllmClient:
    """vLLM 0.11 and later."""

    engine: ClassVar[str] = "vllm"

    def __init__(self, transport: Transport) -> None:
        self.transport, self.url = transport, transport.url
        self._model: str | None = None

    @staticmethod
    def recognises(said: Mapping[str, Any]) -> bool:
        return isinstance(said.get("version"), str)

    async def server(self) -> Server:
        said = await self.transport.json("GET", "/version")
        version = said.get("version") if isinstance(said, Mapping) else None
        samples = await self._samples()
        arguments, notes = await self._arguments()
        speculation = arguments.get("speculative_config")
        spec = speculation if isinstance(speculation, Mapping) else {}
        positions = {s.labels.get("position") for s in samples if s.name == f"{COUNTERS}accepted_tokens_per_pos_total"}
        speculative = bool(spec) or any(s.name == f"{COUNTERS}drafts_total" for s in samples)
        steps = count(spec.get("num_speculative_tokens")) or (len(positions) or None)
        started = [s.value for s in samples if s.name == STARTED]
        return Server(self.url, self.engine, words(version, 60), arguments, speculative, steps, 1 if speculative else None, steps,
                      digest([started, version, arguments, sorted(map(str, positions))]), simulation.by_config(spec), notes)

    async def answer(self, prompt: str, domain: str, ids: tuple[int, ...], sampling: Sampling) -> Answer:
        began = time.monotonic()
        first, out, seen, text, finish, usage, spec = None, [], [], [], None, {}, None
        try:
            body = {"model": await self._name(), "prompt": list(ids), "max_tokens": sampling.max_tokens, "temperature": sampling.temperature, **PLAIN, "top_k": 0,
                    "stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True, **_constrained(sampling)}
            async with aclosing(self.transport.events("/v1/completions", body)) as events:
                async for event in events:
                    piece = json.loads(event)
                    if "error" in piece:
                        raise _refused(piece["error"])
                    for choice in piece.get("choices") or ():
                        if first is None:
                            first = time.monotonic() - began
                        if tokens := choice.get("token_ids"):
                            out += tokens
                            seen.append(len(out))
                            within(len(out), sampling)
                        text.append(words(choice.get("text")) or "")
                        finish = words(choice.get("finish_reason"), 60) or finish
                    usage = piece.get("usage") or usage
                    spec = (piece.get("metrics") or {}).get("speculative_decoding") or spec
            seconds = time.monotonic() - began
            if finish is None:
                raise Failure("down", "/v1/completions: the stream ended before the answer was finished")
            cached = count((usage.get("prompt_tokens_details") or {}).get("cached_tokens"))
            in_order = _in_order(spec)
        except Failure as failure:
            return Answer(prompt, domain, started_s=began, seconds=time.monotonic() - began, error=words(str(failure)), kind=failure.kind)
        except (ValueError, AttributeError, TypeError, RecursionError):
            return Answer(prompt, domain, started_s=began, seconds=time.monotonic() - began, error="/v1/completions: an event is not what vLLM sends",
                          kind="malformed")
        tokens, ids = count(usage.get("completion_tokens")), token_ids(out, sampling)
        notes: tuple[str, ...] = ()
        try:
            acceptance = counters.from_fields({**spec, "completion_tokens": tokens}, FIELDS, "vllm per-request metrics") if spec else None
        except (ValueError, TypeError) as error:
            acceptance, notes = None, (f"its counters contradict each other: {error}",)
        return Answer(prompt, domain, count(usage.get("prompt_tokens")), ids, "".join(text), tokens if tokens is not None else len(out) or None,
                      cached, finish, acceptance, in_order or rounds_in_order(seen, acceptance), began, first, seconds, notes=notes)

    async def counters(self) -> counters.Acceptance | None:
        sums: dict[str, int] = {}
        reached: dict[int, int] = {}
        try:
            for sample in await self._samples():
                if sample.name == f"{COUNTERS}accepted_tokens_per_pos_total":
                    at = int(sample.labels["position"])
                    reached[at] = reached.get(at, 0) + int(sample.value)
                elif sample.name.startswith(COUNTERS) and sample.name.endswith("_total"):
                    sums[sample.name] = sums.get(sample.name, 0) + int(sample.value)
        except (Failure, ValueError, OverflowError, KeyError):
            return None
        if f"{COUNTERS}drafts_total" not in sums:
            return None
        return counters.Acceptance(
            sums[f"{COUNTERS}drafts_total"], sums.get(f"{COUNTERS}accepted_tokens_total", 0), sums.get(f"{COUNTERS}draft_tokens_total", 0),
            tuple(reached[i] for i in sorted(reached)) or None, "vllm:spec_decode counters of /metrics")

    async def flush(self) -> str | None:
        try:
            await self.transport.text("POST", "/reset_prefix_cache")
            return None
        except Failure as failure:
            if failure.status in (404, 405):
                return "the prefix cache was not flushed: vLLM offers that only with VLLM_SERVER_DEV_MODE=1"
            return f"the prefix cache was not flushed: {failure}"

    async def choices(self, ids: tuple[int, ...], n: int) -> tuple[Choice, ...]:
        said = await self.transport.json("POST", "/v1/completions", {
            "model": await self._name(), "prompt": list(ids), "max_tokens": 1, "temperature": 0, "logprobs": n, "return_tokens_as_token_ids": True})
        try:
            top = said["choices"][0]["logprobs"]["top_logprobs"][0]
            return tuple(sorted((Choice(int(name.removeprefix("token_id:")), float(p)) for name, p in top.items()), key=lambda c: -c.logprob))
        except (KeyError, IndexError, TypeError, ValueError):
            raise Failure("malformed", "/v1/completions gave no top_logprobs by token id") from None

    async def _name(self) -> str:
        if self._model is None:
            try:
                self._model = str((await self.transport.json("GET", "/v1/models"))["data"][0]["id"])
            except (KeyError, IndexError, TypeError):
                raise Failure("malformed", "/v1/models names no model") from None
        return self._model

    async def _samples(self) -> list[Any]:
        lines = (await self.transport.text("GET", "/metrics")).splitlines()
        text = "".join(f"{x}\n" for x in lines if x.startswith((COUNTERS, STARTED)))
        try:
            return [s for f in text_string_to_metric_families(text) for s in f.samples if s.name.startswith(COUNTERS) or s.name == STARTED]
        except ValueError:
            raise Failure("malformed", "/metrics is not in the format of Prometheus") from None

    async def _arguments(self) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Effective arguments, which vLLM gives in development mode only."""
        try:
            said = await self.transport.json("GET", "/server_info?config_format=json")
        except Failure as failure:
            if failure.kind in ("status", "malformed"):
                return {}, ("vLLM gives its arguments only with VLLM_SERVER_DEV_MODE=1; a simulated acceptance would not be seen",)
            raise
        config = said.get("vllm_config") if isinstance(said, Mapping) else None
        return shown_arguments(config if isinstance(config, Mapping) else {}), ()


def _constrained(sampling: Sampling) -> dict[str, Any]:
    """`structured_outputs` of vLLM 0.11 and later (docs/features/structured_outputs.md; the older guided_json went in 0.12)."""
    if sampling.json_schema is not None:
        return {"structured_outputs": {"json": sampling.json_schema}}
    return {"structured_outputs": {"regex": sampling.regex}} if sampling.regex is not None else {}


def _refused(said: Any) -> Failure:
    """An error that came as an event of a stream that had begun with 200; `code` is the status it stands for."""
    code, text = (said.get("code"), said.get("message")) if isinstance(said, Mapping) else (None, said)
    return Failure("status", f"/v1/completions answered {code}: {text}"[:200], code) if isinstance(code, int) else Failure("malformed", f"/v1/completions: {text}"[:200])


def _in_order(spec: Mapping[str, Any] | None) -> tuple[int, ...] | None:
    """Tokens of each round where the server says them (`detailed`): whole rounds, also where a stop cut the last one."""
    accepted = (spec or {}).get("per_step_accepted")
    return tuple(n + 1 for n in accepted) if accepted and isinstance(accepted, list) and all(isinstance(n, int) for n in accepted) else None
