"""What a target is asked, so that it writes the texts that a head learns from.

The built-in mix has prompts of five kinds, each made of parts by its number, so that no two are the
same for long.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgespec.runtime.text.tokenizer import Tokenizer

MIX = CODE, CHAT, PROSE, JSON, TOOLS = ("code", "chat", "prose", "json", "tools")
"""Kinds of texts that the built-in prompts ask for."""


@dataclass(frozen=True)
class Prompt:
    """A prompt.

    Attributes:
        kind: what kind of text it asks for.
        text: the prompt.
        chat: whether it is a user's message, and not the beginning of a text.
        tools: functions that may be called.
        ids: its tokens, in place of the text.
    """

    kind: str
    text: str
    chat: bool = True
    tools: tuple[Mapping[str, Any], ...] = ()
    ids: tuple[int, ...] = ()

    def tokens(self, tokenizer: Tokenizer) -> list[int]:
        """Returns the prompt as a model reads it; one without a template reads the text alone."""
        text = self.text
        if self.ids:
            return list(self.ids)
        if not self.chat or not tokenizer.has_chat_template:
            return tokenizer.encode(text)
        given = [{"type": "function", "function": each} for each in self.tools]
        if given and "tools" not in tokenizer.chat_source:
            text = f"You can call these functions:\n{json.dumps(given, indent=1)}\n\n{text}"
            given = []
        message = {"role": "user", "content": text}
        return tokenizer.encode(tokenizer.chat([message], tools=given or None), add_special=False)


def mixed_prompt(number: int) -> Prompt:
    """Returns a prompt of the built-in mix; the same one for the same number."""
    draw = random.Random(number)
    kind = MIX[number % len(MIX)]
    if kind == TOOLS:
        chosen = draw.sample(_PARTS["functions"], draw.randint(1, 3))
        asked = draw.choice(chosen)["asked"]
        return Prompt(kind, _filled(asked, draw), tools=tuple(map(_described, chosen)))
    begun = _PARTS["begun"].get(kind, [])
    form = draw.choice(_PARTS["asked"][kind] + begun)
    return Prompt(kind, _filled(form, draw), chat=form not in begun)


def _filled(form: str, draw: random.Random) -> str:
    """Returns a form whose {names} are replaced by parts that are drawn."""
    return re.sub(r"{(\w+)}", lambda name: draw.choice(_PARTS["parts"][name[1]]), form)


def _described(function: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a function as tools are described."""
    name = function["name"]
    properties = {each: {"type": kind} for each, kind in function["parameters"].items()}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"name": name, "description": name.replace("_", " "), "parameters": schema}


_PARTS = json.loads(Path(__file__).with_name("prompts.json").read_text("utf-8"))
