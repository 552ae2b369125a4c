"""Conversations: options of an answer, its prompt, and what it may consist of."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from edgespec.errors import GrammarSizeError, InputError
from edgespec.llm.messages import Messages, for_template
from edgespec.llm.options import GenerationOptions
from edgespec.llm.rendering import Rendering, no_tools
from edgespec.runtime.sampling.constraint import Constraint
from edgespec.runtime.sampling.thinking_budget import ReasoningMarks, ThinkingBudget
from edgespec.runtime.sequences.prefixes import common_length
from edgespec.runtime.text.answer_grammar import CONTENT, AnswerGrammar
from edgespec.runtime.text.answers import AnswerParser
from edgespec.runtime.text.schema.normalizing import normalize, outline
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.runtime.text.tools.descriptions import Tool, describe_tool
from edgespec.runtime.text.tools.forms import call_form
from edgespec.runtime.text.tools.history import about_tools, with_calls_as_text
from edgespec.runtime.text.tools.signature import ToolSignature
from edgespec.system.options import explained, option

if TYPE_CHECKING:
    from edgespec.runtime.sampling.grammar import GrammarCompiler
    from edgespec.runtime.sequences.pictures import Pictures

_log = logging.getLogger(__name__)

_MODES = ("auto", "none", "required")


@explained
@dataclass(frozen=True)
class ChatOptions(GenerationOptions):
    """Options of an answer in a conversation, in addition to `GenerationOptions`.

    Raises:
        InputError: if a value is out of range, or two contradict each other.
    """

    tools: Sequence[Tool] | None = option(
        None,
        "functions that the model may call: Python functions with type hints and docstrings, "
        "or dicts in OpenAI's format; they are never executed",
    )
    tool_choice: str = option(
        "auto",
        "auto if the model decides whether to call, none, required, or the name of the "
        "function that it must call, once",
    )
    parallel_tool_calls: bool = option(True, "whether an answer may have several calls")
    template_options: Mapping[str, Any] | None = option(
        None,
        "further variables of the chat template, such as `enable_thinking` or "
        "`reasoning_effort`; templates ignore what they do not know",
    )
    thinking_budget: int | None = option(
        None,
        "maximum number of tokens of reasoning; then the text that ends it is forced",
        none="no limit",
        least=0,
    )
    continue_final_message: bool = option(
        True,
        "whether the answer goes on from a last message of the assistant, instead of being "
        "another one",
    )

    context_shift: bool | None = option(
        None,
        "whether the oldest turns behind the system's message are left out if a conversation is "
        "too long for the context, instead of an error",
        none="as the model was loaded",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        tools = [describe_tool(tool) for tool in self.tools or ()]
        object.__setattr__(self, "tools", tools)
        names = [tool["function"]["name"] for tool in tools]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise InputError(f"two tools have the name {twice!r}: rename one")
        if self.tool_choice not in _MODES and self.tool_choice not in names:
            raise InputError(
                f"tool_choice is {self.tool_choice!r:.80}, which is no tool: use "
                f"{', '.join((*_MODES, *names))}"
            )
        if self.tool_choice == "required" and not names:
            raise InputError("tool_choice is 'required', but there are no tools: give some")

    @property
    def tools_described(self) -> list[dict[str, Any]]:
        """The tools in OpenAI's format."""
        return [dict(tool) for tool in self.tools or () if isinstance(tool, Mapping)]

    @property
    def several(self) -> bool:
        """Whether there may be several calls; one that is asked for by name comes once."""
        return self.parallel_tool_calls and self.tool_choice in _MODES

    @property
    def functions(self) -> list[ToolSignature]:
        """The functions that may be called."""
        return [
            ToolSignature(each["name"], each["parameters"])
            for each in (tool["function"] for tool in self.tools_described)
            if self.tool_choice in ("auto", "required", each["name"])
        ]


@dataclass(frozen=True)
class PreparedPrompt:
    """A prompt, or a conversation as one, and how the text behind it is made and read.

    Attributes:
        tokens: tokens of the prompt.
        grammar: what restricts the text, if anything.
        parser: tells what an answer consists of; None for plain text.
        turns: numbers of the prompt's first tokens, behind which others may go on differently.
        unheld: schemas of the functions whose arguments the grammar does not hold to all of them.
        look: see `Request`.
        stop_ids: tokens that end the text, besides the model's own.
        prediction: tokens of an expected text; empty if there is none.
        left_out: number of messages that had no room in the context.
    """

    tokens: list[int]
    grammar: Constraint | None = None
    parser: AnswerParser | None = None
    turns: Sequence[int] = ()
    unheld: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    look: Callable[[], Pictures] | None = None
    stop_ids: frozenset[int] = frozenset()
    prediction: Sequence[int] = ()
    left_out: int = 0

    def again(self, tokenizer: Tokenizer) -> PreparedPrompt:
        """Returns the same for another text, if none was begun; both have the tokenizer."""
        alike = (tokenizer, self.tokens, self.prediction, self.unheld)
        shared = {id(each): each for each in alike}
        return copy.deepcopy(self, shared)


