"""What a model's authors ask for, from their files to the options of a conversation."""

from __future__ import annotations

import json
import logging
import math
import shutil
from dataclasses import replace

import pytest
from checkpoints import make_checkpoint
from commandline import FAST

from edgespec import LLM, bundle, export
from edgespec.errors import BundleError
from edgespec.export import ExportOptions
from edgespec.llm.options import USUAL_SAMPLING, conversational, in_conversation
from edgespec.models.fields import ConfigFields
from edgespec.models.sampling import asked_sampling, gguf_sampling

QWEN = {
    "do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05,
    "eos_token_id": [3], "transformers_version": "4.44.0",
}  # fmt: skip
ASKED = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05}


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        ({"eos_token_id": 2}, None),
        (QWEN, ASKED),
        ({"do_sample": False, "temperature": 0.6, "top_p": 0.9}, {"temperature": 0}),
        (
            {"do_sample": False, "repetition_penalty": 1.1},
            {"temperature": 0, "repetition_penalty": 1.1},
        ),
        ({"do_sample": True}, {"temperature": 1, "top_k": 50}),
        ({"top_k": 64, "top_p": 0.95}, {"temperature": 1, "top_k": 64, "top_p": 0.95}),
        ({"temperature": 0.6, "top_k": -1}, {"temperature": 0.6, "top_k": 0}),
        ({"repetition_penalty": 1.3}, {"repetition_penalty": 1.3}),
        ({"temperature": "warm", "top_p": True, "min_p": None}, None),
    ],
)
def test_generation_config(generation, expected):
    assert asked_sampling(ConfigFields(generation, "generation_config.json")) == expected


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({}, {}),
        ({"temp": 0.6, "top_k": 20}, {"temperature": 0.6, "top_k": 20}),
        ({"penalty_repeat": 1.1}, {"repetition_penalty": 1.1, "repeat_last_n": 64}),
        (
            {"penalty_repeat": 1.1, "penalty_last_n": 32},
            {"repetition_penalty": 1.1, "repeat_last_n": 32},
        ),
        (
            {"temp": 0.5, "top_k": 20, "min_p": 0.1, "sequence": "top-k;temperature"},
            {"temperature": 0.5, "top_k": 20, "top_p": 1, "min_p": 0},
        ),
        ({"temp": float("nan")}, {}),
    ],
)  # fmt: skip
def test_gguf_keys(metadata, expected):
    named = {f"general.sampling.{name}": value for name, value in metadata.items()}
    assert gguf_sampling(ConfigFields(named, "m.gguf")) == pytest.approx(expected)


@pytest.mark.parametrize(
    "sampling",
    [
        {"mirostat": 2.0, "mirostat_tau": 4.0, "mirostat_eta": 0.2, "temperature": 1.0},
        {"xtc_probability": 0.5, "xtc_threshold": 0.2, "temperature": 0.9},
    ],
)
def test_further_samplers_of_a_gguf_file_are_those_of_a_conversation(sampling):
    named = {f"general.sampling.{name}": value for name, value in sampling.items()}
    named["general.sampling.temp"] = named.pop("general.sampling.temperature")
    fields = gguf_sampling(ConfigFields(named, "m.gguf"))
    found = asked_sampling(ConfigFields(fields, "generation_config.json"))
    assert conversational(found) == sampling | {"top_k": 50}
    used = {**named, "general.sampling.sequence": "top_k;temperature"}
    assert "xtc_probability" not in gguf_sampling(ConfigFields(used, "m.gguf"))


def test_what_is_asked_for_goes_before_what_is_usual():
    assert conversational(None) == USUAL_SAMPLING
    assert conversational(ASKED) == ASKED
    assert conversational({"repetition_penalty": 1.3}) == USUAL_SAMPLING | {
        "repetition_penalty": 1.3
    }


def test_what_makes_no_sense_is_left_out(caplog):
    with caplog.at_level(logging.WARNING, "edgespec"):
        found = conversational({"temperature": 0.5, "top_p": -3.0, "warmth": 2.0})
    assert found == {"temperature": 0.5}
    assert "top_p is -3" in caplog.text
    assert "warmth" in caplog.text


def test_what_is_given_goes_before_all():
    assert in_conversation(ASKED, {"top_p": 0.5}) == ASKED | {"top_p": 0.5}
    assert in_conversation(ASKED, {"temperature": 0, "seed": 1}) == {"temperature": 0, "seed": 1}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("asked")
    make_checkpoint(folder / "checkpoint", "llama")
    (folder / "checkpoint" / "generation_config.json").write_text(json.dumps(QWEN))
    export.make(folder / "checkpoint", folder / "bundle", options=ExportOptions("fp32"))
    return folder / "bundle"


def test_a_bundle_says_what_its_authors_ask_for(made, cli):
    assert bundle.load(made).manifest.sampling == pytest.approx(ASKED)
    shown = " ".join(cli("inspect", made).out.split())
    assert "temperature 0.7" in shown
    assert "as the authors ask" in shown


def test_a_chat_is_sampled_as_they_ask(made, cli):
    with LLM(made, threads=1, draft="none") as llm:
        assert llm.sampling == ASKED
        usual = llm.generate("def", max_new_tokens=12).text
        expected = llm.generate("def", max_new_tokens=12, seed=5, **llm.sampling).text
    options = ["-n", "12", "--seed", "5", "--draft", "none", *FAST]
    assert cli("chat", made, *options, stdin=b"def\n").out == f"{expected}\n"
    greedy = cli("chat", made, *options, "--temperature", "0", stdin=b"def\n").out
    assert greedy == f"{usual}\n"


def test_a_manifest_of_infinities_is_refused(made, tmp_path):
    opened = bundle.load(made)
    folder = tmp_path / "bundle"
    shutil.copytree(made, folder)
    wrong = replace(opened.manifest, sampling={"temperature": math.inf})
    bundle.save_manifest(folder, wrong)
    with pytest.raises(BundleError, match=r"sampling\.temperature is inf"):
        bundle.load(folder)
