"""Secrets out of everything that is written or shown: environments, command lines, URLs, outputs of cells."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from eagle_forensics.evidence.environment import QUERY_SECRET

MARK = "[redacted]"
KEPT_PREFIXES = ("NCCL_", "CUDA_", "SGLANG_", "VLLM_", "OMP_", "MKL_", "EAGLE_FORENSICS_", "TORCH_", "HF_HUB_OFFLINE",
                 "TOKENIZERS_PARALLELISM", "PYTORCH_")
"""Environment variables that a manifest keeps: those that change a result. All others may be private and are left out."""
_SECRET_NAME = re.compile(
    r"(?i:(?:hf|auth|access|api|hub|bearer|refresh|github|session)[_-]?token|secret|passw|api[_-]?key|credential|authorization"
    r"|private[_-]?key)|[A-Z0-9]_TOKEN$")
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (QUERY_SECRET, rf"\1{MARK}"),
    (re.compile(r"(?<=://)[^/\s:@'\"<>]*:[^/\s@'\"<>]+(?=@)"), MARK),
    (re.compile(r"(?i)(authorization['\"]?\s*[:=]\s*['\"]?)(?:(bearer|basic)\s+)?[^\s'\"<>,;&]+"), rf"\1{MARK}"),
    (re.compile(r"(?i)\b(bearer\s+)[A-Za-z0-9._~+/-]{8,}=*"), rf"\1{MARK}"),
    (re.compile(r"(?i)(--(?:[a-z0-9]+[-_])*(?:api[-_]key|access[-_]key|secret[-_]key|(?:hf|auth|access|api)[-_]token|secret|password))([=\s]+\\?['\"]?)[^\s'\"\\<>]+"),
     rf"\1\2{MARK}"),
    (re.compile(r"(?i)\b((?:[A-Z0-9]+_)*(?:API_KEY|SECRET|PASSWORD|(?:HF|AUTH|ACCESS|HUB|HUGGING_FACE_HUB)_TOKEN))(\\?['\"]?\s*[=:]\s*\\?['\"]?)"
                r"[^\s'\"\\<>&]+"), rf"\1\2{MARK}"),
    (re.compile(r"\b([A-Z][A-Z0-9]*_(?:[A-Z0-9]+_)*(?:KEY|TOKEN|PASSWD))(=\\?['\"]?)[^\s'\"\\<>&]+"), rf"\1\2{MARK}"),
    (re.compile(r"\b(?:hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|AKIA[A-Z0-9]{16})\b"), MARK),
)


def redact(text: str) -> str:
    """Text with passwords in URLs, authorization headers, keys given as arguments and known token forms blanked."""
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def redact_tree(value: Any) -> Any:
    """`redact` on every text of a JSON value; the value of a key that names a secret is blanked whole."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {k: MARK if isinstance(v, str) and v and is_secret(str(k)) else redact_tree(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return redact_argv([redact_tree(item) for item in value])
    return value


def redact_argv(argv: list[Any]) -> list[Any]:
    """An argument list in which the item after a bare `--api-key` or the like is blanked."""
    out = list(argv)
    for i, flag in enumerate(out[:-1]):
        if isinstance(flag, str) and re.fullmatch(r"--[A-Za-z0-9_-]+", flag) and is_secret(flag) and isinstance(out[i + 1], str):
            out[i + 1] = MARK
    return out


def is_secret(name: str) -> bool:
    """Whether a variable or key of that name holds a secret (`HF_TOKEN` does; `token`, `max_tokens`, `tokenizer` do not)."""
    return bool(_SECRET_NAME.search(name))


def kept_env(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of an environment that a manifest records, secrets blanked."""
    return {name: MARK if is_secret(name) else redact(value)
            for name, value in sorted(environ.items()) if name.startswith(KEPT_PREFIXES)}
