"""`edgespec chat`: a conversation in the terminal."""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgespec.api.loading import LoadOptions
from edgespec.api.options import GenerationOptions, in_conversation
from edgespec.cli.arguments import (
    MACHINE,
    TEXT,
    WHOLE,
    add_model,
    add_options,
    cut_off,
    given,
)
from edgespec.cli.chat_files import (
    Mentions,
    Message,
    complete,
    read_conversation,
    write_conversation,
)
from edgespec.cli.interrupts import cancelled_by_sigint
from edgespec.cli.models import chosen, name_demonstration, warm_up_aside
from edgespec.cli.typed import Typed
from edgespec.cli.waiting import waiting
from edgespec.errors import EdgespecError, InputError
from edgespec.system.files import typed_path
from edgespec.system.options import checked

if TYPE_CHECKING:
    from edgespec.api.llm import LLM
    from edgespec.api.result import GenerationResult

_BLOCK = '"""'
_HELP = f"""\
/reset      start a new conversation
/save FILE  save the conversation as Markdown, or as JSON if FILE ends in .json:
            --history FILE goes on from that
/stats      show statistics of the last answer: speed, drafts, reused tokens
/help       show this help
/exit       quit, like Ctrl-D
@FILE       puts the text of a file into the message; @"a b" if its name has spaces,
            \\@ if no file is meant. TAB completes names and commands.
Lines between {_BLOCK} and {_BLOCK} are one message. So are lines that end in \\ with
the next one, and pasted lines. Ctrl-C stops an answer, or drops such a message.
The arrow keys bring back what was typed, in earlier chats too, unless it begins
with a space. TAB, pasted lines and earlier chats are not for Windows."""

