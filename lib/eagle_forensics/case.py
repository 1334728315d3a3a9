"""Case: what is under investigation. One YAML file (schema 1) names the evidence; all of it is optional but `name`.

`load_case(path)` returns a typed, frozen Case whose relative paths are resolved against the file's folder. Unknown keys,
wrong types and wrong schema raise CaseError with the key, what was expected and the nearest known key. A path that does
not exist is *not* an error here: `missing_evidence` lists it, and the notebook that needs it says so.
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from pydantic import AnyHttpUrl, BaseModel, ConfigDict, Field, ValidationError, field_validator

from eagle_forensics.address import url_of

SCHEMA = 1
MAX_BYTES = 1 << 18
"""A case file names evidence, it does not hold it: the largest real one has a few KiB."""


class CaseError(ValueError):
    """A case file that cannot be used; the message says what was read, what was expected, what to do."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=())


class Checkpoint(_Part):
    """A model folder: config.json and safetensors."""

    path: Path
    """Folder with config.json; weights are optional, headers and slices are read on demand."""
    revision: str | None = None
    """Revision or commit, where known; recorded, never resolved over the network."""


class Trainer(_Part):
    """The program that trained the drafter; decides what its layer ids and metrics mean."""

    name: Literal["eagle", "specforge", "modelopt", "angelslim", "torchspec", "speculators", "trtllm", "nemo", "verl-speco", "other"]
    """Trainer, in lower case."""
    version: str | None = None
    """Release, as it prints itself."""


class Dump(_Part):
    """A folder of recorded hidden states."""

    path: Path
    """Folder or file; or an fsspec URL (`s3://...`) where its file system is installed."""
    format: str = "auto"
    """`auto` recognises the format by content; a name forces it."""


class Training(_Part):
    """How the drafter was trained."""

    dump: Dump | tuple[Dump, ...] | None = None
    """The hidden states it was trained on; several dumps are fine."""
    trainer: Trainer | None = None
    layer_ids: tuple[int, ...] | None = Field(default=None, max_length=1000)
    """Ids as the trainer's config wrote them; the trainer's convention turns them into boundaries."""
    metrics: dict[str, float] = Field(default_factory=dict)
    """Metrics as the trainer logged them, under the trainer's own names (`full_acc_0: 0.747`)."""

    @property
    def dumps(self) -> tuple[Dump, ...]:
        """The dumps as a tuple, also for none or one."""
        if self.dump is None:
            return ()
        return self.dump if isinstance(self.dump, tuple) else (self.dump,)


class Hardware(_Part):
    """What the server runs on; decides all-reduce fusion and custom all-reduce rules."""

    gpu: str | None = None
    count: int | None = Field(default=None, ge=0)
    compute_capability: str | None = None
    """`12.0`, as a string."""
    link: Literal["pcie", "nvlink", "nvswitch", "none"] | None = None
    """What joins the GPUs: `pcie`, `nvlink` or `nvswitch`; `none` for one."""


class Serving(_Part):
    """The server that serves the drafter."""

    engine: Literal["sglang", "vllm", "trtllm"] | None = None
    version: str | None = None
    """Release as the engine prints it: `0.5.9`, `0.5.10.post1`."""
    launch: str | None = None
    """Launch arguments, or the path of a script or log that holds them."""
    env: dict[str, str] | Path | None = None
    """Environment of the served process, or a file of NAME=value lines."""
    url: AnyHttpUrl | None = None
    """Live server with speculation. Only this URL and `baseline_url` are ever contacted."""
    baseline_url: AnyHttpUrl | None = None
    """Live server without speculation."""
    log: Path | None = None
    """What the server itself wrote: start-up lines, decode lines, errors."""
    hardware: Hardware | None = None

    @field_validator("version", mode="before")
    @classmethod
    def _version_is_text(cls, value: Any) -> Any:
        if isinstance(value, float | int) and not isinstance(value, bool):
            raise ValueError(f"YAML read the version as the number {value}; put it in quotes: \"{value}\"")
        return value

    @field_validator("env", mode="before")
    @classmethod
    def _env_values_are_text(cls, value: Any) -> Any:
        if isinstance(value, dict):
            nested = [str(k) for k, v in value.items() if isinstance(v, dict | list)]
            if nested:
                raise ValueError(f"{nested[0][:60]} holds a list or a mapping; a variable has one value")
            return {str(k): "" if v is None else str(v) for k, v in value.items()}
        return value


class Reference(_Part):
    """The target's own states at known boundaries."""

    path: Path
    """A bank made by this suite or captured on the serving host."""


