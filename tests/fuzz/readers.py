"""The readers under fuzzing: their whole seeds, how a seed is mutated, and the call that must end in a value or in a refusal."""

from __future__ import annotations

import functools
import gzip
import io
import json
import os
import pickle
import random
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import save

from eagle_forensics.acceptance import findings_checks, findings_cost
from eagle_forensics.acceptance.runs import runs
from eagle_forensics.case import load_case
from eagle_forensics.config import checkpoint, checks
from eagle_forensics.config.inspection import inspect
from eagle_forensics.engines.arguments import resolve_args
from eagle_forensics.evidence.archives import read_torch_index
from eagle_forensics.evidence.captures import read_capture
from eagle_forensics.evidence.decode_log import read_decode_log
from eagle_forensics.evidence.drafts import read_draft
from eagle_forensics.evidence.dumps import find_dump, iter_samples
from eagle_forensics.evidence.environment import read_env
from eagle_forensics.evidence.launch import read_launch
from eagle_forensics.evidence.measurements import read_measurements
from eagle_forensics.evidence.nccl.conf import read_nccl_conf
from eagle_forensics.evidence.nccl.logs import read_nccl_log
from eagle_forensics.evidence.nccl.nccl_tests import read_nccl_tests
from eagle_forensics.evidence.nccl.topology import read_topology
from eagle_forensics.evidence.nccl.traces import read_trace
from eagle_forensics.evidence.server_log import read_server_log
from eagle_forensics.evidence.states import read_states
from eagle_forensics.evidence.targets import read_target
from eagle_forensics.evidence.tensors import load_array, read_header
from tests.evidence import builders, recordings
from tests.fuzz import mutate
from tests.lineup import papers

FIXTURES = Path(__file__).resolve().parents[1] / "nccl" / "fixtures"
MARKER = "it-ran"
"""A file that the hostile pickles would write into the working directory."""


@dataclass(frozen=True)
class Reader:
    """One reader: whole files by name, the file that is mutated, and the call."""

    name: str
    seeds: Callable[[], list[bytes]]
    file: str
    """Where the mutated bytes go, below a fresh folder."""
    call: Callable[[Path], Any]
    """Gets the folder."""
    around: Callable[[Path], None] = lambda folder: None
    """Writes what lies beside the mutated file."""
    mutation: Callable[[bytes, random.Random], bytes] = mutate.bytes_


def words(data: bytes, rng: random.Random) -> bytes:
    """Text mutations mostly, byte mutations now and then."""
    if rng.random() < 0.25:
        return mutate.bytes_(data, rng)
    return mutate.text(data.decode("utf-8", "replace"), rng).encode("utf-8", "surrogatepass")


def objects(data: bytes, rng: random.Random) -> bytes:
    """JSON mutations mostly, text and byte mutations now and then."""
    return words(data, rng) if rng.random() < 0.3 else json.dumps(mutate.tree(json.loads(data), rng)).encode("utf-8", "surrogatepass")


def keys(data: bytes, rng: random.Random) -> bytes:
    """YAML mutations mostly."""
    return words(data, rng) if rng.random() < 0.5 else yaml.safe_dump(mutate.tree(yaml.safe_load(data), rng)).encode("utf-8", "surrogatepass")


def header(data: bytes, rng: random.Random) -> bytes:
    """The JSON header of a safetensors file, its length, or its bytes."""
    size = int.from_bytes(data[:8], "little")
    if rng.random() < 0.3:
        return mutate.bytes_(data, rng)
    changed = objects(data[8:8 + size], rng)
    length = len(changed) if rng.random() < 0.8 else rng.choice((0, 1, 2**31, 2**63 - 1, 2**64 - 1, len(changed) + 1))
    return length.to_bytes(8, "little") + changed + data[8 + size:]


class _Runs:
    """Unpickling this would write the marker."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {MARKER}",)


def sample_bytes(content: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def sample() -> dict[str, Any]:
    rows = 6
    return {"input_ids": torch.arange(rows), "loss_mask": torch.ones(rows, dtype=torch.long), "hidden_states": [builders.weights(rows, builders.H) for _ in range(4)]}


def hostile() -> list[bytes]:
    """Pickles that run a command: bare, in a torch archive, inside a sample, gzipped."""
    bare = pickle.dumps(_Runs(), protocol=2)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("archive/data.pkl", bare)
        file.writestr("archive/version", "3\n")
        file.writestr("archive/byteorder", "little")
        file.writestr("archive/../../data/0", b"\0" * 64)
    return [bare, archive.getvalue(), sample_bytes(sample() | {"meta": _Runs()}), gzip.compress(archive.getvalue())]


def archives() -> list[bytes]:
    return [sample_bytes(sample()), sample_bytes({"model": builders.head()}), *hostile()]


def zipped(data: bytes, rng: random.Random) -> bytes:
    """The pickle or a record inside a torch archive, or the archive's bytes."""
    if rng.random() < 0.4 or data[:2] != b"PK":
        return mutate.bytes_(data, rng)
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            held = old.read(name)
            new.writestr(zipfile.ZipInfo(name), mutate.bytes_(held, rng, 2) if rng.random() < 0.4 else held)
    return out.getvalue()


