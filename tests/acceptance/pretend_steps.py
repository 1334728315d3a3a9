"""The pretend SGLang as a process of its own, started by a launch line: its step count and its mishaps come from its arguments."""

import sys
import time

from tests.acceptance.pretend import Handler, Listening, Pretend

ROUND_S, STEP_S = 0.0004, 0.0002


class Steps(Pretend):
    """Half of the drafts of each position are accepted."""

    def histogram(self, ids):
        left, found = 16 + sum(ids) % 5, []
        for _ in range(self.steps):
            found.append(left - left // 2)
            left //= 2
        return [*found, left]


class Slow(Handler):
    """Takes the time of its rounds."""

    def do_GET(self):
        return self.reply(200, "ok") if self.path == "/health" else super().do_GET()

    def sglang(self, body, ids, out, histogram):
        first, last = super().sglang(body, ids, out, histogram)
        yield first
        self.wfile.flush()
        time.sleep(sum(histogram) * (ROUND_S + self.p.steps * STEP_S) if self.p.speculative else len(out) * ROUND_S)
        yield last


def main(argv):
    def number(name, default=None):
        return int(argv[argv.index(name) + 1]) if name in argv else default

    steps = number("--speculative-num-steps", 0)
    print("asked for", steps, "steps on port", number("--port"), flush=True)
    if steps == number("--broken", -1):
        raise SystemExit(3)
    server = Listening(("127.0.0.1", number("--port")), Slow)
    dies = steps == number("--dies", -1)
    server.pretend = Steps(speculative=bool(steps), steps=number("--stuck-at", steps) if steps else 0, fault="die" if dies else "", after=4)
    server.serve_forever(0.02)


if __name__ == "__main__":
    main(sys.argv)
