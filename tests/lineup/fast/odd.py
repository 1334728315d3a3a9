"""Odd but right, and familiar in another spelling: launch lines inside of shells, tables with noise and tiny differences, configs that look one off and are not."""

from __future__ import annotations

import json

from tests.lineup import interconnect as n
from tests.lineup import papers as p
from tests.lineup import tables as t
from tests.lineup.fast.cost import speeds
from tests.lineup.fast.runtime import rows
from tests.lineup.outcome import abstains, healthy, planted

SERVER = "python3 -m sglang.launch_server "
WORDS = ["python3", "-m", "sglang.launch_server", *p.sglang_launch().split()]


def launched(line: str, papers: p.Papers = p.LLAMA, **changes: object) -> p.Papers:
    return papers.but(launch=line, **changes)


def sweep(configured: int, speeds: tuple[float, ...]) -> p.Papers:
    lengths = (1.65, 2.06, 2.32, 2.48, 2.59)
    return rows(t.plain("plain", 100.0), *(t.spec(f"{k} steps", al, steps=k, tokens_per_second=v) for k, (al, v) in enumerate(zip(lengths, speeds, strict=True), 1)),
                launch=p.sglang_launch(configured, 1, configured + 1))


HEALTHY = (
    healthy("bash -lc behind a cd and an activate", launched(f'bash -lc "cd /srv && source venv/bin/activate && exec {SERVER}{p.sglang_launch()}"')),
    healthy("a list of words, as a pod writes its command", launched(json.dumps(WORDS))),
    healthy("numactl, nohup and a redirection", launched(f"nohup numactl --cpunodebind=0 --membind=0 {SERVER}{p.sglang_launch()} > server.txt 2>&1 &")),
    healthy("vLLM: one dotted flag a setting", launched("vllm serve ./target --speculative-config.method eagle3 --speculative-config.model ./drafter --speculative-config.num_speculative_tokens 3", p.VLLM)),
    healthy("a flag twice, the last one counts", launched(p.sglang_launch().replace("--speculative-num-steps 3", "--speculative-num-steps 5 --speculative-num-steps 3"))),
    healthy("ids in descending order, which engines sort", p.LLAMA.but(ids=(28, 15, 1))),
    healthy("ids in both places, one for each engine", p.LLAMA.but(draft={"eagle_aux_hidden_state_layer_ids": [2, 16, 29]})),
    healthy("Kimi, first id 1: the rule that adds one", p.KIMI.but(version="0.5.13", ids=(1, 29, 57), trained=(1, 29, 57), trainer=("specforge", None))),
    healthy("engine, version and data set in another spelling", rows(
        t.plain("plain", 100.0, engine="SGLang", version="v0.5.23", dataset="MT-Bench", drafter="none"), t.spec("drafts", 2.4, tokens_per_second=150.0, drafter="drafter"))),
    healthy("two draws of prompts, 3 % apart over 60,000 rounds", rows(t.spec("a", 2.60, rounds=60000), t.spec("b", 2.52, rounds=60000, prompts_hash="aa"))),
    healthy("prefix cache, 0.4 % apart over five million rounds", rows(t.spec("cold", 2.400, prefix_cache=0, rounds=5000000), t.spec("warm", 2.390, prefix_cache=1, rounds=5000000))),
    healthy("nine loads that scatter by 3 %", rows(*(t.spec(f"{2**i} at once", al, concurrency=2**i, rounds=3000) for i, al in enumerate((2.43, 2.40, 2.38, 2.44, 2.41, 2.37, 2.36, 2.42, 2.36))),
                                                   launch=p.sglang_launch(more="--max-running-requests 256"))),
    healthy("two releases, four repeats each that scatter by 4 %", rows(*(
        t.spec(f"{v} {i}", al, version=v, rounds=4000) for v, als in (("0.5.20", (2.50, 2.58, 2.47, 2.55)), ("0.5.23", (2.52, 2.45, 2.56, 2.49))) for i, al in enumerate(als)))),
    healthy("gain 1.5 at one request, none at 32", p.LLAMA.but(rows=speeds((1, 2.40, 150.3, 100.2), (32, 2.41, 1990.1, 2000.4)))),
    healthy("three steps configured, four 0.6 % faster", sweep(3, (139.2, 163.1, 172.9, 173.8, 170.4))),
    healthy("two servers' starts in one log", n.host(log=n.nccl_log() + n.nccl_log()), notebooks=(5,)),
)
PLANTED = (
    planted("10 asked, steps 2, inside of docker and bash", launched(f'docker run --gpus all lmsysorg/sglang:v0.5.23 bash -c "{SERVER}{p.sglang_launch(2, 1, 10)}"'), "args.draft-budget-overridden"),
    planted("one step configured, four serve best by a quarter", sweep(1, (139.2, 163.1, 172.9, 173.8, 170.4)), "cost.wrong-step-count"),
    planted("raw prompts, 2.50 to 1.05 over 1,500 rounds", rows(t.spec("chat", 2.50, rounds=1500), t.spec("raw", 1.05, rounds=1500, prompts_hash="ff")), "data.template"),
    planted("three releases, the third loses 12 %", rows(t.spec("a", 3.53, version="0.5.20", steps=5), t.spec("b", 3.51, version="0.5.21", steps=5), t.spec("c", 3.10, steps=5)), "runtime.regression"),
    planted("16 tokens asked in a shell, and one boundary before", launched(f"sh -c 'exec {SERVER}{p.sglang_launch(2, 1, 16)}'", ids=(0, 14, 27)), "args.draft-budget-overridden", "wiring.layer-offset"),
)
ABSTAIN = (
    abstains("prefix cache, 12 % apart over one answer", rows(t.spec("cold", 2.6, prefix_cache=0, rounds=60), t.spec("warm", 2.3, prefix_cache=1, rounds=60))),
    abstains("batch 2.41 to 2.27 over 4,000 rounds, sixty answers", rows(t.spec("two", 2.41, concurrency=2, rounds=4000), t.spec("thirty-two", 2.27, concurrency=32, rounds=4000))),
    abstains("speeds with their unit", p.LLAMA.but(rows="label,speculative,steps,accept_length,tokens_per_second\nplain,0,,,100 tok/s\ndrafts,1,3,2.4,150 tok/s\n"), "ERROR"),
)
CASES = (*p.alone(*(c for c in (*HEALTHY, *PLANTED, *ABSTAIN) if 5 not in c.notebooks)), *(c for c in HEALTHY if 5 in c.notebooks))
