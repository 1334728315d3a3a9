"""Launch arguments of any engine and version: raw to effective, with the log lines and errors to expect.

The rules of an engine live in `sglang_args.py`, `vllm_args.py` and `trtllm_args.py` and their tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from eagle_forensics.engines import sglang_args, trtllm_args, vllm_args
from eagle_forensics.engines.answers import ArgsAnswer
from eagle_forensics.engines.versions import engine_name


def resolve_args(engine: str, version: str, argv: Sequence[str], *, architecture: str | None = None,
                 draft_architecture: str | None = None, model_type: str | None = None,
                 env: Mapping[str, str] | None = None) -> ArgsAnswer:
    """What `engine` `version` makes of these launch arguments.

    `architecture` is the target's `architectures[0]` (or give its `model_type`), `draft_architecture` the draft's; `env` the server's
    environment. Arguments the engine refuses are the answer's `error`; ValueError only for an unknown engine or version.
    """
    name = engine_name(engine)
    if isinstance(argv, str | bytes):
        raise ValueError("argv must be a list of arguments, already split; got one text")
    resolvers = {"sglang": sglang_args.resolve, "vllm": vllm_args.resolve, "trtllm": trtllm_args.resolve}
    return resolvers[name](version, argv, architecture=architecture, draft_architecture=draft_architecture, model_type=model_type, env=env)
