"""`python -m router.training.speed`: what features, token estimate and difficulty cost a request, in microseconds.

Prompts are English and Chinese, of 20, 200 and 2,000 words (a Chinese word is two characters) and a megabyte. Each
figure is the best of several rounds, so that other work on the machine shows as little as it can.
"""

from __future__ import annotations

import sys
import timeit
from collections.abc import Callable

from router.difficulty import Classifier
from router.features import features
from router.tokens import estimate_tokens
from router.types import Call

_ENGLISH = (
    "Please explain how a database decides which rows a query may read while others write, compare two ways to do "
    "it, and say what an operator should measure before changing anything; use one short example for each. "
)
_CHINESE = (
    "请解释数据库如何决定一个查询能读到哪些行,比较两种做法,并说明管理员在修改之前应该先测量什么,各举一个简短的例子。"
)
_ROUNDS, _SECONDS = 7, 0.05


def _english(words: int) -> str:
    return " ".join((_ENGLISH.split() * (words // 30 + 1))[:words])


def _chinese(words: int) -> str:
    return (_CHINESE * (2 * words // len(_CHINESE) + 1))[: 2 * words]


def microseconds(work: Callable[[], object]) -> float:
    once = timeit.timeit(work, number=3) / 3
    number = max(1, int(_SECONDS / once))
    return min(timeit.repeat(work, number=number, repeat=_ROUNDS)) / number * 1e6


def measure(text: str, classifier: Classifier) -> tuple[float, float, float, float]:
    """Microseconds of token estimate alone, features, difficulty of these, and both together as a request has them."""
    call = Call(request_id="", surface="chat", body=b"", model="auto", last_user=text, text=text)
    found = features(call)
    return (
        microseconds(lambda: estimate_tokens(text)),
        microseconds(lambda: features(call)),
        microseconds(lambda: classifier.difficulty(found)),
        microseconds(lambda: classifier.difficulty(features(call))),
    )


def main() -> None:
    classifier = Classifier.load()
    sys.stdout.write("prompt                 bytes   tokens µs  features µs  difficulty µs  together µs\n")
    prompts = {f"{lang} {words} words": make(words) for lang, make in (("en", _english), ("zh", _chinese))
               for words in (20, 66, 200, 2000)}  # fmt: skip
    prompts |= {"en 1 MB": _english(170_000), "zh 1 MB": _chinese(170_000)}
    for name, text in prompts.items():
        each = measure(text, classifier)
        sys.stdout.write(f"{name:<18} {len(text.encode()):>9} {each[0]:>11.1f} {each[1]:>12.1f} {each[2]:>14.1f}"
                         f" {each[3]:>12.1f}\n")  # fmt: skip


if __name__ == "__main__":
    main()
