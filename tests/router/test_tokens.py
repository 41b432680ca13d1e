"""`router.tokens`: the offline estimate that guards context windows."""

from __future__ import annotations

import pytest

from router.tokens import SAMPLE_OVER, estimate_tokens, pair_counts

ENGLISH = "Please explain how the garbage collector decides when to run, and what an operator can do about it."
CHINESE = "请解释垃圾回收器如何决定何时运行,以及管理员可以做些什么。"


def test_nothing_is_no_token_and_anything_is_at_least_one() -> None:
    """A zero would let a rule on prompt_tokens take a real prompt for an empty one."""
    assert 0 == estimate_tokens("")
    assert all(estimate_tokens(text) >= 1 for text in ("a", " ", "\n", "好", "🙂", "\x00", "7"))


# Counted with o200k_base (tiktoken 0.14); other current tokenizers differ by a fifth in English, more in Chinese.
@pytest.mark.parametrize(
    ("text", "real"),
    [
        (ENGLISH, 20),
        (CHINESE, 19),
        ("for (int i = 0; i < n; ++i) {\n    total += values[i] * weights[i];\n}\n", 27),
        ('{"id": 1024, "name": "Ada", "tags": ["x", "y"], "price": 19.95}', 30),
    ],
)
def test_the_estimate_is_near_a_real_tokenizer_and_rather_high(text: str, real: int) -> None:
    """Too low sends a prompt to a window that cannot hold it, far too high wastes a large model."""
    assert 0.9 * real <= estimate_tokens(text) <= 1.5 * real


def test_more_text_never_means_fewer_tokens() -> None:
    """The estimate of a conversation must grow with it."""
    growing = [estimate_tokens((ENGLISH + CHINESE)[:length]) for length in range(1, len(ENGLISH + CHINESE))]

    assert growing == sorted(growing)


@pytest.mark.parametrize("text", ["\ud83d broken", "\udc00", "👩‍👩‍👧 family", "\x00\x01", "ünïcödé", "สวัสดี"])
def test_any_string_can_be_estimated(text: str) -> None:
    """JSON can hold lone surrogates; a crash here would turn a valid request away."""
    assert 1 <= estimate_tokens(text) <= 4 * len(text)


@pytest.mark.parametrize("text", [ENGLISH, CHINESE], ids=["en", "zh"])
def test_a_giant_text_is_sampled_within_five_percent(text: str) -> None:
    """Reading a twentieth of ten megabytes is allowed only if the answer stays the same."""
    copies = 4 * SAMPLE_OVER // len(text)
    expected = copies * estimate_tokens(text * 10) / 10

    assert estimate_tokens(text * copies) == pytest.approx(expected, rel=0.05)


def test_pair_counts_add_up_to_the_length() -> None:
    """Features read shares from these counts; a lost character would skew all of them."""
    assert len(ENGLISH) == pair_counts(ENGLISH).sum()
    assert 0 == pair_counts("").sum()
