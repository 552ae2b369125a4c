"""How models are named: files of llama.cpp, and repositories on the Hugging Face Hub."""

from __future__ import annotations

import re

SUFFIX = ".gguf"
HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
HUB_FILE = re.compile(r"(\w[\w.-]*/\w[\w.-]*):([\w./ -]+\.gguf)")
"""One file of a repository that has a model in many precisions, as owner/name:q4/model.gguf."""

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


def parts(name: str) -> list[str]:
    """Returns the names of the files that a model was split into, given one of them.

    They are called model-00001-of-00003.gguf and so on; a file with any other name is whole.
    """
    match = _PART.fullmatch(name)
    if match is None:
        return [name]
    return [f"{match[1]}-{n:05}-of-{match[3]}{SUFFIX}" for n in range(1, int(match[3]) + 1)]
