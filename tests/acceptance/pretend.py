"""A small hostile server on a free port: it speaks SGLang's or vLLM's HTTP, with one fault at a time. As a script: a process to be started."""

import argparse
import json
import os
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKENS = 60


@dataclass
class Pretend:
    """What the server says and how it misbehaves."""

    engine: str = "sglang"
    version: str = "0.5.23"
    arguments: dict = field(default_factory=dict)
    speculative: bool = True
    steps: int = 3
    fault: str = ""
    after: int = 0
    """Answers given before the fault shows."""
    names: tuple = ("spec_num_correct_drafts", "spec_num_proposed_drafts", "spec_correct_drafts_histogram")
    text: str = ""
    tokens: tuple | None = None
    env: dict | None = None
    per_request: bool = False
    meta: dict = field(default_factory=dict)
    """Fields of SGLang's meta_info, whatever they should be."""
    last: dict = field(default_factory=dict)
    """Fields of the last event."""
    asked: list = field(default_factory=list)
    bodies: list = field(default_factory=list)
    """Requests for an answer."""
    answers: int = 0
    seed: int = 7
    drafts: int = 0
    accepted: int = 0
    reached: list = field(default_factory=lambda: [0, 0, 0])
    flushed: int = 0

    @property
    def failing(self):
        return self.answers > self.after

    def histogram(self, ids):
        """Rounds by accepted drafts for one answer; differs by prompt so that an interval has a width."""
        a = 10 + sum(ids) % 7
        return [a, 8, 4, 3]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True

    def log_message(self, *args):
        pass

    @property
    def p(self) -> Pretend:
        return self.server.pretend

    def reply(self, status, body, headers=()):
        data = body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        p = self.p
        p.asked.append(("GET", self.path, {k.lower(): v for k, v in self.headers.items()}))
        if p.fault == "redirect":
            return self.reply(302, "", [("location", "http://127.0.0.1:1/elsewhere")])
        if self.path == "/server_info" and p.engine == "sglang":
            state = {"avg_spec_accept_length": 1.9, **({"env_vars": p.env} if p.env else {})}
            seed = p.seed + 1 if p.fault == "restart" and p.failing else p.seed
            steps = 1 if p.fault == "restart" and p.failing else p.steps
            return self.reply(200, {
                "version": p.version, "speculative_algorithm": "EAGLE3" if p.speculative else None, "speculative_num_steps": steps, "speculative_eagle_topk": 1,
                "speculative_num_draft_tokens": steps + 1, "decode_log_interval": 40, "random_seed": seed, "api_key": "sk-very-secret", "internal_states": [state],
                **p.arguments})
        if self.path == "/version" and p.engine == "vllm":
            return self.reply(200, {"version": p.version})
        if self.path == "/health":
            return self.reply(200, "")
        if self.path == "/v1/models":
            return self.reply(200, {"data": [{"id": "m"}]})
        if self.path == "/metrics":
            return self.reply(200, self.metrics())
        return self.reply(404, "not here")

    def metrics(self):
        p = self.p
        drafts = p.drafts // 1000 if p.fault == "backwards" and p.failing else "NaN" if p.fault == "no number" and p.failing else p.drafts
        if p.engine == "sglang":
            return f"# TYPE sglang:spec_verify_calls_total counter\nsglang:spec_verify_calls_total{{m=\"x\"}} {drafts}\n" if p.speculative else "# none\n"
        lines = ["# TYPE process_start_time_seconds gauge", f"process_start_time_seconds {p.seed}"]
        if p.speculative:
            for name, value in (("drafts", drafts), ("draft_tokens", 3 * p.drafts), ("accepted_tokens", p.accepted)):
                lines += [f"# TYPE vllm:spec_decode_num_{name} counter", f'vllm:spec_decode_num_{name}_total{{engine="0"}} {value}']
            lines += ["# TYPE vllm:spec_decode_num_accepted_tokens_per_pos counter"]
            lines += [f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="{i}"}} {n}' for i, n in enumerate(p.reached)]
        return "\n".join(lines) + "\n"

    def do_POST(self):
        p = self.p
        body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"{}")
        p.asked.append(("POST", self.path, {k.lower(): v for k, v in self.headers.items()}))
        if self.path == "/flush_cache":
            p.flushed += 1
            return self.reply(200, "ok")
        if self.path not in ("/generate", "/v1/completions"):
            return self.reply(404, "not here")
        p.answers += 1
        p.bodies.append(body)
        if p.failing:
            if p.fault == "tenth" and p.answers % 10 == 0:
                return self.reply(500, "internal: CUDA error <b>x</b>")
            if p.fault == "busy" and p.answers % 2:
                return self.reply(429, "slow down", [("retry-after", "0.01")])
            if p.fault == "always busy":
                return self.reply(429, "slow down", [("retry-after", "0.01")])
            if p.fault == "hang":
                time.sleep(1.5)
                return None
            if p.fault == "exit":
                os._exit(9)
            if p.fault == "slow":
                time.sleep(0.5)
            if p.fault == "elsewhere":
                return self.reply(307, "", [("location", "http://127.0.0.1:1/elsewhere")])
            if p.fault == "huge":
                return self.reply(200, b"x" * (3 << 20))
            if p.fault == "die":
                self.server.dead = True
            if p.fault == "cut":
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b'data: {"text": "half", "meta_info": {"finish_reason": null}}\n\n')
                self.close_connection = True
                return None
            if p.fault == "garbage":
                return self.reply(200, "<html>hello</html>")
        if self.server.dead:
            self.close_connection = True
            self.connection.close()
            return None
        ids = body.get("input_ids") or body.get("prompt")
        out = list(p.tokens or ((sum(ids) + i * i) % 997 for i in range(TOKENS)))[:body.get("max_tokens") or body["sampling_params"]["max_new_tokens"]]
        histogram = p.histogram(ids)
        p.drafts += sum(histogram)
        p.accepted += sum(k * n for k, n in enumerate(histogram))
        for i in range(3):
            p.reached[i] += sum(histogram[i + 1:])
        events = self.sglang(body, ids, out, histogram) if p.engine == "sglang" else self.vllm(ids, out, histogram)
        if not body.get("stream"):
            return self.reply(200, events[-1])
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        for event in events:
            self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def sglang(self, body, ids, out, histogram):
        p = self.p
        meta = {"prompt_tokens": len(ids), "completion_tokens": len(out), "cached_tokens": 0, "finish_reason": {"type": "length"}}
        if p.speculative and p.fault != "no fields":
            meta["spec_verify_ct"] = sum(histogram)
            correct = sum(k * n for k, n in enumerate(histogram))
            for name, value in zip(p.names, (correct, 3 * sum(histogram), histogram), strict=False):
                meta[name] = value
            if p.fault == "contradiction":
                meta[p.names[0]] = correct + 1
        if body.get("return_logprob"):
            meta["output_top_logprobs"] = [[[-0.5, 11, None], [-0.51, 12, None]]]
        first = {"text": "a", "output_ids": out[:1], "meta_info": {**meta, "finish_reason": None}}
        return [first, {"text": p.text or "a text", "output_ids": out, "meta_info": {**meta, **p.meta}, **p.last}]

    def vllm(self, ids, out, histogram):
        p = self.p
        final = {"choices": [], "usage": {"prompt_tokens": len(ids), "completion_tokens": len(out)}}
        if p.per_request:
            correct = sum(k * n for k, n in enumerate(histogram))
            final["metrics"] = {"speculative_decoding": {"num_spec_steps": sum(histogram), "num_accepted_draft_tokens": correct,
                                                         "num_draft_tokens": 3 * sum(histogram), "acceptance_histogram": histogram,
                                                         "per_step_accepted": [k for k, n in enumerate(histogram) for _ in range(n)]}}
        if p.fault == "refused event":
            return [{"error": {"message": "Token id 99 is out of vocabulary", "type": "BadRequestError", "param": None, "code": 400}}]
        half = len(out) // 2
        return [{"choices": [{"text": "a", "token_ids": out[:half], "finish_reason": None}]},
                {"choices": [{"text": "b", "token_ids": out[half:], "finish_reason": "length", **p.last}]}, {**final, **p.meta}]


class Listening(ThreadingHTTPServer):
    daemon_threads = True
    dead = False
    request_queue_size = 128


@contextmanager
def pretending(**what):
    """(URL, Pretend) of a running server."""
    server = Listening(("127.0.0.1", 0), Handler)
    server.pretend = Pretend(**what)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", server.pretend
    finally:
        server.shutdown()
        server.server_close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--fault", default="")
    parser.add_argument("--after", type=int, default=0)
    parser.add_argument("--plain", action="store_true")
    given, _ = parser.parse_known_args()
    server = Listening(("127.0.0.1", given.port), Handler)
    server.pretend = Pretend(fault=given.fault, after=given.after, speculative=not given.plain)
    server.serve_forever()


if __name__ == "__main__":
    main()
