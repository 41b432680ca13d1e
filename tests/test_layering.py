"""Who may import whom, read from the code itself. The layers are what keeps `router` and `cache` usable alone."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
OURS = ("gateway", "router", "cache", "measure", "policies", "tests")
FLOOR = {
    "router/units.py": set(),
    "router/policy.py": {"router.units"},
    "router/types.py": {"router.policy"},
}  # fmt: skip
CACHE_MAY = {"router.policy", "router.types", "router.units"}


def _files(*packages: str) -> list[Path]:
    return [path for package in packages for path in sorted((ROOT / package).rglob("*.py"))]


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def _imported(node: ast.AST) -> Iterator[str]:
    """Modules that one statement or call imports, whether by `import`, `from` or `import_module`."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        assert node.module is not None
        yield node.module
    elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("import_module", "__import__"):
        yield from (arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str))


def _imports(path: Path) -> set[str]:
    return {name for node in ast.walk(_tree(path)) for name in _imported(node)}


def _of_ours(path: Path) -> set[str]:
    return {name for name in _imports(path) if name.split(".")[0] in OURS}


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _top_level(tree: ast.Module) -> Iterator[ast.AST]:
    """Every node that runs when the module is imported: all but the insides of functions and of `if TYPE_CHECKING`."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "__name__ == '__main__'"):
            continue
        waiting.extend(ast.iter_child_nodes(node))


@pytest.mark.parametrize("path", _files("router"), ids=_name)
def test_router_imports_neither_cache_nor_gateway_nor_measure(path: Path) -> None:
    """The command line and the measuring tools decide with the same code, without a server."""
    assert not {name for name in _of_ours(path) if name.split(".")[0] != "router"}


@pytest.mark.parametrize("path", _files("cache"), ids=_name)
def test_cache_imports_only_the_floor_of_router(path: Path) -> None:
    """A cache that knew features or plans could not be replaced."""
    assert {name for name in _of_ours(path) if name.split(".")[0] != "cache"} <= CACHE_MAY


@pytest.mark.parametrize("name", FLOOR)
def test_floor_imports_nothing_else_of_ours(name: str) -> None:
    """What everybody stands on stands on nothing."""
    assert _of_ours(ROOT / name) <= FLOOR[name]


@pytest.mark.parametrize("path", _files("measure"), ids=_name)
def test_measure_sees_the_gateway_from_outside_only(path: Path) -> None:
    """A ruler that reaches into what it measures measures itself."""
    assert not {name for name in _of_ours(path) if name.split(".")[0] == "gateway"}


@pytest.mark.parametrize("path", _files(*OURS[:-1]), ids=_name)
def test_nobody_imports_the_tests(path: Path) -> None:
    """The tests are not installed."""
    assert not {name for name in _imports(path) if name.split(".")[0] == "tests"}


@pytest.mark.parametrize("path", _files(*OURS[:-1]), ids=_name)
def test_only_the_litellm_upstream_imports_litellm_and_not_at_import(path: Path) -> None:
    """It costs seconds and hundreds of megabytes: a policy that does not need it never loads it."""
    inside = _name(path).startswith("gateway/upstream/litellm")
    if not inside:
        assert not {name for name in _imports(path) if name.split(".")[0] == "litellm"}
    at_import = {name for node in _top_level(_tree(path)) for name in _imported(node)}
    assert not {name for name in at_import if name.split(".")[0] == "litellm"}


@pytest.mark.parametrize("path", _files(*OURS[:-1]), ids=_name)
def test_no_module_keeps_global_state(path: Path) -> None:
    """Ten apps live in one process here; what one of them changes, no other may see."""
    assert not [node for node in ast.walk(_tree(path)) if isinstance(node, ast.Global)]


@pytest.mark.parametrize("path", _files("gateway", "router", "cache", "policies"), ids=_name)
def test_importing_a_module_does_no_work(path: Path) -> None:
    """Only definitions: no call for its effect, no loop, no file opened. (`add_typer` builds the command line.)"""
    work = [
        ast.unparse(node)
        for node in _tree(path).body
        if isinstance(node, ast.For | ast.While | ast.With | ast.Try | ast.Delete)
        or (isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant))
    ]
    opened = [ast.unparse(n) for n in _top_level(_tree(path)) if isinstance(n, ast.Call) and _opens(n)]

    assert not [line for line in work if ".add_typer(" not in line]
    assert not opened


def _opens(call: ast.Call) -> bool:
    called = ast.unparse(call.func)
    return called == "open" or called.split(".")[-1] in ("read_text", "read_bytes", "getenv", "load")


def test_rules_are_able_to_fail() -> None:
    """A reader of imports that saw none would let everything pass."""
    source = "import a.b\nfrom c import d\nimport_module('e')\ndef f():\n    import g\nclass H:\n    import i\n"
    tree = ast.parse(source)

    assert {"a.b", "c", "e", "g", "i"} == {name for node in ast.walk(tree) for name in _imported(node)}
    assert {"a.b", "c", "e", "i"} == {name for node in _top_level(tree) for name in _imported(node)}


def test_importing_the_app_loads_nothing_heavy() -> None:
    """Start-up and idle memory of a policy that needs none of them depend on it."""
    heavy = ("litellm", "sklearn", "torch", "xllamacpp", "httpx", "requests", "transformers")
    code = f"import sys, gateway.app; print([name for name in {heavy!r} if name in sys.modules])"

    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )

    assert "[]" == done.stdout.strip()


def test_importing_the_command_line_loads_no_server() -> None:
    """`tiergate check` in a shell loop, or `--help`, should not pay for FastAPI and aiohttp."""
    heavy = ("fastapi", "aiohttp", "uvicorn", "numpy", "litellm", "sklearn")
    code = f"import sys, gateway.cli; print([name for name in {heavy!r} if name in sys.modules])"

    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )

    assert "[]" == done.stdout.strip()
