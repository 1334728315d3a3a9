"""Everything notebook 01 reads, gathered once: the checkpoint, the target, the launch line, the engine's answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eagle_forensics.case import Case
from eagle_forensics.engines.arguments import ArgsAnswer, resolve_args
from eagle_forensics.engines.layers import LayerAnswer, resolve_layers
from eagle_forensics.engines.tensors import LoadAnswer, loading
from eagle_forensics.engines.trainers import TrainedAnswer, trained_boundaries
from eagle_forensics.engines.versions import engine_label, version_key
from eagle_forensics.engines.vllm import runner_of
from eagle_forensics.evidence.configs import parse_object
from eagle_forensics.evidence.drafts import read_draft
from eagle_forensics.evidence.dumps import find_dump
from eagle_forensics.evidence.environment import read_env
from eagle_forensics.evidence.launch import read_launch
from eagle_forensics.evidence.live import LiveServer, read_live
from eagle_forensics.evidence.records import ClaimedIds, Draft, DumpInfo, EvidenceError, LaunchLine, Target
from eagle_forensics.evidence.server_log import ServerLog, read_server_log
from eagle_forensics.evidence.targets import read_target
from eagle_forensics.finding import Edit


@dataclass(frozen=True)
class Inspection:
    """What could be read of a case. None: the case does not name it, or `problems` says why it could not be read."""

    case: Case
    draft: Draft | None
    target: Target | None
    dumps: tuple[DumpInfo, ...]
    launch: LaunchLine | None
    env: dict[str, str]
    served: LayerAnswer | None
    """What the serving engine captures for this draft on this target."""
    trained: TrainedAnswer | None
    """What the trainer's own ids mean; None without ids or trainer."""
    arguments: ArgsAnswer | None
    log: ServerLog | None = None
    """What the server's own log says."""
    live: LiveServer | None = None
    """What the server at serving.url says of itself."""
    live_problem: str = ""
    """Why the server at serving.url said nothing."""
    live_served: LayerAnswer | None = None
    """What the live server's own release captures for this draft on this target."""
    draft_as_served: Draft | None = None
    """The draft under the config that the engine sees: SGLang lays --json-model-override-args over the draft's config too."""
    problems: dict[str, str] = field(default_factory=dict)
    """Dotted key of the case to the message of the reader that failed."""

    @property
    def engine(self) -> str:
        """`SGLang 0.5.23`, or words for what is unknown."""
        return engine_label(self.case.serving.engine, self.case.serving.version)

    @property
    def loads(self) -> LoadAnswer | None:
        """What the engine makes of the draft's tensors and config; None without a draft or an engine whose rules are written down."""
        serving, draft = self.case.serving, self.draft_as_served
        if draft is None or serving.engine not in ("sglang", "vllm") or not serving.version:
            return None
        names = (*(t.name for t in draft.tensors.values()), *draft.unknown_tensors)
        return loading(serving.engine, serving.version, names, draft.config, draft_architecture=draft.architectures[0] if draft.architectures else None)

    def lacking(self, *keys: str) -> tuple[list[str], list[str]]:
        """Of these keys of the case: those it does not give, and those whose evidence could not be read."""
        read = {"drafter.path": self.draft, "target.path": self.target, "serving.launch": self.launch, "serving.engine": self.case.serving.engine,
                "serving.version": self.case.serving.version}
        broken = [key for key in keys if key in self.problems]
        return [key for key in keys if not read[key] and key not in broken], broken

    def log_lines(self, kind: str) -> tuple[str, ...]:
        """Lines of one kind in the server's log; empty without a log."""
        return tuple(line.text for line in self.log.lines if line.kind == kind) if self.log else ()

    def edit(self, key: str, value: object) -> tuple[Edit, ...]:
        """The change of one key of the drafter's config.json; empty where it lies outside the case folder. None removes the key."""
        file = self.case.relative(self.case.drafter.path / "config.json") if self.case.drafter else None
        return (Edit(file=file, key=key, value=value, applies_to=self.engine),) if file else ()


