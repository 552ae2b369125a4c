"""The route that reads documents for the chat page."""

from __future__ import annotations

from base64 import b64decode
from binascii import Error
from typing import Annotated

from pydantic import Field

from edgespec.errors import InputError
from edgespec.serve.documents import MOST_BYTES, pdf_text
from edgespec.serve.protocols.fields import Fields, Json
from edgespec.serve.served_model import ServedModel


class PdfRequest(Fields):
    """`POST /pdf`: a file in base64."""

    data: Annotated[str, Field(max_length=MOST_BYTES // 3 * 4 + 8)]


def read_pdf(body: PdfRequest, _model: ServedModel) -> Json:
    """Returns the text of a file; see `documents.pdf_text`.

    Raises:
        InputError: as `pdf_text`.
    """
    try:
        content = b64decode(body.data, validate=True)
    except (Error, ValueError) as error:
        raise InputError("data is not base64: send a file in base64") from error
    return pdf_text(content)
