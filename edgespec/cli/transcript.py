"""Conversations as files: JSON to go on from, Markdown to read."""

from __future__ import annotations

import json
from pathlib import Path

from edgespec.errors import InputError
from edgespec.system.files import replaced

Message = dict[str, str]

_SPEAKERS = {"system": "System", "user": "You", "assistant": "Assistant"}


def read(path: Path) -> list[Message]:
    """Reads a conversation from a JSON file.

    Raises:
        InputError: if the file does not contain a conversation.
        OSError: if the file cannot be read.
    """
    try:
        messages = json.loads(path.read_text(encoding="utf-8-sig"))
        texts = [each["role"] + each["content"] for each in messages]
        if isinstance(messages, list) and all(isinstance(text, str) for text in texts):
            "".join(texts).encode()  # fails on lone surrogates, which JSON may contain
            return messages
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise InputError(f"{path} does not contain a conversation: give a .json file that /save wrote")


def write(path: Path, messages: list[Message]) -> None:
    """Writes a conversation, as JSON if the file's name ends in .json, otherwise as Markdown.

    Raises:
        InputError: if the file cannot be written; an existing file stays as it was.
    """
    if path.suffix.lower() == ".json":
        text = json.dumps(messages, ensure_ascii=False, indent=1) + "\n"
    else:
        text = _markdown(messages)
    with replaced(path) as partial:
        partial.write_bytes(text.encode())


def _markdown(messages: list[Message]) -> str:
    parts = ["# Conversation"]
    for each in messages:
        parts.append(f"## {_SPEAKERS.get(each['role'], each['role'])}")
        parts.append(each["content"].strip("\n"))
    return "\n\n".join(parts) + "\n"
