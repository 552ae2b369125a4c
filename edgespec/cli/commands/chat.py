"""`edgespec chat`: a conversation in the terminal."""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgespec.cli.answering import say
from edgespec.cli.arguments import MACHINE, TEXT, WHOLE, add_model, add_options, given
from edgespec.cli.chat_files import Mentions, complete, read_conversation, write_conversation
from edgespec.cli.conversation import AnswerSettings, Conversation
from edgespec.cli.mcp_servers import toolbox_of
from edgespec.cli.models import loaded, name_demonstration, warm_up_aside
from edgespec.cli.parsing import Rare
from edgespec.cli.proposing import chosen_model
from edgespec.cli.terminal import tell
from edgespec.cli.typed import BLOCK, MessageReader
from edgespec.errors import ContextLengthError, EdgespecError, InputError, did_you_mean
from edgespec.llm.load.options import LoadOptions
from edgespec.llm.options import GenerationOptions
from edgespec.system.files import typed_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgespec.cli.chat_files import Message
    from edgespec.cli.tool_calls import ToolUse
    from edgespec.llm.llm import LLM
    from edgespec.llm.result import Result
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
        _Chat(llm, messages, options, arguments.history, box).talk()
    return 0


class _Chat:
    """What is typed: messages, and commands that begin with a slash."""

    def __init__(
        self,
        llm: LLM,
        messages: list[Message],
        options: dict[str, Any],
        history: Path | None,
        box: Toolbox | None,
    ) -> None:
        from edgespec.llm.prompts import or_more_context

        self._llm = llm
        self._commands: dict[str, Callable[[str], None]] = {
            "/clear": self._clear,
            "/retry": self._retry,
            "/continue": self._continue,
            "/system": self._system,
            "/set": self._set,
            "/save": self._save,
            "/tools": lambda _: say(self._tool_use.listed()),
            "/last": lambda _: say(self._tool_use.last()),
            "/stats": self._stats,
            "/show": self._show,
            "/load": self._load,
            "/help": lambda _: say(_HELP),
            "/?": lambda _: say(_HELP),
        }
        self._typed = MessageReader(self._complete)
        self._tools: ToolUse | None = None
        if box is not None:
            from edgespec.cli.tool_calls import ToolUse

            self._tools = ToolUse.of(box, self._typed.ask if self._typed.by_hand else None, llm)
        self._settings = AnswerSettings(llm, options)
        self._conversation = Conversation(llm, messages, self._settings, self._tools)
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
            say("this model has no chat template: it continues your messages as plain text")

    @property
    def _tool_use(self) -> ToolUse:
        if self._tools is None:
            raise InputError("there are no tools: start the chat with --mcp FILE")
        return self._tools

    def talk(self) -> None:
        if self._typed.by_hand:
            say("/help shows the commands")
        while (line := self._line()) is not None and line.strip() not in _LEAVE:
            said = self._typed.whole(line)
            try:
                if not said.strip():
                    continue
                if line.startswith("/") and "\n" not in said:
                    self._obey(*line.split(maxsplit=1))
                else:
                    asked = {"role": "user", "content": self._with_files(said)}
                    self._conversation.answer([*self._conversation.messages, asked])
            except ContextLengthError as error:
                anew = ", or start a new conversation with /clear" * self._conversation.is_begun
                say(f"{error}{anew}")
            except EdgespecError as error:  # the conversation goes on
                say(str(error))

    def _line(self) -> str | None:
        while True:
            try:
                return self._typed.read("> ")
            except EOFError:
                return None
            except KeyboardInterrupt:
                tell()
                say("quit with Ctrl-D or /bye")

    def _with_files(self, said: str) -> str:
        text, notes = self._mentions.expand(said)
        for note in notes:
            say(note)
        return text

    def _obey(self, command: str, rest: str = "") -> None:
        if command not in self._commands:
            like = did_you_mean(command, [*self._commands, *_LEAVE])
            raise InputError(f"there is no command {command}{like}: /help lists them")
        self._commands[command](rest.strip())

    def _clear(self, _: str) -> None:
        self._conversation.clear()
        kept = self._conversation.system is not None
        say("a new conversation" + ", with the same system message" * kept)

    def _retry(self, _: str) -> None:
        conversation = self._conversation
        before = conversation.last_answer()["content"]
        self._settings.vary()
        conversation.answer(conversation.messages[:-1])
        same = conversation.messages[-1]["content"] == before
        if same and not self._settings.options.get("temperature"):
            say("it is the same, since the temperature is 0: /set temperature 0.7 varies it")

    def _continue(self, _: str) -> None:
        self._conversation.last_answer()
        self._conversation.answer(self._conversation.messages)

    def _system(self, text: str) -> None:
        if text:
            self._conversation.system = text
            say("the system message is set")
        else:
            told = self._conversation.system
            say("there is no system message" if told is None else told)

    def _set(self, words: str) -> None:
        name, _, value = words.removeprefix("parameter ").strip().partition(" ")
        name = name.replace("-", "_")
        value = value.strip()
        if name == "system":
            self._system(value.strip('"'))
        else:
            say(self._settings.change(name, value) if name else self._settings.told())

    def _save(self, name: str) -> None:
        if not name:
            raise InputError("/save needs a file name: /save FILE")
        path = typed_path(name)
        exists = path.is_file()
        if exists and path.resolve() not in self._own:
            self._own.add(path.resolve())
            raise InputError(f"{name} exists: repeat the command to replace it")
        write_conversation(path, self._conversation.messages)
        self._own.add(path.resolve())
        replaced = ", in place of the old file" if exists else ""
        say(f"saved {len(self._conversation.messages)} messages to {name}{replaced}")

    def _stats(self, _: str) -> None:
        last = self._conversation.last
        say("there is no answer yet" if last is None else _facts(last))

    def _show(self, _: str) -> None:
        from edgespec.store.making import bundle_name

        target = self._llm.bundle.target
        say(
            f"{bundle_name(self._llm.bundle)}: {target.architecture}, {target.parameters:,} "
            f"parameters, context of {self._llm.context_length:,} tokens, draft {self._llm.draft}"
        )
        self._system("")

    def _load(self, name: str) -> None:
        say(
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
