"""Answers of foreign protocols, in OpenAI's form: real sockets, LiteLLM itself."""

from __future__ import annotations

import asyncio
import base64
import gc
import logging
import subprocess
import sys
from array import array
from typing import Any

import orjson
import pytest

from gateway.errors import Broken, Misconfigured, Overloaded, Refused, TooLong, Unreachable
from gateway.upstream import litellm as adapter_module
from gateway.upstream.litellm import LiteLLMUpstream, available
from router.types import Call
from tests.gateway.upstream.providers import (
    CLAUDE,
    GEMINI,
    KEY,
    LITELLM_WARNINGS,
    Provider,
    attempt,
    claude_block,
    claude_end,
    claude_error,
    claude_event,
    claude_message,
    claude_start,
    claude_text,
    events,
    gemini_event,
    gemini_piece,
    request,
    text_of,
)
from tests.upstream import Chunk, Hang, Reset, Send, Until, Upstream, data, json_reply
from tests.upstream import stream as openai_stream

pytestmark = LITELLM_WARNINGS

WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{"


async def collect(reply: Any, seen: list[bytes]) -> None:
    async for piece in reply.chunks():
        seen.append(piece)


async def test_whole_claude_answer_has_openai_form(provider: Provider) -> None:
    """The one thing this adapter is for: clients of OpenAI's API can read what Claude says, thinking included."""
    thought = {"type": "thinking", "thinking": "Hmm", "signature": "SIG=="}
    said = {"type": "text", "text": "Hello, 你好 👋"}
    provider.server.script(json_reply(200, claude_message(thought, said)))

    answer = await provider.whole(temperature=0.5, max_tokens=100)

    (choice,) = answer["choices"]
    assert ("chat.completion", "claude-sonnet-4-5") == (answer["object"], answer["model"])
    assert ("Hello, 你好 👋", "Hmm", "stop") == (
        choice["message"]["content"], choice["message"]["reasoning_content"], choice["finish_reason"],
    )  # fmt: skip
    assert "SIG==" == choice["message"]["thinking_blocks"][0]["signature"]
    (sent,) = provider.server.requests
    assert ("/v1/messages", KEY) == (sent.path, sent.header("x-api-key"))
    assert (0.5, 100, "claude-sonnet-4-5") == (sent.json["temperature"], sent.json["max_tokens"], sent.json["model"])
    assert "hello 你好" == sent.json["messages"][0]["content"][0]["text"]


async def test_usage_of_claude_counts_cached_tokens_in_the_prompt(provider: Provider) -> None:
    """Cost is computed from disjoint buckets: Anthropic counts cached tokens beside the prompt, OpenAI within it."""
    provider.server.script(json_reply(200, claude_message({"type": "text", "text": "ok"})))

    usage = (await provider.whole())["usage"]

    assert (117, 33, 150) == (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"])
    details = usage["prompt_tokens_details"]
    assert (100, 5) == (details["cached_tokens"], details["cache_creation_tokens"])
    assert "cost" not in usage


async def test_tool_call_of_claude_keeps_its_arguments(provider: Provider) -> None:
    """Agents stop working when an argument changes by a character."""
    used = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "北京", "days": 3}}
    provider.server.script(json_reply(200, claude_message(used, stop="tool_use")))

    answer = await provider.whole(tools=[WEATHER], tool_choice="required")

    message = answer["choices"][0]["message"]
    assert "tool_calls" == answer["choices"][0]["finish_reason"]
    assert message["content"] is None
    assert ("toolu_1", "weather") == (message["tool_calls"][0]["id"], message["tool_calls"][0]["function"]["name"])
    assert {"city": "北京", "days": 3} == orjson.loads(message["tool_calls"][0]["function"]["arguments"])
    assert {"type": "any"} == provider.server.requests[0].json["tool_choice"]