_COMMANDS = ("/exit", "/help", "/reset", "/save", "/stats")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments; the defaults are those of the API."""
    add_model(parser)
    parser.add_argument(
        "--system", metavar="TEXT",
        help="system message that tells the model how to answer; replaces that of --history",
    )  # fmt: skip
    parser.add_argument(
        "--history", type=Path, metavar="FILE", help="continue a conversation that /save wrote"
    )
    texts = parser.add_argument_group("text")
    add_options(texts, GenerationOptions, *TEXT, **WHOLE)
    machine = parser.add_argument_group("machine")
    add_options(machine, LoadOptions, "draft", *MACHINE, "prompt_cache", "prompt_cache_size")


def execute(arguments: argparse.Namespace) -> int:
    """Answers messages until the end of the input or /exit.

    Returns:
        0.
    """
    options = given(arguments, GenerationOptions)
    checked(GenerationOptions, options)  # before a large model is loaded
    if sys.stdin is None or sys.stdout is None:
        raise InputError("chat needs stdin and stdout: leave them open")
    if isinstance(sys.stdin, io.TextIOWrapper) and not sys.stdin.isatty():
        sys.stdin.reconfigure(encoding="utf-8-sig")  # not the code page that Windows has for pipes
    messages = [] if arguments.history is None else read_conversation(arguments.history)
    if arguments.system is not None:
        if messages and messages[0]["role"] == "system":
            del messages[0]
        messages.insert(0, {"role": "system", "content": arguments.system})

    with waiting("the model is loaded"):
        from edgespec.api.llm import LLM

        loaded = LLM(chosen(arguments), **given(arguments, LoadOptions))
    with loaded as llm:
        warm_up_aside(llm)
        name_demonstration(arguments, llm)
        _Conversation(llm, messages, options, arguments.history).talk()
        if llm.options.draft_memory is not None:
            llm.save_draft_memory(llm.options.draft_memory)
    return 0


class _Conversation:
    """The messages so far, and the session with the model's caches for them."""

    def __init__(
        self, llm: LLM, messages: list[Message], options: dict[str, Any], history: Path | None
    ) -> None:
        self._llm = llm
        self._session = llm.session()
        self._beginning = [each for each in messages[:1] if each["role"] == "system"]
        self._messages = messages
        self._options = in_conversation(llm.sampling, options)
        self._last: GenerationResult | None = None
        self._typed = Typed(_complete)
        self._mentions = Mentions(
            lambda text: len(llm.tokenizer.encode(text, add_special=False)), llm.context_length
        )
        # Files that may be replaced: those of this conversation, and those that were asked about.
        self._own = set() if history is None else {history.resolve()}
        if llm.tokenizer.has_chat_template:
            # Fails early if the chat template is broken.
            llm.tokenizer.chat([*messages, {"role": "user", "content": "hello"}])
        else:
            _say("this model has no chat template: it continues your messages as plain text")

    def talk(self) -> None:
        if self._typed.by_hand:
            _say("/help shows the commands")
        while (line := self._line()) is not None and line.strip() != "/exit":
            said = self._message(line)
            try:
                if not said.strip():
                    continue
                if line.startswith("/") and "\n" not in said:
                    self._obey(*line.split(maxsplit=1))
                else:
                    self._answer(self._with_files(said))
            except EdgespecError as error:  # the conversation goes on
                _say(str(error))

    def _message(self, line: str) -> str:
        """Returns the message that a line begins; empty if Ctrl-C drops it before its end."""
        if "\n" in line and not line.rstrip().endswith(_BLOCK):  # pasted
            return line
        block = line.startswith(_BLOCK)
        lines, unfinished = [line.removeprefix(_BLOCK)], _is_open if block else _goes_on
        try:
            while unfinished(lines[-1]):
                lines.append(self._read(". "))
        except EOFError:
            pass
        except KeyboardInterrupt:
            print()
            return ""
        if block:
            return "\n".join(lines).rstrip().removesuffix(_BLOCK).strip("\n")
        return "\n".join([*(each[:-1] for each in lines[:-1]), lines[-1]])

    def _line(self) -> str | None:
        while True:
            try:
                return self._read("> ")
            except EOFError:
                return None
            except KeyboardInterrupt:
                print()
                _say("quit with Ctrl-D or /exit")

    def _read(self, mark: str) -> str:
        try:
            return self._typed.read(mark)
        except UnicodeDecodeError as error:
            raise InputError(f"stdin is not UTF-8 ({error.reason}): convert it") from error

    def _with_files(self, said: str) -> str:
        text, notes = self._mentions.expand(said)
        for note in notes:
            _say(note)
        return text

    def _obey(self, command: str, rest: str = "") -> None:
        if command == "/reset":
            self._messages, self._last = list(self._beginning), None
        elif command == "/save":
            self._save(rest.strip())
        elif command == "/stats":
            _say("there is no answer yet" if self._last is None else _facts(self._last))
        elif command == "/help":
            _say(_HELP)
        else:
            raise InputError(f"there is no command {command}: /help lists them")

    def _save(self, name: str) -> None:
        if not name:
            raise InputError("/save needs a file name: /save FILE")
        path = typed_path(name)
        exists = path.is_file()
        if exists and path.resolve() not in self._own:
            self._own.add(path.resolve())
            raise InputError(f"{name} exists: repeat the command to replace it")
        write_conversation(path, self._messages)
        self._own.add(path.resolve())
        replaced = ", in place of the old file" if exists else ""
        _say(f"saved {len(self._messages)} messages to {name}{replaced}")

    def _answer(self, said: str) -> None:
        asked = [*self._messages, {"role": "user", "content": said}]
        stream = self._session.stream(self._prompt(asked), **self._options)
        with cancelled_by_sigint(stream):
            for piece in stream:
                print(piece, end="", flush=True)
        print(flush=True)
        self._last = stream.result
        answer = {"role": "assistant", "content": stream.result.text}
        self._messages = [*asked, answer]
        if stream.result.finish_reason == "length":
            _say(cut_off(stream.result.new_tokens))
        elif stream.result.finish_reason == "context":
            _say("the context is full: start a new conversation with /reset")

    def _prompt(self, messages: list[Message]) -> str | list[int]:
        if self._llm.tokenizer.has_chat_template:
            return self._llm.chat_tokens(messages)
        return "".join(each["content"] for each in messages)


def _is_open(line: str) -> bool:
    """Whether the block of a line has not ended with it."""
    return not line.rstrip().endswith(_BLOCK)


def _goes_on(line: str) -> bool:
    """Whether a line ends in a backslash that is not itself written as two."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _complete(word: str, first: bool) -> list[str]:
    if word.startswith("@"):
        return complete(word)
    return [each for each in _COMMANDS if first and word and each.startswith(word)]


def _facts(result: GenerationResult) -> str:
    sources = [f"{name} {count}" for name, count in result.sources.items()]
    facts = [
        f"{result.new_tokens} tokens ({result.finish_reason})",
        f"first token after {result.ttft_ms:.0f} ms",
        f"{result.tokens_per_second:.1f} tokens/s",
        f"{result.reused} of {result.prompt_tokens} prompt tokens reused",
        f"mean accepted length {result.mean_accepted_length:.2f}",
        f"rounds by source: {', '.join(sources) or 'none'}",
    ]
    return "; ".join(facts)


def _say(text: str) -> None:
    """Prints a line for the user that is not part of the conversation."""
    print(text, file=sys.stderr, flush=True)
