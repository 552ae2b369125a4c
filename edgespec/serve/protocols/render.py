"""The route that renders answers for the chat page, which has no renderer of its own."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from edgespec.serve.markdown import rendered
from edgespec.serve.protocols.fields import Fields, Json
from edgespec.serve.served_model import ServedModel

_LONGEST = 50_000  # characters of a text


class RenderRequest(Fields):
    """`POST /render`: the text of an answer, as far as it has come."""

    text: Annotated[str, Field(max_length=_LONGEST)]


def render(body: RenderRequest, _model: ServedModel) -> Json:
    """Returns the blocks of an answer; see `markdown.blocks`."""
    return {"blocks": rendered(body.text)}
