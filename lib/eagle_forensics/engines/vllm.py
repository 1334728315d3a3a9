"""vLLM: which boundaries a release captures for EAGLE-3, by model runner. The rules are rows of `vllm.toml`.

vLLM adds no offset: an id is a boundary. The trap is which field of the draft's config the runner reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eagle_forensics.boundary import default_boundaries
from eagle_forensics.engines.answers import Capture, WriteAnswer
from eagle_forensics.engines.ids import not_integers
from eagle_forensics.engines.tables import current, family_of, table
from eagle_forensics.engines.versions import nearest, since
from eagle_forensics.evidence.records import ClaimedIds

ENGINE = "vllm"
DEFAULT_FC_PLANES = 3
RUNNERS = {"v1": "v1", "mrv1": "v1", "1": "v1", "v2": "v2", "mrv2": "v2", "2": "v2"}
_PLACE_NAMES = {
    "top_level": "top-level eagle_aux_hidden_state_layer_ids",
    "nested": "eagle_config.eagle_aux_hidden_state_layer_ids",
    "nested_layer_ids": "eagle_config.layer_ids",
}


def releases() -> tuple[str, ...]:
    """The vLLM releases whose source was read, ascending."""
    return tuple(table(ENGINE)["read"])


def runner_of(env: Mapping[str, str]) -> str | None:
    """The model runner that an environment forces (`v1`, `v2`); None: the release chooses."""
    forced = env.get("VLLM_USE_V2_MODEL_RUNNER")
    return None if forced is None else "v2" if forced.strip().lower() in ("1", "true") else "v1"


def default_runner(release: str, model_type: str) -> tuple[str, bool, str]:
    """The model runner `release` chooses for a model type, whether that is certain, and the source."""
    row = current(table(ENGINE)["runner"], release)
    if row["v2"] == "all":
        return "v2", True, row["source"]
    return ("v2" if model_type in row["v2"] else "v1"), row["sure"], row["source"]


def capture(version: str, *, model_type: str, layers: int, claimed: ClaimedIds, architecture: str | None = None,
            runner: str | None = None, cuda_graph: bool = True) -> tuple[Capture, str]:
    """What vLLM `version` captures for a drafter with these `claimed` ids, and the runner that answers."""
    at = nearest(ENGINE, version, releases())
    chosen, sure, why, notes = _runner(at.release, model_type, runner)
    notes = ([at.note] if at.note else []) + notes
    row = family_of(table(ENGINE)["family"], model_type, architecture)
    if row is None:
        notes.append(f"model type {model_type!r} is not in the table; EAGLE-3 support and the general rule (b = id) are assumed")
    resolver = _resolver(chosen, at.release)
    sources = [resolver["source"], why, _mechanism_source(row, at.release)]

    def answer(read_from: str, values: Any, reached: Any, boundaries: Any, error: str | None) -> tuple[Capture, str]:
        def both(item: Any) -> dict[str, Any]:
            return {"eager": item, "graph": item if cuda_graph else None}
        if not cuda_graph:
            notes.append("CUDA graphs are off: every step runs the eager path")
        return Capture(
            release=at.release, read_from=read_from, values=both(values), reached=both(reached), boundaries=both(boundaries), error=error,
            notes=tuple(notes), sources=tuple(dict.fromkeys(sources)), assumed=at.assumed or row is None or not sure), chosen

    if row is not None and not since(row["supported_since"], at.release):
        notes.append(f"{row['cls']} supports EAGLE-3 capture from vLLM {row['supported_since']}")
        return answer("default", None, None, None, table(ENGINE)["unsupported"])
    if claimed.use_aux_hidden_state is False:
        notes.append("eagle_config.use_aux_hidden_state is false: no boundary is captured, the drafter is fed the last state after the final norm")
        return answer("nested", (), (), (), None)

    ids, read_from = _read_ids(resolver["places"], claimed, chosen, at.release, notes)
    _other_runner(ids, claimed, chosen, at.release, notes)
    problem = not_integers(ids)
    if problem:
        return answer(read_from, None, None, None, problem)
    values = default_boundaries(layers) if ids is None else tuple(int(i) for i in ids)
    notes.append("no ids are used: the default 2, L//2, L-3 is captured" if ids is None else f"vLLM {at.release} takes the ids as boundaries (b = id)")
    reached, error = _reach(values, layers, row, at.release)
    if ids is not None:
        notes += _oddities(ids, read_from)
    return answer(read_from, values, reached, None if error else reached, error)


def write(version: str, *, model_type: str, layers: int, boundaries: Sequence[int], architecture: str | None = None,
          runner: str | None = None) -> WriteAnswer:
    """The top-level list that makes vLLM `version` capture `boundaries`, or why none does."""
    release = nearest(ENGINE, version, releases()).release
    key = table(ENGINE)["key"]
    wanted = tuple(sorted(boundaries))
    chosen, *_ = _runner(release, model_type, runner)
    if "top_level" not in _resolver(chosen, release)["places"]:
        if wanted == tuple(sorted(default_boundaries(layers))):
            return WriteAnswer(None, key, (f"vLLM {release} reads no ids; its default captures these boundaries",))
        return WriteAnswer(None, key, error=f"vLLM {release} never reads layer ids: it captures {list(default_boundaries(layers))}")
    row = family_of(table(ENGINE)["family"], model_type, architecture)
    if row is not None and not since(row["supported_since"], release):
        return WriteAnswer(None, key, error=f"{row['cls']} supports EAGLE-3 capture only from vLLM {row['supported_since']}")
    reached, error = _reach(wanted, layers, row, release)
    if error or reached != wanted:
        return WriteAnswer(None, key, error=error)
    notes = []
    if len(wanted) != DEFAULT_FC_PLANES:
        notes.append(f"also write num_aux_hidden_states: {len(wanted)}; the llama and deepseek draft classes build fc for 3 planes otherwise")
    return WriteAnswer(wanted, key, tuple(notes))


def _runner(release: str, model_type: str, asked: str | None) -> tuple[str, bool, str, list[str]]:
    if asked is not None:
        name = RUNNERS.get(str(asked).strip().lower())
        if name is None:
            raise ValueError(f"unknown vLLM runner {asked!r}; expected 'v1' or 'v2' (env VLLM_USE_V2_MODEL_RUNNER=0 or 1)")
        if name == "v2" and not since(table(ENGINE)["v2_since"], release):
            return "v1", True, "vllm 0.17.0: first release whose V2 runner runs EAGLE-3", [f"the V2 runner of vLLM {release} has no EAGLE-3; V1 answers"]
        return name, True, "vllm: env VLLM_USE_V2_MODEL_RUNNER chooses the runner", []
    name, sure, why = default_runner(release, model_type)
    notes = [f"runner {name.upper()}, the default of vLLM {release} for {model_type}" + ("" if sure else " (from an incomplete list: check the log)")]
    return name, sure, why, notes


def _resolver(runner: str, release: str) -> Mapping[str, Any]:
    return current([row for row in table(ENGINE)["resolver"] if row["runner"] == runner], release)


def _read_ids(places: Sequence[str], claimed: ClaimedIds, runner: str, release: str, notes: list[str]) -> tuple[tuple[Any, ...] | None, str]:
    found = next((place for place in places if getattr(claimed, place) is not None), None)
    for place, name in _PLACE_NAMES.items():
        if getattr(claimed, place) is None or place == found:
            continue
        if place in places:
            notes.append(f"{name} is overruled by {_PLACE_NAMES[found]}")
        else:
            notes.append(f"{name} is ignored by the {runner.upper()} runner of vLLM {release}"
                         + ("" if found else "; the default is captured, without an error"))
    return (getattr(claimed, found), found) if found else (None, "default")


def _other_runner(ids: tuple[Any, ...] | None, claimed: ClaimedIds, runner: str, release: str, notes: list[str]) -> None:
    """Note when the release's other runner would read the same config differently."""
    other = "v1" if runner == "v2" else "v2"
    if not since(table(ENGINE)["v2_since"], release):
        return
    theirs = next((getattr(claimed, place) for place in _resolver(other, release)["places"] if getattr(claimed, place) is not None), None)
    if theirs != ids:
        notes.append(f"the {other.upper()} runner would read {'no ids (default)' if theirs is None else list(theirs)} from the same config; "
                     "set VLLM_USE_V2_MODEL_RUNNER explicitly, or write the ids at top level")


