"""Type hints of Python as JSON schemas."""

from __future__ import annotations

from typing import Any

import pytest

from edgespec.errors import InputError
from edgespec.runtime.text.schema.hints import hint_schema


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (Any, {}),
        (int | str, {"type": ["integer", "string"]}),
        (tuple[int, str], {
            "type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}],
            "minItems": 2, "maxItems": 2,
        }),
        (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}),
        (set[str], {"type": "array", "items": {"type": "string"}}),
        (list, {"type": "array", "items": {}}),
    ],
    ids=str,
)  # fmt: skip
def test_types_become_schemas(hint, schema):
    assert hint_schema(hint, "parameter value") == schema


def test_a_type_that_json_lacks_is_named_with_its_place():
    with pytest.raises(InputError, match=r"^parameter value has the type <class 'bytes'>"):
        hint_schema(list[bytes], "parameter value")
