"""Whatever the pages tell people to type works as it stands, in order, against a gateway with the real small model."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.pull import ModelNotFound, find_model
from router.policy_file import load_policy
from tests.client import Client
from tests.docs.markdown import ROOT, Block, blocks, pages, rows, section
from tests.docs.snippets import NOT_RUN, exports, is_run, matches, run_python, run_shell
from tests.needs import lacking, need
from tests.process import Process

README = ROOT / "README.md"
MINE = ("README.md", "README.zh.md", "docs/quickstart.md", "docs/policy.md", "docs/api.md", "docs/metrics.md",
        "docs/operations.md")  # fmt: skip
DEFAULT = ROOT / "policies" / "default.yaml"


def local_model() -> str | None:
    """Why the embedded model cannot be used here; None if it can."""
    if importlib.util.find_spec("xllamacpp") is None:
        return "the package xllamacpp is not installed"
    try:
        find_model("local/smollm2-135m-instruct")
    except ModelNotFound as exc:
        return str(exc)
    return None


def commands(page: str) -> list[Block]:
    return [block for block in blocks(ROOT / page, "sh", "python") if block.language == "python" or is_run(block)]


@pytest.fixture
async def gateway() -> AsyncIterator[Process]:
    need("curl", "curl")  # of the commands
    if reason := local_model():
        lacking(reason)
    async with Process(DEFAULT) as process:
        await process.ready()
        yield process


@pytest.mark.local_model
@pytest.mark.parametrize("page", [page for page in MINE if commands(page)])
async def test_commands_of_a_page_work_in_order(page: str, gateway: Process) -> None:
    """The first thing that anybody does is to paste them."""
    address = f"127.0.0.1:{gateway.port}"
    for block in commands(page):
        run = run_python if block.language == "python" else run_shell
        try:
            printed = await run(block.text, address)
        except AssertionError as exc:
            raise AssertionError(f"{block.id}: {exc}") from None
        if block.shown is not None:
            assert matches(block.shown, printed), f"{block.id} shows\n{block.shown}\nand printed\n{printed}"


@pytest.mark.local_model
async def test_ready_means_that_the_model_answers() -> None:
    """docs/operations.md says so, and balancers send traffic from then on."""
    if reason := local_model():
        lacking(reason)
    async with Process(DEFAULT) as process:
        await process.ready()
        reply = await Client(process.url).chat("Hello!", max_tokens=5)

    assert 200 == reply.status


@pytest.mark.local_model
async def test_the_second_identical_request_is_a_hit(gateway: Process) -> None:
    """The README says so right after its first command."""
    [ask, *_] = commands("README.md")
    address = f"127.0.0.1:{gateway.port}"

    await run_shell(ask.text, address)
    again = await run_shell(ask.text, address)

    assert "x-tiergate-cache: hit-exact" in again
    assert "x-tiergate-attempts: 0" in again


def test_readme_begins_with_the_two_commands() -> None:
    """A newcomer who has to scroll is gone."""
    first, second, third = list(blocks(README, "sh"))[:3]

    assert ("make run\n", "make test\n") == (first.text, second.text)
    assert third.text.startswith("curl ")


def test_every_make_target_that_is_named_exists() -> None:
    """Over all pages, in prose and in blocks."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    named = {
        (str(page.relative_to(ROOT)), name)
        for page in pages()
        for name in re.findall(r"(?:`|^)make ([a-z-]+)", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    }
    assert ("README.md", "run") in named
    assert [] == sorted((page, name) for page, name in named if name not in targets)


def test_cloud_keys_are_those_of_the_default_policy() -> None:
    """A variable that the policy does not look at turns nothing on."""
    told = re.findall(r"`(\w+_API_KEY)`", " ".join(cell for row in rows(section(README, "Cloud keys")) for cell in row))

    assert set(re.findall(r"\$\{(\w+)\}", _without_comments(DEFAULT))) == set(told)


def test_exported_variables_are_in_a_policy() -> None:
    """Misspelt, they would do nothing, and say nothing."""
    known = {
        name for file in (ROOT / "policies").glob("*.yaml")
        for name in re.findall(r"\$\{(\w+)", _without_comments(file))
    } | {"TIERGATE_KEY"}  # fmt: skip
    used = {
        name for page in MINE for block in blocks(ROOT / page, "sh")
        for line in exports(block) for name in re.findall(r"(\w+)=", line)
    }  # fmt: skip

    assert used
    assert used <= known


def _without_comments(file: Path) -> str:
    return re.sub(r"(^|\s)#.*", "", file.read_text(encoding="utf-8"))


# A policy around the fragments: what they name must exist.
AROUND = {
    "version": "version: 1",
    "tiers": """
tiers:
  small: {deployments: [{name: a, model: openai/a, api_base: "http://127.0.0.1:1/v1"}]}
  medium: {deployments: [{name: b, model: openai/b, api_base: "http://127.0.0.1:1/v1"}]}
  large: {deployments: [{name: c, model: openai/c, api_base: "http://127.0.0.1:1/v1"}]}
""",
    "routes": "routes: {auto: {strategy: difficulty}}",
}


def whole(text: str) -> str:
    """A policy as it is; a fragment with the sections around it that it lacks."""
    sections = set(re.findall(r"^([\w-]+):", text, flags=re.MULTILINE))
    return "\n".join([*(part for name, part in AROUND.items() if name not in sections), text])


def policies() -> list[Block]:
    found = [block for page in pages() for block in blocks(page, "yaml")]
    known = re.compile(r"^(version|tiers|routes|rules|cache|keys|log|aliases|fallback|timeout|validate):", re.MULTILINE)
    return [block for block in found if known.search(block.text)]


@pytest.mark.parametrize("block", policies(), ids=lambda block: block.id)
def test_every_policy_in_the_pages_loads(block: Block) -> None:
    """Whole policies and fragments alike, wherever they stand."""
    text = whole(block.text)
    names = set(re.findall(r"\$\{(\w+)\}", text))

    loaded = load_policy(text, dict.fromkeys(names, "x"), block.id)

    assert loaded.policy.tiers


def test_whole_policies_load_without_any_key_too() -> None:
    """They are copied before there is a key."""
    for page in MINE:
        for block in blocks(ROOT / page, "yaml"):
            if block.text.startswith("version:"):
                assert load_policy(block.text, {}, block.id).policy.tiers


def test_commands_that_start_things_are_told_apart() -> None:
    """Nothing is left out by mistake, and nothing is started by mistake."""
    assert all(NOT_RUN.search(text) for text in ("make run\n", "tiergate serve --policy x", ".venv/bin/python -m x\n"))
    assert not any(NOT_RUN.search(text) for text in ("tiergate serve --help", "tiergate explain hi", "curl -i x"))
    assert matches("a …\nb\n", "a 1 2  \nb")
    assert not matches("a …\nb\n", "a 1\nc")
