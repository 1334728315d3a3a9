"""What carried a collective, by the name of its kernel or annotation. A kernel's name never tells NCCL's protocol.

Since 2.19 NCCL builds one kernel a collective and reduction and names it after LL, whatever protocol runs
(src/device/generate.py, best_kernel): `..._RING_LL` stands for Simple, LL128 and NVLS too.
"""

from __future__ import annotations

import re
from functools import lru_cache

LARGEST = 1e21
"""Numbers of a trace beyond it are no time, in whatever unit."""
OPERATIONS = ("allreduce", "allgather", "reducescatter", "broadcast", "alltoall", "sendrecv", "reduce", "gather", "scatter", "barrier", "send", "recv")
DTYPE_BYTES = {"bfloat16": 2, "c10::bfloat16": 2, "half": 2, "c10::half": 2, "float16": 2, "float": 4, "float32": 4, "double": 8, "long": 8, "long int": 8, "int64": 8, "int": 4,
               "int32": 4, "byte": 1, "uint8": 1, "unsigned char": 1, "char": 1, "int8": 1, "signed char": 1, "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1}
_CARRIERS: tuple[tuple[str, re.Pattern[str]], ...] = tuple((path, re.compile(form)) for path, form in (
    ("nccl-symmetric", r"ncclSymk\w*Kernel_(\w+)"),
    ("nccl", r"ncclDevKernel_(\w+)"),
    ("nccl", r"ncclKernel_(\w+)"),  # up to 2.18
    ("custom", r"cross_device_(reduce)_[12]stage"),
    ("one-shot", r"(all_reduce)_(?:one|two)_shot\w*kernel|(?:one|two)_shot_(all_reduce)"),
    ("multimem", r"multimem_(all_reduce|all_gather|reduce_scatter|one_shot_all_reduce)\w*"),
    ("flashinfer", r"(allreduce)_fusion_kernel|pcie_ipc\w*(all_?reduce)|trtllm_(allreduce)"),
    ("quick", r"quick_?reduce"),
    ("mscclpp", r"mscclpp\w*"),
    ("gloo", r"^gloo:(\w+)"),
))
"""Sources: NCCL src/device/generate.py and symmetric/, SGLang's and vLLM's custom_all_reduce.cuh, PyTorch's symmetric memory, FlashInfer comm/."""


@lru_cache(maxsize=4096)
def carrier(name: str) -> tuple[str, str] | None:
    """(what carried it, operation) of a communication kernel or annotation; None for anything else."""
    for path, form in _CARRIERS:
        if found := form.search(name):
            words = next((g for g in found.groups() if g), "allreduce")
            return path, "allreduce" if path == "custom" else operation(words) or "allreduce"
    return None


def operation(name: str) -> str | None:
    """`AllReduce_Sum_bf16`, `_allgather_base`, `all_reduce` as one of OPERATIONS; None for another word."""
    letters = re.sub(r"[^a-z]", "", name.lower())
    at = [(letters.find(op), i) for i, op in enumerate(OPERATIONS) if op in letters]
    return OPERATIONS[min(at)[1]] if at else None


def names_protocol(name: str) -> bool:
    """Whether the name looks as if it told NCCL's protocol, which it does not."""
    return bool(re.search(r"ncclDevKernel_\w+_(?:LL128|LL|SIMPLE)\b", name))


def element_bytes(dtype: str | None) -> int | None:
    """Bytes of one element of a type as PyTorch's tools spell it; None for an unknown one."""
    return DTYPE_BYTES.get(dtype.lower()) if dtype else None


def number(value: object) -> float | None:
    """A JSON number as float; None for another value, NaN, or one beyond any time."""
    return float(value) if isinstance(value, int | float) and -LARGEST < value < LARGEST else None