def inspect(case: Case) -> Inspection:
    """Read what the case names and ask the engine's and trainer's rules. Never raises for bad evidence."""
    problems: dict[str, str] = {}

    def read(key, reader, *args):
        try:
            return reader(*args)
        except (EvidenceError, OSError, ValueError) as error:
            problems[key] = str(error)
            return None

    def with_serving(**changed):
        return case.model_copy(update={"serving": case.serving.model_copy(update=changed)})

    if case.serving.engine and case.serving.version and read("serving.version", version_key, case.serving.version) is None:
        case = with_serving(version=None)  # unknown is better than wrong
    live, live_problem = _live(case)
    told = live.version if live and live.version and read("serving.url", version_key, live.version) else None
    if live and told and (not case.serving.engine or (case.serving.engine == live.engine and not case.serving.version and "serving.version" not in problems)):
        case = with_serving(engine=live.engine, version=told)
    draft = read("drafter.path", read_draft, case.drafter.path) if case.drafter else None
    target = read("target.path", read_target, case.target.path) if case.target else None
    dumps = tuple(d for i, dump in enumerate(case.training.dumps)
                  if (d := read(f"training.dump[{i}]", find_dump, dump.path, dump.format)))
    base = case.file.parent if case.file else None
    log = read("serving.log", read_server_log, case.serving.log) if case.serving.log else None
    launch = read("serving.launch", read_launch, case.serving.launch, base) if case.serving.launch else None
    if launch is None and log is not None and not case.serving.launch:
        launch = log.arguments
    if launch is None and live is not None and not case.serving.launch:
        launch = live.asked or live.arguments
    env = (read("serving.env", read_env, case.serving.env) or {}) if case.serving.env else {}
    arguments = read("serving.launch", _arguments, case, target, draft, launch, env) if launch else None
    overrides = _overrides(case, launch)
    as_served = read("serving.launch", read_draft, case.drafter.path, overrides) if draft and overrides else draft
    served = read("serving", _served, case, target, as_served, launch, env)
    trained = read("training.layer_ids", _trained, case, target, draft, dumps)
    of_live = None
    if live and told:
        of_live = read("serving.url", _served, with_serving(engine=live.engine, version=told), target, as_served, live.arguments, env)
    return Inspection(case, draft, target, dumps, launch, env, served, trained, arguments, log, live, live_problem, of_live, as_served, problems)


def _live(case: Case) -> tuple[LiveServer | None, str]:
    """A server that does not answer is missing evidence, not broken evidence: the words, no error."""
    try:
        return (read_live(str(case.serving.url)), "") if case.serving.url else (None, "")
    except EvidenceError as error:
        return None, str(error)


def _served(case: Case, target: Target | None, draft: Draft | None, launch: LaunchLine | None, env: dict[str, str]) -> LayerAnswer | None:
    serving = case.serving
    if not (serving.engine and serving.version and target and draft):
        return None
    runner = runner_of({**(launch.env if launch else {}), **env}) if serving.engine == "vllm" else None
    flags = launch.arguments if launch else {}
    eager = bool(flags.get("disable_cuda_graph") or flags.get("enforce_eager") or flags.get("device") == "cpu")
    return resolve_layers(
        serving.engine, serving.version, model_type=target.model_type, layers=target.layers, claimed=_claimed(serving.engine, draft, flags),
        architecture=target.architectures[0] if target.architectures else None, runner=runner, cuda_graph=not eager)


def _overrides(case: Case, launch: LaunchLine | None) -> dict[str, Any]:
    """What the launch line lays over the draft's config (sglang ModelConfig.from_server_args, 0.4.9:289 to 0.5.23:962); text that is no object stops the server."""
    text = launch.arguments.get("json_model_override_args") if launch and case.serving.engine == "sglang" else None
    try:
        return parse_object(text, "--json-model-override-args") if isinstance(text, str) else {}
    except EvidenceError:
        return {}


def _claimed(engine: str, draft: Draft, flags: Mapping[str, Any]) -> ClaimedIds:
    """The ids of the draft's config; for TensorRT-LLM those of the launch, which is where it takes them from."""
    spec = flags.get("speculative_config")
    if engine != "trtllm" or not isinstance(spec, Mapping):
        return draft.ids
    ids = spec.get("eagle3_layers_to_capture")
    return ClaimedIds(nested=tuple(ids)) if isinstance(ids, list) else ClaimedIds()


def _trained(case: Case, target: Target | None, draft: Draft | None, dumps: tuple[DumpInfo, ...]) -> TrainedAnswer | None:
    trainer = case.training.trainer
    ids = case.training.layer_ids or next((d.layer_ids for d in dumps if d.layer_ids), None)
    if trainer is None or trainer.name == "other" or target is None:
        return None
    answer = trained_boundaries(trainer.name, trainer.version, ids=ids, layers=target.layers, aux_planes=draft.n_aux if draft else None)
    if ids is None and answer.rule != "fixed":
        return None  # its default is one of several that it may have been given
    if answer.error:
        raise ValueError(f"training.layer_ids: {answer.error}")
    return answer


def _arguments(case: Case, target: Target | None, draft: Draft | None, launch: LaunchLine, env: dict[str, str]) -> ArgsAnswer | None:
    serving = case.serving
    if not (serving.engine and serving.version):
        return None
    return resolve_args(
        serving.engine, serving.version, launch.argv, architecture=target.architectures[0] if target and target.architectures else None,
        draft_architecture=draft.architectures[0] if draft and draft.architectures else None,
        model_type=target.model_type if target else None, env={**launch.env, **env})
