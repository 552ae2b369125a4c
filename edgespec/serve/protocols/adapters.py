"""Scales of adapters: of one text, and of all that do not say (`POST /lora-adapters`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import ConfigDict, Field, RootModel

from edgespec.serve.protocols.fields import LONG, Fields, Int, Json
from edgespec.serve.refusals import RequestError, shorten_value
from edgespec.serve.served_model import ServedModel


class AdapterScale(Fields):
    """An adapter of a text, as llama.cpp's server has it: by its number, or here by its name."""

    id: Annotated[Int, Field(ge=0)] | str
    scale: float


class AdapterScales(RootModel[Annotated[list[AdapterScale], LONG]]):
    """`POST /lora-adapters`, as llama.cpp's server has it: adapters that are left out get 0."""

    model_config = ConfigDict(strict=True)


def scales_by_name(
    asked: Sequence[AdapterScale], names: Sequence[str], param: str | None = None
) -> Mapping[str, float]:
    """Returns scales by the names of the adapters.

    Args:
        asked: the adapters and their scales.
        names: those that are loaded, by their numbers.
        param: the field that names them; None: the whole body does.

    Raises:
        RequestError: if there is no such adapter.
    """
    found = dict[str, float]()
    for each in asked:
        known = each.id in names if isinstance(each.id, str) else each.id < len(names)
        if not known:
            remedy = f"use a number below {len(names)}, or one of {', '.join(names)}"
            raise RequestError(
                400,
                f"there is no adapter {shorten_value(each.id)}: "
                f"{remedy if names else 'start the server with --lora'}",
                param=param,
            )
        found[each.id if isinstance(each.id, str) else names[each.id]] = each.scale
    return found


def set_scales(body: AdapterScales, model: ServedModel) -> Json:
    """Sets the scales of texts that do not say.

    Raises:
        InputError: if a scale is out of range.
        RequestError: if there is no such adapter.
    """
    model.rescale(scales_by_name(body.root, [each.name for each in model.adapters]))
    return {"success": True}
