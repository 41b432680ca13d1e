"""YAML text → plain values, each with the line it stands on.

Composed to nodes and built here rather than by PyYAML's constructor, which keeps the last of two equal keys,
forgets lines, and expands aliases without bound. `${NAME}` is replaced while the values are built.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
import yaml

Path = tuple[str | int, ...]
Found = tuple[Path, str]  # where, and what is wrong there

MAX_TEXT = 1 << 20  # characters; policies are small, and this bounds what a mistaken file can cost
MAX_VALUES = 50_000  # after aliases are expanded
MAX_DEPTH = 24

ABSENT: Any = object()  # a value that came out empty, `${NAME:-}`: as if its key were not written

_REFERENCE = re.compile(r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^{}]*))?\}|\$\{")
_LITELLM_REFERENCE = re.compile(r"os\.environ/(?P<name>[A-Za-z_][A-Za-z0-9_]*)")
_DECIMAL = re.compile(r"[-+]?(?:0|[1-9][0-9_]*)")
_TRUE = frozenset({"yes", "true", "on"})
_TAG = "tag:yaml.org,2002:"


class Problem(msgspec.Struct, frozen=True):
    """One thing wrong with a policy. `line` and `column` count from 1; 0 when it is about the file as a whole."""

    line: int
    path: str  # such as tiers.small.deployments[0].api_key
    message: str
    column: int = 0

    def text(self, source: str) -> str:
        place = f"{source} line {self.line}" if self.line else source
        return f"{place}: {self.path}: {self.message}" if self.path else f"{place}: {self.message}"


class PolicyError(Exception):
    """A policy that cannot be used, with everything that is wrong with it. `str` is one line a problem."""

    def __init__(self, problems: Iterable[Problem], source: str = "policy.yaml") -> None:
        self.problems = tuple(sorted(set(problems), key=lambda each: (each.line, each.column, each.path)))
        self.source = source
        super().__init__("\n".join(problem.text(source) for problem in self.problems))


class Document:
    """A policy as it is written: plain values, and where each of them stands. Filled by `read_document` alone."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.data: dict[str, Any] = {}
        self.problems: list[Problem] = []
        self.places: dict[Path, tuple[int, int]] = {(): (1, 1)}  # of a key, or of an item of a list
        self.unset: dict[
            Path, list[str]
        ] = {}  # variables that are not in the environment, by the value that names them
        self.hints: dict[Path, str] = {}  # why YAML did not read a bare word as text
        self.from_environment: set[Path] = set()  # values that a message must not show
        self.unread: set[Path] = set()  # values that have their problem already: no second one about the stand-in

    def problem(self, path: Path, message: str) -> Problem | None:
        """A problem at `path`, or at the nearest part of the file that it lies in; None below an unread value."""
        if any(path[:length] in self.unread for length in range(len(path) + 1)):
            return None
        return self.problem_at(path, message)

    def problem_at(self, path: Path, message: str) -> Problem:
        """The same, unread or not."""
        line, column = self.place(path)
        return Problem(line, dotted(path), message, column)

    def place(self, path: Path) -> tuple[int, int]:
        while path not in self.places:
            path = path[:-1]
        return self.places[path]

    def at(self, *path: str | int) -> Any:
        """The value at `path`; None where there is none."""
        value: Any = self.data
        for step in path:
            try:
                value = value[step]
            except (KeyError, IndexError, TypeError):
                return None
        return value

    def section(self, *path: str | int) -> dict[str, Any]:
        """The mapping at `path`; empty where there is none (whoever checks shapes tells about that)."""
        value = self.at(*path)
        return value if isinstance(value, dict) else {}

    def mappings(self, *path: str | int) -> Iterator[tuple[Path, dict[str, Any]]]:
        """The mappings in the mapping or list at `path`, each with its own path."""
        value = self.at(*path)
        pairs: Iterable[tuple[str | int, Any]] = ()
        if isinstance(value, dict):
            pairs = value.items()
        elif isinstance(value, list):
            pairs = enumerate(value)
        for step, entry in pairs:
            if isinstance(entry, dict):
                yield (*path, step), entry

    def shown(self, path: Path) -> str:
        """The text at `path` for a message; what came from the environment stays there."""
        return "this name" if path in self.from_environment else f"'{self.at(*path)}'"


