"""How models write the parts of an answer: what they think, what they say and what they call.

A chat template shows its model's forms, so they are recognized by marks in its source. The forms
are those that the models' makers document, in their templates and model cards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgespec.runtime.text.bare_calls import LINE, OBJECT, BareForm
from edgespec.runtime.text.notations import NOTATIONS


@dataclass(frozen=True)
class CallForm:
    """How a model writes tool calls.

    Calls are written as `begin`, then for each call `opening`, the name, `middle`, the arguments
    and `closing`, with `separator` between two calls, and at last `end`.

    Attributes:
        name: name of the form.
        marks: what a chat template of the form contains; all of it.
        begin: text that begins calls. Answers without calls never contain it. Empty if calls can
            be told from text by `bare` alone.
        opening: text before a name.
        middle: text between name and arguments.
        closing: text after arguments.
        separator: text between two calls; None if an answer has one call at most.
        end: text after the last call.
        first: whether calls begin an answer or do not come at all. Text that begins like `begin`
            is a call then.
        arguments: notation of the arguments (see `edgespec.runtime.text.notations`).
        in_system: whether the template takes tools from the system message, as JSON.
        bare: what calls look like that come without these marks, if an answer may begin with one.
        unless: what a chat template of the form does not contain; none of it.
    """

    name: str
    marks: tuple[str, ...]
    begin: str
    opening: str
    middle: str
    closing: str
    separator: str | None
    end: str = ""
    first: bool = False
    arguments: str = "json"
    in_system: bool = False
    bare: BareForm | None = None
    unless: tuple[str, ...] = ()

    def is_of(self, template: str) -> bool:
        """Whether a chat template is of the form."""
        return all(mark in template for mark in self.marks) and not any(
            mark in template for mark in self.unless
        )

    def written(self, calls: Sequence[tuple[str, Mapping[str, Any] | str]]) -> str | None:
        """Returns how a model writes calls; None if only its chat template knows.

        Args:
            calls: names of functions, and their arguments by name, or as they were written.
        """
        write = NOTATIONS[self.arguments].write
        if write is None:
            return None
        between = f"{self.closing}{self.separator or ''}{self.opening}"
        written = [
            f"{name}{self.middle}{given if isinstance(given, str) else write(given)}"
            for name, given in calls
        ]
        return f"{self.begin}{self.opening}{between.join(written)}{self.closing}{self.end}"


@dataclass(frozen=True)
class ThinkingForm:
    """How a model writes its reasoning before an answer.

    Attributes:
        begin: text that begins reasoning, unless the prompt ends with it.
        end: text that ends reasoning.
        intros: texts of which one begins an answer; empty if it begins at once. With intros there
            may be several parts, each ended by `end`.
    """

    begin: str
    end: str
    intros: tuple[str, ...] = ()


_NAMED = '{"name": "'
_ARGUMENTS = '", "arguments": '

_OTHERS = ("<arg_key", "<tool_calls>")  # of forms that also have `<tool_call>`

# The first whose marks are in a template is the template's.
_CALL_FORMS = (
    CallForm(
        "harmony", ("<|channel|>", "functions."),
        begin="<|channel|>commentary to=functions.", opening="",
        middle=" <|constrain|>json<|message|>", closing="", separator=None,
        first=True, arguments="compact",
    ),
    CallForm(
        "gemma", ("<|tool_call>call:",),
        begin="<|tool_call>", opening="call:", middle="", closing="<tool_call|>",
        separator="<|tool_call>", arguments="gemma",
    ),
    CallForm(
        "mistral", ("[TOOL_CALLS]", "[ARGS]"),
        begin="[TOOL_CALLS]", opening="", middle="[ARGS]", closing="", separator="[TOOL_CALLS]",
    ),
    CallForm(
        "mistral list", ("[TOOL_CALLS]",),
        begin="[TOOL_CALLS] [", opening=_NAMED, middle=_ARGUMENTS, closing="}", separator=", ",
        end="]", bare=OBJECT,
    ),
    CallForm(
        "phi", ("<|tool|>",),
        begin="<|tool_call|>[", opening=_NAMED, middle=_ARGUMENTS, closing="}", separator=", ",
        end="]<|/tool_call|>", in_system=True, bare=OBJECT,
    ),
    CallForm(
        "granite", ("<|tool_call|>",),
        begin="<|tool_call|>[", opening=_NAMED, middle=_ARGUMENTS, closing="}", separator=", ",
        end="]", bare=OBJECT,
    ),
    CallForm(
        "lfm", ("List of tools: ", "<|im_start|>"),
        begin="<|tool_call_start|>[", opening="", middle="(", closing=")", separator=", ",
        end="]<|tool_call_end|>", arguments="python",
    ),
    CallForm(
        "olmo", ("<function_calls>", "<functions>"),
        begin="<function_calls>", opening="", middle="(", closing=")", separator="\n",
        end="</function_calls>", arguments="keywords",
    ),
    CallForm(
        "hunyuan", ("<tool_calls>", "<tool_call>function_name", "```json"),
        begin="<tool_calls>", opening="<tool_call>", middle="\n```json\n",
        closing="\n```</tool_call>", separator="\n", end="</tool_calls>",
    ),
    CallForm(
        "glm 4.7", ("<tool_call>{function-name}<arg_key>",),
        begin="<tool_call>", opening="", middle="", closing="</tool_call>",
        separator="<tool_call>", arguments="keys in line",
    ),
    CallForm(
        "glm 4.5", ("<tool_call>{function-name}", "<arg_key>"),
        begin="<tool_call>", opening="", middle="\n", closing="</tool_call>",
        separator="\n<tool_call>", arguments="keys",
    ),
    CallForm(
        "glm", ('"metadata"', "observation"),
        begin="", opening="", middle="\n", closing="", separator=None, first=True, bare=LINE,
    ),
    CallForm(
        "tagged", ("<tool_call>", "<function=", "<parameter="),
        begin="<tool_call>", opening="\n<function=", middle=">\n",
        closing="</function>\n</tool_call>", separator="\n<tool_call>", arguments="tagged",
        unless=_OTHERS,
    ),
    CallForm(
        "hermes", ("<tool_call>", '"arguments"'),
        begin="<tool_call>", opening="\n" + _NAMED, middle=_ARGUMENTS,
        closing="}\n</tool_call>", separator="\n<tool_call>", bare=OBJECT,
        unless=_OTHERS,
    ),
    CallForm(
        "llama", ("ipython", '"parameters"'),
        begin=_NAMED, opening="", middle='", "parameters": ', closing="}", separator=None,
        first=True,
    ),
)  # fmt: skip

_HARMONY = ThinkingForm(
    "<|channel|>analysis<|message|>",
    "<|end|><|start|>assistant",
    ("<|channel|>final<|message|>", "<|channel|>commentary<|message|>"),
)
_THINKING_FORMS = (
    ("<|channel|>analysis", _HARMONY),
    ("<|channel>", ThinkingForm("<|channel>thought", "<channel|>")),
    ("[/THINK]", ThinkingForm("[THINK]", "[/THINK]")),
    ("</think>", ThinkingForm("<think>", "</think>")),
    ("<think>", ThinkingForm("<think>", "</think>")),
)


def call_form(template: str) -> CallForm | None:
    """Returns the form of calls of a chat template; None if it knows no tools, or another form.

    Args:
        template: source of the template.
    """
    if "tools" not in template:
        return None
    # Templates write quotes inside of strings with backslashes.
    plain = template.replace('\\"', '"')
    return next((form for form in _CALL_FORMS if form.is_of(plain)), None)


def thinking_form(template: str) -> ThinkingForm | None:
    """Returns the form of reasoning of a chat template; None if the model is not known to reason.

    Args:
        template: source of the template.
    """
    return next((form for mark, form in _THINKING_FORMS if mark in template), None)
