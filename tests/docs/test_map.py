"""STYLE.md's map of modules is complete, and its tree of errors is the real one."""

from __future__ import annotations

import re

from gateway.errors import AttemptError, ClientError, GatewayError
from tests.docs.markdown import ROOT, section
from tests.docs.test_reference import errors

STYLE = ROOT / "STYLE.md"


def test_every_module_is_on_the_map() -> None:
    """Whoever looks for something reads the map first."""
    [drawing] = re.findall(r"^```\n(.*?)^```$", section(STYLE, "4. Module map"), flags=re.DOTALL | re.MULTILINE)
    told = set(re.findall(r"\w+\.py", drawing))
    modules = {
        path.name
        for folder in ("gateway", "router", "cache")
        for path in (ROOT / folder).rglob("*.py")
        if path.name != "__init__.py" and "training" not in path.parts
    }
    elsewhere = {path.name for folder in ("measure", "tests") for path in (ROOT / folder).rglob("*.py")}

    assert set() == modules - told
    assert set() == told - modules - elsewhere


def test_the_tree_of_errors_is_the_real_one() -> None:
    """`then` and `blame` decide what happens after a failure."""
    tree = section(STYLE, "6. Errors")
    told = {
        name: (then, blame == "yes")
        for name, then, blame in re.findall(r"─ (\w+) +(stop|retry|fallback|larger|escalate) +(yes|–)", tree)
    }
    real = {cls.__name__: (cls.then, cls.blame) for cls in errors() if not issubclass(cls, ClientError)}

    del real[GatewayError.__name__], real[AttemptError.__name__]
    assert real == {name: rest for name, rest in told.items() if name != ClientError.__name__}
    assert all(cls.__name__ in tree for cls in errors(ClientError))
