"""The launch line: `read_launch` finds it in a string, a script, a log, a /server_info reply or a YAML file.

It says what was written, flag by flag; what takes effect is `engines/`. Secrets are redacted before anything keeps them.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from eagle_forensics.evidence import configs, environment, reprs, shell
from eagle_forensics.evidence.blocks import blocks, line_at
from eagle_forensics.evidence.records import EvidenceError, LaunchLine

MAX_SCRIPT_BYTES = 4_000_000
"""A script or config file is smaller; a larger file is read as a log, line by line."""

ENTRY = re.compile(r"^(sglang\.launch_server|sglang\.launch_server_.*|vllm\.entrypoints\.\S+|.*launch_server\.py|trtllm-serve)$")
"""Words after which the server's own arguments follow; besides them `vllm serve`, `sglang serve` and the engines' images."""
IMAGE = re.compile(r"^([\w.:-]+/)*(vllm-openai|sglang|vllm)[\w.-]*(:[\w.-]+)?(@sha256:\w+)?$")
INNER = re.compile(r"^(?:\S*/)?(?:ba|z|da|k)?sh$")
"""A shell whose `-c` holds the command."""
INNER_FLAG = re.compile(r"^-[a-z]*c$")
LOG_MARKS = (b"server_args=ServerArgs(", b"non-default args: {", b"args: Namespace(")
"""What SGLang prints at start, and vLLM (newer and older)."""
REPLY_ONLY = {"internal_states", "version", "launch_command", "status", "state", "ready"}
"""Fields of /server_info that are no arguments."""
PATH_LIKE = re.compile(r"\.(sh|bash|log|txt|json|ya?ml|out|err|service)$", re.IGNORECASE)
EFFECTIVE = "values as the engine printed them after its own adjustments; what was typed may differ."
SPECULATIVE_CONFIG = "speculative_config"


def read_launch(source: str | Path, base: Path | None = None) -> LaunchLine:
    """The launch line of a string of arguments, or of the script, log, JSON or YAML file it names (relative to `base`).

    A bare flag is True; a flag with several values is their text, joined by blanks; vLLM's `--speculative-config` is a dict.
    EvidenceError for an unclosed quote (with its position), a file without a launch line, or JSON that is no JSON.
    """
    path = _path(source, base)
    if path is None:
        return _from_shell(_exec_form(str(source)), "case")
    try:
        size = path.stat().st_size
        head = b"" if size > MAX_SCRIPT_BYTES else path.read_bytes()
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read ({error.strerror}). Correct `serving.launch` in the case.") from None
    if size > MAX_SCRIPT_BYTES or any(mark in head for mark in LOG_MARKS):
        return _from_log(path)
    if head.lstrip().startswith(b"{"):
        return _from_reply(configs.parse_object(head, str(path)), str(path))
    try:
        text = head.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise EvidenceError(f"{path}: not UTF-8 at byte {error.start}; expected a script, log, JSON or YAML file. Correct `serving.launch`.") from None
    if path.suffix.lower() in (".yaml", ".yml"):
        return _from_yaml(text, str(path))
    return _from_shell(text, str(path))


def _path(source: str | Path, base: Path | None) -> Path | None:
    """The file that the source names, or None for a launch line itself."""
    text = str(source).strip()
    if not text:
        raise EvidenceError("serving.launch is empty; expected launch arguments or the path of a script or log. Fill it in or delete the key.")
    if not isinstance(source, Path) and ("\n" in text or len(text) > 1024 or text.startswith(("-", "["))):
        return None
    path = (base / text) if base else Path(text)
    try:
        if path.is_file():
            return path
    except OSError:  # a text too long for a file name
        pass
    if isinstance(source, Path) or (not re.search(r"\s", text) and (PATH_LIKE.search(text) or "/" in text)):
        raise EvidenceError(f"{path}: does not exist; expected launch arguments or the path of a script or log. Correct `serving.launch` in the case.")
    return None


def _exec_form(text: str) -> str:
    """A command written as a JSON list of words (a container's `command` or CMD) as one line; any other text as it is."""
    try:
        words = json.loads(text) if text.lstrip().startswith("[") else None
    except (ValueError, RecursionError):
        return text
    return shlex.join(words) if isinstance(words, list) and words and all(isinstance(w, str) for w in words) else text


def _opened(found: Sequence[shell.Command], origin: str) -> Iterator[shell.Command]:
    """The commands, with those of a `bash -c` script in its place; what is set around it holds inside."""
    for command in found:
        words = command.words
        script = next((after for word, flag, after in zip(words, words[1:], words[2:], strict=False) if INNER.match(word) and INNER_FLAG.match(flag)), None)
        if script is None:
            yield command
        else:
            around = {**_container_env(words), **command.env}
            yield from (replace(c, env={**around, **c.env}, line=command.line) for c in _opened(shell.commands(script, origin), origin))


def _from_shell(text: str, origin: str) -> LaunchLine:
    found = list(_opened(shell.commands(text, origin), origin))
    launches = [(command, argv) for command in found if (argv := _server_arguments(command.words)) is not None]
    bare = [command for command in found if command.words[0].startswith("-")]
    notes = []
    if launches:
        speculative = [pair for pair in launches if _mentions_speculation(pair[1])]
        command, argv = (speculative or launches)[-1]
        if len(launches) > 1:
            notes.append(f"{len(launches)} launch commands; the one at line {command.line} is read.")
        lost = [c for c in bare if c.line > command.line]
        if lost and origin == "case":
            argv = [*argv, *(word for c in lost for word in c.words)]
            notes.append("several lines without backslashes are read as one launch line.")
        elif lost:
            notes.append(f"line {lost[0].line} begins with {lost[0].words[0]!r:.60} but the line before it does not end in a backslash: the shell does not pass it on.")
    elif bare:
        command, argv = bare[0], [word for c in bare for word in c.words]
    else:
        command = next((c for c in found if _mentions_speculation(c.words)), None)
        if command is None:
            raise EvidenceError(
                f"{origin}: no launch line found; expected arguments such as --speculative-algorithm EAGLE3, or a command with sglang.launch_server, "
                "`vllm serve` or vllm.entrypoints. Paste the launch line into `serving.launch`."
            )
        argv = list(command.words[next(i for i, word in enumerate(command.words) if _is_flag(word)) :])
    open_words = shell.unresolved(argv)
    if open_words:
        notes.append(f"{open_words[0]!r:.80} is set outside this text and stays as written.")
    env = {**_container_env(command.words), **command.env}
    return _line(argv, origin, notes, env)


def _server_arguments(words: Sequence[str]) -> list[str] | None:
    """The server's arguments in a command that names a server, or None."""
    image = None
    for i, word in enumerate(words):
        if ENTRY.match(word):
            return list(words[i + 1 :])
        if word == "serve" and i and re.search(r"(^|/)(vllm|sglang)$", words[i - 1]):
            return _named_model(words[i + 1 :])
        if image is None and i and words[0] in ("docker", "podman", "nerdctl", "sudo", "srun") and IMAGE.match(word):
            image = i
    if image is not None and any(w.startswith("--") for w in words[image + 1 :]):
        return list(words[image + 1 :])
    return None


def _named_model(argv: Sequence[str]) -> list[str]:
    """`vllm serve MODEL ...` with the positional model spelled as --model."""
    return ["--model", *argv] if argv and not argv[0].startswith("-") else list(argv)


def _container_env(words: Sequence[str]) -> dict[str, str]:
    """Variables that `docker run -e NAME=value` sets."""
    pairs = {}
    for flag, value in itertools.pairwise(words):
        name, found, setting = (value if flag in ("-e", "--env") else flag.removeprefix("--env=")).partition("=")
        if found and (flag in ("-e", "--env") or flag.startswith("--env=")):
            pairs[name] = setting
    return pairs


def _from_log(path: Path) -> LaunchLine:
    """The last start of a server that a log tells of; the file is streamed."""
    last, starts = None, 0
    try:
        for _, block in blocks(path):
            found = [at for mark in LOG_MARKS for at in _each(block, mark)]
            starts += len(found)
            if found:
                last = block[max(found) : line_at(block, max(found))[1]]
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read ({error.strerror}). Correct `serving.launch` in the case.") from None
    if last is None:
        raise EvidenceError(
            f"{path}: {path.stat().st_size} bytes without a launch line; expected `server_args=ServerArgs(...)` (SGLang) or `non-default args: {{...}}` "
            "(vLLM). Was the log cut at its start? Paste the launch line into `serving.launch`."
        )
    fields, closed = reprs.read_fields(last.decode("utf-8", "replace"))
    notes = [f"{starts} server starts in the log; the last is read."] if starts > 1 else []
    if not closed:
        notes.append("the line is cut off: arguments after the cut are unknown.")
    return _line(_spelled(fields), str(path), [EFFECTIVE, *notes], {})


def _each(block: bytes, mark: bytes) -> Iterator[int]:
    """Where the arguments behind each occurrence of a mark begin: at its opening bracket."""
    at = block.find(mark)
    while at >= 0:
        yield at + len(mark) - 1
        at = block.find(mark, at + 1)


def _from_reply(reply: Mapping[str, Any], origin: str) -> LaunchLine:
    """/server_info, or any JSON object of arguments."""
    command = reply.get("launch_command")
    if isinstance(command, list):
        command = " ".join(str(word) for word in command)
    if isinstance(command, str) and command.strip():
        return _from_shell(command, origin)
    return read_effective(reply, origin)


def read_effective(reply: Mapping[str, Any], origin: str) -> LaunchLine:
    """The resolved arguments of a /server_info reply, whatever was typed; secrets redacted. EvidenceError where there are none."""
    inner = reply.get("server_args")
    fields = inner if isinstance(inner, Mapping) else reply
    argv = _spelled({k: v for k, v in fields.items() if k not in REPLY_ONLY})
    if not argv:
        raise EvidenceError(f"{origin}: no launch arguments in this JSON object; expected the reply of /server_info or flags and their values. Save it again.")
    return _line(argv, origin, [EFFECTIVE], {})


def _from_yaml(text: str, origin: str) -> LaunchLine:
    """A config file of flags, a compose file, or a pod: the first `command` and `args` that launch a server."""
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise EvidenceError(f"{origin}: not valid YAML ({' '.join(str(error).split())[:160]}). Correct the file, or paste the launch line.") from None
    if not isinstance(content, Mapping):
        raise EvidenceError(f"{origin}: holds a YAML {type(content).__name__}; expected flags and their values, or a compose file. Correct `serving.launch`.")
    for node in _nodes(content):
        words = _words(node, origin)
        argv = words if words and _is_flag(words[0]) else _server_arguments(words)
        if argv is not None:
            return _line(argv, origin, [], _yaml_env(node))
    if any({"command", "args", "image", "containers"} & set(node) for node in _nodes(content)):
        raise EvidenceError(f"{origin}: no service with a launch command; expected `command` with sglang.launch_server or `vllm serve`. Paste the launch line.")
    return _line(_spelled(content), origin, [], {})


def _nodes(value: Any, depth: int = 0) -> Iterator[Mapping[str, Any]]:
    """Every mapping inside a YAML document, outermost first."""
    if depth > 20:
        return
    if isinstance(value, Mapping):
        yield value
    for child in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from _nodes(child, depth + 1)


def _words(node: Mapping[str, Any], origin: str) -> list[str]:
    """The words of a service's `command` and `args`; a `bash -c` is looked into."""
    words: list[str] = []
    for value in (node.get("command"), node.get("args")):
        if isinstance(value, str):
            words += _shell_words(value, origin)
        elif isinstance(value, list):
            words += [str(v) for v in value]
    if len(words) == 3 and INNER_FLAG.match(words[1]):
        return _shell_words(words[2], origin)
    return words


def _shell_words(text: str, origin: str) -> list[str]:
    return [word for command in shell.commands(text, origin) for word in command.words]


def _yaml_env(node: Mapping[str, Any]) -> dict[str, str]:
    """Compose `environment` (mapping or NAME=value list) or a pod's `env` ({name, value})."""
    value = node.get("environment", node.get("env"))
    if isinstance(value, Mapping):
        return {str(k): "" if v is None else str(v) for k, v in value.items()}
    pairs: dict[str, str] = {}
    for item in value if isinstance(value, list) else ():
        if isinstance(item, Mapping) and "name" in item:
            pairs[str(item["name"])] = str(item.get("value", ""))
        elif isinstance(item, str):
            name, _, setting = item.partition("=")
            pairs[name] = setting
    return pairs


def _spelled(fields: Mapping[Any, Any]) -> list[str]:
    """Fields and values as the arguments that would set them."""
    argv: list[str] = []
    for key, value in fields.items():
        flag = "--" + str(key).lstrip("-").replace("_", "-")
        if value is None or value is False or value == [] or value == {}:
            continue
        if value is True:
            argv.append(flag)
        elif isinstance(value, list | tuple) and not any(isinstance(v, dict | list) for v in value):
            argv += [flag, *(str(v) for v in value)]
        elif isinstance(value, dict | list | tuple):
            argv += [flag, json.dumps(value, default=str)]
        else:
            argv += [flag, str(value)]
    return argv


def _line(argv: Sequence[str], origin: str, notes: Sequence[str], env: Mapping[str, str]) -> LaunchLine:
    """Arguments as a record: flags to values, secrets redacted."""
    given: dict[str, list[str]] = {}
    shown: list[str] = []
    notes = list(notes)
    flag = None
    for word in argv:
        if _is_flag(word):
            flag, joined, value = word.partition("=")
            name = flag.lstrip("-").replace("-", "_")
            if name in given and "." not in name:
                notes.append(f"{flag} stands twice; the last one counts.")
            given[name] = [environment.redacted(name, value, setting=True)] if joined else []
            shown.append(f"{flag}={given[name][0]}" if joined else flag)
        elif flag is None:
            shown.append(word)
            notes.append(f"{word!r:.80} stands before any flag and is left out of the arguments.")
        else:
            name = flag.lstrip("-").replace("-", "_")
            given[name].append(environment.redacted(name, word, setting=True))
            shown.append(given[name][-1])
    arguments = _typed({name: " ".join(values) if values else True for name, values in given.items()}, origin)
    if not arguments:
        raise EvidenceError(f"{origin}: no flags; expected launch arguments such as --speculative-algorithm EAGLE3. Correct `serving.launch` in the case.")
    return LaunchLine(tuple(shown), arguments, origin, tuple(dict.fromkeys(notes)), environment.redact(env))


def _typed(flags: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """Flags with `speculative_config` (also `-sc`, also `--speculative-config.method eagle3`) as one dict."""
    arguments: dict[str, Any] = {}
    for name, value in flags.items():
        stem, _, key = name.partition(".")
        if stem == "sc":
            stem = SPECULATIVE_CONFIG
        if stem != SPECULATIVE_CONFIG:
            arguments[name] = value
            continue
        if not key and isinstance(value, str) and shell.unresolved([value]) and not value.startswith("{"):
            continue  # only the shell knows it; the note on open words says so
        if not key:
            text = value if isinstance(value, str) else ""
            value = reprs.read_fields(text)[0] if text.startswith("SpeculativeConfig(") else configs.parse_object(text, f"{origin}: --speculative-config")
        else:
            value = {key.replace("-", "_"): reprs.literal(value) if isinstance(value, str) else value}
        arguments[stem] = {**arguments.get(stem, {}), **value}
    return arguments


def _mentions_speculation(words: Sequence[str]) -> bool:
    return any(_is_flag(word) and "speculative" in word for word in words)


def _is_flag(word: str) -> bool:
    return bool(re.match(r"^--?[A-Za-z]", word))
