"""A live SGLang server: `/server_info`, streamed `/generate` with the counters of every version, `/metrics`, `/flush_cache`.

Fields by version: sglang 0.4.6 to 0.5.23 (managers/tokenizer_manager.py); per request `meta_info` gives verify steps, correct
drafts and their histogram, so nothing aggregated is needed. `avg_spec_accept_length` and the gauges lag by the decode-log interval.
"""

from __future__ import annotations

import json
import re
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
    "rounds": ("spec_verify_ct",),
    "accepted": ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num"),
    "proposed": ("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num"),
    "histogram": ("spec_correct_drafts_histogram", "spec_accept_histogram"),
}
"""Canonical count to its names, newest first; before 0.5.5 only `spec_verify_ct` exists and accepted drafts follow from the tokens."""
COMPLETED = re.compile(rb'"completion_tokens": ?(\d{1,7})[,}]')
LIVE_STATE = ("internal_states", "startup_time", "status", "last_gen_throughput")
"""Parts of /server_info that are no arguments."""


class SglangClient:
    """SGLang 0.4.6 and later."""

    engine: ClassVar[str] = "sglang"

    def __init__(self, transport: Transport) -> None:
        self.transport, self.url = transport, transport.url

    @staticmethod
    def recognises(said: Mapping[str, Any]) -> bool:
        return "internal_states" in said or "speculative_algorithm" in said

    async def server(self) -> Server:
        said = await self._info()
        states = said.get("internal_states")
        state = states[0] if isinstance(states, list) and states and isinstance(states[0], dict) else {}
        env = state.get("env_vars")
        arguments = shown_arguments({k: v for k, v in said.items() if k not in LIVE_STATE})
        algorithm, interval = words(said.get("speculative_algorithm"), 60), said.get("decode_log_interval")
        notes = []
        if algorithm and isinstance(interval, int) and interval > 1:
            notes.append(f"avg_spec_accept_length and the gauges follow only every {interval} decode steps (--decode-log-interval); counts per request are exact")
        return Server(
            self.url, self.engine, words(said.get("version"), 60), arguments, algorithm not in (None, "", "NONE"), count(said.get("speculative_num_steps")),
            count(said.get("speculative_eagle_topk")), count(said.get("speculative_num_draft_tokens")), digest([said.get("startup_time"), said.get("random_seed"), arguments]), simulation.by_environment(env if isinstance(env, dict) else {}), tuple(notes))

    async def answer(self, prompt: str, domain: str, ids: tuple[int, ...], sampling: Sampling) -> Answer:
        constraint = {k: v for k in ("json_schema", "regex") if (v := getattr(sampling, k)) is not None}
        body = {"input_ids": list(ids), "stream": True, "sampling_params": {
            **PLAIN, "top_k": -1, "temperature": sampling.temperature, "max_new_tokens": sampling.max_tokens, **constraint}}
        began = time.monotonic()
        first, last, seen = None, b"", []
        try:
            async with aclosing(self.transport.events("/generate", body)) as events:
                async for event in events:
                    if first is None:
                        first = time.monotonic() - began
                    if (done := COMPLETED.search(event)) and done[1] != b"0":
                        seen.append(int(done[1]))
                        within(len(seen), sampling)
                    last = event
            seconds = time.monotonic() - began
            final = json.loads(last or b"{}")
            meta = final.get("meta_info") if isinstance(final, dict) else None
            if not isinstance(meta, dict):
                said = final.get("error", "no meta_info in its last event") if isinstance(final, dict) else "its last event is no object"
                raise Failure("malformed", f"/generate: {said}"[:200])
            if not meta.get("finish_reason"):
                raise Failure("down", "/generate: the stream ended before the answer was finished")
            out = token_ids(final.get("output_ids"), sampling)
        except Failure as failure:
            return Answer(prompt, domain, started_s=began, seconds=time.monotonic() - began, error=words(str(failure)), kind=failure.kind)
        except (ValueError, RecursionError):
            return Answer(prompt, domain, started_s=began, seconds=time.monotonic() - began, error="/generate: its last event is not JSON", kind="malformed")
        notes: tuple[str, ...] = ()
        try:
            acceptance = counters.from_fields(meta, FIELDS, "sglang /generate meta_info")
        except (ValueError, TypeError) as error:
            acceptance, notes = None, (f"its counters contradict each other: {error}",)
        reason = meta["finish_reason"]
        return Answer(prompt, domain, count(meta.get("prompt_tokens")), out, words(final.get("text")) or "", count(meta.get("completion_tokens")),
                      count(meta.get("cached_tokens")), words(reason.get("type") if isinstance(reason, dict) else reason, 60),
                      acceptance, rounds_in_order(seen, acceptance), began, first, seconds, notes=notes)

    async def counters(self) -> counters.Acceptance | None:
        """Verify calls of `/metrics` (>= 0.5.13 with --enable-metrics); accepted drafts are not counted there."""
        try:
            text = await self.transport.text("GET", "/metrics")
            calls = [int(s.value) for f in text_string_to_metric_families(text) for s in f.samples if s.name == "sglang:spec_verify_calls_total"]
        except (Failure, ValueError, OverflowError):
            return None
        return counters.Acceptance(sum(calls), 0, source="sglang:spec_verify_calls_total") if calls else None

    async def flush(self) -> str | None:
        for method in ("POST", "GET"):  # POST since 0.5.3, GET before
            try:
                await self.transport.text(method, "/flush_cache")
                return None
            except Failure as failure:
                if failure.status not in (404, 405):
                    return f"the prefix cache was not flushed: {failure}"
        return "the prefix cache was not flushed: this server has no /flush_cache"

    async def choices(self, ids: tuple[int, ...], n: int) -> tuple[Choice, ...]:
        said = await self.transport.json("POST", "/generate", {
            "input_ids": list(ids), "return_logprob": True, "top_logprobs_num": n, "sampling_params": {"temperature": 0, "max_new_tokens": 1}})
        try:
            return tuple(Choice(int(token), float(logprob)) for logprob, token, *_ in said["meta_info"]["output_top_logprobs"][0])
        except (KeyError, IndexError, TypeError, ValueError):
            raise Failure("malformed", "/generate gave no output_top_logprobs") from None

    async def _info(self) -> dict[str, Any]:
        try:
            said = await self.transport.json("GET", "/server_info")
        except Failure as failure:
            if failure.status not in (404, 405):
                raise
            said = await self.transport.json("GET", "/get_server_info")
        if not isinstance(said, dict):
            raise Failure("malformed", "/server_info is no JSON object")
        return said
