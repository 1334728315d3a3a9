"""All-reduce fusion in SGLang: is it on for this target and GPU, and is a state captured under it whole? Rules: `fusion.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagle_forensics.engines.sglang import releases
from eagle_forensics.engines.tables import table
from eagle_forensics.engines.versions import nearest, since


@dataclass(frozen=True)
class FusionAnswer:
    """Whether captured states can be per-rank partial sums."""

    exposed: bool | None
    """None: it depends on the GPU, which is not known, or on a capture that was not read."""
    reason: str
    sources: tuple[str, ...]
    switch_off: str | None
    """Argument that switches the fusion off; None where this release has none."""
    assumed: bool = False


def fusion(version: str, *, architecture: str | None, capability: str | None, tp: int, arguments: Mapping[str, Any]) -> FusionAnswer:
    """Exposure of SGLang `version` serving `architecture` on `tp` GPUs of compute `capability` (`12.0`). ValueError for no release number."""
    rules = table("fusion")
    at = nearest("sglang", version, releases())
    off = rules["switch_off"] if since(rules["switch_off_since"], at.release) else None

    def answer(exposed: bool | None, reason: str) -> FusionAnswer:
        return FusionAnswer(exposed, reason, (rules["source"], rules["capture_source"]), off, at.assumed)

    if tp < 2:
        return answer(False, "one rank: nothing is reduced")
    if arguments.get("enforce_disable_flashinfer_allreduce_fusion"):
        return answer(False, "the launch line switches the fusion off")
    whole = rules["captured_whole_since"].get(architecture or "")
    if since(whole, at.release):
        return answer(False, f"{architecture} is captured after the reduction since {whole}")
    rows = [row for row in rules["auto"] if since(row["from"], at.release)]
    listed = any(architecture in row["architectures"] for row in rows)
    if arguments.get("enable_flashinfer_allreduce_fusion"):
        return answer(None if whole is None else True, "the launch line switches the fusion on")
    if not listed or arguments.get("enable_dp_attention"):
        return answer(False, "dp attention keeps the fusion off" if listed else f"{architecture or 'the class'} is not in the list of those for which the fusion is "
                      f"switched on (read up to {rules['auto'][-1]['from']})")
    majors = rows[-1].get("majors_of", {}).get(architecture, rows[-1]["majors"])
    if capability is None:
        return answer(None, f"{at.release} switches the fusion on for {architecture} on GPUs of compute capability {', '.join(f'{m}.x' for m in majors)}")
    if capability.split(".")[0] not in majors:
        return answer(False, f"compute capability {capability} is outside the gate ({', '.join(f'{m}.x' for m in majors)})")
    return answer(None if whole is None else True, f"{at.release} switches the fusion on for {architecture} on compute capability {capability}")
