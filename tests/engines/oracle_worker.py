"""Runs in SGLang's own environment: what its ServerArgs makes of each argument list. Input: JSON on stdin; output: one JSON document on stdout.

Input: {"name": [argument, ...]}. Output: {"version": ..., "answers": {"name": {"raw", "resolved", "overrides", "log", "error"}}}; `overrides`
is the ordered trail [[function, {field: value}], ...] of the speculative fields.
"""

import contextlib
import json
import logging
import sys

FIELDS = (
    "speculative_algorithm", "speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens", "max_running_requests",
    "page_size", "attention_backend", "quantization", "speculative_draft_model_quantization", "dtype", "speculative_draft_model_path",
    "tp_size", "speculative_adaptive", "enable_mixed_chunk", "speculative_use_rejection_sampling", "context_length",
    "disable_overlap_schedule", "speculative_accept_threshold_single", "speculative_accept_threshold_acc")


class Lines(logging.Handler):
    def __init__(self):
        super().__init__(logging.INFO)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def answer(argv, prepare_server_args):
    handler = Lines()
    logger = logging.getLogger("sglang")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    out = {"raw": {}, "resolved": {}, "overrides": [], "error": None}
    try:
        args = prepare_server_args(argv)
        args.resolve_once()
        resolved = args.resolved_dict()
        out["resolved"] = {name: resolved.get(name) for name in FIELDS}
        raw = args._raw_input if isinstance(args._raw_input, dict) else vars(args._raw_input)
        out["raw"] = {name: raw.get(name) for name in FIELDS}
        out["overrides"] = [[who, {k: v for k, v in changed.items() if k in FIELDS}] for who, changed in args._resolved_overrides]
        args.check_server_args()
    except SystemExit as stop:
        out["error"] = f"SystemExit: {stop}"
    except Exception as error:
        out["error"] = f"{type(error).__name__}: {error}"
    finally:
        logger.removeHandler(handler)
    return {**out, "log": handler.lines}


def main():
    asked = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        import importlib.metadata

        from sglang.srt.server_args import prepare_server_args

        answers = {name: answer(argv, prepare_server_args) for name, argv in asked.items()}
    json.dump({"version": importlib.metadata.version("sglang"), "answers": answers}, sys.stdout, default=str)


if __name__ == "__main__":
    main()
