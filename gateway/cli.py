"""The `tiergate` command: arguments → one function each. Exit codes: 0 good, 1 found wrong, 2 used wrong."""

from __future__ import annotations

import json
import logging
import os
import sys
from importlib.resources import files
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from router.units import parse_duration

app = typer.Typer(name="tiergate", help="A smart routing gateway for language models.", no_args_is_help=True,
                  add_completion=False, pretty_exceptions_enable=False)  # fmt: skip
keys = typer.Typer(help="API keys of the gateway.", no_args_is_help=True)
app.add_typer(keys, name="keys")

PolicyFile = Annotated[Path, typer.Option("--policy", "-p", help="The policy file (YAML).", envvar="TIERGATE_POLICY")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DEFAULT_POLICY = Path("policies/default.yaml")
if not DEFAULT_POLICY.exists():  # installed, not in a checkout
    DEFAULT_POLICY = Path(str(files("policies"))) / "default.yaml"


def _duration(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as exc:
        raise typer.BadParameter(f"{text!r} {exc}") from None


@app.command()
def serve(
    policy: PolicyFile = DEFAULT_POLICY,
    host: Annotated[str, typer.Option(help="Address to listen on; not loopback: needs keys.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 4000,
    workers: Annotated[int, typer.Option(min=1, max=256)] = 1,
    grace: Annotated[str, typer.Option(metavar="DURATION", help="Time that open requests get at a stop.")] = "30s",
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Start the gateway."""
    from gateway.process import ServeError
    from gateway.serve import serve
    from gateway.settings import Settings

    if log_level.upper() not in logging.getLevelNamesMapping():
        _used_wrong(f"--log-level {log_level}: is not debug, info, warning or error")
    loaded = _loaded(policy)
    try:
        code = serve(Settings(str(policy), host, port, workers, _duration(grace), log_level), loaded)
    except ServeError as exc:
        _found_wrong(str(exc))
    raise typer.Exit(code)


@app.command()
def check(file: Path, as_json: AsJson = False) -> None:
    """Check a policy file: what it turns on and off, or all that is wrong with it."""
    from router.policy_report import check_policy

    report = check_policy(file, os.environ)
    print(report.json() if as_json else report.text())
    raise typer.Exit(report.exit_code)


@app.command()
def explain(
    text: Annotated[str, typer.Argument(help="A prompt, or - for standard input.")],
    policy: PolicyFile = DEFAULT_POLICY,
    model: Annotated[str, typer.Option(help="The route to ask for; default: the policy's first.")] = "",
    as_json: AsJson = False,
) -> None:
    """Tell how a prompt would be routed, and why. No model is called."""
    from gateway.explain import UnknownName, explain_prompt

    prompt = sys.stdin.read() if text == "-" else text
    try:
        print(explain_prompt(prompt, _loaded(policy).policy, model, as_json))
    except UnknownName as exc:
        _used_wrong(str(exc))


@app.command()
def pull(name: Annotated[str, typer.Argument(help="A model that can be fetched: smollm2.")] = "smollm2") -> None:
    """Fetch a small model for the embedded tier into the user's cache folder."""
    from gateway.pull import PullError
    from gateway.pull import pull as fetch

    try:
        print(fetch(name))
    except PullError as exc:
        _found_wrong(str(exc))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def train(context: typer.Context) -> None:
    """Train the difficulty classifier (needs the extra `train`); `tiergate train --help` tells its options."""
    try:
        from router.training.__main__ import main
    except ImportError as exc:
        remedy = "run `make setup` (or install the extra: tiergate[train])"
        _found_wrong(f"training needs a package that is not here ({exc.name}): {remedy}")
    main(context.args)


@keys.command("new")
def keys_new(name: Annotated[str, typer.Argument(help="Who it is for.")]) -> None:
    """Make a new API key. It is shown once; the policy holds its hash."""
    from gateway.admission.keys import new_key

    key, digest = new_key()
    print(f"key (give it to {name}; it is not stored): {key}")
    print("for the policy:")
    print(f'keys:\n  - {{name: {json.dumps(name, ensure_ascii=False)}, hash: "{digest}"}}')


def _loaded(policy: Path):  # type: ignore[no-untyped-def]
    from router.policy_file import PolicyError, read_policy

    try:
        return read_policy(policy, os.environ)
    except PolicyError as exc:
        _found_wrong(str(exc))


def _found_wrong(text: str) -> NoReturn:
    print(text, file=sys.stderr)
    raise typer.Exit(1)


def _used_wrong(text: str) -> NoReturn:
    print(text, file=sys.stderr)
    raise typer.Exit(2)


def main() -> None:
    app()


if __name__ == "__main__":
    main()
