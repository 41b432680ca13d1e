"""The official OpenAI client, changed by its base URL alone: what an app does with the API works here as well."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from gateway.admission.keys import hash_key
from tests.gateway.conftest import Gateway, Start, tier
from tests.upstream import (
    DONE,
    HEAD,
    Close,
    Hang,
    Send,
    Upstream,
    Wait,
    answer,
    completion,
    data,
    error_reply,
    event,
    finish,
    json_reply,
    role,
    stream,
    usage,
    usage_event,
)

MESSAGES: Any = [{"role": "user", "content": "法国的首都是哪里?"}]
TOOLS: Any = [{
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}]  # fmt: skip


@pytest.fixture
async def app(start: Start, small: Upstream, medium: Upstream) -> Gateway:
    gateway: Gateway = await start({
        "tiers": {"small": tier(small, "small"), "medium": tier(medium, "medium", deployment={"mode": "embedding"})},
        "routes": {"auto": {"tier": "small"}},
        "aliases": {"deepseek/deepseek-chat": "small"},
    })  # fmt: skip
    return gateway


@pytest.fixture
async def client(app: Gateway) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"http://{app.host}:{app.port}/v1", api_key="any", max_retries=0) as made:
        yield made


# --- chat ---


async def test_chat(client: AsyncOpenAI, small: Upstream) -> None:
    """The first line of every tutorial."""
    small.script(answer("巴黎", usage(12, 3)))

    reply = await client.chat.completions.create(model="auto", messages=MESSAGES)

    assert ("巴黎", "stop") == (reply.choices[0].message.content, reply.choices[0].finish_reason)
    assert reply.usage is not None
    assert (12, 3) == (reply.usage.prompt_tokens, reply.usage.completion_tokens)


async def test_explaining_headers_are_within_reach(client: AsyncOpenAI, small: Upstream) -> None:
    """`with_raw_response` is how an app reads them; the SDK's own request id is ours."""
    small.script(answer("巴黎"))

    raw = await client.chat.completions.with_raw_response.create(model="auto", messages=MESSAGES)

    assert ("small", "auto") == (raw.headers["x-tiergate-tier"], raw.headers["x-tiergate-route"])
    assert raw.headers["x-tiergate-request-id"] == raw.request_id


async def test_chat_from_a_synchronous_client(app: Gateway, small: Upstream) -> None:
    """Most scripts are not asynchronous."""
    small.script(answer("巴黎"))

    def ask() -> str | None:
        with OpenAI(base_url=f"http://{app.host}:{app.port}/v1", api_key="any", max_retries=0) as made:
            return made.chat.completions.create(model="auto", messages=MESSAGES).choices[0].message.content

    assert "巴黎" == await asyncio.to_thread(ask)


async def test_stream(client: AsyncOpenAI, small: Upstream) -> None:
    """Piece by piece, to its end."""
    small.script(*stream("巴", "黎", "。"))

    texts = []
    async with await client.chat.completions.create(model="auto", messages=MESSAGES, stream=True) as chunks:
        async for chunk in chunks:
            texts.append(chunk.choices[0].delta.content or "")
            assert "auto" == chunk.model

    assert "巴黎。" == "".join(texts)


