"""The forms in which models write calls.

A chat template shows its model's form, so it is recognized by marks in its source. The forms are
those that the models' makers document, in their templates and model cards.
"""

from __future__ import annotations

from edgespec.runtime.text.tools.bare_calls import LINE, OBJECT
from edgespec.runtime.text.tools.call_form import CallForm

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
        other_marks=_OTHERS,
    ),
    CallForm(
        "hermes", ("<tool_call>", '"arguments"'),
        begin="<tool_call>", opening="\n" + _NAMED, middle=_ARGUMENTS,
        closing="}\n</tool_call>", separator="\n<tool_call>", bare=OBJECT,
        other_marks=_OTHERS,
    ),
    CallForm(
        "llama", ("ipython", '"parameters"'),
        begin=_NAMED, opening="", middle='", "parameters": ', closing="}", separator=None,
        first=True,
    ),
)  # fmt: skip


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
