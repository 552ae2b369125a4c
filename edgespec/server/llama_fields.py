"""Fields that clients of llama.cpp's server send with every request."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from edgespec.server.fields import Empty, Fields, Nothing

_Neutral = Annotated[float, Field(ge=1, le=1)]


class LlamaFields(Fields):
    """Samplers that are not implemented, which must be off, and fields that have no effect."""

    repeat_penalty: _Neutral | None = None
    typical_p: _Neutral | None = None
    dynatemp_range: Nothing | None = None
    xtc_probability: Nothing | None = None
    dry_multiplier: Nothing | None = None
    mirostat: Nothing | None = None
    lora: Empty | None = None
    # What only matters to these samplers.
    repeat_last_n: int | None = None
    dynatemp_exponent: float | None = None
    xtc_threshold: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    min_keep: int | None = None
    # Samplers have a fixed order here, and slots are chosen by what they hold.
    samplers: list[str] | str | None = None
    id_slot: int | None = None
    timings_per_token: bool | None = None