async def test_streamed_claude_answer_has_openai_events(provider: Provider) -> None:
    """Thinking, text, a tool call and usage arrive as the chunks that OpenAI's clients put together."""
    provider.server.script(*events(
        claude_start(),
        *claude_block(0, {"type": "thinking", "thinking": "", "signature": ""},
                      {"type": "thinking_delta", "thinking": "Hmm"},
                      {"type": "signature_delta", "signature": "SIG=="}),
        *claude_text("Hello ", "你好", index=1),
        claude_event("ping"),
        *claude_block(2, {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}},
                      {"type": "input_json_delta", "partial_json": '{"city":'},
                      {"type": "input_json_delta", "partial_json": '"北京"}'}),
        *claude_end("tool_use"),
    ))  # fmt: skip

    chunks = await provider.streamed(tools=[WEATHER])

    assert {"chat.completion.chunk"} == {chunk["object"] for chunk in chunks}
    assert 1 == len({chunk["id"] for chunk in chunks})
    assert "assistant" == chunks[0]["choices"][0]["delta"]["role"]
    assert ("Hello 你好", "Hmm") == (text_of(chunks), text_of(chunks, "reasoning_content"))
    assert b"SIG==" in orjson.dumps(chunks)
    calls = [call for chunk in chunks for choice in chunk["choices"] for call in choice["delta"].get("tool_calls", ())]
    assert ("toolu_1", "weather") == (calls[0]["id"], calls[0]["function"]["name"])
    assert {"city": "北京"} == orjson.loads("".join(call["function"]["arguments"] for call in calls))
    reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
    assert [None] * (len(reasons) - 1) + ["tool_calls"] == reasons
    assert [] == chunks[-1]["choices"]
    assert (117, 33) == (chunks[-1]["usage"]["prompt_tokens"], chunks[-1]["usage"]["completion_tokens"])
    assert "cost" not in chunks[-1]["usage"]


async def test_first_event_comes_before_the_second_is_sent(provider: Provider) -> None:
    """A gateway that waits for one more event doubles the time to the first token of a slow model."""
    go_on = asyncio.Event()
    first, *rest = claude_text("first", " second")[1:]
    provider.server.script(
        *events(claude_start(), claude_text()[0], first, ends=False), Until(go_on),
        *(Chunk(piece) for piece in [*rest, *claude_end()]), Send(b"0\r\n\r\n"),
    )  # fmt: skip

    reply = await provider.open(stream=True)
    pieces = reply.chunks()
    assert b'"content":"first"' in await anext(pieces)
    go_on.set()
    assert b'"content":" second"' in await anext(pieces)
    assert b"data: [DONE]\n\n" == [piece async for piece in pieces][-1]
    await reply.aclose()


async def test_answer_of_many_equal_pieces_is_not_cut(provider: Provider) -> None:
    """LiteLLM takes a hundred equal pieces for a model gone mad; they may be a table of zeros that was asked for."""
    provider.server.script(*events(claude_start(), *claude_text(*["0.0, "] * 150), *claude_end()))

    assert "0.0, " * 150 == text_of(await provider.streamed())


async def test_no_tokenizer_is_downloaded(provider: Provider, caplog: pytest.LogCaptureFixture) -> None:
    """For a model named like Llama, LiteLLM fetches a tokenizer after each stream, with the event loop waiting."""
    litellm = await provider.adapter.load()
    provider.server.script(*openai_stream("Hel", "lo", counts=(3, 4)))
    with caplog.at_level(logging.INFO):
        async with asyncio.timeout(20):
            chunks = await provider.of("groq/llama-3.3-70b-versatile").streamed()

    assert ("Hello", 3) == (text_of(chunks), chunks[-1]["usage"]["prompt_tokens"])
    assert not [record for record in caplog.records if "huggingface" in record.getMessage()]
    assert litellm.disable_hf_tokenizer_download is True


async def test_gemini_answers_in_openai_form(provider: Provider) -> None:
    """A second protocol, with its own names for everything."""
    call = {"functionCall": {"name": "weather", "args": {"city": "上海"}}}
    provider.server.script(
        json_reply(200, gemini_piece({"text": "Hm", "thought": True}, {"text": "好的"}, finish="STOP"))
    )
    provider.server.script(*events(
        gemini_event({"text": "Hel"}), gemini_event({"text": "lo 你好"}), gemini_event(call),
        gemini_event(finish="STOP"),
    ))  # fmt: skip

    whole = await provider.of(GEMINI).whole()
    chunks = await provider.of(GEMINI).streamed(tools=[WEATHER])

    message = whole["choices"][0]["message"]
    assert ("好的", "Hm") == (message["content"], message["reasoning_content"])
    assert (5, 10) == (whole["usage"]["prompt_tokens"], whole["usage"]["completion_tokens"])
    assert 7 == whole["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert 2 == whole["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert "Hello 你好" == text_of(chunks)
    calls = [call for chunk in chunks for choice in chunk["choices"] for call in choice["delta"].get("tool_calls", ())]
    assert {"city": "上海"} == orjson.loads(calls[0]["function"]["arguments"])
    assert ["tool_calls"] == [c["finish_reason"] for k in chunks for c in k["choices"] if c["finish_reason"]]
    assert (5, 10) == (chunks[-1]["usage"]["prompt_tokens"], chunks[-1]["usage"]["completion_tokens"])
    assert all(KEY not in received.path for received in provider.server.requests)


async def test_filtered_answer_of_gemini_ends_as_content_filter(provider: Provider) -> None:
    """A blocked prompt has no candidate and no text; clients must see why nothing came."""
    blocked = {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 5}}
    provider.server.script(*events(data(blocked)))

    chunks = await provider.of(GEMINI).streamed()

    assert ["content_filter"] == [c["finish_reason"] for k in chunks for c in k["choices"] if c["finish_reason"]]


