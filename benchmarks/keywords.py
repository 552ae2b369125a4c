r"""Writes the types of keyword arguments that are options, as type checkers and editors read them.

    python benchmarks/keywords.py

They follow from the fields of the classes of options; a test compares them with what is written.
"""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path

from common import exit_code

from edgespec.llm.chat import ChatOptions
from edgespec.llm.load.options import LoadOptions
from edgespec.llm.options import GenerationOptions
from edgespec.runtime.sampling.options import SamplingOptions
from edgespec.system.options import declared

FILE = Path(__file__).parents[1] / "edgespec/llm/keywords.py"

# Values that a class of options takes, too, and makes one of the declared type.
_WIDER = {
    "draft": "str | Path",
    "dry_sequence_breakers": "str | Iterable[str]",
    "lora": "str | Path | Iterable[str | Path]",
    "logit_bias": "Mapping[int, float] | Mapping[str, float] | Iterable[tuple[int, float]]",
    "stop": "str | Iterable[str]",
    "stop_token_ids": "Iterable[int]",
}
_HEAD = '''"""Types of the keyword arguments that are options, for type checkers and editors.

Written by `python benchmarks/keywords.py` from the classes of options, which say what they mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from edgespec.runtime.text.tools.descriptions import Tool
'''


def main() -> None:
    """Writes the file."""
    FILE.write_text(source(), "utf-8")


def source() -> str:
    """Returns what the file should hold."""
    load = _typed("LoadKeywords", "TypedDict", LoadOptions)
    how = _typed("SamplingKeywords", "TypedDict", SamplingOptions)
    text = _typed("GenerationKeywords", "SamplingKeywords", GenerationOptions, but=SamplingOptions)
    chat = _typed("ChatKeywords", "GenerationKeywords", ChatOptions, but=GenerationOptions)
    return "\n\n".join([_HEAD, load, how, text, chat])


def _typed(name: str, base: str, kind: type, but: type | None = None) -> str:
    """Returns a class with a key for each option of a class, but for those of another."""
    left_out = declared(but).keys() if but is not None else ()
    types = {each.name: str(each.type) for each in fields(kind)}
    lines = [
        f"class {name}({base}, total=False):",
        f'    """See `{kind.__module__}.{kind.__name__}`."""\n',
    ]
    for option, what in declared(kind).items():
        if option not in left_out:
            wanted = _WIDER.get(option, types[option])
            lines += [f"    {each}: {wanted}" for each in (option, what.also) if each]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(exit_code(main))
