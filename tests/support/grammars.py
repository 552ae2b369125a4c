"""Grammars asked which whole texts they take, over a tokenizer of single bytes."""

from __future__ import annotations

import json

import numpy as np
from checkpoints import write_tokenizer

from edgespec.runtime.sampling.grammar import GrammarCompiler

_BYTES = 257  # ids, with the one that ends a text


class Grammars:
    """Compiles grammars for a tokenizer of bytes and special tokens, which is written to a folder.

    Attributes:
        compiler: the compiler.
        special: ids of the special tokens by what they are called.
    """

    def __init__(self, folder, tokens=()):
        self._tokenizer = write_tokenizer(folder, _BYTES)
        self._tokenizer.add_special_tokens(list(tokens))
        self._tokenizer.save(str(folder / "tokenizer.json"))
        self.special = {token: self._tokenizer.token_to_id(token) for token in tokens}
        self.compiler = GrammarCompiler(folder, _BYTES + len(tokens), [0])

    def taken(self, schema, *texts):
        """Returns those of some texts that a JSON schema takes as a whole."""
        source = schema if isinstance(schema, str) else json.dumps(schema)
        matcher = self.compiler.compile("json_schema", source)
        return [text for text in texts if self.takes(matcher, text)]

    def walk(self, matcher, rng, longest=500):
        """Returns a text that a grammar allows, chosen at random; None if it does not end soon."""
        tokens = []
        for _ in range(longest):
            token = int(rng.choice(np.flatnonzero(matcher.allowed())))
            if not token:
                return self._tokenizer.decode(tokens, skip_special_tokens=False)
            matcher.advance(token)
            tokens.append(token)
        return None

    def takes(self, matcher, text):
        """Whether a grammar may end behind a text that it allows."""
        tokens = self._tokenizer.encode(text, add_special_tokens=False).ids
        matcher = matcher.__deepcopy__({})
        if matcher.valid(tokens) < len(tokens):
            return False
        for token in tokens:
            matcher.advance(token)
        return bool(matcher.allowed()[0])
