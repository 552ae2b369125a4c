"""How texts are sampled: fields of bodies, with the ranges and helps of `GenerationOptions`."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field

from edgespec.runtime.sampling.options import LEAST_TEMPERATURE
from edgespec.serve.protocols.fields import (
    LONG,
    Fields,
    Int,
    Json,
    Stop,
    Text,
    Unset,
    option_field,
)

SEEDS = 1 << 64

_LAST_TOKENS = 64  # default of `repeat_last_n` in llama.cpp and Ollama

# Where -1 switches something off, as in vLLM.
_From0 = AfterValidator(lambda value: max(value, 0))
# As in llama.cpp.
_UsualBelow1 = AfterValidator(lambda value: value if value >= 1 else None)


def _listed(value: Any) -> Any:
    """Returns texts that some clients send as JSON in a string, with or without brackets."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value if value.lstrip().startswith("[") else f"[{value}]")
    except (ValueError, RecursionError):
        return [value]


_Breakers = Annotated[
    list[Text],
    Field(max_length=64),
    LONG,
    BeforeValidator(_listed, json_schema_input_type=str | list[str]),
]


class Sampling(Fields):
    """What every body may say of sampling; a field is called like the option that it gives.

    Names besides OpenAI's are llama.cpp's, or KoboldCpp's and text-generation-webui's.
    """

    stop: Stop | None = None
    seed: Annotated[Int, Field(ge=-1, lt=SEEDS), Unset] | None = None
    temperature: Annotated[float, option_field("temperature")] | None = None
    top_p: Annotated[float, option_field("top_p")] | None = None
    top_k: Annotated[Int, Field(ge=-1), _From0] | None = None
    min_p: Annotated[float, option_field("min_p")] | None = None
    typical_p: Annotated[
        Annotated[float, option_field("typical_p")] | None,
        Field(validation_alias=AliasChoices("typical_p", "typical")),
    ] = None
    top_n_sigma: Annotated[
        Annotated[float, _From0] | None,
        Field(validation_alias=AliasChoices("top_n_sigma", "nsigma")),
    ] = None
    xtc_probability: Annotated[float, option_field("xtc_probability")] | None = None
    xtc_threshold: Annotated[float, option_field("xtc_threshold")] | None = None
    mirostat: Annotated[
        Annotated[Int, option_field("mirostat")] | None,
        Field(validation_alias=AliasChoices("mirostat", "mirostat_mode")),
    ] = None
    mirostat_tau: Annotated[float, option_field("mirostat_tau")] | None = None
    mirostat_eta: Annotated[float, option_field("mirostat_eta")] | None = None
    dry_multiplier: Annotated[float, option_field("dry_multiplier")] | None = None
    dry_base: Annotated[float, Field(ge=0, le=100), _UsualBelow1] | None = None
    dry_allowed_length: Annotated[Int, option_field("dry_allowed_length")] | None = None
    dry_penalty_last_n: Annotated[Int, option_field("dry_penalty_last_n")] | None = None
    dry_sequence_breakers: _Breakers | None = None

    @property
    def sampling(self) -> Json:
        """The options of sampling that are given, and what ends the text."""
        found = self.given(*Sampling.model_fields)
        if found.get("temperature", 1.0) < LEAST_TEMPERATURE:
            found["temperature"] = 0.0  # some clients, such as ragas, send 1e-8 for 0
        return found

    def given(self, *names: str) -> Json:
        """Returns which of some fields are given, and not null."""
        return {name: value for name in names if (value := getattr(self, name)) is not None}


class PenalizedSampling(Sampling):
    """Sampling with penalties, which count the last tokens of prompt and text in some APIs."""

    frequency_penalty: Annotated[float, option_field("frequency_penalty")] | None = None
    presence_penalty: Annotated[float, option_field("presence_penalty")] | None = None
    # llama.cpp's and Ollama's names.
    repeat_penalty: Annotated[float, option_field("repetition_penalty")] | None = None
    repeat_last_n: Annotated[Int, option_field("repeat_last_n")] | None = None

    @property
    def sampling(self) -> Json:
        """See `Sampling`."""
        found = self.given("frequency_penalty", "presence_penalty", "repeat_last_n")
        if self.repeat_penalty is not None:
            found["repetition_penalty"] = self.repeat_penalty
        if self._are_of_last_tokens:
            found.setdefault("repeat_last_n", _LAST_TOKENS)
        return super().sampling | found

    @property
    def _are_of_last_tokens(self) -> bool:
        """Whether penalties count the last tokens alone though the request does not say so."""
        return self.repeat_penalty is not None
