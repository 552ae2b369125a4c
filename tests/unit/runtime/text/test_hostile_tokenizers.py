"""Tokenizers of strangers: ids that no model has, and rules without end, are refused at load."""

from __future__ import annotations

import json
import random
import shutil

import pytest
from backends import byte_level
from checkpoints import edit_json
from damage import TIMES

from edgespec import bundle as bundles
from edgespec.errors import BundleError, InputError, caught_panics
from edgespec.models.embedded import BUNDLE
from edgespec.runtime.text.tokenizer import Tokenizer

FILES = 300 * TIMES
SEED = 49


def saved(folder, change):
    content = json.loads(byte_level().to_str())
    change(content)
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


def refused(folder, change, reason="is damaged"):
    with pytest.raises(BundleError, match=reason) as caught:
        Tokenizer.from_folder(saved(folder, change))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def split(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def replacements(pattern, text, count):
    each = {"type": "Replace", "pattern": pattern, "content": text}
    return {"type": "Sequence", "normalizers": [each] * count}


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+$", "(a|a)*$", "(x+x+)+y", r"(\w+\s?)*$", "([a-zA-Z]+)*$", "(ab|ab)*c", "(é+)+$", "(a"],
)
def test_patterns_without_end(tmp_path, pattern):
    place = random.Random(pattern).choice(["pre_tokenizer", "normalizer", "decoder"])

    def change(content):
        if place == "pre_tokenizer":
            content[place] = split(pattern)
        else:
            content[place] = {"type": "Replace", "pattern": {"Regex": pattern}, "content": ""}

    refused(tmp_path, change)


@pytest.mark.parametrize(
    ("pattern", "text", "count"),
    [
        ({"String": "a"}, "aa", 40),
        ({"String": "q"}, "q" * 1000, 1),
        ({"Regex": "[b-y]"}, "xx", 30),
        ({"Regex": "(?=.)"}, "x" * 600, 1),
        ({"String": ""}, "aa", 1),
    ],
)
def test_replacements_that_grow(tmp_path, pattern, text, count):
    refused(tmp_path, lambda content: content.update(normalizer=replacements(pattern, text, count)))


def test_a_text_that_is_put_before_all_is_short(tmp_path):
    refused(tmp_path, lambda content: content.update(normalizer=prepended("x" * 1000)))
    Tokenizer.from_folder(
        saved(tmp_path, lambda content: content.update(normalizer=prepended("▁")))
    )


def prepended(text):
    return {"type": "Prepend", "prepend": text}


def test_templates_that_add_without_end(tmp_path):
    token = {"id": "x", "ids": [1] * 100, "tokens": ["x"] * 100}

    def change(content):
        content["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "x", "type_id": 0}}] * 11,
            "pair": [],
            "special_tokens": {"x": token},
        }

    refused(tmp_path, change, "adds 1100 tokens to a text")


def test_what_usual_tokenizers_do_is_fine(tmp_path):
    def change(content):
        content["pre_tokenizer"] = split(
            r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|\s+(?!\S)"
        )
        content["normalizer"] = replacements({"String": " "}, "▁", 3)

    assert Tokenizer.from_folder(saved(tmp_path, change)).encode("a b")


@pytest.mark.parametrize("id_", [331, 4096, 2**24, 2**31, 2**32 - 1])
@pytest.mark.parametrize("gap", [False, True])
def test_ids_that_the_model_lacks(bundle, id_, gap):
    def change(content):
        vocabulary = content["model"]["vocab"]
        if gap:
            merged = "".join(map("".join, content["model"]["merges"]))
            del vocabulary[next(each for each in vocabulary if each not in merged)]
        vocabulary["strange"] = max(id_, bundles.load(BUNDLE).target.vocab_size)

    changed(bundle, change)
    with pytest.raises(BundleError, match=r"its tokenizer has a token \d+, but the model has"):
        Tokenizer.of(bundles.load(bundle))


def test_ids_around_a_text_that_the_model_lacks(bundle):
    def change(content):
        content["post_processor"] = {
            "type": "TemplateProcessing",
            "pair": [],
            "single": [
                {"SpecialToken": {"id": "<q>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "special_tokens": {"<q>": {"id": "<q>", "ids": [70_000_000], "tokens": ["<q>"]}},
        }

    changed(bundle, change)
    with pytest.raises(BundleError, match="has a token 70000000, but"):
        Tokenizer.of(bundles.load(bundle))


def changed(bundle, change):
    content = json.loads((bundle / "tokenizer.json").read_text())
    change(content)
    (bundle / "tokenizer.json").write_text(json.dumps(content))
    files = json.loads((bundle / "manifest.json").read_text())["files"]
    entry = bundles.describe_file(bundle / "tokenizer.json")
    files["tokenizer.json"] = {"size": entry.size, "sha256": entry.sha256}
    edit_json(bundle / "manifest.json", files=files)


@pytest.fixture
def bundle(tmp_path):
    return shutil.copytree(BUNDLE, tmp_path / "bundle")


def test_panics_are_errors_of_the_text(tmp_path):
    hidden = split(r"(?:[\x{4e00}]|\x{4e00})*$")  # which no trial finds
    tokenizer = Tokenizer.from_folder(
        saved(tmp_path, lambda each: each.update(pre_tokenizer=hidden))
    )
    assert tokenizer.encode("a")
    with pytest.raises(InputError, match=r"the tokenizer cannot read this text: .*limit"):
        tokenizer.encode("\u4e00" * 64 + "a")
    with pytest.raises(KeyboardInterrupt), caught_panics():
        raise KeyboardInterrupt


def prefixed(content):
    content["model"]["continuing_subword_prefix"] = "a prefix"


def undefined(content):
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "pair": [],
        "special_tokens": {},
        "single": [{"SpecialToken": {"id": "<q>", "type_id": 0}}],
    }


@pytest.mark.parametrize(("change", "reason"), [(prefixed, "a prefix"), (undefined, "<q>")])
def test_what_the_library_panics_at_is_refused_without_its_lines(tmp_path, capfd, change, reason):
    refused(tmp_path, change, reason)
    assert capfd.readouterr().err == ""


def test_no_damaged_tokenizer_does_harm(tmp_path):
    """Damaged files are refused in one line, or read: then they encode, or refuse a text."""
    chance = random.Random(SEED)
    refusals = 0
    lines = set()
    intact = byte_level().to_str().encode()
    for _ in range(FILES):
        content = bytearray(intact)
        for _ in range(chance.choice([1, 3, 10])):
            place = chance.randrange(len(content))
            match chance.randrange(3):
                case 0:
                    content[place] = chance.randrange(32, 127)
                case 1:
                    del content[place : place + chance.randrange(1, 9)]
                case 2:
                    content[place:place] = chance.choice([b"9", b"-", b'"', b"[", b"null"])
        (tmp_path / "tokenizer.json").write_bytes(content)
        try:
            Tokenizer.from_folder(tmp_path).encode("a text")
        except (BundleError, InputError) as error:
            refusals += 1
            lines.add(len(str(error).splitlines()))
    assert lines == {1}
    assert FILES // 4 < refusals < FILES
