"""Grammars that may exhaust the process, tried first in another one with limits.

llguidance recurses without bounds along rules and references, and lets repetitions of repetitions
and multiples take any time and memory. Whatever is not obviously small is therefore compiled in a
child first. What is compiled cannot be handed back, but what the child could do within its limits
is as cheap here, and llguidance lets go of the interpreter's lock while it compiles.
"""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from edgespec.runtime.text.schema.cost import is_small_schema, is_small_text
from edgespec.system.jobs import JobError, JobLimits, PatientLock, Why, Worker, serve

LIMITS = LLParserLimits(verbose_errors=False, max_lexer_states=50_000, step_max_items=20_000)
"""Bounds of every grammar, also while a text is made."""

_LARGEST = 1_000_000  # characters of a grammar that is read at all
_LIMITS = JobLimits(seconds=2, megabytes=512)
_STACK = 1 << 20  # bytes
_MASK_SECONDS, _MASKS = 0.2, 32  # how long a mask may take, since others wait; how many are tried
_KEPT = 1000  # results

_ENDED: dict[Why, str] = {
    "time": f"it takes longer than {_LIMITS.seconds} s to compile",
    "memory": f"it takes more than {_LIMITS.megabytes} MB to compile",
    "crash": "its parts nest too deep",
}


def is_small(kind: str, source: str) -> bool:
    """Whether a grammar is certain to cost next to nothing, so that it need not be tried.

    Args:
        kind: json_schema, regex or grammar; see `GrammarCompiler.compile`.
        source: its text.
    """
    return is_small_schema(source) if kind == "json_schema" else is_small_text(source)


def too_long(source: str) -> str:
    """Returns what is too large about a text that is not even read; empty if nothing is."""
    size = len(source)
    return f"it has {size} characters, more than {_LARGEST}" if size > _LARGEST else ""


class Trials:
    """Tries grammars for one tokenizer.

    Args:
        tokenizer: the `tokenizer.json`.
        vocab_size: number of its token ids.
        stop_ids: tokens that end a text.
    """

    def __init__(self, tokenizer: Path, vocab_size: int, stop_ids: Sequence[int]) -> None:
        arguments = (str(tokenizer), str(vocab_size), *map(str, stop_ids))
        self._worker = Worker(__name__, _LIMITS, *arguments)
        self._lock = PatientLock()
        self._known: dict[bytes, str] = {}

    def objection(self, grammar: str) -> str:
        """Returns what is too large about a grammar in llguidance's format; empty if nothing is.

        It waits for the child, at most some seconds once that has started.

        Raises:
            InputError: if nobody waits for it any more, who will not see that.
        """
        if long := too_long(grammar):
            return long
        key = hashlib.sha256(grammar.encode()).digest()
        found = self._known.get(key)
        if found is None:
            with self._lock.held():  # so that the same one is tried once, whoever asks for it
                found = self._known.get(key)
                if found is None:
                    found = self._tried(grammar)
                    if len(self._known) >= _KEPT:
                        self._known.clear()
                    self._known[key] = found
        return found

    def _tried(self, grammar: str) -> str:
        try:
            return self._worker.run(grammar.encode()).decode()
        except JobError as error:
            return _ENDED[error.why]


# What follows runs in the child.


def _compiled(tokenizer: LLTokenizer, grammar: str) -> str:
    """Compiles a grammar and follows it at random; returns what takes too long."""
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=LIMITS)
    rng = random.Random(0)
    for _ in range(_MASKS):
        begun = time.process_time()
        allowed = int.from_bytes(matcher.compute_bitmask(), "little")
        if time.process_time() - begun > _MASK_SECONDS:
            return f"what may follow takes longer than {_MASK_SECONDS} s to find"
        if matcher.is_error() or matcher.is_stopped() or not allowed:
            break
        later = allowed >> rng.randrange(allowed.bit_length())
        low = (later & -later).bit_length() - 1
        matcher.consume_token(allowed.bit_length() - later.bit_length() + low)
    return ""


def _on_small_stack(tokenizer: LLTokenizer, grammar: str) -> str:
    """As `_compiled`, on less stack than any thread has that compiles it later."""
    found: list[str] = []
    threading.stack_size(_STACK)
    thread = threading.Thread(target=lambda: found.append(_compiled(tokenizer, grammar)))
    thread.start()
    thread.join()
    if not found:
        raise MemoryError
    return found[0]


def main(path: str, vocab_size: str, *stop_ids: str) -> None:
    """Answers each job, a grammar, with what is too large about it."""
    stops = [int(each) for each in stop_ids]
    tokenizer = LLTokenizer(path, n_vocab=int(vocab_size), eos_token=stops)
    serve(lambda job: _on_small_stack(tokenizer, job.decode()).encode(), _LIMITS)