class Capture(_Part):
    """Tensors seen at serving time."""

    path: Path
    path_kind: Literal["eager", "graph", "unknown"] = "unknown"
    """Execution path that produced them: prefill is eager, decode usually replays a CUDA graph."""
    engine: str | None = None
    tp_rank: int | None = Field(default=None, ge=0)
    label: str | None = None


class Nccl(_Part):
    """Evidence about the interconnect."""

    debug_log: Path | None = None
    """What the served process wrote under NCCL_DEBUG=INFO."""
    tests: tuple[Path, ...] = ()
    """Tables or JSON reports of nccl-tests."""
    topology: Path | None = None
    """Output of `nvidia-smi topo -m`."""
    traces: tuple[Path, ...] = ()
    """Profiler exports, flight recorders as JSON, NCCL Inspector, Nsight CSV or sqlite; one file a rank."""


class Case(_Part):
    """Everything known about one drafter, its training and its serving."""

    schema_version: Literal[1] = Field(default=SCHEMA, alias="schema")
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    """Letters, digits, `.`, `_`, `-`; names the run folders."""
    target: Checkpoint | None = None
    drafter: Checkpoint | None = None
    training: Training = Training()
    serving: Serving = Serving()
    reference: Reference | None = None
    captures: tuple[Capture, ...] = ()
    measurements: Path | None = None
    """CSV with one row a measured run."""
    answers: Path | None = None
    """Answers of a live measurement: a run folder, or the folder that its notebook 04 left."""
    nccl: Nccl = Nccl()

    file: Path | None = Field(default=None, exclude=True)
    """The file it was read from; set by `load_case`, not part of the YAML."""

    def paths(self) -> Iterator[tuple[str, Path]]:
        """Every path the case names, with its dotted key."""
        yield from _paths(self, "")

    def relative(self, path: Path) -> str | None:
        """`path` as edits name it, relative to the case folder; None if it lies elsewhere or the case has no file."""
        if self.file is None:
            return None
        try:
            return str(path.resolve().relative_to(self.file.parent.resolve()))
        except ValueError:
            return None

    def missing_evidence(self) -> list[tuple[str, Path]]:
        """Named paths that do not exist, with their dotted key."""
        return [(key, path) for key, path in self.paths() if not (_exists(path) or (key.startswith("training.dump") and url_of(path)))]


def load_case(path: str | Path, overrides: dict[str, Any] | None = None) -> Case:
    """Read a case file. `overrides` maps dotted keys (`drafter.path`) to values, as `--set` gives them.

    Raises CaseError for a missing or unreadable file, YAML errors, unknown keys (with a did-you-mean) and wrong types.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "case.yaml"
    try:
        if path.exists() and not path.is_file():
            raise CaseError(f"{path}: not a regular file. A case file is YAML on disk.")
        if path.stat().st_size > MAX_BYTES:
            raise CaseError(f"{path}: {path.stat().st_size} bytes, more than any case file ({MAX_BYTES}). It names evidence by path; "
                            "move what it holds into files of their own.")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise CaseError(f"{path}: cannot read the case file ({error.strerror or error}). "
                        "Write one with `eagle-forensics init DIR`.") from None
    except UnicodeDecodeError:
        raise CaseError(f"{path}: not a text file. A case file is YAML in UTF-8.") from None
    try:
        raw = yaml.load(text, _Loader)  # a SafeLoader
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}" if where else ""
        raise CaseError(f"{path}{line}: not valid YAML ({getattr(error, 'problem', error)}).") from None
    except RecursionError:
        raise CaseError(f"{path}: nested too deeply to be a case file.") from None
    except ValueError as error:  # a date or number that is none; the constructors of PyYAML do not say where
        raise CaseError(f"{path}: a value cannot be read ({str(error)[:100]}). Put texts that look like dates or numbers in quotes.") from None
    if not isinstance(raw, dict):
        raise CaseError(f"{path}: expected a mapping with at least `name:`, found {type(raw).__name__}.")
    for key, value in (overrides or {}).items():
        _set(raw, key, value)
    if raw.get("schema", SCHEMA) != SCHEMA:
        raise CaseError(f"{path}: schema {_brief(raw['schema'])} is not known; this version reads schema {SCHEMA}.")
    try:
        case = Case.model_validate(raw)
    except ValidationError as error:
        raise CaseError(f"{path}: " + "; ".join(_explain(e, Case) for e in error.errors())) from None
    except RecursionError:
        raise CaseError(f"{path}: nested too deeply to be a case file.") from None
    case = _resolve(case, path.resolve().parent).model_copy(update={"file": path.resolve()})
    for key, evidence in case.paths():
        if _endless(evidence):
            raise CaseError(f"{path}: `{key}` is {evidence}, a device or a pipe, which may never end. Copy what it gives into a file and name that.")
    return case


def known_keys() -> list[str]:
    """Every dotted key of a case file, for `--set` and the documentation."""
    return sorted(_keys(Case, ""))


class _Loader(yaml.SafeLoader):
    """A mapping that gives a key twice is refused: YAML would keep the last one and say nothing."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key `{key.value[:60]}` stands twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _set(raw: dict, dotted: str, value: Any) -> None:
    *parents, last = dotted.split(".")
    here = raw
    for part in parents:
        if here.get(part) is None:
            here[part] = {}
        here = here[part]
        if not isinstance(here, dict):
            raise CaseError(f"cannot set {dotted!r}: {part!r} holds {type(here).__name__}, not a mapping. "
                            f"Known keys: {', '.join(known_keys())}.")
    here[last] = value