async def test_stream_with_usage(client: AsyncOpenAI, small: Upstream) -> None:
    """The last chunk has the usage and no choice."""
    small.script(Send(HEAD), Send(role()), Send(event("x")), Send(finish()), Send(usage_event(12, 3)), Send(DONE))

    chunks = [
        chunk async for chunk in await client.chat.completions.create(
            model="auto", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
    ]  # fmt: skip

    assert chunks[-1].usage is not None
    assert (12, 3, []) == (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens, chunks[-1].choices)
    assert all(chunk.usage is None for chunk in chunks[:-1])


async def test_stream_helper_puts_the_answer_together(client: AsyncOpenAI, small: Upstream) -> None:
    """`chat.completions.stream` checks what it gets much more strictly."""
    small.script(
        Send(HEAD),
        Send(role()),
        Send(event("巴")),
        Send(event("黎")),
        Send(finish()),
        Send(usage_event(5, 2)),
        Send(DONE),
    )

    async with client.chat.completions.stream(model="auto", messages=MESSAGES) as chunks:
        async for _ in chunks:
            pass
        final = await chunks.get_final_completion()

    assert "巴黎" == final.choices[0].message.content


# --- tools and structured output ---


async def test_tool_call_and_its_result(client: AsyncOpenAI, small: Upstream) -> None:
    """A whole round: offered, called, answered."""
    called = completion(None, reason="tool_calls")
    called["choices"][0]["message"]["tool_calls"] = [
        {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "北京"}'}}
    ]
    small.script(json_reply(200, called))
    small.script(answer("北京晴。"))

    first = await client.chat.completions.create(model="auto", messages=MESSAGES, tools=TOOLS, tool_choice="auto")
    asked = first.choices[0].message
    assert asked.tool_calls is not None
    call: Any = asked.tool_calls[0]
    assert ("weather", {"city": "北京"}) == (call.function.name, json.loads(call.function.arguments))
    second = await client.chat.completions.create(model="auto", tools=TOOLS, messages=[
        *MESSAGES, asked, {"role": "tool", "tool_call_id": call.id, "content": "晴"},
    ])  # fmt: skip

    assert "北京晴。" == second.choices[0].message.content
    assert TOOLS == small.requests[0].json["tools"]
    assert "晴" == small.requests[1].json["messages"][-1]["content"]


async def test_streamed_tool_call(client: AsyncOpenAI, small: Upstream) -> None:
    """Arguments come in pieces, and are content: the first of them commits."""

    def piece(**function: str) -> bytes:
        return event(tool_calls=[{"index": 0, "id": "call_1", "type": "function", "function": function}])

    small.script(Send(HEAD), Send(role()), Send(piece(name="weather", arguments="")), Send(piece(arguments='{"city":')),
                 Send(piece(arguments='"上海"}')), Send(finish("tool_calls")), Send(DONE))  # fmt: skip

    arguments = ""
    async for chunk in await client.chat.completions.create(model="auto", messages=MESSAGES, tools=TOOLS, stream=True):
        for call in chunk.choices[0].delta.tool_calls or ():
            assert call.function is not None
            arguments += call.function.arguments or ""

    assert {"city": "上海"} == json.loads(arguments)


class City(BaseModel):
    name: str
    people: int


async def test_structured_output(client: AsyncOpenAI, small: Upstream) -> None:
    """`parse` sends a JSON schema and reads the answer into a type."""
    small.script(answer('{"name": "巴黎", "people": 2100000}'))

    reply = await client.chat.completions.parse(model="auto", messages=MESSAGES, response_format=City)

    assert City(name="巴黎", people=2_100_000) == reply.choices[0].message.parsed
    sent = small.requests[0].json["response_format"]
    assert ("json_schema", True) == (sent["type"], sent["json_schema"]["strict"])


# --- embeddings and models ---


async def test_embeddings(client: AsyncOpenAI, medium: Upstream) -> None:
    """The SDK asks for base64 and decodes it; both pass."""
    small_floats = "AACAPwAAAEA="  # 1.0, 2.0 as little-endian float32
    medium.script(json_reply(200, {
        "object": "list", "model": "m", "data": [{"object": "embedding", "index": 0, "embedding": small_floats}],
        "usage": {"prompt_tokens": 2, "total_tokens": 2},
    }))  # fmt: skip

    reply = await client.embeddings.create(model="medium", input="向量")

    assert [1.0, 2.0] == reply.data[0].embedding
    assert "base64" == medium.requests[0].json["encoding_format"]


async def test_models(client: AsyncOpenAI) -> None:
    """Listed, and found one by one."""
    listed = [model.id async for model in client.models.list()]

    assert {"auto", "small", "deepseek/deepseek-chat"} <= set(listed)
    assert "deepseek/deepseek-chat" == (await client.models.retrieve("deepseek/deepseek-chat")).id


# --- errors ---


async def test_rate_limit_is_a_rate_limit_error(client: AsyncOpenAI, small: Upstream) -> None:
    """With the wait that the SDK's own retries would honour."""
    small.script(error_reply(429, headers={"retry-after": "7"}))

    with pytest.raises(openai.RateLimitError) as caught:
        await client.chat.completions.create(model="auto", messages=MESSAGES)

    assert ("rate_limit_error", "7") == (caught.value.type, caught.value.response.headers["retry-after"])


async def test_sdk_retries_what_it_should(app: Gateway, small: Upstream) -> None:
    """With its retries on, a 503 of ours is tried again, and a 400 is not."""
    small.script(error_reply(503, headers={"retry-after": "0"}))
    small.script(answer("second time"))
    small.script(error_reply(400, "no", type="invalid_request_error"))
    async with AsyncOpenAI(base_url=f"http://{app.host}:{app.port}/v1", api_key="any", max_retries=1) as patient:
        reply = await patient.chat.completions.create(model="auto", messages=MESSAGES)
        with pytest.raises(openai.BadRequestError):
            await patient.chat.completions.create(model="auto", messages=MESSAGES)

    assert "second time" == reply.choices[0].message.content


async def test_wrong_key_is_an_authentication_error(start: Start, small: Upstream) -> None:
    """And the right one, sent as the SDK sends it, is let in."""
    gateway = await start(
        {"tiers": {"small": tier(small, "small")}, "keys": [{"name": "a", "hash": hash_key(b"tg-right")}]}
    )
    small.script(answer("welcome"))
    url = f"http://{gateway.host}:{gateway.port}/v1"
    async with AsyncOpenAI(base_url=url, api_key="tg-wrong", max_retries=0) as stranger:
        with pytest.raises(openai.AuthenticationError) as caught:
            await stranger.chat.completions.create(model="small", messages=MESSAGES)
    async with AsyncOpenAI(base_url=url, api_key="tg-right", max_retries=0) as friend:
        reply = await friend.chat.completions.create(model="small", messages=MESSAGES)

    assert "invalid_api_key" == caught.value.code
    assert "welcome" == reply.choices[0].message.content


async def test_unknown_model_is_a_not_found_error(client: AsyncOpenAI) -> None:
    """The message names the nearest."""
    with pytest.raises(openai.NotFoundError) as caught:
        await client.chat.completions.create(model="atuo", messages=MESSAGES)

    assert ("model_not_found", "model") == (caught.value.code, caught.value.param)
    assert "'auto'" in caught.value.message


async def test_bad_request_is_a_bad_request_error(client: AsyncOpenAI, small: Upstream) -> None:
    """Ours, and the upstream's own passed on."""
    with pytest.raises(openai.BadRequestError) as ours:
        await client.chat.completions.create(model="auto", messages=[])
    small.script(error_reply(400, "图片太大", type="invalid_request_error", code="image_too_large"))
    with pytest.raises(openai.BadRequestError) as theirs:
        await client.chat.completions.create(model="auto", messages=MESSAGES)

    assert "messages" == ours.value.param
    assert "image_too_large" == theirs.value.code
    assert "图片太大" in theirs.value.message


async def test_server_errors_are_internal_server_errors(client: AsyncOpenAI, small: Upstream) -> None:
    """502, 503 and 504 are one class there."""
    for status in (500, 503):
        small.script(error_reply(status))
        with pytest.raises(openai.InternalServerError):
            await client.chat.completions.create(model="auto", messages=MESSAGES)


async def test_broken_stream_raises_in_the_loop(client: AsyncOpenAI, small: Upstream) -> None:
    """The text so far, then an exception: nobody takes half an answer for a whole one."""
    small.script(Send(HEAD), Send(event("半")), Close())

    texts = []

    async def read() -> None:
        async for chunk in await client.chat.completions.create(model="auto", messages=MESSAGES, stream=True):
            texts.append(chunk.choices[0].delta.content)

    with pytest.raises(openai.APIError) as caught:
        await read()

    assert ["半"] == texts
    assert "middle of the answer" in str(caught.value)


async def test_client_that_breaks_off_frees_the_upstream(app: Gateway, client: AsyncOpenAI, small: Upstream) -> None:
    """`break` in a loop closes the response, and with it the model's work."""
    small.script(Send(HEAD), *(step for _ in range(50) for step in (Send(event("x")), Wait(0.05))), Hang())

    async with await client.chat.completions.create(model="auto", messages=MESSAGES, stream=True) as chunks:
        async for _ in chunks:
            break

    await small.wait_for_disconnect(2)
    [line] = await app.settled(1)
    assert "client_closed" == line["outcome"]


async def test_unknown_fields_reach_the_upstream_and_come_back(client: AsyncOpenAI, small: Upstream) -> None:
    """`extra_body` is how vLLM's and Qwen's own settings are sent."""
    said = completion("ok")
    said["choices"][0]["message"]["reasoning_content"] = "想一想"
    small.script(json_reply(200, said))

    reply = await client.chat.completions.create(
        model="auto", messages=MESSAGES, extra_body={"chat_template_kwargs": {"enable_thinking": True}, "top_k": 20}
    )

    assert {"enable_thinking": True} == small.requests[0].json["chat_template_kwargs"]
    message: Any = reply.choices[0].message
    assert "想一想" == message.reasoning_content


async def test_error_event_before_the_first_token_is_a_status_for_the_client(
    client: AsyncOpenAI, small: Upstream
) -> None:
    """Nothing went out yet, so there is a proper exception and not a broken stream."""
    small.script(Send(HEAD), Send(data({"error": {"message": "busy", "type": "overloaded_error", "code": None}})))

    with pytest.raises(openai.InternalServerError):
        await client.chat.completions.create(model="auto", messages=MESSAGES, stream=True)
