"""Types of the fields in request bodies."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

# Validation of a list stops at its first wrong item: an error for each could take seconds.
LONG = Field(fail_fast=True)
SOME = Field(min_length=1, fail_fast=True)

Count = Annotated[int, Field(ge=1)]
Unlimited = Literal[-1]  # as in llama.cpp: as many tokens as fit
One = Annotated[int, Field(ge=1, le=1)]  # a literal would also accept true
Nothing = Annotated[float, Field(ge=0, le=0)]
Empty = Annotated[list[Any], Field(max_length=0)]
Text = Annotated[str, Field(min_length=1)]
Tokens = Annotated[list[int], SOME]


class Fields(BaseModel):
    """Base of all bodies: unknown fields are errors, and types are not converted."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Noted(Fields):
    """Base of what may hold notes of a client's: unknown fields are passed over."""

    model_config = ConfigDict(extra="ignore")


def _off(value: bool) -> bool:
    if value:
        raise PydanticCustomError("on", "Input should be false")
    return value


# As with `One`: a literal would also accept 0.
Off = Annotated[bool, AfterValidator(_off), WithJsonSchema({"type": "boolean", "const": False})]


def unset(value: int | None) -> int | None:
    """Turns -1 into None: clients of llama.cpp and vLLM send -1 for a missing number."""
    return None if value == -1 else value


Unset = AfterValidator(unset)
