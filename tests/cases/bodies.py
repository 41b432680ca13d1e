"""The words of `request` that say what goes over the wire."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Mapping
from typing import Any

from tests.cases.adapter import KEYS
from tests.cases.case import UnknownWord
from tests.client import request_bytes

CHAT = "/v1/chat/completions"
WIRE_WORDS = frozenset(
    {
        "path", "method", "headers", "key", "key_raw", "no_auth", "auth_raw_hex", "stream", "messages", "tools",
        "merge", "json", "raw_body", "raw_request", "raw_headers_hex", "headers_repeat", "encode_body", "transfer",
        "body_fill_bytes", "merge_each", "headers_each", "path_each", "same_as_key", "spread_keys",
    }
)  # fmt: skip
Act = Mapping[str, Any]


def wire(act: Act, number: int, addresses: Mapping[str, str]) -> bytes:
    """The bytes of request `number` (from 1) of an act. `addresses`: what `@name` stands for."""
    act = _with_addresses(act, addresses)
    if "raw_request" in act:
        return str(act["raw_request"]).encode()
    headers = _headers(act, number)
    body = _body(act, number)
    if act.get("encode_body") == "gzip":
        body = gzip.compress(body or b"")
        headers.append(("content-encoding", "gzip"))
    elif "encode_body" in act:
        raise UnknownWord(f"encode_body: {act['encode_body']}")
    path = _numbered(act.get("path_each", act.get("path", CHAT)), number)
    raw = request_bytes(_method(act), path, headers, body, chunked=act.get("transfer") == "chunked")
    if "raw_headers_hex" in act:
        head, end, rest = raw.partition(b"\r\n\r\n")
        raw = head + b"\r\n" + bytes.fromhex(act["raw_headers_hex"]) + end + rest
    return raw


def _method(act: Act) -> str:
    return str(act.get("method", "POST"))


def _headers(act: Act, number: int) -> list[tuple[str, str | bytes]]:
    headers: dict[str, str | bytes] = {"content-type": "application/json"}
    if "auth_raw_hex" in act:
        headers["authorization"] = bytes.fromhex(act["auth_raw_hex"])
    elif not act.get("no_auth"):
        headers["authorization"] = f"Bearer {_key(act)}"
    given = {**act.get("headers", {}), **act.get("headers_each", {})}
    headers |= {name.lower(): _numbered(str(value), number) for name, value in given.items()}
    for name, value in act.get("headers_repeat", {}).items():
        headers[name.lower()] = value["unit"] * value["times"]
    return list(headers.items())


def _key(act: Act) -> str:
    name = str(act.get("key", "alice"))
    if "key_raw" not in act and name not in KEYS:
        raise UnknownWord(f"key: {name}")
    return str(act.get("key_raw") or KEYS[name])


def _body(act: Act, number: int) -> bytes | None:
    if "raw_body" in act:
        return str(act["raw_body"]).encode()
    if _method(act) in ("GET", "HEAD", "DELETE"):
        return None
    body = _generated(act["json"]) if "json" in act else _chat(act, number)
    if act.get("stream"):
        body["stream"] = True
    body |= act.get("merge", {})
    body |= {name: _numbered(value, number) for name, value in act.get("merge_each", {}).items()}
    raw = json.dumps(body, ensure_ascii=False).encode()
    fill = act.get("body_fill_bytes", 0) - len(raw)
    if fill > 0:
        raw = raw[:-1] + b" " * fill + b"}"
    return raw


def _chat(act: Act, number: int) -> dict[str, Any]:
    prompt = f"Hello {number}" if "spread_keys" in act else "Hello"
    messages = _generated(act.get("messages", [{"role": "user", "content": prompt}]))
    body: dict[str, Any] = {"model": "auto", "messages": messages}
    if "tools" in act:
        function = {"name": f"get_{act['tools']}", "parameters": {"type": "object"}}
        body["tools"] = [{"type": "function", "function": function}]
    return body


def _generated(value: Any) -> Any:
    """`content_repeat` and `url_data_fill` become the content that they stand for."""
    if isinstance(value, list):
        return [_generated(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    if "url_data_fill" in value:
        fill = value["url_data_fill"]
        return f"data:{fill['mime']};base64,{base64.b64encode(bytes(fill['bytes'])).decode()}"
    made = {name: _generated(entry) for name, entry in value.items() if name != "content_repeat"}
    if repeat := value.get("content_repeat"):
        made["content"] = repeat["unit"] * repeat["times"]
    return made


def _numbered(text: Any, number: int) -> Any:
    """`{i}` and `{i_mod_40}` → numbers."""
    if not isinstance(text, str):
        return text
    text = re.sub(r"\{i_mod_(\d+)\}", lambda match: str(number % int(match[1])), text)
    return text.replace("{i}", str(number))


def _with_addresses(value: Any, addresses: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {name: _with_addresses(entry, addresses) for name, entry in value.items()}
    if isinstance(value, list):
        return [_with_addresses(entry, addresses) for entry in value]
    return addresses.get(value[1:], value) if isinstance(value, str) and value.startswith("@") else value
