"""The format of an answer in the bodies of OpenAI's API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from edgespec.server.fields import Fields
from edgespec.server.refusals import RequestError, shown


class JsonSchema(Fields):
    """A JSON schema in OpenAI's format. It is always enforced, whatever `strict` is."""

    name: str | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None


class ResponseFormat(Fields):
    """The format of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @property
    def structure(self) -> dict[str, Any]:
        """The generation option for this format.

        Raises:
            RequestError: if a schema is given with another type than json_schema, or is missing
                with that type.
        """
        if (self.json_schema is not None) != (self.type == "json_schema"):
            raise RequestError(
                400, f"response_format.type is {shown(self.type)}: give json_schema with the type "
                "'json_schema' and with no other", param="response_format",
            )  # fmt: skip
        if self.json_schema is not None:
            return {"json_schema": self.json_schema.schema_}
        return {"json_schema": {"type": "object"}} if self.type == "json_object" else {}
