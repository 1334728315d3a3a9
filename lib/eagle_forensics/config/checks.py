"""The findings of notebook 01 about layers and launch arguments. What a checkpoint's tensors say is `checkpoint.py`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from eagle_forensics.boundary import format_boundaries, uniform_shift
from eagle_forensics.config.claims import Claim, claims, compatible
from eagle_forensics.config.inspection import Inspection
from eagle_forensics.config.question import NOTEBOOK, Question, unless_assumed
from eagle_forensics.engines.answers import ArgsAnswer
from eagle_forensics.engines.remedy import Remedy, serve_boundaries
from eagle_forensics.finding import Competitor, Evidence, Finding, Status


def problem_findings(found: Inspection) -> list[Finding]:
    """One error for each piece of evidence that the case names and that could not be read."""
    return [Finding(id=f"config.read.{re.sub(r'[^a-z0-9]+', '-', key.lower()).strip('-')}", question=f"Can {key} be read?", status=Status.ERROR,
                    notebook=NOTEBOOK, statement=message, next_step=f"Correct `{key}` in the case file, then run again.")
            for key, message in found.problems.items()]


def boundary_findings(found: Inspection) -> list[Finding]:
    """Trained against served boundaries, per execution path; plane count; where the ids were read from."""
    question = "Does the server capture the states the drafter was trained on?"
    if found.served is None:
        return [Question("config.served-boundaries", question).needs(
            found, "drafter.path", "target.path", "serving.engine", "serving.version", decides="which boundaries the server captures")]
    findings = [unless_assumed(item, {found.engine: found.served}) for item in _captured(found)]
    trained = [c for c in claims(found) if c.about == "trained"]
    eager = found.served.boundaries.get("eager")
    if eager is None:
        return findings
    known = next((c for c in trained if c.boundaries is not None), None) if found.trained else None  # labels accuse nobody
    if known is None:
        findings.append(_labels_only(found, trained, question) if trained else _unknown_training(found, question, eager))
        return findings
    trainer = f"{found.trained.trainer} {found.trained.version or 'of unknown version'}"
    findings.append(unless_assumed(_trained_against_served(found, known, question), {found.engine: found.served, trainer: found.trained}))
    return findings


def _unknown_training(found: Inspection, question: str, eager: Sequence[int]) -> Finding:
    """The one question that matters is open: no PASS, unless a dump lets notebook 03 answer it."""
    return Finding(
        id="config.trained-boundaries", question=question, status=Status.INCONCLUSIVE, required=not found.dumps, notebook=NOTEBOOK, observed=list(eager), unit="boundaries",
        statement=f"{found.engine} captures {format_boundaries(eager)}; on which states the drafter was trained "
        + ("no id or label says; notebook 03 asks the tensors of the dump" if found.dumps else "nothing in this case says"),
        next_step="Add training.trainer with training.layer_ids, or training.dump.")


def argument_findings(found: Inspection) -> list[Finding]:
    """What was asked on the launch line against what takes effect."""
    question = "Do the launch arguments take effect as written?"
    answer = found.arguments
    if answer is None:
        return [Question("config.arguments", question).needs(
            found, "serving.engine", "serving.version", "serving.launch", decides="the effective draft budget and its ceiling")]
    if answer.open:
        named = ", ".join(f"--{name.replace('_', '-')}" for name in answer.open)
        return [Question("config.arguments", question).suspects(
            None, f"{named} is set outside of the launch line: what takes effect is not known", required=True,
            next_step="Write the values into serving.launch, or name the server's log or its reply of /server_info there.")]
    unread = [name for name in answer.raw if name.startswith("speculative")]
    if unread and answer.error is None and all((answer.effective or {}).get(key) is None for key in ("algorithm", "num_steps", "num_draft_tokens")):
        named = ", ".join(f"--{name.replace('_', '-')}" for name in unread[:3])
        return [Question("config.arguments", question).suspects(
            None, f"{named} asks {found.engine} for nothing: these are another engine's arguments, so the launch line or serving.engine belongs to another server", required=True,
            next_step="Correct serving.engine, or paste the launch line of the server that is examined.")]
    return [unless_assumed(item, {found.engine: answer}) for item in _effective(found, answer, question)]


def _effective(found: Inspection, answer: ArgsAnswer, question: str) -> list[Finding]:
    evidence = tuple(Evidence(note="rule", source=s) for s in answer.sources)
    effective, raw = answer.effective or {}, answer.raw
    if answer.error:
        tree = answer.refusal == "tree"
        rival = Competitor(fault="args.draft-budget-overridden", margin="an error, not a warning", why_rejected="an overridden budget starts and serves; these arguments do not start") if tree else \
            Competitor(fault="args.tree-capacity", margin="the message names no tree and no page", why_rejected="the number of tree nodes plays no part in it")
        return [Finding(
            id="config.arguments", fault="args.tree-capacity" if tree else "args.refused", question=question, status=Status.FAIL, notebook=NOTEBOOK,
            statement=f"{found.engine} refuses these launch arguments: {answer.error}", observed=answer.error, expected="a server that starts",
            competitor=rival, refuted_by="the server starts with exactly these arguments", evidence=evidence,
            next_step="Start the server with the arguments corrected as the message says.")]
    findings = []
    asked, tokens, steps = raw.get("speculative_num_draft_tokens"), effective.get("num_draft_tokens"), effective.get("num_steps")
    if asked is not None and tokens is not None and str(asked) != str(tokens):
        findings.append(Finding(
            id="config.draft-budget", fault="args.draft-budget-overridden", question="Is the draft budget the one that was asked for?",
            status=Status.FAIL, notebook=NOTEBOOK, observed=tokens, expected=int(asked), unit="tokens verified per round",
            statement=f"{asked} draft tokens were asked for, {tokens} take effect: with topk {effective.get('topk')} and {steps} "
                      f"step(s) no accept length can exceed {steps + 1}",
            competitor=Competitor(fault="data.too-little", margin=f"a weak drafter is judged against {steps + 1}, not against {asked}",
                                  why_rejected="the arguments alone decide this; no acceptance is involved"),
            refuted_by="/server_info or the server's log shows the asked number of draft tokens", evidence=evidence,
            remedy=f"For {asked} tokens a round with topk 1 write --speculative-num-steps {int(asked) - 1}; report accept lengths "
                   f"against a ceiling of steps + 1.",
            predicted_effect="Only the ceiling moves; whether more steps pay is notebook 04's cost fit.",
            next_step="Read any accept length of this server against the ceiling above."))
    else:
        ceiling = "" if steps is None else f"; accept length can reach {steps + 1}" if effective.get("topk") == 1 else ""
        findings.append(Finding(
            id="config.draft-budget", question="Is the draft budget the one that was asked for?", status=Status.PASS, notebook=NOTEBOOK,
            statement=f"steps {steps}, topk {effective.get('topk')}, draft tokens {tokens} take effect as asked{ceiling}",
            observed=tokens, expected=tokens if asked is None else int(asked), unit="tokens verified per round", evidence=evidence))
    findings += _algorithm(found, effective, evidence)
    return findings


def _captured(found: Inspection) -> list[Finding]:
    served = found.served
    if served.error is None:
        return []
    expected = found.draft.n_aux if found.draft else None
    reached = served.boundaries.get("eager")
    return [Finding(
        id="config.captured", fault="wiring.plane-count", question="Can the server capture every state the config names?",
        status=Status.FAIL, notebook=NOTEBOOK, statement=f"{found.engine} cannot capture ids {list(served.ids or [])}: {served.error}",
        observed=list(reached) if reached is not None else None, expected=expected, unit="aux planes",
        competitor=Competitor(fault="wiring.layer-offset", margin="an error or a missing plane, not a shift",
                              why_rejected="a shifted list still delivers as many planes as fc expects"),
        refuted_by="the server starts with these ids and answers a request",
        evidence=tuple(Evidence(note="rule", source=s) for s in served.sources), remedy="Write ids that this engine version can reach.",
        next_step="See the inverse rule: eagle-forensics layers.")]


def _labels_only(found: Inspection, trained: list[Claim], question: str) -> Finding:
    served = next(c for c in claims(found) if c.about == "served" and c.means is not None)
    agree = [(c, compatible(c, served)) for c in trained]
    words = "; ".join(f"{c.who} ({c.says}) {'allow' if a else 'contradict' if a is False else 'say nothing about'} them" for c, a in agree)
    return Finding(
        id="config.trained-boundaries", question=question, status=Status.INCONCLUSIVE, required=False, notebook=NOTEBOOK,
        statement=f"{found.engine} captures {format_boundaries(served.boundaries)}; about the training only labels speak: {words}. "
                  "A label is a claim; notebook 03 asks the tensors",
        observed=list(served.boundaries or ()), unit="boundaries",
        evidence=tuple(Evidence(note=f"{c.who}: {c.says}") for c in trained),
        next_step="Read notebook 03, or add training.trainer and training.layer_ids to the case.")


def _trained_against_served(found: Inspection, claim: Claim, question: str) -> Finding:
    served, trained = found.served, tuple(sorted(claim.boundaries))
    paths = {path: tuple(sorted(b)) for path, b in served.boundaries.items() if b is not None}
    wrong = {path: b for path, b in paths.items() if b != trained}
    sources = tuple(Evidence(note="rule", source=s) for s in (*served.sources, claim.rule))
    common = {"id": "config.served-boundaries", "question": question, "notebook": NOTEBOOK, "unit": "boundaries", "expected": list(trained),
              "observed": {p: list(b) for p, b in paths.items()}, "evidence": sources}
    if not wrong and tuple(claim.boundaries) != trained:
        return Finding(**common, fault="wiring.plane-order", status=Status.INCONCLUSIVE,
                       statement=f"{claim.who} name the planes in the order {list(claim.boundaries)}, every engine hands fc {list(trained)}: the right states in another order, "
                                 "if the trainer joined them as listed",
                       competitor=Competitor(fault="a healthy drafter", margin=f"the same {len(trained)} states",
                                             why_rejected="not rejected: a trainer that captures with an engine joins them ascending whatever the list says"),
                       next_step="Notebook 02 tries every order: the one that reaches the training accuracy decides.")
    if not wrong:
        return Finding(**common, status=Status.PASS, statement=f"{claim.who} and {found.engine} mean the same states: "
                                                               f"{format_boundaries(trained)} on every path{_by_luck(found)}")
    fix = serve_boundaries(found.case, found.target, trained, served.runner)
    if set(wrong) == {"graph"}:
        return Finding(
            **common, fault="wiring.graph-default-layers", status=Status.FAIL,
            statement=f"prefill captures the trained {format_boundaries(trained)}, but CUDA-graph decode on {found.engine} replays "
                      f"{format_boundaries(wrong['graph'])} whatever the ids say",
            competitor=Competitor(fault="wiring.layer-offset", margin="eager path right, graph path wrong",
                                  why_rejected="a wrong offset would shift the eager path as well"),
            refuted_by="the same accept length with CUDA graphs switched off, or equal eager and graph captures of one prompt",
            remedy="SGLang 0.5.11 or later, or --disable-cuda-graph as the test.",
            predicted_effect="Decode steps are fed the trained states; the gain is measured by the A/B with graphs off.",
            next_step="Measure the accept length once with --disable-cuda-graph: notebook 04.")
    if found.draft_as_served.ids != found.draft.ids:
        fix = Remedy(f"{fix.text} Here --json-model-override-args lays other ids over it: change or remove it on the launch line.")
    shift = uniform_shift(trained, wrong.get("eager", ()))
    moved = f"every state {abs(shift)} boundary {'later' if shift > 0 else 'earlier'}" if shift else "other states"
    ignored = served.read_from == "default" and any(
        x is not None for x in (found.draft_as_served.ids.nested, found.draft_as_served.ids.top_level, found.draft_as_served.ids.nested_layer_ids))
    return Finding(
        **common, fault="wiring.ids-ignored" if ignored else "wiring.layer-offset", status=Status.FAIL,
        statement=f"trained on {format_boundaries(trained)} by {claim.who}, served {format_boundaries(wrong.get('eager'))} by {found.engine}: "
                  + ("the config's ids stand where this engine does not read them" if ignored else moved),
        competitor=Competitor(fault="wiring.mislabelled-dump", margin="the claim comes from the trainer's ids, not from a label",
                              why_rejected="not rejected here: notebook 03 compares the dump's tensors with the target"),
        refuted_by="notebook 03 finds other boundaries in the dump than the trainer's ids say, or a live capture equals the dump",
        remedy=fix.text, edits=fix.edits,
        predicted_effect="Notebook 02 predicts the accept length of both wirings on the same tokens.",
        next_step="Read notebook 03 for the tensors and notebook 02 for the size of the loss.")


def _by_luck(found: Inspection) -> str:
    """Ids that stand in the config but are not read: right states for the wrong reason."""
    ids = found.draft_as_served.ids if found.draft_as_served else None
    written = ids is not None and (ids.eagle_config == "malformed" or any(x is not None for x in (ids.nested, ids.top_level, ids.nested_layer_ids)))
    return "; but the ids of the config are not read, the default happens to be the same" if written and found.served.read_from == "default" else ""


def _algorithm(found: Inspection, effective: dict, evidence: tuple[Evidence, ...]) -> list[Finding]:
    algorithm, draft = effective.get("algorithm"), found.draft
    if algorithm is None or draft is None:
        return []
    spelled = str(algorithm).upper()
    if draft.family == "eagle1" and spelled == "EAGLE3":
        return [_head_of_another_kind(algorithm, evidence)]
    mismatch = spelled in ("EAGLE", "DRAFT_MODEL") and draft.family.startswith("eagle3")
    if not mismatch and not draft.family.startswith(("eagle3", "peagle")):
        return []  # what fits a family that is not known is not known either
    right = '`"method": "eagle3"` in --speculative-config' if found.case.serving.engine == "vllm" else "--speculative-algorithm EAGLE3"
    effect = ("is taken for an ordinary draft model" if spelled == "DRAFT_MODEL" else "is served without fc and the accept length is exactly 1.00"
              if found.case.serving.engine == "sglang" else "gets no aux hidden states")
    question = "Does the algorithm fit the drafter?"
    if not mismatch:
        return [Finding(id="config.algorithm", question=question, status=Status.PASS, notebook=NOTEBOOK, observed=algorithm,
                        statement=f"algorithm {algorithm} fits a drafter of family {draft.family}", evidence=evidence)]
    return [Finding(
        id="config.algorithm", fault="args.algorithm-mismatch", question=question, status=Status.FAIL, notebook=NOTEBOOK,
        observed=algorithm, expected="EAGLE3", statement=f"with algorithm {algorithm} an EAGLE-3 drafter {effect}",
        competitor=Competitor(fault="vocab.map-missing", margin="accept length near 1 as well",
                              why_rejected="the resolved algorithm decides it without any tensor"),
        refuted_by="an accept length above 1.00 with this launch line", evidence=evidence,
        remedy=right, next_step="Restart with it and measure again.")]


def _head_of_another_kind(algorithm: str, evidence: tuple[Evidence, ...]) -> Finding:
    return Finding(
        id="config.algorithm", fault="args.algorithm-mismatch", question="Does the algorithm fit the drafter?", status=Status.FAIL, notebook=NOTEBOOK, observed=algorithm,
        expected="EAGLE", statement=f"with algorithm {algorithm} the server hands aux states to an EAGLE-1/2 head, whose fc joins one embedding and one hidden state",
        competitor=Competitor(fault="wiring.plane-count", margin="fc takes 2 x hidden", why_rejected="the draft layer takes 1 x hidden: no list of ids makes this an EAGLE-3 head"),
        refuted_by="the drafter's q_proj takes 2 x hidden", evidence=evidence, remedy="--speculative-algorithm EAGLE, with the class of an EAGLE-1/2 head.",
        next_step="Restart with it and measure again.")
