"""All-reduce fusion in SGLang: is it on for this target and GPU, and is a state captured under it whole? Rules: `fusion.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagle_forensics.engines.hardware import capability_major
from eagle_forensics.engines.sglang import releases
from eagle_forensics.engines.tables import table
from eagle_forensics.engines.versions import nearest, row_at, since


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
    if arguments.get("enable_deterministic_inference") and since(rules["deterministic_since"], at.release):
        return answer(False, "deterministic inference keeps the fusion off")
    whole = rules["captured_whole_since"].get(architecture or "")
    if since(whole, at.release):
        return answer(False, f"{architecture} is captured after the reduction since {whole}")
    exposed = None if whole is None else True
    asked = since(rules["backend_flag_since"], at.release) and arguments.get("flashinfer_allreduce_fusion_backend")
    if asked or arguments.get("enable_flashinfer_allreduce_fusion"):
        return answer(exposed, "the launch line switches the fusion on")
    row = row_at(rules["auto"], at.release)
    if row is None or architecture not in row["architectures"]:
        return answer(False, f"{architecture or 'the class'} is not in the list of those for which {at.release} switches the fusion on")
    if arguments.get("enable_dp_attention"):
        return answer(False, "dp attention keeps the fusion off")
    if arguments.get("moe_a2a_backend") not in (None, "none") and since(rules["a2a_since"], at.release):
        return answer(False, f"--moe-a2a-backend {arguments['moe_a2a_backend']} keeps the fusion off")
    majors, major = row.get("majors_of", {}).get(architecture, row["majors"]), capability_major(capability)
    gate = f"compute capability {', '.join(f'{m}.x' for m in majors)}" + (f", not on {' or '.join(row['except_gpus'])}" if "except_gpus" in row else "")
    if str(arguments.get("nnodes") or 1) != "1" and since(rules["one_node_since"], at.release) and not (
            since(rules["many_nodes_since"], at.release) and major in (10, None)):
        return answer(False, "more than one node keeps the fusion off")
    if major is None:
        return answer(None, f"{at.release} switches the fusion on for {architecture} on GPUs of {gate}")
    if str(major) not in majors:
        return answer(False, f"compute capability {capability} is outside the gate ({gate})")
    return answer(exposed, f"{at.release} switches the fusion on for {architecture} on {gate}; this GPU has {capability}")
