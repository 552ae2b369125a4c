"""Chat templates of the families' forms in small, with tokenizers and examples for them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from checkpoints import write_tokenizer
from tokenizers import Tokenizer as Backend

from edgespec.llm.chat import ChatOptions, prepare_chat
from edgespec.runtime.sampling.grammar import GrammarCompiler
from edgespec.runtime.text.decoder import CallEvent, ReasoningEvent, TextEvent, join_events
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
_KEYS = ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")

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
    "lfm": Form(
        "{% if tools %}<|im_start|>List of tools: {{ tools | tojson }}{% endif %}",
        ("<|tool_call_start|>", "<|tool_call_end|>"),
        '<|tool_call_start|>[get_weather(city="Rome", days=2)]<|tool_call_end|>',
        '<|tool_call_start|>[get_weather(city="Rome", days=2), clock()]<|tool_call_end|>',
    ),
    "olmo": Form(
        "{% if tools %}<functions>{{ tools | tojson }}</functions>"
        "Output any function calls within <function_calls>{% endif %}",
        ("<function_calls>", "</function_calls>"),
        '<function_calls>get_weather(city="Rome", days=2)</function_calls>',
        '<function_calls>get_weather(city="Rome", days=2)\nclock()</function_calls>',
    ),
    "hunyuan": Form(
        "{% if tools %}{{ tools | tojson }}you should first print <tool_calls>"
        "<tool_call>function_name\n```json\n{% endif %}",
        ("<tool_calls>", "</tool_calls>", "<tool_call>", "</tool_call>"),
        f"<tool_calls><tool_call>get_weather\n```json\n{_ARGUMENTS}\n```</tool_call></tool_calls>",
        f"<tool_calls><tool_call>get_weather\n```json\n{_ARGUMENTS}\n```</tool_call>\n"
        "<tool_call>clock\n```json\n{}\n```</tool_call></tool_calls>",
    ),
    "glm 4.7": Form(
        "{% if tools %}{{ tools | tojson }}<tool_call>{function-name}<arg_key>{% endif %}",
        _KEYS,
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Rome</arg_value>"
        "<arg_key>days</arg_key><arg_value>2</arg_value></tool_call>",
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Rome</arg_value>"
        "<arg_key>days</arg_key><arg_value>2</arg_value></tool_call><tool_call>clock</tool_call>",
    ),
    "glm 4.5": Form(
        "{% if tools %}{{ tools | tojson }}<tool_call>{function-name}\n<arg_key>{% endif %}",
        _KEYS,
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>\n"
        "<tool_call>clock\n</tool_call>",
    ),
    "glm": Form(
        "{% if tools %}{{ tools | tojson }}{% endif %}"
        '{{ \'observation\' if 0 }}{{ messages[0].get("metadata", "") }}',
        (),
        f"get_weather\n{_ARGUMENTS}",
        None,
        "",
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


@dataclass(frozen=True)
class Answer:
    """What events say, all together."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[CallEvent, ...] = ()

    @classmethod
    def of(cls, events):
        return cls(
            "".join(each.text for each in events if isinstance(each, TextEvent)),
            "".join(each.text for each in events if isinstance(each, ReasoningEvent)),
            tuple(join_events(each for each in events if isinstance(each, CallEvent))),
        )


class Chat:
    """Conversations with one tokenizer, which is written to a folder."""

    def __init__(self, folder, source, tokens=()):
        self.tokenizer = chat_tokenizer(folder, source, tokens)
        self._compiler = GrammarCompiler(folder, self.tokenizer.vocab_size, [0])

    def ask(self, messages=QUESTION, **options):
        made = ChatOptions(**options)
        return prepare_chat(
            self.tokenizer,
            partial(self.tokenizer.encode, add_special=False),
            lambda: self._compiler,
            messages,
            made,
        )

    def accepted(self, text, **options):
        """Returns how much of a text the grammar allows, and whether it may end there."""
        grammar = self.ask(**options).grammar
        tokens = self.tokenizer.encode(text, add_special=False)
        count = grammar.valid(tokens)
        for token in tokens[:count]:
            grammar.advance(token)
        return self.tokenizer.decode(tokens[:count], skip_special=False), bool(grammar.allowed()[0])

    def read(self, text, size=1, **options):
        """Returns what an answer consists of, read in pieces of some size."""
        parser = self.ask(**options).parser
        events = []
        for place in range(0, len(text), size):
            events += parser.push(text[place : place + size])
        calls = [(call.name, call.arguments) for call in parser.calls]
        return Answer.of([*events, *parser.finish()]), calls