def _dump(folder: Path) -> None:
    list(iter_samples(find_dump(folder / "dump"), limit=2))


def _with_config(folder: Path) -> None:
    builders.write_config(folder / "drafter", builders.LLAMA)


def _with_weights(folder: Path) -> None:
    builders.write_draft(folder / "drafter", builders.LLAMA, builders.head())


def _with_sample(folder: Path) -> None:
    (folder / "dump").mkdir()
    (folder / "dump" / "data_0.pt").write_bytes(sample_bytes(sample()))


def _with_target(folder: Path) -> None:
    _with_weights(folder)
    papers.LLAMA(folder)


def _inspection(folder: Path) -> None:
    found = inspect(load_case(folder / "case.yaml"))
    for question in (checks.problem_findings, checks.boundary_findings, checks.argument_findings, checkpoint.checkpoint_findings):
        question(found)


def _acceptance(folder: Path) -> None:
    frame = read_measurements(folder / "runs.csv")
    found = runs(frame)
    findings_checks.definition(found, tuple(frame.attrs.get("problems", ())))
    for check in (findings_checks.confounded, findings_checks.sanity, findings_cost.ceiling, findings_cost.steps):
        check(found)
    findings_cost.steps(found, 3)


def _arguments(engine: str, version: str) -> Callable[[Path], None]:
    def call(folder: Path) -> None:
        resolve_args(engine, version, read_launch((folder / "launch.sh").read_text(encoding="utf-8", errors="replace")).argv)
    return call


ODD = (None, 0, -1, "x", [], {}, [None], {"a": 1}, torch.tensor(3.0), torch.ones(0), torch.ones(3), torch.ones(2, 0), torch.ones(7, 4), torch.ones(1, 7, 4), torch.ones(2, 3, 4, 5),
       torch.arange(7), torch.full((7, 4), torch.nan), torch.ones(7, 4, dtype=torch.complex64), torch.ones(7, 4).to(torch.float8_e4m3fn), torch.ones(7, dtype=torch.bool),
       torch.eye(4).to_sparse(), torch.ones(7, 4, dtype=torch.int8), torch.zeros(1).expand(10**6, 10**6), torch.ones(7, 4, device="meta"), torch.arange(-7, 0))


def contents(data: bytes, rng: random.Random) -> bytes:
    """A part of what a torch archive holds, mostly; else as `zipped`."""
    try:
        held = torch.load(io.BytesIO(data), weights_only=True)
    except (pickle.UnpicklingError, EOFError):  # the hostile ones
        return zipped(data, rng)
    if rng.random() < 0.3:
        return zipped(data, rng)
    for _ in range(rng.randint(1, 3)):
        holder, key = held, None
        while isinstance(holder, dict | list) and holder:
            inside, key = holder, rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
            if rng.random() < 0.3:
                break
            holder = inside[key]
        if key is None:
            held = rng.choice(ODD)
            break
        if isinstance(inside, dict) and rng.random() < 0.2:
            del inside[key]
        else:
            inside[key] = rng.choice(ODD)
    return sample_bytes(held)


def _bank() -> list[bytes]:
    return [json.dumps({"format": 1, "sequences": [[1, 2, 3]], "boundaries": ["0", "1"], "origin": "given"}).encode()]


def _config_bytes(*configs: dict[str, Any]) -> list[bytes]:
    return [json.dumps(c).encode() for c in configs]


def _around(writer: Callable[[Path], None], file: str, folder: Path) -> None:
    writer(folder / "dump")
    (folder / "dump" / file).unlink()


def _made(writer: Callable[[Path], None]) -> list[bytes]:
    """The file that is mutated, whole, and pickles that would run."""
    with tempfile.TemporaryDirectory() as place:
        writer(Path(place) / "dump")
        held = [(Path(place) / "dump" / file).read_bytes() for _, known, file, _ in RECORDINGS if known is writer]
    return [*held[:1], *(hostile() if held[0][:2] == b"PK" else [])]