def dotted(path: Path) -> str:
    """`("tiers", "small", "deployments", 0)` → `tiers.small.deployments[0]`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif re.fullmatch(r"[^\s.\[\]\"]+", step):
            text += f".{step}" if text else step
        else:
            text += f'["{step}"]'
    return text


def read_document(text: str, environ: Mapping[str, str], source: str) -> Document:
    """Raises `PolicyError` where the text is not one YAML mapping; smaller faults are in the document's `problems`."""
    document = Document(source)
    root = _compose(text, source)
    if root is None:
        raise _whole("the file is empty; a policy starts with `version: 1` and `tiers:`", source)
    if not isinstance(root, yaml.MappingNode):
        raise _whole("a policy is a mapping, starting with `version: 1` and `tiers:`", source, root.start_mark)
    document.data = _Builder(document, environ).build(root, ())
    return document


def _whole(message: str, source: str, mark: Any = None) -> PolicyError:
    line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
    return PolicyError([Problem(line, "", message, column)], source)


def _compose(text: str, source: str) -> yaml.Node | None:
    if len(text) > MAX_TEXT:
        raise _whole(f"the file is longer than {MAX_TEXT} characters", source)
    # both loaders resolve tags alike and build nothing; the second is there where PyYAML came without libyaml
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return yaml.compose(text, Loader=loader)
    except yaml.MarkedYAMLError as exc:
        raise _whole(_syntax_message(exc), source, exc.problem_mark or exc.context_mark) from None
    except yaml.reader.ReaderError as exc:
        line = text.count("\n", 0, exc.position) + 1
        raise PolicyError([Problem(line, "", "holds a character that YAML does not allow", 1)], source) from None
    except UnicodeEncodeError as exc:
        line = text.count("\n", 0, exc.start) + 1
        raise PolicyError([Problem(line, "", "holds half of a character (a lone surrogate)", 1)], source) from None
    except RecursionError:
        raise _whole("is nested too deeply", source) from None


def _syntax_message(exc: yaml.MarkedYAMLError) -> str:
    """PyYAML's own words, without its snippet of the file, which might be a secret."""
    problem = exc.problem or "cannot be read"
    if "another document" in problem:
        return "a second document (---) begins here; a policy is one document"
    message = f"not valid YAML: {problem}" + (f" {exc.context}" if exc.context else "")
    if "tab" in problem or "\\t" in problem or "cannot start any token" in problem:
        return f"{message}; indent with spaces, and quote text that begins with a special character"
    if "mapping values" in problem:
        return f"{message}; check the indentation, and quote text that holds ': '"
    return message


