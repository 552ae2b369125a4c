"""Fields that other servers know and this one does not, as far as they ask for another text.

With a value that asks for nothing they are taken, as clients send them; any other is refused, since
the text would not be what was asked for. Fields that change no text are passed over, see `Fields`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from edgespec.serve.protocols.fields import UNSUPPORTED, Fields, Json


@dataclass(frozen=True, eq=False)  # 0 is equal to False, and typing would take one for the other
class Neutral:
    """Marks a field that is not supported.

    Attributes:
        values: what asks for nothing, besides null.
    """

    values: tuple[Any, ...] = ()

    def __get_pydantic_core_schema__(
        self, _source: Any, _handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """See pydantic."""
        return core_schema.no_info_plain_validator_function(self._checked)

    def __get_pydantic_json_schema__(
        self, _schema: CoreSchema, _handler: GetJsonSchemaHandler
    ) -> Json:
        """See pydantic."""
        return {"enum": [None, *self.values]}

    def _checked(self, value: Any) -> Any:
        alike = (each for each in self.values if isinstance(each, bool) == isinstance(value, bool))
        if value is None or value in alike:
            return value
        raise PydanticCustomError(UNSUPPORTED, "It is not supported here")


NoValue = Annotated[Any, Neutral()]
NeutralOne = Annotated[Any, Neutral((1,))]
NeutralZero = Annotated[Any, Neutral((0,))]
_Off = Annotated[Any, Neutral((False,))]
_On = Annotated[Any, Neutral((True,))]
_Nothing = Annotated[Any, Neutral(([], {}, ""))]
_NotAbove0 = Annotated[float, Field(le=0)]


class UnsupportedFields(Fields):
    """What a request for a text may not ask for."""

    # Samplers of llama.cpp's server.
    dynatemp_range: NeutralZero = None
    adaptive_target: _NotAbove0 | None = None
    grammar_lazy: _Off = None
    n_cmpl: NeutralOne = None
    # vLLM's.
    use_beam_search: _Off = None
    min_tokens: NeutralZero = None
    ignore_eos: _Off = None
    stop_token_ids: _Nothing = None
    include_stop_str_in_output: _Off = None
    skip_special_tokens: _On = None
    truncate_prompt_tokens: NoValue = None
    allowed_token_ids: _Nothing = None
    bad_words: _Nothing = None
    logits_processors: _Nothing = None
    structured_outputs: _Nothing = None
    guided_json: _Nothing = None
    guided_regex: _Nothing = None
    guided_choice: _Nothing = None
    guided_grammar: _Nothing = None
    chat_template: _Nothing = None
    documents: _Nothing = None
    prompt_embeds: _Nothing = None
