"""The files of a tokenizer: its `tokenizer.json`, its config, and chat templates."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import tokenizers

from edgespec.bundle.tokenizers import ParsedTokenizer, parse_tokenizer
from edgespec.errors import BundleError, caught_panics
from edgespec.system.files import read_text

CHAT_TEMPLATE = "chat_template.jinja"
_TOKENIZER = "tokenizer.json"
_CONFIGS = ("special_tokens_map.json", "tokenizer_config.json")  # the second one counts more
_MOST_GROWTH, _MOST_PATTERNS = 512, 4000
_PROBE, _MOST_SECONDS = 64, 2.0


def folder_files(folder: Path, listed: Collection[str] | None = None) -> dict[str, str]:
    """Returns the contents of the files that a model or bundle folder has, by name.

    Args:
        folder: the folder.
        listed: files of the folder that count; None: all.

    Raises:
        BundleError: If `tokenizer.json` is missing, or a file is damaged.
    """
    names = (*_CONFIGS, CHAT_TEMPLATE)
    found = {name: folder / name for name in names if listed is None or name in listed}
    files = {name: _read(path) for name, path in found.items() if path.is_file()}
    return {**files, _TOKENIZER: existing(folder / _TOKENIZER)}


def parsed_files(files: Mapping[str, str], source: Path) -> ParsedTokenizer:
    """Returns the tokenizer of the `tokenizers` library.

    Args:
        files: contents of files by name.
        source: where they come from, for messages.

    Raises:
        BundleError: If `tokenizer.json` is missing or damaged.
    """
    path = source / _TOKENIZER
    if _TOKENIZER not in files:
        raise _missing(path)
    return parsed_file(files[_TOKENIZER], path)


def config_of(files: Mapping[str, str], source: Path) -> dict[str, Any]:
    """Returns the config, which is empty if there is none; for arguments see `parsed_files`.

    Raises:
        BundleError: If a file of it is damaged.
    """
    config: dict[str, Any] = {}
    for name in _CONFIGS:
        config |= _parsed(files, source / name)
    return config


def template_of(config: Mapping[str, Any], name: str) -> str | None:
    """Returns the template of a name in `tokenizer_config.json`, if any.

    One that stands alone is the default.
    """
    template = config.get("chat_template")
    if not isinstance(template, list):
        template = [{"name": "default", "template": template}]
    named = [entry for entry in template if isinstance(entry, dict)]
    found = next((each.get("template") for each in named if each.get("name") == name), None)
    return found if isinstance(found, str) else None


def parsed_file(text: str, path: Path) -> ParsedTokenizer:
    """Parses the content of a `tokenizer.json`, and tries it.

    Raises:
        BundleError: If it is damaged, or would take a text apart in too much time or memory.
    """
    try:
        with caught_panics():
            # Read by us, because the library cannot open paths that are not UTF-8.
            found = parse_tokenizer(text)
            found.backend.no_truncation()
            found.backend.no_padding()
            _try(found.backend)
            return found
    except Exception as error:  # the library raises nothing narrower
        raise _damaged(path, error) from error


def _try(backend: tokenizers.Tokenizer) -> None:
    """Checks what a file's rules do to texts that are made of the rules' own characters.

    Raises:
        ValueError: If they need endless time, or make texts far longer.
    """
    rules = [json.loads(each.__getstate__()) for each in _rules(backend)]
    if math.prod(map(_growth, rules)) > _MOST_GROWTH:
        raise ValueError(f"its replacements make texts more than {_MOST_GROWTH} times longer")
    patterns = "".join(each for rule in rules for each in _patterns(rule))
    if len(patterns) > _MOST_PATTERNS:
        raise ValueError(f"its patterns have more than {_MOST_PATTERNS} characters")
    # A pattern that can read a text in exponentially many ways does so where the end does not fit,
    # and the library looks first whether characters that a pattern needs are there at all.
    ends = ("!a", "\0" + "".join(sorted(set(patterns))))
    begin = time.thread_time()
    pieces = {patterns[n : n + size] for n in range(len(patterns)) for size in (1, 2)}
    for piece in sorted(pieces | {"a", "0", " ", "!", "\n", "é"}):
        probe = piece * (_PROBE // len(piece))
        for end in ends:
            backend.encode(probe + end, add_special_tokens=False)
            if backend.decoder is not None:
                backend.decoder.decode([probe + end])
        if time.thread_time() - begin > _MOST_SECONDS:
            raise ValueError("its patterns take too long to read short texts")


def _rules(backend: tokenizers.Tokenizer) -> list[Any]:
    found = (backend.normalizer, backend.pre_tokenizer, backend.decoder)
    return [each for each in found if each is not None]


def _growth(rule: Any) -> float:
    """Returns how many times longer replacements may make a text, one after the other."""
    if isinstance(rule, list):
        return math.prod(map(_growth, rule))
    if not isinstance(rule, dict):
        return 1
    if rule.get("type") == "Prepend":
        return 1 + len(rule["prepend"])
    if rule.get("type") != "Replace":
        return math.prod(_growth(each) for each in rule.values())
    pattern = rule["pattern"]
    content = rule["content"]
    if "String" not in pattern:  # an expression may fit one character, or between two
        return 1 + len(content)
    if not pattern["String"]:
        raise ValueError("it replaces the empty text")
    return max(1, len(content) / len(pattern["String"]))


def _patterns(rule: Any) -> Iterator[str]:
    """Yields the regular expressions of a rule and of those in it."""
    if isinstance(rule, dict) and isinstance(rule.get("Regex"), str):
        yield rule["Regex"]
    elif isinstance(rule, dict | list):
        for each in rule.values() if isinstance(rule, dict) else rule:
            yield from _patterns(each)


def existing(path: Path) -> str:
    """Returns the content of a file that must be there."""
    if not path.is_file():
        raise _missing(path)
    return _read(path)


def _missing(path: Path) -> BundleError:
    return BundleError(f"{path} is missing: copy it from where the model came from")


def _damaged(path: Path, error: Exception) -> BundleError:
    return BundleError(f"{path} is damaged ({error}): fetch or export it again")


def _read(path: Path) -> str:
    try:
        return read_text(path)
    except OSError as error:
        raise BundleError(f"{path} cannot be read ({error.strerror}): copy it again") from error
    except UnicodeDecodeError as error:
        raise _damaged(path, error) from error


def _parsed(files: Mapping[str, str], path: Path) -> dict[str, Any]:
    """Returns the object in a JSON file; an empty one if there is no file of that name."""
    try:
        content = json.loads(files.get(path.name, "{}"))
    except (ValueError, RecursionError) as error:
        raise _damaged(path, error) from error
    if not isinstance(content, dict):
        raise BundleError(f"{path} holds no JSON object: fetch or export it again")
    return content