@pytest.mark.parametrize("as_base64", [True, False])
async def test_embeddings_come_as_the_caller_asked(provider: Provider, as_base64: bool) -> None:
    """OpenAI's own client asks for base64 without being told to, and reads nothing else then."""
    provider.server.script(json_reply(200, {"embeddings": [{"values": [0.25, -1.5]}]}))
    fields = {"input": ["你好"], "model": "x", **({"encoding_format": "base64"} if as_base64 else {})}
    body = orjson.dumps(fields)
    call = Call("r1", "embeddings", body, "embed")
    address = f"http://127.0.0.1:{provider.server.port}"

    reply = await provider.adapter.open(call, attempt("gemini/gemini-embedding-001", address, mode="embedding"), body)
    answer = orjson.loads(await reply.read())
    await reply.aclose()

    (entry,) = answer["data"]
    vector = entry["embedding"]
    if as_base64:
        vector = list(array("f", base64.b64decode(vector)))
    assert ("list", "embedding", [0.25, -1.5]) == (answer["object"], entry["object"], vector)


# --- streams that fail ---


@pytest.mark.parametrize("model", [CLAUDE, GEMINI])
async def test_stream_cut_by_reset_is_broken(provider: Provider, model: str) -> None:
    """Half an answer must not look like a whole one."""
    begun = [claude_start(), *claude_text("half")[:2]] if model == CLAUDE else [gemini_event({"text": "half"})]
    provider.server.script(*events(*begun, ends=False), Reset())

    reply = await provider.of(model).open(stream=True)
    pieces = reply.chunks()
    assert b"half" in await anext(pieces)
    with pytest.raises(Broken):
        [piece async for piece in pieces]
    await reply.aclose()


@pytest.mark.parametrize("model", [CLAUDE, GEMINI])
async def test_stream_that_ends_without_its_last_event_is_broken(provider: Provider, model: str) -> None:
    """LiteLLM makes up `finish_reason: stop` at a clean end of the bytes: a cut answer would look like a good one."""
    begun = [claude_start(), *claude_text("half")[:2]] if model == CLAUDE else [gemini_event({"text": "half"})]
    provider.server.script(*events(*begun))

    reply = await provider.of(model).open(stream=True)
    seen: list[bytes] = []
    with pytest.raises(Broken):
        await collect(reply, seen)
    await reply.aclose()

    assert b"half" in seen[0]
    assert not any(b"[DONE]" in piece or b'"stop"' in piece for piece in seen)


@pytest.mark.parametrize("model", [CLAUDE, GEMINI])
@pytest.mark.parametrize("steps", [events(), (json_reply(200, "<html>"),)], ids=["empty", "not a stream"])
async def test_empty_stream_is_broken_at_once(provider: Provider, model: str, steps: Any) -> None:
    """Before the first event the next deployment can still answer, if only this one says that it failed."""
    provider.server.script(*steps)

    with pytest.raises(Broken):
        await provider.of(model).open(stream=True)


async def test_error_event_in_a_stream_is_raised(provider: Provider) -> None:
    """Providers send 200 before they know: an overload mid-stream comes as an event."""
    overload = claude_event("error", error={"type": "overloaded_error", "message": "Overloaded"})
    provider.server.script(*events(claude_start(), *claude_text("half")[:2], overload))
    provider.server.script(*events(overload))

    reply = await provider.open(stream=True)
    with pytest.raises(Overloaded):
        [piece async for piece in reply.chunks()]
    await reply.aclose()
    with pytest.raises(Overloaded):
        await provider.open(stream=True)


