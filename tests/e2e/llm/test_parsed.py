"""Answers as instances of classes: pydantic's, or others that describe themselves as these do."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Literal

import pytest
from pairs import with_eos
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from servers import PLACE, make_bundle

from edgespec import LLM
from edgespec.errors import InputError
from edgespec.llm.options import GenerationOptions


class Place(BaseModel):
    city: Literal["Rome", "Oslo"]
    days: int = Field(ge=1, le=9)


class Trip(BaseModel):
    places: list[Place] = Field(min_length=1, max_length=2)
    paid: bool


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow")
    city: str = ""


class Strict(Place):
    @field_validator("days")
    @classmethod
    def never(cls, value):
        raise ValueError("no day suits")


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parsed")
    with LLM(with_eos(make_bundle(folder), folder / "ending", 0), **PLACE) as llm:
        yield llm


@pytest.mark.parametrize("seed", range(3))
def test_an_answer_is_an_instance_of_the_class(llm, seed):
    how = {"json_schema": Trip, "temperature": 1.0, "seed": seed}
    result = llm.chat("Where to?", **how)
    assert isinstance(result.parsed, Trip)
    assert result.parsed == Trip.model_validate_json(result.text)
    assert llm.chat("Where to?", draft_source="none", **how).tokens == result.tokens
    stream = llm.stream("Where to?", json_schema=Place)
    assert stream.finish().parsed.city in ("Rome", "Oslo")
    assert llm.generate(["a", "b"], json_schema=Place)[1].parsed.days > 0


def test_only_what_the_class_names_is_written():
    kind, source = GenerationOptions(json_schema=Trip).structure
    schema = json.loads(source)
    assert kind == "json_schema"
    assert schema["additionalProperties"] is False
    assert schema["$defs"]["Place"]["additionalProperties"] is False
    loose = json.loads(GenerationOptions(json_schema=Loose).structure[1])
    assert loose["additionalProperties"] is True


def test_a_text_that_is_no_instance_says_so(llm):
    cut = llm.chat("Where to?", json_schema=Trip, max_tokens=4)
    with pytest.raises(InputError, match=r"only the beginning of a Trip .*raise max_new_tokens"):
        _ = cut.parsed
    refused = llm.chat("Where to?", json_schema=Strict)
    assert Place.model_validate_json(refused.text)
    with pytest.raises(ValidationError, match="no day suits"):
        _ = refused.parsed
    assert llm.chat("Where to?", json_schema=Place.model_json_schema(), max_tokens=4).parsed is None


class Odd(BaseModel):
    what: type


@pytest.mark.parametrize(
    ("given", "message"),
    [(Odd, "json_schema is Odd, of which there is no schema"), (dict, "json_schema is <class")],
)
def test_classes_that_describe_nothing_are_refused(llm, given, message):
    with pytest.raises(InputError, match=message):
        llm.chat("Where to?", json_schema=given)


PROGRAM = """
import sys
sys.modules["pydantic"] = None  # as where it is not installed
from edgespec import LLM

class Own:
    @classmethod
    def model_json_schema(cls):
        return {"type": "boolean"}

    @classmethod
    def model_validate_json(cls, text):
        return text == "true"

print(LLM(threads=1).generate("Is it so? ", json_schema=Own).parsed)
"""


def test_pydantic_need_not_be_installed(tmp_path):
    command = [sys.executable, "-P", "-c", PROGRAM]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.stdout.strip() in ("True", "False"), run.stderr