RECORDINGS = (
    ("TensorRT-LLM", recordings.trtllm, "eagle_2.pt", contents),
    ("TorchSpec", recordings.torchspec, "batch_1_0_rank0.pt", contents),
    ("verl-speco", recordings.verl_speco, "shard_000000.pt", contents),
    ("SpecForge", recordings.specforge, "rows_0-2000/data_0.ckpt", contents),
    ("AngelSlim", recordings.angelslim, "rank_0/rows_0/data_0.ckpt", contents),
    ("ModelOpt", recordings.modelopt, "conv-1.pt", contents),
    ("plane folder", recordings.plane_folder, "aux_1.pt", contents),
    ("SGLang passes", recordings.sglang_passes, "TP0_PP0_Rank0_pid100/Pass00000.pt", contents),
    ("SGLang dumper", recordings.sglang_dumper, "exp/step=3___rank=0___dump_index=4___name=hidden___recompute_status=disabled___layer_id=1.pt", contents),
    ("SGLang reply", recordings.sglang_reply, "reply.json", objects),
    ("vLLM extraction, fp8", recordings.vllm_fp8, "hs_0.safetensors", header),
)
"""Layouts of dumps: name, writer, the file that is mutated, and how."""

LAUNCHES = [f"python -m sglang.launch_server {papers.sglang_launch(more='--tp 8')}\n".encode(), papers.VLLM_LAUNCH.encode(),
            b"#!/bin/bash\nexport A=1\nexec vllm serve ./t \\\n  --speculative-config '{\"method\": \"eagle3\", \"num_speculative_tokens\": 3}'\n",
            b"docker run -e NCCL_PROTO=LL image python3 -m sglang.launch_server --speculative-num-steps=3\n"]
SERVER_LOG = (b"[2026-02-01 10:00:00] server_args=ServerArgs(model_path='t', speculative_algorithm='EAGLE3', speculative_num_steps=3, tp_size=8)\n"
              b"[2026-02-01 10:00:09] Decode batch. #running-req: 1, #token: 128, accept len: 1.80, accept rate: 0.30, cuda graph: True, gen throughput (token/s): 56.80\n"
              b"INFO 02-01 10:00:09 SpecDecoding metrics: Mean acceptance length: 2.15, Accepted throughput: 3.1 tokens/s, Drafted: 12 tokens, Per-position acceptance rate: 0.5, 0.3\n")
REPLY = json.dumps({"text": "a", "meta_info": {"prompt_tokens": 2, "hidden_states": [[[0.5] * 4, [0.25] * 4], [0.5] * 4]}, "output_ids": [1]}).encode()
CASE = b"""schema: 1
name: a
target: {path: ./target}
drafter: {path: ./drafter}
training: {dump: {path: ./dump}, trainer: {name: speculators, version: "0.4.0"}, layer_ids: [1, 2, 3], metrics: {full_acc_0: 0.5}}
serving: {engine: sglang, version: "0.5.23", launch: "--tp 8", env: {A: b}, hardware: {gpu: x, count: 8, link: pcie}}
captures: [{path: ./c, path_kind: eager, tp_rank: 0}]
measurements: ./runs.csv
nccl: {tests: [./a.txt], debug_log: ./b.log}
"""


def _fixtures(*patterns: str) -> Callable[[], list[bytes]]:
    return lambda: [p.read_bytes() for pattern in patterns for p in sorted(FIXTURES.glob(pattern))]


