"""The notations of arguments by their names."""

from __future__ import annotations

from collections.abc import Mapping

from edgespec.runtime.text.tools.codec import Codec
from edgespec.runtime.text.tools.gemma_codec import GemmaCodec
from edgespec.runtime.text.tools.json_codec import JsonCodec
from edgespec.runtime.text.tools.keyword_codec import KeywordCodec, PythonCodec
from edgespec.runtime.text.tools.tagged_codec import TaggedCodec, Tags

NOTATIONS: Mapping[str, Codec] = {
    "json": JsonCodec(),
    "compact": JsonCodec("compact"),
    "loose": JsonCodec("loose"),
    "gemma": GemmaCodec(),
    "tagged": TaggedCodec(Tags("<parameter=", ">\n", "\n</parameter>\n")),
    "keys": TaggedCodec(Tags("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n")),
    "keys in line": TaggedCodec(Tags("<arg_key>", "</arg_key><arg_value>", "</arg_value>")),
    "keywords": KeywordCodec(),
    "python": PythonCodec(),
}
"""The notations by their names."""
