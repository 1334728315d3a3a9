"""The states a live server feeds its drafter, captured into a folder that notebook 03 compares with dump and bank.

A capture is worth what its prompts are: the first tokens of the dump's own samples can be held against the dump even where no bank can be made,
since a state depends on earlier tokens alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eagle_forensics.boundary import Boundary
from eagle_forensics.engines.returning import HOW_DECODE, HOW_EAGER, how_to_return
from eagle_forensics.evidence.captures import read_capture
from eagle_forensics.evidence.drafts import read_draft
from eagle_forensics.evidence.dumps import find_dump, iter_samples
from eagle_forensics.evidence.fed import Asked, NotReturned, fetch
from eagle_forensics.evidence.fed_files import write_fed
from eagle_forensics.evidence.live import LiveServer, read_live
from eagle_forensics.evidence.records import EvidenceError, Target
from eagle_forensics.evidence.states import fits, target_states
from eagle_forensics.evidence.targets import read_target
from eagle_forensics.fingerprint.identify import Identification, identify
from eagle_forensics.fingerprint.rows import weights_of

TEXTS = ("The keeper of the lighthouse climbed the stairs every evening to light the lamp, and wrote the weather into a book that nobody ever read.",
         "def median(values):\n    ordered = sorted(values)\n    middle = len(ordered) // 2\n    return ordered[middle]\n\nprint(median([3, 1, 2]))",
         "Water boils at a lower temperature on a mountain than at the sea, because the pressure of the air above it is smaller there.",
         "1. Write down what you expect. 2. Measure it. 3. If the two differ, change one thing at a time until you know which of them was wrong.")
"""Prompts where none are given: prose, code, fact, list."""
ID_KEYS = ("return_aux_hidden_state_layer_ids",)
MOST_PROMPTS = 64
NO_DRAFTER = "no drafter is loaded: this shows what the engine captures for the ids it was given, not which ids your drafter's server reads"


@dataclass(frozen=True)
class Captured:
    """A finished capture."""

    folder: Path
    server: LiveServer
    asked: Asked

    @property
    def tokens(self) -> int:
        """Tokens captured, of one rank."""
        return sum(len(f.ids) for f in self.asked.fed if f.rank == 0)

    @property
    def what(self) -> str:
        """What was captured, for people."""
        fed = self.asked.fed
        shape, ranks = " x ".join(map(str, fed[0].states.shape[1:])), f", {fed[0].ranks} ranks" if fed[0].ranks > 1 else ""
        return f"{self.server.engine} {self.server.version or ''} at {self.server.url}: {len({f.ids for f in fed})} prompts, {self.tokens} tokens of {shape} numbers{ranks}"

    def text(self) -> str:
        """What was captured, where it lies and what it proves, in lines."""
        return "\n".join([f"{self.what}, in {self.folder}", *(f"note: {n}" for n in self.asked.notes), HOW_EAGER, HOW_DECODE])


def capture(url: str, folder: Path, *, prompts: Sequence[str | Sequence[int]] = TEXTS, hidden: int | None = None, ids: Sequence[int] | None = None,
            most_tokens: int = 32, states: Path | None = None, progress: Callable[[str], None] | None = None) -> Captured:
    """Fetch the states of `prompts` from the server at `url` and write them to `folder`.

    `ids`: layer ids, only for the launch line of the error message. EvidenceError with what the server lacks and the line that gives it.
    """
    server = read_live(url)
    given = server.arguments.arguments if server.arguments else {}
    try:
        asked = fetch(url, server.engine, prompts[:MOST_PROMPTS], hidden=hidden, most_tokens=most_tokens, states=states, progress=progress)
    except NotReturned as error:
        advice = {"rows": f"Start the server without a prefix cache ({'--no-enable-prefix-caching' if server.engine == 'vllm' else '--disable-radix-cache'}).",
                  "file": "Run this on the serving host, or name the connector's folder as seen from here (--states)."}.get(error.lacks) or how_to_return(server, ids)
        raise EvidenceError(f"{error}. {advice}") from None
    alone = server.engine == "sglang" and given.get("speculative_draft_model_path") in (None, "None", "")
    notes = [*asked.notes, *server.notes, *([NO_DRAFTER] if alone else [])]
    asked = replace(asked, notes=tuple(notes))
    about = {"engine": server.engine, "engine_version": server.version, "url": server.url, "served_dtype": given.get("dtype"), "layer_ids": _ids_of(given),
             "drafter": given.get("speculative_draft_model_path"), "tp_size": given.get("tp_size") or given.get("tensor_parallel_size"),
             "cuda_graph_config": given.get("cuda_graph_config"), "notes": notes, "proves": HOW_EAGER, "decode": HOW_DECODE}
    return Captured(write_fed(asked.fed, folder, about), server, asked)


def run_capture(url: str, out: Path, *, target: Path | None, drafter: Path | None, prompts: Path | None, dump: Path | None, most_tokens: int, states: Path | None,
                progress: Callable[[str], None]) -> Iterator[str]:
    """The command `capture`: lines for people, the last ones a sentence a plane where the target's weights fit here."""
    if prompts and dump:
        raise ValueError("--prompts and --dump both name prompts; give one of them")
    model = read_target(target) if target else None
    asked = prompts_of_file(prompts) if prompts else prompts_of_dump(dump) if dump else TEXTS
    done = capture(url, out, prompts=asked, hidden=model.hidden if model else None, ids=drafter_ids(drafter), most_tokens=most_tokens, states=states, progress=progress)
    yield done.text()
    if model is None:
        yield "Give --target to see which boundary every plane is."
        return
    if why_not := fits(model):
        yield f"The planes are not identified here: {why_not}"
        return
    yield from (s.sentence for s in identify_fed(done, model).slots)


