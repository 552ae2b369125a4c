"""Models that write what a test wants, as far as the grammar of an answer allows it."""

from __future__ import annotations

import numpy as np

from edgespec.llm import chat


class Scripted:
    """A constraint that leaves a model no choice but the next token of a script."""

    def __init__(self, inner, script):
        self._inner = inner
        self._left = list(script)

    def allowed(self):
        allowed = self._inner.allowed()
        wanted = np.zeros_like(allowed)
        wanted[self._left[:1]] = True
        return allowed & wanted if (allowed & wanted).any() else allowed

    def advance(self, token):
        self._inner.advance(token)
        self._left = self._left[1:]

    def forced(self):
        return self._inner.forced()

    def valid(self, tokens):
        """The first token alone is known to be allowed, so that drafts stay short."""
        return int(bool(tokens) and bool(self.allowed()[tokens[0]]))


def write(monkeypatch, *scripts, end=0):
    """Have models write scripts in conversations with a grammar, and then the token `end`.

    Each answer is the next script, and those behind the last one are like it. Where the grammar
    forbids the script's next token, the model chooses among what is allowed.
    """
    plain = chat._grammar
    left = list(scripts)

    def scripted(tokenizer, *rest):
        if (grammar := plain(tokenizer, *rest)) is None:
            return None
        script = left.pop(0) if len(left) > 1 else left[0]
        return Scripted(grammar, [*tokenizer.encode(script, add_special=False), end])

    monkeypatch.setattr(chat, "_grammar", scripted)
