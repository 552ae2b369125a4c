"""The files of a tokenizer: its `tokenizer.json`, its config, and chat templates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from edgespec.errors import BundleError

CHAT_TEMPLATE = "chat_template.jinja"
_TOKENIZER = "tokenizer.json"
_CONFIGS = ("special_tokens_map.json", "tokenizer_config.json")  # the second one counts more


def folder_files(folder: Path) -> dict[str, str]:
    """Returns the contents of the files that a model or bundle folder has, by name.

    Raises:
        BundleError: If `tokenizer.json` is missing, or a file is damaged.
    """
    found = {name: folder / name for name in (*_CONFIGS, CHAT_TEMPLATE)}
    files = {name: _read(path) for name, path in found.items() if path.is_file()}
    return {**files, _TOKENIZER: existing(folder / _TOKENIZER)}


def backend_of(files: Mapping[str, str], source: Path) -> tokenizers.Tokenizer:
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
    return parsed_backend(files[_TOKENIZER], path)


def config_of(files: Mapping[str, str], source: Path) -> dict[str, Any]:
    """Returns the config, which is empty if there is none; for arguments see `backend_of`.

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


def parsed_backend(text: str, path: Path) -> tokenizers.Tokenizer:
    """Parses the content of a `tokenizer.json`.

    Raises:
        BundleError: If it is damaged.
    """
    try:
        # Read by us, because the library cannot open paths that are not UTF-8.
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises nothing narrower
        raise _damaged(path, error) from error


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
        return path.read_text("utf-8")
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