def identify_fed(done: Captured, target: Target) -> Identification:
    """Which boundary every captured plane is, by the target's own states for the same tokens; of several ranks the first."""
    samples = [s for s in read_capture(done.folder, target.hidden) if not s.rank]
    every = [*(Boundary(i) for i in range(target.layers + 1)), Boundary(target.layers, normed=True)]
    bank = target_states(target, [s.input_ids.tolist() for s in samples], every)
    return identify(samples, bank=bank, weights=weights_of(target), layers=target.layers)


def prompts_of_file(file: Path) -> list[str | list[int]]:
    """Prompts of a file: a JSON object a line with `input_ids` or a text (`text`, `prompt`). EvidenceError for anything else."""
    found: list[str | list[int]] = []
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines, 1):
            row = json.loads(line) if line.strip() else None
            if row is not None:
                found.append(_prompt(row, number))
    except (OSError, ValueError, RecursionError) as error:
        raise EvidenceError(f"{file}: {str(error)[:160]}. Expected a JSON object a line with `input_ids` or `text`.") from None
    if not found:
        raise EvidenceError(f"{file}: holds no prompt. Expected a JSON object a line with `input_ids` or `text`.")
    return found


def prompts_of_dump(dump: Path, count: int = 4, seed: int = 0) -> list[list[int]]:
    """The tokens of a few samples of a dump. EvidenceError for a dump without token ids."""
    found = [s.input_ids.tolist() for s in iter_samples(find_dump(dump), limit=count, seed=seed, problems=[]) if s.input_ids is not None]
    if not found:
        raise EvidenceError(f"{dump}: its samples hold no token ids. Give prompts (--prompts) instead.")
    return found


def drafter_ids(path: Path | None) -> list[int] | None:
    """Layer ids as the drafter's config spells them, for a launch line; None where it has none or cannot be read."""
    try:
        ids = read_draft(path).ids if path else None
    except EvidenceError:
        return None
    found = (ids.nested or ids.top_level) if ids else None
    return list(found) if found and all(type(i) is int for i in found) else None


def _prompt(row: Any, number: int) -> str | list[int]:
    ids, text = (row.get("input_ids"), row.get("text") or row.get("prompt")) if isinstance(row, dict) else (None, None)
    if isinstance(ids, list) and ids and all(type(i) is int and 0 <= i < 1 << 31 for i in ids):
        return ids
    if isinstance(text, str) and text.strip():
        return text
    raise ValueError(f"line {number} has neither")


def _ids_of(given: Any) -> Any:
    return next((given[k] for k in ID_KEYS if given.get(k) not in (None, "None")), None)
