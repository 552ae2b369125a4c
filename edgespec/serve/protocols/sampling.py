"""How texts are sampled: fields of bodies, with the ranges and helps of `GenerationOptions`."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from edgespec.runtime.sampling.options import LEAST_TEMPERATURE
from edgespec.serve.protocols.fields import Fields, Int, Json, Stop, Unset, option_field

SEEDS = 1 << 64

_LAST_TOKENS = 64  # default of `repeat_last_n` in llama.cpp and Ollama

# Where -1 switches something off, as in vLLM.
_From0 = AfterValidator(lambda value: max(value, 0))


class Sampling(Fields):
    """What every body may say of sampling."""

    stop: Stop | None = None
    seed: Annotated[Int, Field(ge=-1, lt=SEEDS), Unset] | None = None
    temperature: Annotated[float, option_field("temperature")] | None = None
    top_p: Annotated[float, option_field("top_p")] | None = None
    top_k: Annotated[Int, Field(ge=-1), _From0] | None = None
    min_p: Annotated[float, option_field("min_p")] | None = None

    @property
    def sampling(self) -> Json:
        """The options of sampling that are given, and what ends the text."""
        found = self.given("stop", "seed", "temperature", "top_p", "top_k", "min_p")
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
