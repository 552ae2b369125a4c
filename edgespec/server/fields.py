"""What the fields of a body may hold."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

# Of long lists the first wrong item is told: an error for each would take seconds.
LONG = Field(fail_fast=True)
SOME = Field(min_length=1, fail_fast=True)

Count = Annotated[int, Field(ge=1)]
Unlimited = Literal[-1]  # llama.cpp's, for as many tokens as there is room for
One = Annotated[int, Field(ge=1, le=1)]  # a literal would also be true
Nothing = Annotated[float, Field(ge=0, le=0)]
Empty = Annotated[list[Any], Field(max_length=0)]
Text = Annotated[str, Field(min_length=1)]
Tokens = Annotated[list[int], SOME]


class Fields(BaseModel):
    """JSON as it is: no text for a number, no field that nobody reads."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def _off(value: bool) -> bool:
    if value:
        raise PydanticCustomError("on", "Input should be false")
    return value


# As with `One`: a literal would also be 0.
Off = Annotated[bool, AfterValidator(_off), WithJsonSchema({"type": "boolean", "const": False})]


def unset(value: int | None) -> int | None:
    """None for -1: llama.cpp's and vLLM's clients write it where OpenAI's leave a number out."""
    return None if value == -1 else value


Unset = AfterValidator(unset)
