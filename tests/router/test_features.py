"""`router.features`: a call as numbers, Chinese and English alike."""

from __future__ import annotations

import json
from typing import Any

import pytest

from router.features import HEAD, TAIL, Features, features, language
from router.types import Call


def call(ask: str, **told: Any) -> Call:
    return Call(request_id="r", surface="chat", body=b"", model="auto", **{"last_user": ask, "text": ask, **told})


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("What is the capital of France?", "en"),
        ("ok", "en"),
        ("你好", "zh"),
        ("把 hello world 翻译成中文,并解释一下", "zh"),
        ("Translate 你好 into English please", "en"),
        ("这个函数为什么报 TypeError?", "zh"),
        ("これはテストです。説明してください", "ja"),
        ("오늘 날씨 어때요", "ko"),
        ("Привет, как дела?", "ru"),
        ("Поясніть, будь ласка, чому їх двоє", "uk"),
        ("Γεια σου κόσμε", "el"),
        ("مرحبا كيف حالك", "ar"),
        ("שלום עולם", "he"),
        ("สวัสดีครับ", "th"),
        ("¿Cuál es la capital de Francia?", "es"),
        ("Wie ist das Wetter heute und was ziehe ich an?", "de"),
        ("Quel est le prix de la maison, et pourquoi ?", "fr"),
        ("123 + 4 = ?", "und"),
        ("", "und"),
    ],
)
def test_language_of_a_text(text: str, code: str) -> None:
    """Rules of the policy send languages to models that speak them."""
    assert code == language(text)
    assert code == features(call(text)).language


def test_chinese_is_read_as_pairs_of_characters_beside_latin_words() -> None:
    """Chinese has no spaces: a word pattern alone would see one giant word, and English inside it would be lost."""
    assert ("用", "python", "证明", "明勾", "勾股", "股定", "定理") == features(call("用 Python 证明勾股定理")).grams


def test_one_request_in_two_languages_names_the_same_concepts() -> None:
    """What the classifier learned from English must hold for Chinese."""
    english = features(call("Prove the theorem and design an architecture.")).as_mapping()
    chinese = features(call("证明这个定理,并设计一个架构。")).as_mapping()

    for concept in ("prove", "design"):
        assert 2 == english[concept] == chinese[concept]


def test_options_of_an_exam_question_are_counted_in_both_languages() -> None:
    """Exam questions are another kind of traffic than everyday requests, and judged by another expert."""
    assert 4 == features(call("Which is a prime?\nA. 4\nB. 6\nC. 7\nD. 9")).choices
    assert 4 == features(call("下列哪个是质数?\nA．4\nB．6\nC．7\nD．9")).choices
    assert 0 == features(call("A. Smith wrote: B. is late.")).choices


def test_a_long_system_prompt_and_history_are_not_the_question() -> None:
    """Complaints about routers: with a long system prompt or many tools, "good morning" becomes a hard request."""
    ask = "good morning"
    bare = features(call(ask))
    within = features(call(ask, system="You are strict. " * 500, text="You are strict. " * 500 + "\n" + ask))

    assert (bare.ask_tokens, bare.grams, bare.concepts) == (within.ask_tokens, within.grams, within.concepts)
    assert within.prompt_tokens > 1000 > bare.prompt_tokens


def test_a_giant_message_is_read_at_its_head_and_tail_only() -> None:
    """The work per request is bounded, while an instruction at either end is still seen."""
    ask = "prove it " + "filler " * 200_000 + " design it"
    found = features(call(ask))

    assert {"prove", "design"} <= set(found.grams)
    assert found.words <= HEAD + TAIL
    assert len(ask) == found.chars
    assert found.prompt_tokens > 100_000


def test_what_is_shown_holds_numbers_and_no_word_of_the_prompt() -> None:
    """Explanations, logs and error traces show features; the prompt must not travel with them."""
    found = features(call("My password is swordfish 暗号是芝麻开门", has_tools=True, has_images=True, turns=3))
    shown = found.as_mapping()

    for text in (json.dumps(shown, ensure_ascii=False), repr(found), str(found)):
        assert "swordfish" not in text
        assert "芝麻" not in text
    assert (True, True, 3) == (shown["has_tools"], shown["has_images"], shown["turns"])
    assert all(isinstance(value, (int, float, str, bool)) for value in shown.values())


@pytest.mark.parametrize("ask", ["", "\n", "?", "\ud83d", "🙂" * 50, "\x00" * 10, "1" * 5000, "``` ```", "好"])
def test_any_message_has_features(ask: str) -> None:
    """An odd message is answered like any other, so it must not break the decision."""
    found = features(call(ask))

    assert isinstance(found, Features)
    assert all(0 <= share <= 1 for share in (found.digit_share, found.upper_share, found.mark_share, found.han_share))