def _mechanism_source(row: Mapping[str, Any] | None, release: str) -> str:
    if row is not None and "source" in row:
        return row["source"]
    return table(ENGINE)["mixin_source" if since(table(ENGINE)["embedding_since"], release) else "no_mixin_source"]


def _reach(values: Sequence[int], layers: int, row: Mapping[str, Any] | None, release: str) -> tuple[tuple[int, ...], str | None]:
    """The boundaries captured for these values, ascending, and the crash, if any."""
    rules = table(ENGINE)
    embedding, final = (
        first != "never" and since(first, release)
        for first in ((row or {}).get(field, rules[field]) for field in ("embedding_since", "final_since")))
    reached = tuple(sorted({v for v in values if 0 <= v < layers or (v == layers and final)}))
    if 0 in reached and not embedding:
        return reached, ("TypeError: unsupported operand type(s) for +: 'Tensor' and 'NoneType' (boundary 0 asks for hidden_states + residual "
                         f"before layer 0, where residual is None; {(row or {}).get('cls', 'the class')} in vLLM {release} has no guard)")
    if len(reached) < len(values):
        missing = [v for v in values if v not in reached]
        why = f"never captured: {missing}" if missing else "duplicates collapse"
        return reached, (f"RuntimeError: fc shape mismatch, {len(reached)} planes captured for {len(values)} ids; {why}")
    return reached, None


def _oddities(ids: Sequence[int], read_from: str) -> list[str]:
    notes = []
    if list(ids) != sorted(ids):
        notes.append("the order of the list is ignored: planes are captured in ascending layer order")
    if len(ids) != DEFAULT_FC_PLANES and read_from == "top_level":
        notes.append("the llama and deepseek draft classes build fc for 3 planes from top-level ids unless num_aux_hidden_states says otherwise")
    return notes
