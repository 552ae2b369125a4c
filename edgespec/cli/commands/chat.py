"""`edgespec chat`: a conversation in the terminal."""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from edgespec.cli.answering import WrappingWriter, answer_events, show
from edgespec.cli.arguments import (
    MACHINE,
    TEXT,
    WHOLE,
    add_model,
    add_options,
    given,
    reader,
)
from edgespec.cli.chat_files import (
    Mentions,
    Message,
    complete,
    read_conversation,
    write_conversation,
)
from edgespec.cli.echo import echo_off
from edgespec.cli.interrupts import cancelled_by_sigint
from edgespec.cli.mcp_servers import toolbox_of
from edgespec.cli.models import loaded, name_demonstration, warm_up_aside
from edgespec.cli.parsing import Rare
from edgespec.cli.proposing import chosen_model
from edgespec.cli.spellings import SETTINGS_INSTEAD, SETTINGS_OF_OLLAMA
from edgespec.cli.terminal import tell
from edgespec.cli.typed import BLOCK, MessageReader
from edgespec.errors import ContextLengthError, EdgespecError, InputError, did_you_mean
from edgespec.llm.load.options import LoadOptions
from edgespec.llm.options import GenerationOptions, in_conversation
from edgespec.system.files import typed_path
from edgespec.system.options import Option, kinds_of, unknown

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgespec.cli.tool_calls import ToolUse
    from edgespec.llm.llm import LLM
    from edgespec.llm.result import Result
    from edgespec.llm.stream import Stream
    from edgespec.mcp.toolbox import Toolbox

_HELP = f"""\
/clear           start a new conversation
/retry           answer the last message again, by other random choices
/continue        go on with the last answer
/system TEXT     tell the model from now on how to answer
/set NAME VALUE  change an option, as in /set temperature 0.5; /set shows them
/save FILE       save the conversation as Markdown, or as JSON if FILE ends in .json:
                 --history FILE goes on from that
/tools           list the tools that the model may call, as --mcp gives them
/last            show the calls behind the last message, and their whole results
/stats           show statistics of the last answer: speed, drafts, reused tokens
/show            show the model and the system message
/help            show this help, like /?
/bye             quit, like /exit and Ctrl-D
@FILE            puts the text of a file into the message; @"a b" if its name has
                 spaces, \\@ if no file is meant. TAB completes names and commands.
Lines between {BLOCK} and {BLOCK} are one message. So are lines that end in \\ with
the next one, and pasted lines. Ctrl-C stops an answer, or drops such a message.
The arrow keys bring back what was typed, in earlier chats too, unless it begins
with a space. TAB, pasted lines and earlier chats are not for Windows."""

