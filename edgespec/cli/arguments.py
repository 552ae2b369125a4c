"""Arguments of several commands; options have the names, defaults and help of the API's."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from edgespec.cli.parsing import Rare
from edgespec.errors import InputError
from edgespec.llm.load.options import parse_size
from edgespec.system.files import read_utf8
from edgespec.system.options import declared, kinds_of

TEXT = ("max_new_tokens", "temperature", "top_k", "top_p", "seed", "stop")
"""Options of a text that commands have; a file of settings may have all of them."""

MODEL = argparse.SUPPRESS
"""Default of options that a model's authors recommend for conversations."""

WHOLE: dict[str, object] = {
    "max_new_tokens": None,
    **dict.fromkeys(("temperature", "top_k", "top_p"), MODEL),
}
"""Defaults of a text that ends by itself, or with the context."""

MACHINE = ("lora", "device", "draft_device", "gpu_layers", "threads", "context", "memory")
"""Options of adapters, devices and memory."""

CACHES = ("sessions", "prompt_cache", "prompt_cache_size")
"""Options of what texts leave for others."""

_ESCAPES = {r"\n": "\n", r"\t": "\t", r"\\": "\\"}


def add_options(
    group: argparse._ActionsContainer, kind: type, *names: str, **defaults: object
) -> None:
    """Declares options of a class, each with its default unless another is given.

    One whose default is `MODEL` is only among the arguments where it was given.
    """
    usual = {each.name: each.default for each in fields(kind)}
    for name in names:
        each = declared(kind)[name]
        kinds = kinds_of(kind)[name]
        default = defaults.get(name, usual[name])
        text = each.text.replace("%", "%%")
        known = each.none if default is None else default
        if default == MODEL:
            known = "the model's in a chat, else off"
        shown = f" (default: {known})" if known not in ("", ()) else ""
        how: dict[str, Any] = {"default": default, "help": text + shown}
        if bool in kinds:
            shown = f" (default: {'on' if default else 'off'})"
            how |= {"action": argparse.BooleanOptionalAction, "help": text + shown}
        else:
            how["type"] = reader(kind, name)
            metavar = each.metavar or ("X" if float in kinds else "N")
            how |= {"choices": each.choices} if each.choices else {"metavar": metavar}
        if default == ():
            how |= {"action": "append", "default": []}
            how["help"] += _REPEATED.get(name, "; may be repeated")
        if not each.usual:
            how["help"] = Rare(how["help"])
        group.add_argument(*_SHORT.get(name, ()), f"--{name.replace('_', '-')}", dest=name, **how)


def given(arguments: argparse.Namespace, kind: type) -> dict[str, Any]:
    """Returns the values of a class's options that the command or its settings have."""
    names = [each.name for each in fields(kind)]
    return {name: getattr(arguments, name) for name in names if hasattr(arguments, name)}


MODEL_HELP = (
    "a name that `edgespec search` or `edgespec list` shows, such as qwen3.5:4b, a GGUF file, a "
    "checkpoint's folder, a bundle, or owner/name, owner/name:Q4_K_M or owner/name:FILE.gguf on "
    "the Hugging Face Hub (default: a small demonstration, which ships with edgespec)"
)


def add_model(parser: argparse.ArgumentParser) -> None:
    """Declares MODEL."""
    parser.add_argument("model", nargs="?", metavar="MODEL", help=MODEL_HELP)


def require_least(arguments: argparse.Namespace, **least: int) -> None:
    """Checks numbers that users may have given, before a large model is loaded.

    Args:
        arguments: values of all options; None for those that were not given.
        least: the smallest value of each option.

    Raises:
        InputError: if one is smaller.
    """
    for name, smallest in least.items():
        value = getattr(arguments, name)
        if value is not None and value < smallest:
            option = f"--{name.replace('_', '-')}"
            raise InputError(f"{option} is {value}: give a whole number of at least {smallest}")


def reader(kind: type, name: str) -> Callable[[str], object]:
    """Returns what reads the value of an option as users type it."""
    if (own := _PARSERS.get(name)) is not None:
        return own
    kinds = kinds_of(kind)[name]
    if str in kinds or not {int, float} & {*kinds}:
        return str
    return lambda text: declared(kind)[name].read(name, text, kinds)


def _layers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a list of layers: give their numbers, such as 4 or 4,8"
        ) from None


def _tokens(text: str) -> int:
    digits, factor = (text[:-1], 1024) if text[-1:].lower() == "k" else (text, 1)
    if not (digits.isdecimal() and digits.isascii() and int(digits) > 0):
        raise argparse.ArgumentTypeError(f"{text!r}: give a number of tokens, such as 32k or 20000")
    return int(digits) * factor


def _content(name: str) -> str:
    return read_utf8(Path(name))


def _unescape(text: str) -> str:
    return re.sub(r"\\[nt\\]", lambda match: _ESCAPES[match[0]], text)


_REPEATED = {"stop": r"; may contain \n, \t and \\, and be repeated"}
_SHORT = {"max_new_tokens": ("-n",)}
_PARSERS: dict[str, Callable[[str], object]] = {
    "stop": _unescape, "json_schema": _content, "prompt_cache_size": parse_size, "taps": _layers,
    "draft_vocabulary": _tokens, "tokens": _tokens, "disk": parse_size,
}  # fmt: skip
