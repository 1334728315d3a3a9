"""The fast table: what the suite must say from papers, headers, tables, logs and tiny tensors alone."""

from tests.lineup.fast import (
    answers,
    arguments,
    cost,
    doubles,
    draft_layers,
    heads,
    layers,
    loading,
    measured,
    nccl,
    nccl_rest,
    odd,
    runtime,
    served,
    serving,
    tiny,
)

CASES = (
    *arguments.CASES, *layers.CASES, *heads.CASES, *draft_layers.CASES, *loading.CASES, *serving.CASES, *doubles.CASES, *measured.CASES, *nccl.CASES, *nccl_rest.CASES, *odd.CASES, *runtime.CASES, *cost.CASES, *answers.CASES, *served.CASES, *tiny.CASES)
