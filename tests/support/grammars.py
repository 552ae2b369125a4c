"""Grammars asked which whole texts they take, over a tokenizer of single bytes."""

from __future__ import annotations

import json

from checkpoints import write_tokenizer

from edgespec.runtime.sampling.grammar import GrammarCompiler

_BYTES = 257  # ids, with the one that ends a text


class Grammars:
    """Compiles grammars for a tokenizer of bytes, which is written to a folder."""

    def __init__(self, folder):
        self._tokenizer = write_tokenizer(folder, _BYTES)
        self.compiler = GrammarCompiler(folder, _BYTES, [0])

    def taken(self, schema, *texts):
        """Returns those of some texts that a JSON schema takes as a whole."""
        source = schema if isinstance(schema, str) else json.dumps(schema)
        matcher = self.compiler.compile("json_schema", source)
        return [text for text in texts if self.takes(matcher, text)]

    def takes(self, matcher, text):
        """Whether a grammar may end behind a text that it allows."""
        tokens = self._tokenizer.encode(text, add_special_tokens=False).ids
        matcher = matcher.__deepcopy__({})
        if matcher.valid(tokens) < len(tokens):
            return False
        for token in tokens:
            matcher.advance(token)
        return bool(matcher.allowed()[0])