class _Builder:
    """Nodes → values. Tells the document about lines and faults on the way."""

    def __init__(self, document: Document, environ: Mapping[str, str]) -> None:
        self._document = document
        self._environ = environ
        self._values = 0

    def build(self, node: yaml.Node, path: Path) -> Any:
        self._values += 1
        if self._values > MAX_VALUES:
            raise _whole(f"grows to more than {MAX_VALUES} values when its aliases are expanded", self._document.source)
        if len(path) > MAX_DEPTH:
            raise _whole("is nested too deeply, or an anchor holds itself", self._document.source, node.start_mark)
        if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
            return self._sequence(node, path)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        return self._unreadable(path, f"the tag {_short(node.tag)} is not supported")

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, (key_node, value_node) in self._entries(node, path).items():
            if not path and key.startswith("x-"):
                continue  # a place for anchors, as in compose files
            where = (*path, key)
            self._document.places[where] = (key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            if (value := self.build(value_node, where)) is not ABSENT:
                result[key] = value
        return result

    def _entries(self, node: yaml.MappingNode, path: Path, depth: int = 0) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        """Key → its two nodes; what `<<` merges in comes first and gives way to what is written."""
        if depth > MAX_DEPTH:
            raise _whole("an anchor merges itself", self._document.source, node.start_mark)
        written: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        merged: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key_node, value_node in node.value:
            if key_node.tag == f"{_TAG}merge":
                for source in reversed(self._merge_sources(value_node, path)):
                    merged |= self._entries(source, path, depth + 1)
            elif (key := self._key(key_node, path)) is not None:
                if key in written:
                    self._duplicate(key_node, (*path, key), written[key][0])
                else:
                    written[key] = (key_node, value_node)
        return merged | written

    def _merge_sources(self, node: yaml.Node, path: Path) -> list[yaml.MappingNode]:
        nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
        sources = [each for each in nodes if isinstance(each, yaml.MappingNode)]
        if len(sources) < len(nodes):
            self._fault(node, (*path, "<<"), "merges a mapping, or a list of mappings, such as <<: *defaults")
        return sources

    def _key(self, node: yaml.Node, path: Path) -> str | None:
        if not isinstance(node, yaml.ScalarNode):
            self._fault(node, path, "a key is a word, not a list or mapping")
            return None
        if node.tag != f"{_TAG}str":
            self._fault(node, (*path, node.value), "YAML does not read this key as text; put it in quotes")
            return None
        return str(node.value)

    def _duplicate(self, node: yaml.Node, path: Path, first: yaml.Node) -> None:
        self._fault(node, path, f"duplicate key; first on line {first.start_mark.line + 1}")

    def _fault(self, node: yaml.Node, path: Path, message: str) -> None:
        mark = node.start_mark
        self._document.problems.append(Problem(mark.line + 1, dotted(path), message, mark.column + 1))

    def _sequence(self, node: yaml.SequenceNode, path: Path) -> list[Any]:
        result: list[Any] = []
        for item in node.value:
            where = (*path, len(result))
            self._document.places[where] = (item.start_mark.line + 1, item.start_mark.column + 1)
            if (value := self.build(item, where)) is not ABSENT:
                result.append(value)
        return result

    def _scalar(self, node: yaml.ScalarNode, path: Path) -> Any:
        kind, raw = node.tag.removeprefix(_TAG), node.value
        if kind in ("str", "timestamp", "merge", "value"):
            return self._text(raw, path)
        if kind == "null":
            return None
        if kind == "bool":
            self._document.hints[path] = f"YAML reads a bare {raw} as true or false; put it in quotes"
            return raw.lower() in _TRUE
        if kind == "float":
            return self._number(raw, path)
        if kind == "int":
            return self._integer(raw, path)
        return self._unreadable(path, f"the tag {_short(node.tag)} is not supported; write ${{NAME}} for a variable")

    def _integer(self, raw: str, path: Path) -> Any:
        if not _DECIMAL.fullmatch(raw):
            return self._unreadable(
                path, "YAML reads this as an octal, hexadecimal or base-60 number; write it in decimal, or in quotes"
            )
        return self._number(raw, path, whole=True)

    def _number(self, raw: str, path: Path, whole: bool = False) -> Any:
        self._document.hints[path] = "YAML reads this as a number; put it in quotes"
        try:
            return int(raw.replace("_", "")) if whole else float(raw.replace("_", "").replace(".inf", "inf"))
        except ValueError:  # .nan, base 60 with a fraction, or more digits than Python reads
            return self._unreadable(path, "is not a number that can be used here; write it in decimal, or in quotes")

    def _text(self, raw: str, path: Path) -> Any:
        if "$" not in raw and not raw.startswith("os.environ/"):
            return raw
        names: list[str] = []
        value, changed = self._expanded(raw, path, names)
        if names:
            self._document.unset[path] = names
            self._document.unread.add(path)
        elif changed:
            self._document.from_environment.add(path)
            return ABSENT if value == "" else value
        return value

    def _expanded(self, raw: str, path: Path, unset: list[str]) -> tuple[str, bool]:
        """The text with its references replaced, and whether there were any; names that are not set go to `unset`."""
        if match := _LITELLM_REFERENCE.fullmatch(raw):
            return self._variable(match["name"], None, unset), True
        changed = False

        def replace(match: re.Match[str]) -> str:
            nonlocal changed
            if match[0] == "$${":
                return "${"
            if match["name"] is None:
                self._unreadable(path, "is not a reference: write ${NAME} or ${NAME:-default}, or $${ for a plain ${")
                return ""
            changed = True
            return self._variable(match["name"], match["default"], unset)

        return _REFERENCE.sub(replace, raw), changed

    def _variable(self, name: str, default: str | None, unset: list[str]) -> str:
        """The ends are stripped: a key that was read from a file often brings its line break along."""
        if value := self._environ.get(name, "").strip():
            return value
        if default is None:
            unset.append(name)
        return default or ""

    def _unreadable(self, path: Path, message: str) -> None:
        self._document.problems.append(self._document.problem_at(path, message))
        self._document.unread.add(path)


def _short(tag: str) -> str:
    return tag.replace(_TAG, "!!")