_THOUGHTS = "thoughts"  # what /set takes besides options of an answer
_OTHERS = ("stop", "json_schema")  # options that it takes though they are no plain values
_SWITCHES = {bool, NoneType}  # types of options that it does not take
_LEAVE = ("/bye", "/exit", "/quit")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments; the defaults are those of the API."""
    add_model(parser)
    parser.add_argument(
        "--system",
        metavar="TEXT",
        help="system message that tells the model how to answer; replaces that of --history",
    )
    parser.add_argument(
        "--history", type=Path, metavar="FILE", help="continue a conversation that /save wrote"
    )
    parser.add_argument(
        "--mcp",
        type=Path,
        metavar="FILE",
        help=Rare(
            "JSON file with mcpServers, as other programs have it: the model may call their tools, "
            "after it has asked"
        ),
    )
    texts = parser.add_argument_group("text")
    add_options(texts, GenerationOptions, *TEXT, **WHOLE)
    add_options(texts, LoadOptions, "context_shift")
    machine = parser.add_argument_group("machine")
    add_options(machine, LoadOptions, "draft", *MACHINE, "prompt_cache", "prompt_cache_size")


def execute(arguments: argparse.Namespace) -> int:
    """Answers messages until the end of the input or /bye.

    Returns:
        0.
    """
    options = given(arguments, GenerationOptions)
    GenerationOptions.of(options)  # before a large model is loaded
    if sys.stdin is None or sys.stdout is None:
        raise InputError("chat needs stdin and stdout: leave them open")
    if isinstance(sys.stdin, io.TextIOWrapper) and not sys.stdin.isatty():
        sys.stdin.reconfigure(encoding="utf-8-sig")  # not the code page that Windows has for pipes
    messages = [] if arguments.history is None else read_conversation(arguments.history)
    if arguments.system is not None:
        if messages and messages[0]["role"] == "system":
            del messages[0]
        messages.insert(0, {"role": "system", "content": arguments.system})

    arguments.model = arguments.model or chosen_model()
    with toolbox_of(arguments.mcp) as box, loaded(arguments) as llm:
        warm_up_aside(llm)
        name_demonstration(arguments, llm)
        _Conversation(llm, messages, options, arguments.history, box).talk()
    return 0


class _Conversation:
    """The messages so far, and the session with the model's caches for them."""

    def __init__(
        self,
        llm: LLM,
        messages: list[Message],
        options: dict[str, Any],
        history: Path | None,
        box: Toolbox | None,
    ) -> None:
        from edgespec.llm.chat import ChatOptions
        from edgespec.llm.prompts import or_more_context

        self._llm = llm
        self._session = llm.session()
        self._beginning = [each for each in messages[:1] if each["role"] == "system"]
        self._messages = messages
        self._given = dict(options)
        self._thoughts = False
        self._kind = ChatOptions if llm.tokenizer.has_chat_template else GenerationOptions
        self._last: Result | None = None
        self._commands: dict[str, Callable[[str], None]] = {
            "/clear": self._clear,
            "/retry": self._retry,
            "/continue": self._continue,
            "/system": self._system,
            "/set": self._set,
            "/save": self._save,
            "/tools": lambda _: _say(self._tool_use.listed()),
            "/last": lambda _: _say(self._tool_use.last()),
            "/stats": self._stats,
            "/show": self._show,
            "/load": self._load,
            "/help": lambda _: _say(_HELP),
            "/?": lambda _: _say(_HELP),
        }
        self._typed = MessageReader(self._complete)
        self._tools: ToolUse | None = None
        if box is not None:
            from edgespec.cli.tool_calls import ToolUse

            self._tools = ToolUse.of(box, self._typed.ask if self._typed.by_hand else None, llm)
        self._mentions = Mentions(
            lambda text: len(llm.tokenizer.encode(text, add_special=False)),
            llm.context_length,
            or_more_context(llm.bundle, llm.context_length),
        )
        # Files that may be replaced: those of this conversation, and those that were asked about.
        self._own = set() if history is None else {history.resolve()}
        if llm.tokenizer.has_chat_template:
            # Fails early if the chat template is broken.
            llm.tokenizer.chat([*messages, {"role": "user", "content": "hello"}])
        else:
            _say("this model has no chat template: it continues your messages as plain text")

    @property
    def _tool_use(self) -> ToolUse:
        if self._tools is None:
            raise InputError("there are no tools: start the chat with --mcp FILE")
        return self._tools

    def talk(self) -> None:
        if self._typed.by_hand:
            _say("/help shows the commands")
        while (line := self._line()) is not None and line.strip() not in _LEAVE:
            said = self._typed.whole(line)
            try:
                if not said.strip():
                    continue
                if line.startswith("/") and "\n" not in said:
                    self._obey(*line.split(maxsplit=1))
                else:
                    asked = {"role": "user", "content": self._with_files(said)}
                    self._answer([*self._messages, asked])
            except ContextLengthError as error:
                begun = len(self._messages) > len(self._beginning)
                _say(f"{error}{', or start a new conversation with /clear' * begun}")
            except EdgespecError as error:  # the conversation goes on
                _say(str(error))

    def _line(self) -> str | None:
        while True:
            try:
                return self._typed.read("> ")
            except EOFError:
                return None
            except KeyboardInterrupt:
                tell()
                _say("quit with Ctrl-D or /bye")

    def _with_files(self, said: str) -> str:
        text, notes = self._mentions.expand(said)
        for note in notes:
            _say(note)
        return text

    def _obey(self, command: str, rest: str = "") -> None:
        if command not in self._commands:
            like = did_you_mean(command, [*self._commands, *_LEAVE])
            raise InputError(f"there is no command {command}{like}: /help lists them")
        self._commands[command](rest.strip())

    def _clear(self, _: str) -> None:
        self._messages = list(self._beginning)
        self._last = None
        _say("a new conversation" + ", with the same system message" * bool(self._beginning))

    def _retry(self, _: str) -> None:
        before = self._require_answer()["content"]
        if self._given.get("seed") is not None:
            self._given["seed"] += 1
        self._answer(self._messages[:-1])
        if self._messages[-1]["content"] == before and not self._options.get("temperature"):
            _say("it is the same, since the temperature is 0: /set temperature 0.7 varies it")

    def _continue(self, _: str) -> None:
        self._require_answer()
        self._answer(self._messages)

    def _require_answer(self) -> Message:
        if not self._messages or self._messages[-1]["role"] != "assistant":
            raise InputError("there is no answer yet: write a message first")
        return self._messages[-1]

    def _system(self, text: str) -> None:
        if text:
            others = self._messages[len(self._beginning) :]
            self._beginning = [{"role": "system", "content": text}]
            self._messages = [*self._beginning, *others]
            _say("the system message is set")
        else:
            _say(self._beginning[0]["content"] if self._beginning else "there is no system message")

    def _set(self, words: str) -> None:
        name, _, value = words.removeprefix("parameter ").partition(" ")
        name = name.replace("-", "_")
        value = value.strip()
        name = SETTINGS_OF_OLLAMA.get(name, name)
        plain = (each for each, kinds in kinds_of(self._kind).items() if {*kinds} - _SWITCHES)
        known = [*plain, *_OTHERS]
        if not words:
            thoughts = "on" if self._thoughts else "off"
            given = {each: v for each, v in self._options.items() if v not in (None, [], "")}
            told = (f"{each} {value}" for each, value in given.items())
            _say("; ".join([*told, f"{_THOUGHTS} {thoughts}"]))
        elif name == _THOUGHTS:
            Option("", choices=("on", "off")).check(name, value, (str,))
            self._thoughts = value == "on"
            _say(f"{_THOUGHTS} {value}")
        elif name == "system":
            self._system(value.strip('"'))
        elif name not in known and (how := SETTINGS_INSTEAD.get(name.removeprefix("no"))):
            raise InputError(f"there is no option {name}: {how}")
        elif name not in known:
            raise InputError(unknown(name, [_THOUGHTS, *known]))
        else:
            try:
                found = {name: reader(self._kind, name)(value)}
            except OSError as error:
                raise InputError(f"{name} is {value!r}: {error.strerror}") from error
            self._kind.of(self._given | found)
            self._given |= found
            _say(f"{name} {value}")

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

    @property
    def _options(self) -> dict[str, Any]:
        return in_conversation(self._llm.sampling, self._given)

    def _answer(self, asked: list[Message]) -> None:
        """Answers a conversation, or goes on with the answer that it ends with.

        Where an answer calls tools, their results are given, and the model goes on.
        """
        if self._tools is None:
            self._answer_once(asked)
            return
        before = self._messages
        self._tools.begin()
        goes_on = True
        try:
            result = self._answer_once(asked)
            while result.finish_reason == "tool_calls" and goes_on:
                results, goes_on = self._tools.run(result.tool_calls)
                self._messages = [*self._messages, *results]
                if goes_on:
                    result = self._answer_once(self._messages)
        except EdgespecError:
            self._messages = before  # what a tool gave would fail all later answers, too
            raise

    def _answer_once(self, asked: list[Message]) -> Result:
        begun = asked[-1] if asked[-1]["role"] == "assistant" else {}
        stream = self._stream(asked)
        with cancelled_by_sigint(stream), echo_off():
            show(answer_events(stream), self._thoughts)
        self._last = result = stream.result
        answer = {**result.message, "content": begun.get("content", "") + result.text}
        answer.pop("reasoning_content", None)
        if result.finish_reason != "tool_calls":
            answer.pop("tool_calls", None)
        if result.reasoning and not answer["content"]:  # where /continue goes on
            answer["reasoning_content"] = begun.get("reasoning_content", "") + result.reasoning
        self._messages = [*(asked[:-1] if begun else asked), answer]
        if gone := result.messages_left_out:
            _say(f"the {gone} oldest messages had no room in the context, and were not read")
        if result.finish_reason == "length":
            _say(
                f"stopped after {result.new_tokens} tokens: /continue goes on, /set max_new_tokens "
                "allows longer answers"
            )
        elif result.finish_reason == "loop":
            _say("stopped: it repeats itself (/continue goes on)")
        elif result.finish_reason == "context":
            _say("the context is full: start a new conversation with /clear")
        return result

    def _stream(self, messages: list[Message]) -> Stream:
        options = {"stop_loops": True, **self._options}
        if self._llm.tokenizer.has_chat_template:
            tools = {} if self._tools is None else self._tools.options
            return self._session.chat_stream(messages, **options, **tools)
        text = "".join(each["content"] for each in messages)
        return self._session.stream(text, **options)

    def _stats(self, _: str) -> None:
        _say("there is no answer yet" if self._last is None else _facts(self._last))

    def _show(self, _: str) -> None:
        from edgespec.store.making import bundle_name

        target = self._llm.bundle.target
        _say(
            f"{bundle_name(self._llm.bundle)}: {target.architecture}, {target.parameters:,} "
            f"parameters, context of {self._llm.context_length:,} tokens, draft {self._llm.draft}"
        )
        self._system("")

    def _load(self, name: str) -> None:
        _say(
            f"`edgespec chat {name or 'MODEL'}` chats with another model: leave with /bye; /save "
            "FILE.json before, and --history FILE.json goes on with this conversation"
        )

    def _complete(self, word: str, first: bool) -> list[str]:
        if word.startswith("@"):
            return complete(word)
        known = (*self._commands, *_LEAVE)
        return [each for each in known if first and word and each.startswith(word)]


def _facts(result: Result) -> str:
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
    """Prints what is for the user and not part of the conversation."""
    told = WrappingWriter(sys.stderr)
    told.write(f"{text}\n")
