"""The environment of a served process: `read_env` reads it, and nothing downstream ever sees a secret."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eagle_forensics.evidence.configs import parse_object
from eagle_forensics.evidence.records import EvidenceError

REDACTED = "(redacted)"
MAX_BYTES = 10_000_000

SECRET_WORD = re.compile(r"(^PASS|^PWD|TOKEN|KEYS?|SECRETS?|PASSWORDS?|PASSWD|WEBHOOK|PASSPHRASE|AUTH|AUTHORIZATION|CREDENTIALS?)$")
ENGINE_PREFIXES = ("SGLANG_", "VLLM_", "NCCL_", "CUDA_", "TORCH_")
"""Settings of engines: SGLANG_SIMULATE_ACC_TOKEN_MODE is none of a secret, VLLM_API_KEY is."""

ASSIGNMENT = re.compile(r"^(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)$", re.DOTALL)
USER_INFO = re.compile(r"(://)[^/\s:@]+(:[^/\s@]*)?@")
QUERY_SECRET = re.compile(r"(?i)([?&;](?:[a-z0-9]+[_-])*(?:token|key|secret|password|pwd|auth|sig|signature|credential)=)[^\s&;#'\"<>]+")
"""A secret among the parameters of a URL: `?token=...`, `&X-Amz-Signature=...`."""


def read_env(source: Mapping[str, Any] | Path | str) -> dict[str, str]:
    """Name to value out of a mapping or a file; values of secret names, and user:password in URLs, are redacted.

    Files: NAME=value lines (with or without `export`), the output of `env`, /proc/PID/environ, or a JSON object.
    EvidenceError for a file that is none of them.
    """
    if isinstance(source, Mapping):
        return redact({str(k): "" if v is None else str(v) for k, v in source.items()})
    path = Path(source)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise EvidenceError(f"{path}: {path.stat().st_size} bytes; expected an environment of NAME=value lines, under {MAX_BYTES} bytes. Name the right file.")
        raw = path.read_bytes()
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read ({error.strerror}). Correct `serving.env` in the case, or write the variables there.") from None
    if raw.lstrip().startswith(b"{"):
        return read_env(parse_object(raw, str(path)))
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise EvidenceError(f"{path}: not UTF-8 at byte {error.start}; expected NAME=value lines. Save it as UTF-8.") from None
    return redact(_lines(path, text))


def redact(env: Mapping[str, str]) -> dict[str, str]:
    """The mapping with every secret value replaced."""
    return {name: redacted(name, value) for name, value in env.items()}


def redacted(name: str, value: str, *, setting: bool = False) -> str:
    """The value to show for a name; `setting`: the name is an engine's flag, secret only by its last word (`--api-key`)."""
    if value and is_secret(name, setting=setting):
        return REDACTED
    return QUERY_SECRET.sub(rf"\1{REDACTED}", USER_INFO.sub(rf"\1{REDACTED}@", value))


def is_secret(name: str, *, setting: bool = False) -> bool:
    """Whether a variable holds a secret, by the words of its name: HF_TOKEN does, TOKENIZERS_PARALLELISM does not."""
    words = re.split(r"[^A-Z0-9]+", name.upper())
    hits = [i for i, word in enumerate(words) if SECRET_WORD.search(word)]
    if setting or name.upper().startswith(ENGINE_PREFIXES):
        return bool(hits) and hits[-1] == len(words) - 1
    return bool(hits)


def _lines(path: Path, text: str) -> dict[str, str]:
    dumped = "\0" in text  # /proc/PID/environ
    env: dict[str, str] = {}
    last = None
    for number, line in enumerate(text.split("\0") if dumped else text.splitlines(), start=1):
        if not line.strip() or (line.lstrip().startswith("#") and not dumped):
            continue
        found = ASSIGNMENT.match(line if dumped else line.strip())
        if found:
            last = found[1]
            env[last] = found[2] if dumped else _unquoted(found[2])
        elif last is not None:  # `env` prints a value of several lines as it is
            env[last] += "\n" + line
        else:
            raise EvidenceError(f"{path}: line {number} is {line!r:.80}; expected NAME=value. Write one variable a line, or the output of `env`.")
    return env


def _unquoted(value: str) -> str:
    try:
        parts = shlex.split(value) if value[:1] in ("'", '"') else [value]
    except ValueError:
        return value
    return parts[0] if len(parts) == 1 else value