async def test_answer_that_is_not_json_is_broken(provider: Provider) -> None:
    """A proxy's page with status 200 is nobody's answer."""
    provider.server.script(Send(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 5\r\n\r\nhello"))

    with pytest.raises(Broken) as caught:
        await provider.whole()

    assert "hello" not in str(caught.value)


# --- callers who leave ---


@pytest.mark.parametrize("model", [CLAUDE, GEMINI])
@pytest.mark.parametrize(
    ("steps", "stream"),
    [((Hang(),), False), ((Send(HEAD), Hang()), False), ((Hang(),), True)],
    ids=["no head", "in the body", "no head of a stream"],
)
async def test_cancelled_call_closes_the_providers_connection(
    provider: Provider, model: str, steps: Any, stream: bool
) -> None:
    """Time limits work by cancelling; a provider that goes on computing costs money for nobody."""
    provider.server.script(*steps)
    opening = asyncio.create_task(provider.of(model).open(stream=stream))
    await provider.server.wait_for_requests()

    opening.cancel()

    with pytest.raises(asyncio.CancelledError):
        await opening
    await provider.server.wait_for_disconnect(1.0)


@pytest.mark.parametrize("model", [CLAUDE, GEMINI])
@pytest.mark.parametrize("waiting", [True, False], ids=["while waiting", "between events"])
async def test_closing_a_stream_closes_the_providers_connection(provider: Provider, model: str, waiting: bool) -> None:
    """A client that leaves in mid-stream must free the provider within a second, wherever the stream stands."""
    begun = [claude_start(), *claude_text("half")[:2]] if model == CLAUDE else [gemini_event({"text": "half"})]
    provider.server.script(*events(*begun, ends=False), Hang())
    reply = await provider.of(model).open(stream=True)
    pieces = reply.chunks()
    await anext(pieces)

    if waiting:
        reading = asyncio.ensure_future(anext(pieces))
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
    await reply.aclose()
    await reply.aclose()

    await provider.server.wait_for_disconnect(1.0)


# LiteLLM's thread hands a coroutine to a call that is gone; a filter at its import hushes that, and pytest undoes it.
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
async def test_cancelled_before_the_request_is_sent_leaves_nothing(provider: Provider) -> None:
    """LiteLLM prepares requests in a thread; a call cancelled there must not be sent later."""
    provider.server.script(json_reply(200, claude_message({"type": "text", "text": "ok"})))
    await provider.whole()
    opening = asyncio.create_task(provider.open(stream=True))
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening

    await asyncio.get_running_loop().shutdown_default_executor()  # its thread comes to its end
    await asyncio.sleep(0)
    del opening
    gc.collect()  # now, while the warning is hushed
    assert 1 == len(provider.server.requests)


# --- keeping to itself ---


async def test_nothing_is_printed_or_logged(
    provider: Provider, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """LiteLLM prints advice on each error, and logs prompts and addresses; promise 3 of the design forbids both."""
    provider.server.script(json_reply(400, claude_error("invalid_request_error", "no")))
    provider.server.script(*events(claude_start(), *claude_text("hi"), *claude_end()))
    with caplog.at_level(logging.DEBUG):
        with pytest.raises(Refused):
            await provider.whole()
        await provider.streamed()

    assert ("", "") == capfd.readouterr()
    assert not [
        record for record in caplog.records if "hello 你好" in record.getMessage() or KEY in record.getMessage()
    ]


def test_importing_the_adapter_imports_no_litellm() -> None:
    """A policy without foreign providers must not pay seconds and 160 MB for them."""
    code = (
        "import sys; from gateway.upstream.litellm import LiteLLMUpstream, available; LiteLLMUpstream(); available();"
        "sys.exit('litellm' in sys.modules)"
    )
    assert 0 == subprocess.run([sys.executable, "-c", code], check=False).returncode


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator reads at start what to install."""
    assert available() is None
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "needs litellm: run `make setup` (or install the extra: tiergate[providers])" == available()


async def test_package_that_does_not_import_is_a_misconfiguration(monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt on it fails and the next tier answers; the following call tries again."""

    def broken() -> Any:
        raise ImportError("no module")

    monkeypatch.setattr(adapter_module, "_import", broken)
    body = request()
    with pytest.raises(Misconfigured, match="tiergate\\[providers\\]"):
        await LiteLLMUpstream().open(Call("r1", "chat", body, "large"), attempt(CLAUDE, None), body)


async def test_refused_connection_is_unreachable(adapter: LiteLLMUpstream) -> None:
    """Nothing was sent, so the call may be repeated; LiteLLM says "internal server error"."""
    async with Upstream(refuse=True) as server:
        for stream in (False, True):
            with pytest.raises(Unreachable):
                await Provider(adapter, server).open(stream=stream)
            with pytest.raises(Unreachable):
                await Provider(adapter, server, GEMINI).open(stream=stream)


async def test_prompt_that_is_too_long_says_so(provider: Provider) -> None:
    """Only a larger window can help: the error has to be told from other refusals."""
    long = claude_error("invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum")
    for stream in (False, True):
        provider.server.script(json_reply(400, long))
        with pytest.raises(TooLong, match="200000"):
            await provider.open(stream=stream)