READERS = (
    Reader("safetensors", lambda: [save(builders.head())], "x.safetensors", lambda f: [load_array(i) for i in read_header(f / "x.safetensors").values()], mutation=header),
    Reader("drafter weights", lambda: [save(builders.head()), save(builders.fused_head())], "drafter/model.safetensors", lambda f: read_draft(f / "drafter"), _with_config, header),
    Reader("drafter config", lambda: _config_bytes(builders.LLAMA | {"eagle_config": builders.EAGLE}, builders.MLA), "drafter/config.json", lambda f: read_draft(f / "drafter"), _with_weights, objects),
    Reader("target config", lambda: _config_bytes(*(papers.KNOWN | c for c in papers.FAMILIES.values())), "t/config.json", lambda f: read_target(f / "t"), mutation=objects),
    Reader("shard index", lambda: [json.dumps({"metadata": {}, "weight_map": {"fc.weight": "model.safetensors", "norm.weight": "model.safetensors"}}).encode()],
           "drafter/model.safetensors.index.json", lambda f: read_draft(f / "drafter"), _with_weights, objects),
    Reader("inspection, drafter", lambda: _config_bytes(builders.LLAMA | {"eagle_config": builders.EAGLE}), "drafter/config.json", _inspection, _with_target, objects),
    Reader("inspection, target", lambda: _config_bytes(papers.KNOWN | papers.FAMILIES["llama"]), "target/config.json", _inspection, _with_target, objects),
    Reader("torch archive", archives, "x.pt", lambda f: read_torch_index(f / "x.pt"), mutation=zipped),
    Reader("dump sample", archives, "dump/data_0.pt", _dump, mutation=zipped),
    Reader("dump sample, gzip", lambda: [gzip.compress(a) for a in archives()], "dump/data_0.ckpt.gz", _dump, mutation=mutate.bytes_),
    Reader("shard manifest", lambda: [b'{"path": "shard_000000.pt", "num_samples": 2}\n{"path": "shard_000001.pt", "num_samples": 1}\n'], "dump/manifest.jsonl", _dump,
           functools.partial(_around, recordings.verl_speco, "manifest.jsonl"), words),
    Reader("dump manifest", lambda: [b'{"planes": ["b2", "b15", "b27", "b30"], "layer_ids": [1, 14, 26]}'], "dump/manifest.json", _dump,
           _with_sample, objects),
    *(Reader(f"dump, {name}", functools.partial(_made, writer), f"dump/{file}", _dump, functools.partial(_around, writer, file), mutation)
      for name, writer, file, mutation in RECORDINGS),
    Reader("capture", archives, "c.pt", lambda f: read_capture(f / "c.pt", hidden=builders.H), mutation=zipped),
    Reader("capture reply", lambda: [REPLY], "c.json", lambda f: read_capture(f / "c.json", hidden=2), mutation=objects),
    Reader("bank", _bank, "bank/bank.json", lambda f: read_states(f / "bank"), mutation=objects),
    Reader("case", lambda: [CASE], "case.yaml", lambda f: list(load_case(f / "case.yaml").missing_evidence()), mutation=keys),
    Reader("launch, SGLang", lambda: LAUNCHES, "launch.sh", _arguments("sglang", "0.5.23"), mutation=words),
    Reader("launch, old SGLang", lambda: LAUNCHES, "launch.sh", _arguments("sglang", "0.5.8"), mutation=words),
    Reader("launch, vLLM", lambda: LAUNCHES, "launch.sh", _arguments("vllm", "0.32.0"), mutation=words),
    Reader("launch file", lambda: [*LAUNCHES, SERVER_LOG], "launch.sh", lambda f: read_launch(f / "launch.sh"), mutation=words),
    Reader("launch reply", lambda: [json.dumps({"server_args": {"tp_size": 8, "speculative_num_steps": 3}, "version": "0.5.23"}).encode()], "r.json", lambda f: read_launch(f / "r.json"), mutation=objects),
    Reader("launch yaml", lambda: [b"services:\n  a:\n    command: [vllm, serve, t, --speculative-config, '{}']\n    environment: {A: b}\n"], "l.yaml", lambda f: read_launch(f / "l.yaml"), mutation=keys),
    Reader("server log", lambda: [SERVER_LOG], "s.log", lambda f: read_server_log(f / "s.log"), mutation=words),
    Reader("environment", lambda: [b"NCCL_PROTO=LL\nexport A='b c'\n# c\nHF_TOKEN=x\n"], "env", lambda f: read_env(f / "env"), mutation=words),
    Reader("measurements", lambda: [papers.SWEEP.encode(), papers.INCIDENT.encode(), papers.table(papers.run("a", 5, "1.80", "3", rate="0.30", rounds="10")).encode()], "runs.csv", _acceptance, mutation=words),
    Reader("NCCL log", _fixtures("nccl_debug*"), "n.log", lambda f: read_nccl_log(f / "n.log"), mutation=words),
    Reader("NCCL tests", _fixtures("nccltests*txt"), "n.txt", lambda f: read_nccl_tests(f / "n.txt"), mutation=words),
    Reader("NCCL tests, JSON", _fixtures("nccltests_json*"), "n.json", lambda f: read_nccl_tests(f / "n.json"), mutation=objects),
    Reader("topology", _fixtures("nvidia*"), "t.txt", lambda f: read_topology(f / "t.txt"), mutation=words),
    Reader("trace, JSON", _fixtures("kineto*", "flight*"), "t.json", lambda f: read_trace(f / "t.json"), mutation=objects),
    Reader("trace, text", _fixtures("kineto*", "flight*", "nccl_inspector*", "nsys*csv"), "t.txt", lambda f: read_trace(f / "t.txt"), mutation=words),
    Reader("trace, database", _fixtures("nsys*sqlite"), "t.sqlite", lambda f: read_trace(f / "t.sqlite"), mutation=mutate.bytes_),
    Reader("NCCL configuration file", lambda: [b"NCCL_PROTO=LL\n# c\nexport NCCL_ALGO=Ring\n"], "nccl.conf", lambda f: read_nccl_conf(f / "nccl.conf"), mutation=words),
    Reader("decode lines", lambda: [b"Decode batch, #running-req: 1, #token: 4, accept len: 1.80, cuda graph: True, gen throughput (token/s): 54.80, #queue-req: 0\n"], "s.log",
           lambda f: read_decode_log(f / "s.log"), mutation=words),
)
