"""How an answer is shown: wrapped words, folded reasoning, and notices that wait."""

from __future__ import annotations

import io
import logging
import re
import sys
import time
from types import SimpleNamespace

import pytest
from commandline import FAST
from hypothesis import given
from hypothesis import strategies as st
from servers import make_bundle
from terminals import Terminal

from edgespec import LLM
from edgespec.cli import answering
from edgespec.cli.answering import WrappingWriter, read_first, show
from edgespec.cli.terminal import tell
from edgespec.cli.waiting import notice
from edgespec.llm.result import PromptProgress
from edgespec.models.embedded import BUNDLE
from edgespec.runtime.text.decoder import TextEvent

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="terminals of POSIX")


class Screen(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self):
        return True


def wrapped(*pieces, columns):
    screen = Screen()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(columns))
        text = WrappingWriter(screen)
        for piece in pieces:
            text.write(piece)
        text.close()
    return screen.getvalue()


TEXTS = st.lists(st.text("ab,- \t\n", max_size=12), max_size=12)


@given(TEXTS, st.integers(4, 30))
def test_words_stay_whole_and_lines_fit(pieces, columns):
    shown = wrapped(*pieces, columns=columns)
    assert shown.split() == "".join(pieces).split()
    for line in shown.split("\n"):
        assert len(line.expandtabs().rstrip()) <= columns or len(line.split()) == 1
    assert shown == wrapped("".join(pieces), columns=columns)  # pieces make no difference


def test_what_fits_is_as_it_was_written():
    text = "  def f():\n\treturn 1  \n\nlast "
    assert wrapped(text, columns=80) == text


def test_words_that_end_at_the_last_column():
    assert wrapped("abc de", " fg", columns=6) == "abc de\nfg"
    assert wrapped("abcdefgh ij", columns=6) == "abcdefgh\nij"  # the terminal breaks the first


def test_a_word_is_shown_when_its_end_is_known():
    screen = Screen()
    text = WrappingWriter(screen)
    text.write("one tw")
    assert screen.getvalue() == "one"
    text.write("o three")
    assert screen.getvalue() == "one two"


def test_code_between_fences_keeps_its_lines():
    code = "```py\nx = [1, 2, 3, 4, 5, 6]\n```\n"
    assert wrapped(f"{code}one two three", columns=10) == f"{code}one two\nthree"


def test_wide_characters_take_two_columns_and_end_lines_anywhere():
    assert wrapped("漢字漢字漢", columns=6) == "漢字漢\n字漢"
    assert wrapped("e\u0301e\u0301 ab", columns=5) == "e\u0301e\u0301 ab"  # accents take none


def test_a_terminal_obeys_no_answer():
    assert wrapped("a \x1b[2J b", columns=80) == r"a \x1b[2J b"


def test_what_is_no_terminal_gets_every_piece_as_it_is():
    stream = io.StringIO()
    text = WrappingWriter(stream, dim=True)
    for piece in ("on", "e ", "\x1b" + 100 * "x"):
        text.write(piece)
        assert stream.getvalue().endswith(piece)


def test_a_notice_waits_for_the_end_of_an_answer(cli, monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", screen)

    def pieces():
        for word in ("one ", "two ", "three"):
            yield TextEvent(word)
            notice(f"behind {word}")

    show(pieces(), thoughts=False)
    assert screen.getvalue() == "one two three\nbehind one \nbehind two \nbehind three\n"
    notice("now")
    assert screen.getvalue().endswith("\nnow\n")


def test_a_warning_does_not_split_a_text_of_run(cli, monkeypatch):
    def warned(*lines, **how):
        tell(*lines, **how)
        if how == {"end": ""}:
            logging.getLogger("edgespec.any").warning("passes are slow")

    monkeypatch.setattr("edgespec.cli.commands.run.tell", warned)
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(sys, "stdout", screen)
    from edgespec.cli import main

    assert main(["run", "def f(", "-n", "8", *FAST]) == 0
    assert re.search(r"\w.*\n.*edgespec: warning: passes are slow\n", screen.getvalue())


def test_a_prompt_that_takes_long_says_how_far_it_is_read(monkeypatch):
    screen = Screen()
    stream = SimpleNamespace(prompt_progress=PromptProgress(0, 2139))
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(answering, "_READING_DELAY", 0.01)
    monkeypatch.setattr(sys.modules["edgespec.cli.waiting"], "_TICK", 0.01)

    def pieces():
        time.sleep(0.2)
        stream.prompt_progress = PromptProgress(639, 2139, reused=139, seconds=5.0)
        time.sleep(0.2)
        yield from ("one", "two")

    assert [*read_first(pieces(), stream)] == ["one", "two"]
    shown = screen.getvalue().split("\r")
    assert re.fullmatch(r"reading 0 of 2,139 tokens, 0\.\d s so far …", shown[0])
    # 500 took 5 s, and 2,000 are to be read; of these 20 s next to nothing has passed.
    assert "reading 639 of 2,139 tokens, 20 s left …" in shown
    assert shown[-1] == ""
    assert [*read_first(iter(()), stream)] == []


@POSIX
@pytest.mark.parametrize("columns", [20, 47])
def test_a_terminal_breaks_no_word_of_a_chat(columns):
    text = LLM(draft="none", threads=1).generate("def f(items):", max_new_tokens=80).text
    chat = Terminal("", BUNDLE, *FAST, "-n", "80", "--temperature", "0", columns=columns)
    chat.until("/help shows")
    chat.until("> ")
    begin = len(chat.shown)
    chat.type("def f(items):\r")
    chat.until("stopped after 80")
    chat.until("> ")
    chat.type("/help\r")
    chat.until(r"for\s+Windows")
    chat.close()
    answer = chat.shown[begin:].partition("stopped after")[0].partition("\n")[2]
    answer = re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]|\r", "", answer)
    assert answer.split() == text.split()
    for line in answer.split("\n"):
        assert len(line.rstrip()) <= columns or len(line.split()) == 1


@pytest.fixture(scope="module")
def thinker(tmp_path_factory):
    """A model that reasons at the beginning of each answer."""
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<think>\n"
    return make_bundle(tmp_path_factory.mktemp("thinker"), template + "{# </think> #}")


SHORT = [*FAST, "-n", "40", "--draft", "none", "--temperature", "0"]


def test_reasoning_is_folded_to_a_line_unless_it_is_asked_for(cli, thinker):
    llm = LLM(thinker, device="cpu", draft="none", threads=1)
    asked = [{"role": "user", "content": "hello"}]
    how = {"max_new_tokens": 40, "temperature": 0, "thinking_budget": 5}
    expected = llm.chat(asked, **how)
    assert expected.reasoning
    assert expected.text
    folded = cli("chat", thinker, *SHORT, stdin=b"/set thinking_budget 5\nhello\n")
    assert folded.out == f"{expected.text}\n"
    assert "thought for 0 s\n" in folded.err
    assert expected.reasoning not in folded.err
    lines = b"/set thinking_budget 5\n/set thoughts on\nhello\n"
    shown = cli("chat", thinker, *SHORT, stdin=lines)
    assert shown.out == folded.out
    assert f"{expected.reasoning}\nthought for 0 s\n" in shown.err


@POSIX
def test_a_terminal_says_that_a_model_thinks(thinker):
    chat = Terminal("", thinker, *SHORT)
    chat.until("/help shows")
    for line in ("/set thinking_budget 5", "hello"):
        chat.until("> ")
        chat.type(f"{line}\r")
    chat.until(r"it thinks …\r +\r\x1b\[2mthought for \d+ s")
    chat.until("stopped after 40")
    chat.close()