def prepare_chat(
    tokenizer: Tokenizer,
    encode: Callable[[str], list[int]],
    grammars: Callable[[], GrammarCompiler],
    messages: Messages,
    options: ChatOptions,
    turns: bool = False,
) -> PreparedPrompt:
    """Prepares the answer in a conversation.

    Args:
        tokenizer: tokenizer of the model.
        encode: converts the text of the conversation to tokens.
        grammars: returns the compiler of grammars, which takes a while to make.
        messages: messages of the conversation.
        options: options of the answer.
        turns: whether `PreparedPrompt.turns` are wanted.

    Raises:
        InputError: if the chat template refuses the messages, it knows no tools while some are
            given, or a schema cannot be used.
    """
    functions = [replace(each, parameters=normalize(each.parameters)) for each in options.functions]
    calls = call_form(tokenizer.chat_source) if functions else None
    converted = for_template(messages)
    left_out = "tool" not in tokenizer.chat_source and about_tools(converted)
    if left_out or (functions and calls is None):
        raise no_tools()
    messages = with_calls_as_text(converted, tokenizer.chat_source)
    tools = options.tools_described if calls is not None else []
    rendering = Rendering(tokenizer, calls, tools, options.template_options)
    text, thinking, inside = rendering.begun(messages, options.continue_final_message)
    prompt = encode(text)
    last = {} if calls is None else rendering.behind_calls(grammars().stop_ids)
    answer = AnswerGrammar(
        thinking=thinking,
        inside=inside,
        calls=calls,
        functions=functions,
        required=options.tool_choice != "auto",
        several=options.several,
        last="".join(last),
        content=CONTENT if options.structure else None,
    )
    compiled = partial(_grammar, tokenizer, grammars, options)
    try:
        grammar = compiled(answer)
    except InputError:
        if options.structure:
            grammars().compile(*options.structure)  # for an error that is about this alone
        answer = replace(answer, functions=[_held(each, answer, compiled) for each in functions])
        grammar = compiled(answer)
    ends = _turns(messages, text, prompt, rendering.text, encode) if turns else ()
    if thinking is None and calls is None:
        return PreparedPrompt(prompt, grammar, turns=ends)
    marks = {
        id_: token
        for token, id_ in tokenizer.added_tokens.items()
        if id_ in tokenizer.special_ids and token in answer.marks and token not in last
    }
    schemas = {function.name: function.parameters for function in answer.functions}
    unheld = {
        each.name: each.parameters
        for each in functions
        if each.parameters is not schemas[each.name]
    }
    parser = AnswerParser(thinking, calls, inside, schemas, answer.bare, marks)
    stop_ids = frozenset(last.values())
    return PreparedPrompt(prompt, grammar, parser, ends, unheld, stop_ids=stop_ids)


def _turns(
    messages: Sequence[Mapping[str, Any]],
    text: str,
    prompt: list[int],
    render: Callable[..., str],
    encode: Callable[[str], list[int]],
) -> list[int]:
    """Returns how many tokens of the prompt are before the first and the last of the user's turns.

    Others that begin alike have another first question, or the last one edited.
    """
    places = [number for number, each in enumerate(messages) if each.get("role") == "user"]
    ends = set[int]()
    for place in {*places[:1], *places[-1:]} - {0}:
        with suppress(InputError):  # a template may refuse what does not end with a question
            alike = text[: common_length(text, render(messages[:place], False))]
            ends.add(common_length(prompt, encode(alike)))
    return sorted(ends - {0})


def _held(
    function: ToolSignature,
    answer: AnswerGrammar,
    compiled: Callable[[AnswerGrammar], Constraint | None],
) -> ToolSignature:
    """Returns a function with a schema that its arguments can be held to.

    Where the model decides what it calls, as much of the schema is held as can be.
    """
    alone = replace(answer, content=None)
    schemas = [function.parameters]
    if not answer.required:
        schemas += [normalize(function.parameters, loosely=True), outline(function.parameters)]
    for number, schema in enumerate(schemas):
        found = replace(function, parameters=schema)
        try:
            compiled(replace(alone, functions=[found]))
        except InputError as error:
            why = (
                str(error)
                .removeprefix("the grammar of the tools ")
                .removeprefix(f"tool {function.name}: ")
            )
            if number == len(schemas) - 1 or isinstance(error, GrammarSizeError):
                raise InputError(f"tool {function.name}: its schema {why}") from error
            if not number:
                _warn(f"tool {function.name} is not held to its whole schema, which {why}")
            continue
        break
    return found


@lru_cache(1000)
def _warn(message: str) -> None:
    _log.warning(message)


def _grammar(
    tokenizer: Tokenizer,
    grammars: Callable[[], GrammarCompiler],
    options: ChatOptions,
    answer: AnswerGrammar,
) -> Constraint | None:
    """Returns what restricts an answer; None if nothing does."""
    grammar: Constraint | None = None
    if answer.calls is not None or (answer.thinking is not None and options.structure):
        special = grammars().special(
            (token, id_) for token, id_ in tokenizer.added_tokens.items() if token in answer.marks
        )
        lark = replace(answer, special=special).lark()
        schemas = [function.parameters for function in answer.functions]
        content = options.structure if answer.content else None
        grammar = grammars().compile_answer(lark, content, schemas)
    elif options.structure:
        grammar = grammars().compile(*options.structure)
    if options.thinking_budget is None or answer.thinking is None:
        return grammar
    begin = answer.thinking.begin
    end = answer.thinking.end
    tokens = tuple(tokenizer.encode(end, add_special=False))
    decode = partial(tokenizer.decode, skip_special=False)
    marks = ReasoningMarks(begin, end, tokens, decode)
    return ThinkingBudget(
        marks, options.thinking_budget, answer.inside, tokenizer.vocab_size, grammar
    )
