"""What the live tests of both engines share: serving the demo's pair, measuring it, and the product's offline walk of its drafter on the served text."""

import asyncio
import json
from contextlib import ExitStack
from dataclasses import replace

from eagle_forensics.acceptance import findings_prediction
from eagle_forensics.acceptance.clients.connect import connect
from eagle_forensics.acceptance.clients.records import Sampling
from eagle_forensics.acceptance.live import kept, serve
from eagle_forensics.acceptance.live import measure as live
from eagle_forensics.acceptance.live.frames import as_run
from eagle_forensics.case import Case
from eagle_forensics.demo.stage import DATA, sequences
from eagle_forensics.drafter.served import study as served_study
from eagle_forensics.evidence.answers import ServedAnswer
from eagle_forensics.evidence.transport import Transport

TOKENS, START_S = 32, 600
SETTINGS = live.Settings(Sampling(0.0, TOKENS), warm_up=1, half_width=None)
ASKED, OTHERS = slice(0, None, 10), slice(3, None, 10)
"""Of the drafter's 79 held-out sequences: every tenth is asked live, the one three after it is what the prediction is made on."""


def measure(served, groups, workload, folder, also=None):
    """(measurements, logs) by name, servers of one group interleaved; `also(name, client)` is awaited after a group, while its servers are up."""
    found, logs = {}, {}
    for group in groups:
        with ExitStack() as stack:
            running = {name: serve.start(serve.launch(served[name].command, served[name].env), folder / f"{name}.log") for name in group}
            for server in running.values():
                stack.callback(server.stop)
            for server in running.values():
                serve.wait_ready(server, timeout_s=START_S)
            found |= asyncio.run(_measure(running, workload, also))
            logs |= {name: server.log.read_text(errors="replace") for name, server in running.items()}
    return found, logs


async def _measure(running, workload, also):
    transports = {name: Transport(server.url) for name, server in running.items()}
    try:
        clients = {name: await connect(transport) for name, transport in transports.items()}
        found = await live.measure(clients, workload, SETTINGS)
        for name, client in clients.items():
            if also:
                await also(name, client)
        return found
    finally:
        for transport in transports.values():
            await transport.__aexit__()


def in_float32(target, folder):
    """A copy of the target's folder with its weights in float32."""
    from safetensors.torch import load_file, save_file

    save_file({n: t.float() for n, t in load_file(target / "model.safetensors").items()}, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((target / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "torch_dtype": "float32", "dtype": "float32"}))
    return folder


def pair(exact):
    """(drafter, target) of a folder in float32, as the servers run them."""
    from eagle_forensics.drafter.network.model import load_drafter
    from eagle_forensics.evidence.drafts import read_draft
    from eagle_forensics.evidence.targets import read_target

    model = read_target(exact)
    return load_drafter(read_draft(DATA / "drafter"), model, embedding_from="target"), model


def texts(measurement, workload):
    """(prompt ids, answer ids) of every answer."""
    prompts = {p.id: p.ids for p in workload.prompts}
    return [(prompts[a.prompt], a.output_ids) for a in measurement.answers]


def walk(measurement, workload, folder, target, drafter, *, trained, served):
    """Notebook 04's walk on these answers, kept as a run keeps them: every wiring worth trying, under the rules' claim that `served` is fed."""
    kept.start(folder, workload)
    kept.answers(folder, "speculation", measurement.answers)
    kept.served(folder, measurement)
    case = Case.model_validate({"name": "served", "target": {"path": target}, "drafter": {"path": drafter}})
    text = served_study.walk(case, folder, answers=folder, layers={"served": {"boundaries": {"eager": list(served)}}}, predicted={"trained_boundaries": list(trained)})
    assert text.opening == () and text.exact and text.answers == len(workload.prompts), text.opening
    return text


def under(text, boundaries):
    """The walk of these boundaries, under the checkpoint's own flags."""
    from eagle_forensics.drafter.wirings.wiring import Wiring

    return next(w for w in text.walked if w.wiring.same_feed(Wiring(tuple(f"b={b}" for b in boundaries))))


def correctness(drafter, texts, boundaries, steps):
    """Of the drafter on (prompt ids, answer ids) under the states of these boundaries."""
    from eagle_forensics.drafter.served.text import Known, recorded
    from eagle_forensics.drafter.wirings.wiring import Wiring, evaluate
    from eagle_forensics.evidence.states import target_states

    drafter, model = drafter
    answers = [ServedAnswer(str(i), tuple(prompt), tuple(answer), 1) for i, (prompt, answer) in enumerate(texts)]
    states = target_states(model, [(*a.prompt_ids, *a.output_ids) for a in answers], boundaries, cache=False)
    return evaluate(drafter, recorded(answers, states, Known(None, None)), Wiring(tuple(f"b={b}" for b in boundaries)), steps)


def predictions(drafter, measured, wirings, mistake):
    """Per wiring the finding on the prediction made for 3 steps on other text, held against what was measured on the held-out prompts.

    `wirings`: boundaries by name, `right` the trained ones; `mistake`: what the others are called.
    """
    from eagle_forensics.drafter.frames import prediction_record

    others = [(row.prompt_ids, row.gen_ids[:TOKENS]) for row in sequences()[OTHERS]]
    bad = correctness(drafter, others, wirings["wrong"], 3)
    before = prediction_record(correctness(drafter, others, wirings["right"], 3), {mistake: bad}, bad, mistake)
    found = {}
    for name in ("right", "wrong"):
        m = measured[name]
        held_out = replace(m, answers=tuple(a for a in m.answers if a.prompt.startswith("held-out")))
        found[name] = findings_prediction.prediction([as_run(held_out)], before, served=mistake if name == "wrong" else None, live=True)
        print(found[name].statement)
    return found


def continued(exact, texts, n):
    """Each (prompt ids, answer ids) with `n` tokens more, as the target alone would have gone on."""
    import torch
    from transformers import AutoModelForCausalLM

    model, longer = AutoModelForCausalLM.from_pretrained(exact, dtype=torch.float32), {}
    with torch.inference_mode():
        for prompt, answer in dict.fromkeys(texts):
            ids = [*prompt, *answer]
            for _ in range(n):
                ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
            longer[prompt, answer] = (prompt, tuple(ids[len(prompt):]))
    return [longer[text] for text in texts]


def whole_rounds(sequence, tokens, steps):
    """Accepted drafts of each round that began within an answer of so many tokens, the last one uncut; `sequence` is of the longer text."""
    walked = sequence.rounds(steps)
    return [n for start, n in zip(walked.starts, walked.lengths, strict=True) if start < tokens - 1]
