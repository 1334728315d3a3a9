"""Splits of a live measurement that tell faults of the engine apart: where does the accept length fall?

Cache and load are judged on the same prompts with the same answers, token for token: there nothing but the drafter's state can change the
number of rounds, so a loss is an accusation. Rounds, lengths, domains and temperatures differ in their text as well: there a loss
is a suspicion that names what would decide, never more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from eagle_forensics import stats
from eagle_forensics.acceptance.clients import counters
from eagle_forensics.acceptance.clients.records import Answer
from eagle_forensics.acceptance.live.measure import LOOK, Measurement
from eagle_forensics.acceptance.live.paired import speed
from eagle_forensics.acceptance.live.verification import verification
from eagle_forensics.acceptance.words import NOTEBOOK, listed, plural
from eagle_forensics.finding import Competitor, Evidence, Finding, Status

UNIT = "tokens per verify round"
ACCUSING = stats.simultaneous_level(3)
"""Level of the intervals that accuse: cache, load and grammar, so that by chance one of the three does in at most 2.5 % of healthy measurements."""
SAME_ROUNDS = f"same text, same drafter, same states: the same rounds; three splits can accuse, each by an interval at {ACCUSING:.1%}"
Point = Mapping[str, Measurement]
"""Measurements of one setting by label."""


def first_round(m: Measurement) -> Finding:
    """Do the rounds right after prefill accept more than the later ones?"""
    fields = common("acceptance.split-rounds", "Do the rounds right after prefill accept more than the later ones?")
    rows = [a.by_round for a in m.good if a.by_round and len(a.by_round) >= 3]
    if len(rows) < 2:
        return Finding(**fields, status=Status.SKIPPED, statement="The streams did not bring one event a verify round, so the rounds' order is not known.",
                       next_step="Measure with one request at a time and --stream-interval 1.")
    later = [sum(r[1:-1]) for r in rows]  # the last round is cut by the end of the answer
    found = stats.paired_difference([r[0] for r in rows], later, [1] * len(rows), [len(r) - 2 for r in rows], seed=m.settings.seed)
    shown = {"observed": found.value, "expected": 0.0, "n": sum(len(r) - 1 for r in rows), "interval": found.bounded}
    text = f"The first round after prefill accepts {signed(found)} tokens against the later ones of the same {len(rows)} answers"
    if found.low <= 0:
        return Finding(**fields, **shown, status=Status.PASS, statement=f"{text}: not more, so nothing suggests that decoding captures other layers than prefill.")
    if _eager(m):
        return Finding(**fields, **shown, status=Status.PASS, statement=f"{text}. This server decodes without CUDA graphs: an answer's beginning is easier text here.")
    return Finding(**fields, **shown, status=Status.INCONCLUSIVE, fault="wiring.graph-default-layers",
                   statement=f"{text}. Decoding that replays default layers from a CUDA graph looks like this, and so does an easy beginning of the answers.",
                   competitor=Competitor(fault="wiring.layer-offset", margin=f"the first round is better by {found.value:.2f}", why_rejected="there the first round is as bad as the others"),
                   next_step="Start with --disable-cuda-graph (vLLM: --enforce-eager) and measure the same prompts: an equal difference is the text's.")


def prompt_length(m: Measurement) -> Finding:
    """Does the accept length fall with the length of the prompt?"""
    fields = common("acceptance.split-length", "Does the accept length fall with the length of the prompt?")
    rows = sorted((a for a in m.good if a.acceptance and a.prompt_tokens), key=lambda a: a.prompt_tokens)
    cuts = [i for i in range(2, len(rows) - 1) if rows[i - 1].prompt_tokens < rows[i].prompt_tokens]
    if not cuts:
        return Finding(**fields, status=Status.SKIPPED, statement="Fewer than two answers each to shorter and to longer prompts.",
                       next_step="Ask prompts of one kind at several lengths, up to the longest that is served.")
    middle = rows[min(cuts, key=lambda i: abs(i - len(rows) // 2))].prompt_tokens
    found = _unpaired(rows, lambda a: a.prompt_tokens < middle, m.settings.seed)
    longest = rows[-1].prompt_tokens
    shown = {"observed": found.value, "expected": 0.0, "n": found.n, "interval": found.bounded}
    text = f"Prompts of less than {middle} tokens have an accept length {signed(found)} above the longer ones (up to {longest})"
    if found.low <= 0:
        return Finding(**fields, **shown, status=Status.PASS, statement=f"{text}: no fall within these lengths. Nothing is said beyond {longest} tokens.")
    return Finding(**fields, **shown, status=Status.INCONCLUSIVE, fault="drafter.rope", statement=f"{text}. A rotary setup or context of the draft that is too short looks like this.",
                   competitor=Competitor(fault="data.domain", margin=f"the longer prompts are of {listed(sorted({a.domain for a in rows if a.prompt_tokens >= middle}))}",
                                         why_rejected="not rejected: short and long prompts differ in content"),
                   next_step="Pad the same prompts to several lengths: a fall on the same content is the draft's position handling; notebook 01 compares the rotary setups.")


def domains(m: Measurement) -> Finding:
    """Does one domain of prompts fall behind the others?"""
    fields = common("acceptance.split-domains", "Does one domain of prompts fall behind the others?")
    parts = {d: [a.acceptance for a in m.good if a.domain == d and a.acceptance] for d in m.workload.domains}
    lengths = {d: counters.accept_length(p, seed=m.settings.seed) for d, p in parts.items() if len(p) >= 2}
    if len(lengths) < 2:
        return Finding(**fields, status=Status.SKIPPED, statement="Fewer than two domains with two answers or more.", next_step="Give the prompts a `domain`.")
    worst = min(lengths, key=lambda d: lengths[d].value)
    rest = counters.accept_length([p for d in lengths if d != worst for p in parts[d]], seed=m.settings.seed)
    low = lengths[worst]
    shown = {"observed": low.value, "expected": rest.value, "n": low.n, "interval": low.bounded, "threshold": rest.low,
             "threshold_why": "two separate 95 % intervals, which by chance part in 0.6 % of comparisons, so that the worst of a few domains may be looked at",
             "evidence": tuple(Evidence(note=f"{d}: {e.text()}") for d, e in lengths.items())}
    text = f"The lowest accept length is {worst}: {low.text()}, the others together {rest.text()}"
    if low.high >= rest.low:
        return Finding(**fields, **shown, status=Status.PASS, statement=f"{text}: not told apart.")
    return Finding(**fields, **shown, status=Status.INCONCLUSIVE, fault="data.domain", statement=f"{text}. Text of a kind that training lacked looks like this.",
                   competitor=Competitor(fault="vocab.coverage", margin=f"{rest.value - low.value:.2f} tokens per round", why_rejected="not rejected: it takes the share of these answers' tokens "
                                         "that the draft vocabulary holds"),
                   next_step=f"Count which tokens of the {worst} answers the draft vocabulary (d2t) lacks; if few, add such text to training.")


def cached(cold: Measurement, warm: Measurement, base_warm: Measurement | None = None) -> Finding:
    """Is the accept length lower where the prompt comes out of the prefix cache?"""
    fields = common("acceptance.split-cache", "Is the accept length lower where the prompt comes out of the prefix cache?")
    pairs = [(a, b) for a, b in same_answers(cold, warm) if (b.cached_tokens or 0) > (a.cached_tokens or 0)]
    if len(pairs) < LOOK:
        return Finding(**fields, status=Status.SKIPPED, statement=f"Fewer than {LOOK} prompts were answered alike, once computed and once out of the cache.",
                       next_step="Ask the same prompts twice at temperature 0 (`again`), without --disable-radix-cache.")
    found = paired_answers(pairs, cold.settings.seed, ACCUSING)
    shown = {"observed": found.value, "expected": 0.0, "n": found.n, "interval": found.bounded}
    text = f"Same {plural(len(pairs), 'answer')}, prompts out of the cache: accept length {signed(found)} (at {ACCUSING:.1%}) against computed ones"
    if found.high < 0:
        return Finding(
            **fields, **shown, status=Status.FAIL, fault="runtime.stale-draft-cache", statement=f"{text}. The answers are the same token for token, so the drafter was fed other states.",
            threshold=0.0, threshold_why=SAME_ROUNDS,
            competitor=Competitor(fault="wiring.graph-default-layers", margin="both passes decode through the same graphs", why_rejected="graphs do not change between the passes; only the cache hits do"),
            refuted_by="The same two passes with --disable-radix-cache show the same difference.", remedy="Update the engine; until then measure with a flushed cache, or serve without the prefix cache.",
            next_step="Repeat with --disable-radix-cache.")
    plain = {} if base_warm is None else {a.prompt: a.cached_tokens or 0 for a in base_warm.good}
    block = _cache_block(warm)
    less = [(b.cached_tokens or 0, plain[b.prompt]) for _, b in pairs if (b.cached_tokens or 0) + block < plain.get(b.prompt, 0)]
    if less:
        with_it, without = map(sum, zip(*less, strict=True))
        return Finding(**fields, **shown, status=Status.INCONCLUSIVE, fault="cost.prefix-cache", statement=f"{text}; but of {plural(len(less), 'prompt')} {with_it} tokens came out of the cache with speculation, "
                       f"{without} without: more apart than the {block} tokens a prompt that the engine computes again for its draft.", competitor=Competitor(fault="runtime.stale-draft-cache", margin=f"accept length {signed(found)}", why_rejected="the accept length does not fall"),
                       next_step="Compare the memory both servers leave to the cache (max_total_num_tokens).")
    return Finding(**fields, **shown, status=Status.PASS, statement=f"{text}: no loss.")


def concurrency(points: Sequence[Point]) -> Finding:
    """Does the accept length, or the gain, fall when requests are served together?"""
    fields = common("acceptance.split-load", "Does the accept length, or the gain, fall when requests are served together?")
    points = sorted(points, key=lambda p: _load(p["speculation"]))
    alone, most = points[0], points[-1]
    a, b = alone["speculation"], most["speculation"]
    pairs = same_answers(a, b)
    drafted = [m.acceptance.proposed / m.acceptance.rounds if m.acceptance and m.acceptance.proposed else None for m in (a, b)]
    if len(pairs) < LOOK:
        return Finding(**fields, status=Status.SKIPPED, statement=f"Fewer than {LOOK} prompts were answered alike at {_load(a)} and at {_load(b)} requests at once.",
                       next_step="Measure at temperature 0 in float32, where answers do not depend on what is served beside them.")
    found = paired_answers(pairs, a.settings.seed, ACCUSING)
    gains = tuple((_load(p["speculation"]), gain) for p in points if (gain := _gain(p)) is not None)
    shown = {"observed": found.value, "expected": 0.0, "n": found.n, "interval": found.bounded,
             "evidence": (*(Evidence(note=f"{n} at once: accept length {p['speculation'].accept_length.text()}") for p in points if p["speculation"].accept_length for n in [_load(p["speculation"])]),
                          *(Evidence(note=f"{n} at once: {g.value:.2f} [{g.low:.2f}, {g.high:.2f}] times the tokens/s without speculation, whole answers of {plural(g.clusters, 'prompt')}") for n, g in gains))}
    text = f"{_load(b)} requests at once against {_load(a)}, same {plural(len(pairs), 'answer')}: accept length {signed(found)} (at {ACCUSING:.1%})"
    if found.high < 0:
        if None in drafted or abs(drafted[0] - drafted[1]) > 1e-9:
            return Finding(**fields, **shown, status=Status.INCONCLUSIVE, statement=f"{text}, but the drafts per round are not known to be the same ({drafted[0]}, {drafted[1]}): "
                           "speculation that adapts to the load looks like this.", next_step="Measure with a fixed number of steps.")
        return Finding(
            **fields, **shown, status=Status.FAIL, fault="runtime.batch-metadata", statement=f"{text}. The answers are the same token for token and as many drafts were proposed, so the drafter works on wrong data.",
            threshold=0.0, threshold_why=SAME_ROUNDS,
            competitor=Competitor(fault="cost.concurrency", margin=f"the accept length itself changes by {found.value:.3f}", why_rejected="there the accept length is flat and only the gain falls"),
            refuted_by="The same prompts with another attention backend show the same loss.", remedy="Change the attention backend of the draft, or update the engine.",
            next_step="Find the smallest batch that loses, with CUDA graphs on and off.")
    if len(gains) >= 2 and gains[0][1].low > 1 and gains[-1][1].high < 1:
        return Finding(
            **fields, **shown, status=Status.FAIL, fault="cost.concurrency", statement=f"{text}: flat. But speculation gives {gains[0][1].value:.2f} times the tokens/s at {gains[0][0]} request(s) at once "
            f"and {gains[-1][1].value:.2f} times at {gains[-1][0]}.", threshold=1.0, threshold_why="as fast as without speculation",
            competitor=Competitor(fault="runtime.batch-metadata", margin=f"accept length {signed(found)}", why_rejected="there the accept length falls with the batch"),
            refuted_by="Interleaved repeats at the higher load in which speculation is not slower.", remedy="Fewer steps above that load, or none: the adaptive configuration does it by batch size.",
            next_step="Sweep the steps at every load that matters.")
    return Finding(**fields, **shown, status=Status.PASS, statement=f"{text}: no loss." + (f" The gain is {'; '.join(f'{g.value:.2f}x at {n}' for n, g in gains)}." if gains else ""))


def temperature(points: Sequence[Point]) -> Finding:
    """Does the accept length fall with the temperature?"""
    fields = common("acceptance.split-temperature", "Does the accept length fall with the temperature?")
    points = sorted(points, key=lambda p: p["speculation"].settings.sampling.temperature)
    a, b = points[0]["speculation"], points[-1]["speculation"]
    other = {x.prompt: x for x in b.good if x.acceptance}
    pairs = [(x, other[x.prompt]) for x in a.good if x.acceptance and x.prompt in other]
    if len(pairs) < 2:
        return Finding(**fields, status=Status.SKIPPED, statement="Fewer than two prompts were answered at both temperatures.", next_step="Measure both on the same prompts.")
    found = paired_answers(pairs, a.settings.seed)
    shown = {"observed": found.value, "expected": 0.0, "n": found.n, "interval": found.bounded}
    text = f"Temperature {b.settings.sampling.temperature:g} against {a.settings.sampling.temperature:g}, same {plural(len(pairs), 'prompt')}: accept length {signed(found)}"
    if verification(b.server) == "greedy":
        return Finding(**fields, **shown, status=Status.PASS, statement=f"{text}. This engine verifies greedily on this platform whatever the temperature, so nothing is learnt about sampling.")
    if found.high >= 0:
        return Finding(**fields, **shown, status=Status.PASS, statement=f"{text}: no loss.")
    return Finding(**fields, **shown, status=Status.INCONCLUSIVE, fault="runtime.acceptance-rule", statement=f"{text}. Some loss is right (sampled text is harder to draft); a strict match instead of rejection "
                   "sampling loses more.", competitor=Competitor(fault="data.too-little", margin=f"{a.accept_length.text()} at the lower temperature", why_rejected="not rejected: a flat drafter loses with the temperature too"),
                   next_step="Held against the accept length predicted at this temperature (acceptance.live-prediction), a loss below it is the rule's; else compare another build at both temperatures.")


def common(id: str, question: str) -> dict[str, Any]:
    """Fields that every split carries; none holds back a PASS."""
    return {"id": id, "question": question, "notebook": NOTEBOOK, "unit": UNIT, "required": False}


def same_answers(first: Measurement, second: Measurement) -> list[tuple[Answer, Answer]]:
    """Answers to the same prompt that are the same token for token and have counts."""
    other = {b.prompt: b for b in second.good if b.output_ids and b.acceptance}
    return [(a, other[a.prompt]) for a in first.good if a.acceptance and a.prompt in other and a.output_ids == other[a.prompt].output_ids]


def paired_answers(pairs: Sequence[tuple[Answer, Answer]], seed: int, level: float = stats.LEVEL) -> stats.Estimate:
    """Accept length of the second answers minus that of the first."""
    tokens, rounds = ([[f(x.acceptance) for x in side] for side in zip(*pairs, strict=True)] for f in (lambda c: c.accepted + c.rounds, lambda c: c.rounds))
    return stats.paired_difference(tokens[1], tokens[0], rounds[1], rounds[0], seed=seed, level=level)


def _unpaired(rows: Sequence[Answer], first: Callable[[Answer], bool], seed: int) -> stats.Estimate:
    """Accept length of the answers for which `first` holds minus that of the others."""
    columns = np.array([(t, r, 0, 0) if first(a) else (0, 0, t, r) for a in rows for t, r in [(a.acceptance.accepted + a.acceptance.rounds, a.acceptance.rounds)]], float)

    def difference(sums: np.ndarray) -> np.ndarray:
        return sums[..., 0] / np.maximum(sums[..., 1], 1) - sums[..., 2] / np.maximum(sums[..., 3], 1)

    return stats.function_of_sums(difference, columns, int(columns[:, (1, 3)].sum()), seed=seed)


def _gain(point: Point) -> stats.Estimate | None:
    """Tokens/s with speculation over tokens/s without, prompt by prompt; whole answers, so that it means the same at every load."""
    found = speed(point["speculation"], point["baseline"]) if "baseline" in point else None
    return found.ratio if found else None


def _eager(m: Measurement) -> bool:
    said = m.server.argument
    return bool(said("disable_cuda_graph") or said("enforce_eager")) or said("device") == "cpu"


def _cache_block(m: Measurement) -> int:
    """Prompt tokens that a sound server with a draft computes again although the cache holds them: SGLang keys its cache by pairs of tokens then
    (0.5.23 mem_cache/radix_cache.py maybe_to_bigram_view), vLLM drops the last block of a hit (0.32.0 v1/core/single_type_kv_cache_manager.py:819)."""
    if m.server.engine == "vllm":
        return int(m.server.argument("block_size") or 16)
    return int(m.server.argument("page_size") or 1)


def _load(m: Measurement) -> int:
    return m.settings.concurrency


def signed(e: stats.Estimate) -> str:
    """`-0.21 [-0.30, -0.12]`."""
    return f"{e.value:+.3f}" + (f" [{e.low:+.3f}, {e.high:+.3f}]" if e.bounded else " (no interval)")
