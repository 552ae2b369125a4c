"""Chat templates of the families' forms in small, with tokenizers and examples for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from checkpoints import write_tokenizer
from tokenizers import Tokenizer as Backend

from edgespec.runtime.text.tokenizer import Tokenizer

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 8},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["city"],
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
TOOLS = [WEATHER, CLOCK]
QUESTION = [{"role": "user", "content": "hello"}]

_MESSAGES = """{% for m in messages %}<{{ m.role }}>{{ m.content }}
{%- for call in m.tool_calls or [] %}CALL{% endfor %}{% endfor %}"""


@dataclass(frozen=True)
class Form:
    """A form of calls, as a template shows it.

    Attributes:
        template: chat template.
        tokens: special tokens.
        call: a call of `get_weather`, as a model writes it.
        calls: that call and one of `clock`; None if there can only be one.
        before: free text and what comes between it and a call.
        ending: how a prompt ends.
    """

    template: str
    tokens: tuple[str, ...]
    call: str
    calls: str | None
    before: str = "Well. "
    ending: str = "<assistant>"


_ARGUMENTS = '{"city": "Rome", "days": 2}'

FORMS = {
    "hermes": Form(
        "{% if tools %}{{ tools | tojson }}<tool_call>{'name': , \"arguments\": }{% endif %}",
        ("<tool_call>", "</tool_call>"),
        f'<tool_call>\n{{"name": "get_weather", "arguments": {_ARGUMENTS}}}\n</tool_call>',
        f'<tool_call>\n{{"name": "get_weather", "arguments": {_ARGUMENTS}}}\n</tool_call>\n'
        '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>',
    ),
    "tagged": Form(
        "{% if tools %}{{ tools | tojson }}<tool_call><function=><parameter=>{% endif %}",
        ("<tool_call>", "</tool_call>"),
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n"
        "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n"
        "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=clock>\n</function>\n</tool_call>",
    ),
    "llama": Form(
        "{% if tools %}Environment: ipython {{ tools | tojson }} {'name': , \"parameters\": }"
        "{% endif %}",
        (),
        f'{{"name": "get_weather", "parameters": {_ARGUMENTS}}}',
        None,
        "",
    ),
    "mistral": Form(
        "{% if tools %}{{ tools | tojson }}{{ '[TOOL_CALLS]' if 0 }}{{ '[ARGS]' if 0 }}{% endif %}",
        ("[TOOL_CALLS]", "[ARGS]"),
        f"[TOOL_CALLS]get_weather[ARGS]{_ARGUMENTS}",
        f"[TOOL_CALLS]get_weather[ARGS]{_ARGUMENTS}[TOOL_CALLS]clock[ARGS]{{}}",
    ),
    "mistral list": Form(
        "{% if tools %}{{ tools | tojson }}{{ '[TOOL_CALLS]' if 0 }}{% endif %}",
        ("[TOOL_CALLS]",),
        f'[TOOL_CALLS] [{{"name": "get_weather", "arguments": {_ARGUMENTS}}}]',
        f'[TOOL_CALLS] [{{"name": "get_weather", "arguments": {_ARGUMENTS}}}, '
        '{"name": "clock", "arguments": {}}]',
    ),
    "phi": Form(
        "{% if messages[0].tools %}<|tool|>{{ messages[0].tools }}<|/tool|>{% endif %}",
        ("<|tool_call|>", "<|/tool_call|>"),
        f'<|tool_call|>[{{"name": "get_weather", "arguments": {_ARGUMENTS}}}]<|/tool_call|>',
        f'<|tool_call|>[{{"name": "get_weather", "arguments": {_ARGUMENTS}}}, '
        '{"name": "clock", "arguments": {}}]<|/tool_call|>',
    ),
    "granite": Form(
        "{% if tools %}respond with <|tool_call|> {{ tools | tojson }}{% endif %}",
        ("<|tool_call|>",),
        f'<|tool_call|>[{{"name": "get_weather", "arguments": {_ARGUMENTS}}}]',
        f'<|tool_call|>[{{"name": "get_weather", "arguments": {_ARGUMENTS}}}, '
        '{"name": "clock", "arguments": {}}]',
    ),
    "gemma": Form(
        "{% if tools %}{{ tools | tojson }}{{ '<|tool_call>call:' if 0 }}{% endif %}",
        ("<|tool_call>", "<tool_call|>", '<|"|>'),
        '<|tool_call>call:get_weather{city:<|"|>Rome<|"|>,days:2}<tool_call|>',
        '<|tool_call>call:get_weather{city:<|"|>Rome<|"|>,days:2}<tool_call|>'
        "<|tool_call>call:clock{}<tool_call|>",
    ),
    "harmony": Form(
        "{% if tools %}namespace functions. {{ tools | tojson }}{% endif %}"
        "{{ '<|channel|>analysis' if 0 }}",
        ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>"),
        "<|channel|>analysis<|message|>Rome, then.<|end|><|start|>assistant"
        "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
        '{"city":"Rome","days":2}',
        None,
        "",
        "<|end|><|start|>assistant",
    ),
}


def template(form: str) -> str:
    """Returns the template of a form."""
    return FORMS[form].template + _MESSAGES + FORMS[form].ending


def chat_tokenizer(folder: Path, source: str, tokens: tuple[str, ...]) -> Tokenizer:
    """Write and return a tokenizer with a chat template and further special tokens."""
    write_tokenizer(folder, 331)
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    backend.add_special_tokens(list(tokens))
    backend.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(source)
    return Tokenizer.from_folder(folder)
