"""A new user's walk: a GGUF file, an empty cache folder, a chat, and always a sign of life."""

from __future__ import annotations

import sys

import pytest
from checkpoints import make_checkpoint, write_tokenizer
from commandline import FAST
from ggufs import write_gguf
from terminals import Terminal

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="terminals of POSIX")

# What takes long with a model of some size: making a bundle of it, loading it, reading a prompt.
SLOW = """
import time, edgespec.export
from edgespec import LLM
from edgespec.llm.stream import Stream
def slow(owner, name):
    function = getattr(owner, name)
    def late(*given, **options):
        time.sleep(2.5)
        return function(*given, **options)
    setattr(owner, name, late)
slow(edgespec.export, "partial_bundle"); slow(LLM, "__init__")
events = Stream.events
def read_late(self):
    time.sleep(2.5)
    yield from events(self)
Stream.events = read_late
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("newcomer")
    make_checkpoint(folder / "c", "llama", hidden_size=64, intermediate_size=128, head_dim=32)
    write_tokenizer(folder / "c", 331)
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    write_gguf(folder / "c", folder / "model.gguf", "Q8_0", **{"tokenizer.chat_template": template})
    return folder / "model.gguf"


def test_no_second_without_a_sign(model, own_cache):
    """Though what takes long takes longer, in one go: there are two signs a second.

    A machine on which much else runs gives them later.
    """
    chat = Terminal(f"exec({SLOW!r}); ", model, "-n", "8", *FAST)
    chat.until("edgespec starts")
    chat.longest_wait = 0.0  # without what the test itself imports before
    chat.until("making a bundle of model, once: ")
    chat.until("the model is loaded … 1 s")
    chat.until("the model is loaded … 2 s")
    chat.until("/help shows the commands")
    chat.until("> ")
    chat.type("hello\r")
    chat.until(r"reading 0 of \d+ tokens, 2")
    chat.until("stopped after 8 tokens")
    assert chat.longest_wait < 2
    assert chat.shown.count("100%") > 0
    chat.until("> ")
    chat.leave()
