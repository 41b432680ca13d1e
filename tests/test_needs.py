"""What happens to a test on a machine that lacks a program."""

from __future__ import annotations

import shutil

import pytest

from tests.needs import need


def test_a_program_that_is_there_is_given_by_its_path() -> None:
    """Whoever starts it need not search again."""
    assert shutil.which("sh") == need("sh", "dash")


def test_without_a_program_a_test_is_skipped_and_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make test` on somebody's laptop must not be red because of a package."""
    monkeypatch.delenv("CI", raising=False)

    with pytest.raises(pytest.skip.Exception, match=r"no-such-program is not installed; .* `some-package`"):
        need("no-such-program", "some-package")


def test_in_ci_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """There a skipped test would hide for ever."""
    monkeypatch.setenv("CI", "true")

    with pytest.raises(pytest.fail.Exception, match="some-package"):
        need("no-such-program", "some-package")
