"""Files of a chat: those that messages mention as `@name`, and those that it is saved in."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgespec.errors import InputError
from edgespec.system.files import exists, read_utf8, replaced, typed_path

Message = dict[str, Any]

_SPEAKERS = {"system": "System", "user": "You", "assistant": "Assistant", "tool": "Tool"}
# A word that begins with @, or with \@ if no file is meant; a name with spaces is in quotes.
_MENTION = re.compile(r'(?<![^\s(\[])(?P<escape>\\?)@(?:"(?P<quoted>[^"\n]+)"|(?P<word>\S+))')
_BACKTICKS = re.compile(r"`+")
_CLOSING = ".,;:!?)]}'\""  # what may follow a name in a sentence
_PATH_LIKE = re.compile(r"[/\\.~]")
_SHOWN = 5  # missing files that are named
_MOST_BYTES_PER_TOKEN = 64  # of any text; a larger file is not even read


@dataclass(frozen=True)
class Mentions:
    """Puts the texts of mentioned files into messages.

    A message that is nothing but a mention becomes the file's text. Otherwise the name stays where
    it is, and the text follows the message as a block of code.

    Args:
        tokens: counts the tokens of a text.
        limit: number of tokens that a file must stay below.
        otherwise: what else helps against a larger file.
    """

    tokens: Callable[[str], int]
    limit: int
    otherwise: str = ""

    def expand(self, said: str) -> tuple[str, list[str]]:
        """Puts the texts of the files that it mentions into a message.

        A mention without a file is left as it is in a message of several lines, which may be code
        with decorators, and if it does not look like a path.

        Returns:
            The message, and a line for the user about each file.

        Raises:
            InputError: if a file is missing, too large for the context, or not text.
        """
        notes: list[str] = []
        texts: dict[str, str] = {}
        missing: dict[str, None] = {}

        def replace(found: re.Match[str]) -> str:
            written = found.group(0)
            if found["escape"]:
                return written[1:]
            name = found["quoted"] or _existing(found["word"])
            path = typed_path(name)
            if not exists(path):
                if "\n" not in said and (found["quoted"] or _PATH_LIKE.search(name)):
                    raise InputError(
                        f"there is no file {name}: correct the name, or write \\@ if none is meant"
                    )
                missing[name] = None
                return written
            if name not in texts:
                texts[name], tokens = self._read(name, path)
                notes.append(f"{name} is part of the message: {tokens} tokens")
            return written[1:].replace(f'"{name}"', name)

        sentence = _MENTION.sub(replace, said)
        if missing:
            some = ", ".join([*missing][:_SHOWN]) + ", ..." * (len(missing) > _SHOWN)
            notes.append(f"there is no file {some}: this is sent as it is")
        if len(texts) == 1 and sentence.strip() in texts:
            return texts[sentence.strip()], notes
        blocks = [_block(name, text) for name, text in texts.items()]
        return "\n\n".join([sentence, *blocks]), notes

    def _read(self, name: str, path: Path) -> tuple[str, int]:
        if path.is_dir():
            raise InputError(f"{name} is a folder: name a file in it")
        if not path.is_file():
            raise InputError(f"{name} is not a regular file: name one with text")
        try:
            size = path.stat().st_size
            if size > self.limit * _MOST_BYTES_PER_TOKEN:
                raise InputError(
                    f"{name} has {size} bytes, too many for a context of {self.limit} tokens: "
                    "name a smaller file"
                )
            text = read_utf8(path)
        except OSError as error:
            raise InputError(f"{name} cannot be read ({error.strerror}): name another") from error
        if "\0" in text or not text.strip():
            state = "is not text" if "\0" in text else "is empty"
            raise InputError(f"{name} {state}: name a file with text")
        tokens = self.tokens(text)
        if tokens >= self.limit:
            raise InputError(
                f"{name} has {tokens} tokens, too many for a context of {self.limit}: name a "
                f"smaller file{self.otherwise}"
            )
        return text, tokens


def complete(word: str) -> list[str]:
    """Returns the mentions that a word may become, such as `@src/` and `@setup.py` for `@s`.

    Args:
        word: beginning of a mention.
    """
    typed = word.removeprefix("@").removeprefix('"')
    parent, slash, beginning = typed.rpartition("/")
    try:
        found = sorted(typed_path(parent + slash or ".").iterdir())
    except OSError:
        return []
    names = [
        f"{parent}{slash}{each.name}{'/' * each.is_dir()}"
        for each in found
        if each.name.startswith(beginning) and (beginning or not each.name.startswith("."))
    ]
    return [_mention(name) for name in names]


def _mention(name: str) -> str:
    if not any(map(str.isspace, name)):
        return f"@{name}"
    return f'@"{name}' if name.endswith("/") else f'@"{name}"'


def _existing(word: str) -> str:
    """Returns a name without what follows it in a sentence, unless that belongs to a file."""
    name = word
    while not exists(typed_path(name)) and name[-1:] in _CLOSING and len(name) > 1:
        name = name[:-1]
    return name if exists(typed_path(name)) else word.rstrip(_CLOSING) or word


def _block(name: str, text: str) -> str:
    """Returns a text as a block of code, whose fence is longer than those inside."""
    longest = max((len(each) for each in _BACKTICKS.findall(text)), default=0)
    fence = "`" * max(longest + 1, 3)
    end = "" if text.endswith("\n") or not text else "\n"
    return f"{name}:\n{fence}{Path(name).suffix[1:]}\n{text}{end}{fence}"


def read_conversation(path: Path) -> list[Message]:
    """Reads a conversation from a JSON file.

    Raises:
        InputError: if the file does not contain a conversation.
        OSError: if the file cannot be read.
    """
    try:
        messages = json.loads(read_utf8(path))
        texts = [each["role"] + _said(each["content"]) for each in messages]
        if isinstance(messages, list) and all(isinstance(text, str) for text in texts):
            "".join(texts).encode()  # fails on lone surrogates, which JSON may contain
            return messages
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise InputError(f"{path} does not contain a conversation: give a .json file that /save wrote")


def write_conversation(path: Path, messages: list[Message]) -> None:
    """Writes a conversation, as JSON if the file's name ends in .json, otherwise as Markdown.

    Raises:
        InputError: if the file cannot be written; an existing file stays as it was.
    """
    if path.suffix.lower() == ".json":
        text = json.dumps(messages, ensure_ascii=False, indent=1) + "\n"
    else:
        text = _markdown(messages)
    with replaced(path, private=True) as partial:
        partial.write_bytes(text.encode())


def _said(content: str | list[dict[str, Any]]) -> str:
    """Returns the text of a content, which has parts if a tool has given images."""
    if isinstance(content, str):
        return content
    return "".join(each["text"] for each in content if each["type"] == "text")


def _markdown(messages: list[Message]) -> str:
    parts = ["# Conversation"]
    for each in messages:
        parts.append(f"## {_SPEAKERS.get(each['role'], each['role'])}")
        calls = [call["function"] for call in each.get("tool_calls", ())]
        parts.append(_said(each["content"]).strip("\n"))
        parts += [f"Calls {call['name']}: `{call['arguments']}`" for call in calls]
    return "\n\n".join(filter(None, parts)) + "\n"
