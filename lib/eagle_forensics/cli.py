"""The command line: `eagle-forensics demo | run | init | show | bundle | compare | index | faults | capture | layers | args`.

Every command imports what it needs when it is called, so that `--help`, `layers` and `args` never import torch.
Exit codes: 0 pass, 1 fail, 2 usage or bad input, 3 error, 4 inconclusive; 130 after Ctrl-C. For `layers` and `args`: 1 when the engine would
refuse the launch or crash, 2 when the command itself is unusable.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from eagle_forensics import __version__

app = typer.Typer(
    name="eagle-forensics", rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False, no_args_is_help=True,
    help="Names the broken link between an EAGLE-3 drafter's training data and its served tokens, and proves it.\n\n"
         "Exit codes: 0 pass, 1 fail, 2 usage or bad input, 3 error, 4 inconclusive.",
    epilog="Start with: eagle-forensics demo --offline",
)

FAILED, USAGE, ERROR, INTERRUPTED = 1, 2, 3, 130


def main() -> None:
    """Run the command line; bad input ends in a message and exit code 2, never in a traceback."""
    try:
        app()
    except KeyboardInterrupt as error:
        _complain(str(error) or "interrupted. What was finished is kept; give the same command again to resume.")
        raise SystemExit(INTERRUPTED) from None
    except BrokenPipeError:
        sys.stderr.close()
        raise SystemExit(ERROR) from None
    except (ValueError, OSError) as error:
        _complain(str(error))
        raise SystemExit(USAGE) from None


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    if version:
        typer.echo(f"eagle-forensics {__version__}")
        raise typer.Exit


@app.command()
def demo(
    offline: Annotated[bool, typer.Option("--offline", help="Without a live SGLang; no network once the target is in the cache.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for the run folders.")] = None,
) -> None:
    """The built-in real case: broken, diagnosed, fixed as printed, and compared."""
    from eagle_forensics.demo import DemoError
    from eagle_forensics.suite.demonstration import demonstrate

    try:
        raise typer.Exit(demonstrate(out=out, live=not offline))
    except DemoError as error:
        _complain(str(error))
        raise typer.Exit(ERROR) from None


@app.command()
def run(
    cases: Annotated[list[Path], typer.Argument(help="Case files, or folders that hold a case.yaml.", metavar="CASE...")],
    only: Annotated[str | None, typer.Option(help="Notebooks to run, by number: 1,3")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE",
                                                   help="Override a key of the case (drafter.path=./new) or a notebook parameter.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the run folders (default: runs/).")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Do not resume an interrupted run of the same case.")] = False,
    matrix: Annotated[Path | None, typer.Option(help="YAML of settings to run every case with: `drafter.path: [./a, ./b]`.")] = None,
    jobs: Annotated[int, typer.Option(help="Runs at once on this machine; of a single run, notebooks at once.", min=1, max=64)] = 1,
    cluster: Annotated[str | None, typer.Option(help="Dask scheduler to run on: tcp://host:8786", metavar="ADDRESS")] = None,
    fail_on: Annotated[str, typer.Option(help="Verdicts that end with an exit code other than 0.")] = "fail,error,inconclusive",
) -> None:
    """Run the suite on one case or many; the exit code is the worst verdict."""
    from eagle_forensics.suite.batch import run_cases

    raise typer.Exit(run_cases(cases, only=_numbers(only), settings=_settings(set_ or []), out=out, resume=not fresh, matrix=matrix, jobs=jobs,
                               cluster=cluster, fail_on=_verdicts(fail_on)))


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="Folder for the new case.", metavar="DIR")],
    drafter: Annotated[Path | None, typer.Option(help="Drafter checkpoint.")] = None,
    target: Annotated[Path | None, typer.Option(help="Target model.")] = None,
    dump: Annotated[Path | None, typer.Option(help="Training dump.")] = None,
    server: Annotated[str | None, typer.Option(help="URL of the live server.")] = None,
) -> None:
    """Write a case file from what it finds in the given places."""
    from eagle_forensics.suite.initial import write_case

    typer.echo(write_case(folder, drafter=drafter, target=target, dump=dump, server=server))


@app.command()
def show(run: Annotated[Path, typer.Argument(help="A run folder, or a bundle of one.", metavar="RUN")]) -> None:
    """Print the verdict, the story and the findings of a finished run."""
    from eagle_forensics.suite.show_run import show_run

    typer.echo(show_run(run))


@app.command()
def bundle(
    run: Annotated[Path, typer.Argument(help="A run folder.", metavar="RUN")],
    out: Annotated[Path | None, typer.Option(help="The file (default: RUN.zip beside the folder).")] = None,
    most_mb: Annotated[float | None, typer.Option(help="Largest size (default: what mail takes); evidence that does not fit is left out and named.", min=0.1)] = None,
) -> None:
    """Pack a run into one file to mail, which `show` opens elsewhere."""
    from eagle_forensics.suite.bundle import bundle_text

    typer.echo(bundle_text(run, out, most_mb=most_mb))


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Two run folders or more; the first is the baseline.", metavar="RUN RUN...")],
    out: Annotated[Path | None, typer.Option(help="Write the comparison as one HTML file.")] = None,
    all_rows: Annotated[bool, typer.Option("--all", help="Show equal rows too.")] = False,
) -> None:
    """Compare runs: findings, figures and parameters that differ, regressions first."""
    from eagle_forensics.suite.compare import compare_text

    typer.echo(compare_text(runs, out=out, all_rows=all_rows))


@app.command()
def index(folder: Annotated[Path, typer.Argument(help="Folder of run folders.", metavar="DIR")] = Path("runs")) -> None:
    """Write index.html over all runs of a folder."""
    from eagle_forensics.suite.index import write_index

    typer.echo(f"wrote {write_index(folder)}")


@app.command()
def faults(
    slug: Annotated[str | None, typer.Argument(help="One fault of the catalogue, such as wiring.layer-offset.", metavar="[SLUG]")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="The whole catalogue as docs/faults.md has it.")] = False,
) -> None:
    """The fault catalogue: what a fault shows, its rival, how they are told apart, the remedy."""
    from eagle_forensics.suite.fault_pages import catalogue_markdown, fault_text

    typer.echo(catalogue_markdown() if markdown else fault_text(slug), nl=not markdown)


@app.command()
def capture(
    url: Annotated[str, typer.Argument(help="Live SGLang or vLLM server.", metavar="URL")],
    out: Annotated[Path, typer.Option(help="Folder for the states; name it under `captures` of the case.")],
    target: Annotated[Path | None, typer.Option(help="Target model: its hidden size parts the planes; with weights, every plane is identified at once.")] = None,
    drafter: Annotated[Path | None, typer.Option(help="Drafter checkpoint: its layer ids complete the launch line that is printed where something is missing.")] = None,
    prompts: Annotated[Path | None, typer.Option(help="JSON lines with `input_ids` or `text`.")] = None,
    dump: Annotated[Path | None, typer.Option(help="Ask for the first tokens of a dump's own samples.")] = None,
    tokens: Annotated[int, typer.Option(help="Tokens a prompt at most: one of 21504 numbers is 0.4 MB of JSON.", min=2, max=512)] = 32,
    states: Annotated[Path | None, typer.Option(help="Folder of vLLM's connector as seen from here (default: the path the server names).")] = None,
) -> None:
    """Fetch the states that a live server feeds its drafter: cache flushed, one short prompt at a time, prompt rows."""
    from eagle_forensics.fingerprint.capturing import run_capture

    for line in run_capture(url, out, target=target, drafter=drafter, prompts=prompts, dump=dump, most_tokens=tokens, states=states, progress=lambda line: typer.echo(line, err=True)):
        typer.echo(line)


@app.command()
def layers(
    engine: Annotated[str, typer.Option(help="sglang, vllm or trtllm.")],
    version: Annotated[str, typer.Option(help="Release as the engine prints it: 0.5.13")],
    model_type: Annotated[str, typer.Option(help="model_type of the target's config.json: kimi_k2, llama, qwen3")],
    layers: Annotated[int, typer.Option(help="Number of decoder layers of the target.", min=1)],
    ids: Annotated[str | None, typer.Option(help="Ids as in config.json: 2,30,58 (absent: the engine's default).")] = None,
    place: Annotated[str, typer.Option(help="Where they stand: nested, top-level, or auto (where the engine reads).")] = "auto",
    runner: Annotated[str | None, typer.Option(help="vLLM model runner: v1 or v2.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Which boundaries are captured, per execution path, and how to write the ids on every other engine. Exits with 1 if that crashes."""
    from eagle_forensics.engines.layers import resolve_layers

    answer = resolve_layers(engine, version, model_type=model_type, layers=layers, ids=_ids(ids), place=place, runner=runner)
    _print(answer.to_json(), as_json, _layers_text)
    if answer.error:
        raise typer.Exit(FAILED)


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def args(
    engine: Annotated[str, typer.Option(help="sglang, vllm or trtllm.")],
    version: Annotated[str, typer.Option(help="Release as the engine prints it: 0.5.9")],
    architecture: Annotated[str | None, typer.Option(help="architectures[0] of the target's config.json.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
    launch: Annotated[list[str] | None, typer.Argument(help="Launch arguments, after --.", metavar="-- ARG...")] = None,
) -> None:
    """What an engine makes of its launch arguments: raw to effective, the log lines and errors to expect.

    Exits with 1 if the server would not start, with 2 if its parser refuses the arguments as such.
    """
    from eagle_forensics.engines.arguments import resolve_args

    answer = resolve_args(engine, version, launch or [], architecture=architecture)
    _print(answer.to_json(), as_json, _args_text)
    if answer.error:
        raise typer.Exit(USAGE if answer.refusal == "usage" else FAILED)


def _complain(message: str) -> None:
    typer.echo(f"eagle-forensics: {message}", err=True)


def _print(answer: dict[str, Any], as_json: bool, text: Any) -> None:
    typer.echo(json.dumps(answer, indent=2, ensure_ascii=False) if as_json else text(answer))


def _ids(text: str | None) -> list[Any] | None:
    if text is None:
        return None
    parts = [p.strip() for p in text.strip().strip("[]").split(",") if p.strip()]
    return [int(p) if re.fullmatch(r"[+-]?\d+", p) else p for p in parts]


def _numbers(text: str | None) -> list[int] | None:
    if text is None:
        return None
    if not re.fullmatch(r"\s*[1-5](\s*,\s*[1-5])*\s*", text):
        raise ValueError(f"--only takes notebook numbers 1 to 5 separated by commas, found {text!r}")
    return sorted({int(p) for p in text.split(",")})


def _verdicts(text: str) -> list[Any]:
    from eagle_forensics.finding import Verdict

    names = [p.strip().upper() for p in text.split(",") if p.strip()]
    if wrong := [n for n in names if n not in set(Verdict) - {Verdict.PASS}]:
        raise ValueError(f"--fail-on takes fail, error and inconclusive separated by commas, found {', '.join(wrong).lower()!r}")
    return [Verdict(n) for n in names]


def _settings(pairs: list[str]) -> dict[str, Any]:
    import yaml

    settings = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or not key.strip():
            raise ValueError(f"--set takes KEY=VALUE, found {pair!r}")
        try:
            settings[key.strip()] = yaml.safe_load(value)
        except yaml.YAMLError:
            settings[key.strip()] = value
    return settings


def _layers_text(answer: dict[str, Any]) -> str:
    lines = [f"{answer['engine']} {answer['version']}, {answer['model_type']}, {answer['layers']} layers, ids {answer['ids']}"
             + ("   (assumed: this release is not in the table)" if answer["assumed"] else "")]
    for path, boundaries in answer["boundaries"].items():
        shown = ", ".join(f"b={b} ({'embedding' if b == 0 else f'output of layer {b - 1}'})" for b in boundaries or [])
        lines.append(f"  {path:<6} {shown or 'nothing: ' + str(answer.get('error') or 'see the notes')}")
    if answer.get("error") and all(answer["boundaries"].values()):
        lines.append(f"  error  {answer['error']}")
    if answer["write_as"]:
        lines.append("  the same boundaries elsewhere:")
        width = max(map(len, answer["write_as"]))
        lines += [f"    {where:<{width}}  {ids}" for where, ids in answer["write_as"].items()]
    lines += [f"  note   {note}" for note in answer["notes"]]
    lines += [f"  source {source}" for source in answer["sources"]]
    return "\n".join(lines)


def _args_text(answer: dict[str, Any]) -> str:
    lines = [f"{answer['engine']} {answer['version']}"]
    raw, effective = answer["raw"], answer["effective"] or {}
    for key, value in effective.items():
        if value is None:
            continue
        before = raw.get(key, raw.get(f"speculative_{key}"))
        changed = "" if before is None or str(before) == str(value) else f"   (asked: {before})"
        lines.append(f"  {key:<24} {value}{changed}")
    lines += [f"  {m['level'].upper():<8} {m['text']}" for m in answer["messages"]]
    if answer["error"]:
        lines.append(f"  ERROR    {answer['error']}")
    lines += [f"  source   {source}" for source in answer["sources"]]
    return "\n".join(lines)