def _model_of(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((m for m in map(_model_of, get_args(annotation)) if m), None)


def _keys(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        if field.exclude:
            continue
        key = prefix + (field.alias or name)
        inner = _model_of(field.annotation)
        yield key
        if inner:
            yield from _keys(inner, key + ".")


def _explain(error: dict, model: type[BaseModel]) -> str:
    where = ".".join(str(p) for p in error["loc"]) or "case"
    if error["type"] == "extra_forbidden":
        here: type[BaseModel] | None = model
        for part in error["loc"][:-1]:
            field = here.model_fields.get(part) if here and isinstance(part, str) else None
            here = _model_of(field.annotation) if field else here
        names = [f.alias or n for n, f in (here or model).model_fields.items() if not f.exclude]
        near = difflib.get_close_matches(str(error["loc"][-1]), names, n=1, cutoff=0.5)
        hint = f" Did you mean `{near[0]}`?" if near else f" Known here: {', '.join(names)}."
        return f"unknown key `{where}`.{hint}"
    found = error.get("input")
    shown = "" if error["type"] == "missing" else f" (found {type(found).__name__}: {_brief(found)})"
    return f"`{where}`: {error['msg']}{shown}"


_BRIEF = reprlib.Repr()
_BRIEF.maxlevel, _BRIEF.maxstring, _BRIEF.maxother = 2, 80, 80


def _brief(value: Any) -> str:
    """Repr of a value, cut while it is made: aliases can make a few lines of YAML unfold without end."""
    return _BRIEF.repr(value)


def _paths(part: BaseModel, prefix: str) -> Iterator[tuple[str, Path]]:
    for name, _ in type(part).model_fields.items():
        if name == "file":
            continue
        value, key = getattr(part, name), prefix + name
        items = enumerate(value) if isinstance(value, tuple) else [(None, value)]
        for index, item in items:
            at = key if index is None else f"{key}[{index}]"
            if isinstance(item, Path):
                yield at, item
            elif isinstance(item, BaseModel):
                yield from _paths(item, at + ".")


def _resolve(part: BaseModel, base: Path) -> Any:
    changes: dict[str, Any] = {}
    for name, _ in type(part).model_fields.items():
        value = getattr(part, name)
        if isinstance(value, Path):
            changes[name] = _absolute(value, base)
        elif isinstance(value, BaseModel):
            changes[name] = _resolve(value, base)
        elif isinstance(value, tuple):
            changes[name] = tuple(
                _absolute(v, base) if isinstance(v, Path) else _resolve(v, base) if isinstance(v, BaseModel) else v for v in value)
    return part.model_copy(update=changes)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name too long for the file system
        return False


def _endless(path: Path) -> bool:
    try:
        return path.exists() and not (path.is_file() or path.is_dir())
    except OSError:  # not ours to say; the reader of that evidence will
        return False


def _absolute(path: Path, base: Path) -> Path:
    if "\0" in str(path):
        raise CaseError(f"the path {str(path)!r:.80} holds a zero byte, which no path can. Correct it in the case file.")
    try:
        path = path.expanduser()
    except RuntimeError:
        raise CaseError(f"{path}: there is no home folder of that user. Write the path out in the case file.") from None
    url = url_of(path)
    if url and ("?" in url or "@" in url):
        raise CaseError(f"{url.split('://')[0]}://...: a URL with a user, password or signature in it. A case holds no secrets: give them to the file system's own "
                        "environment or settings.")
    return path if path.is_absolute() or url else (base / path)
