"""Exports with a draft that has another tokenizer."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
from commandline import FAST
from foreign import ForeignPairs
from manifests import changed, manifest_of, refused

from edgespec import LLM
from edgespec import bundle as bundles
from edgespec.bundle import DRAFT_TOKENIZER, MANIFEST
from edgespec.errors import BundleError


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    return ForeignPairs(tmp_path_factory.mktemp("foreign"))


@pytest.fixture
def pair(foreign, tmp_path):
    return shutil.copytree(foreign.path("permuted"), tmp_path / "pair")


def test_the_drafts_tokenizer_is_part_of_the_bundle(foreign, pair):
    found = bundles.load(pair)
    assert found.draft.tokenizer == DRAFT_TOKENIZER
    assert found.target.tokenizer == ""
    source = foreign.path("permuted").parent / "draft" / "tokenizer.json"
    assert (pair / DRAFT_TOKENIZER).read_text("utf-8") == source.read_text("utf-8")
    assert DRAFT_TOKENIZER in found.manifest.files
    (pair / DRAFT_TOKENIZER).unlink()
    refused(pair, f"file '{DRAFT_TOKENIZER}' is missing")


def test_where_the_tokens_are_the_same_nothing_is_added(exported):
    assert not (exported / DRAFT_TOKENIZER).exists()
    assert all("tokenizer" not in role for role in manifest_of(exported)["roles"].values())


def test_only_a_draft_has_a_tokenizer_of_its_own(pair):
    text = (pair / MANIFEST).read_text()
    for place, value, part in (
        ("target", "tokenizer.json", "manifest.roles.target.tokenizer is 'tokenizer.json'"),
        ("draft", "../a", "'../a' is used but not listed"),
        ("draft", 3, "manifest.roles.draft.tokenizer: expected str, found 3"),
    ):
        (pair / MANIFEST).write_text(changed(text, f"roles.{place}.tokenizer", value))
        refused(pair, part)


def test_a_tokenizer_whose_tokens_are_not_bytes_is_refused(pair):
    whole = bundles.load(pair).manifest
    content = json.loads((pair / DRAFT_TOKENIZER).read_text())
    (pair / DRAFT_TOKENIZER).write_text(json.dumps({**content, "decoder": None}))
    manifest = replace(whole, files=bundles.describe_files(pair))
    bundles.save_manifest(pair, manifest)
    with pytest.raises(BundleError, match="decodes by nothing, so its tokens are not known"):
        LLM(pair, draft="model")
    LLM(pair, draft="none").close()  # which does not read it


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("permuted", "(byte-level): its words and the target's overlap by 100%, so shared"),
        ("greek", "(SentencePiece): its words and the target's overlap by 0%, so drafts are"),
    ],
)
def test_export_and_inspect_say_so_in_one_line(cli, foreign, output, name, shown):
    source = foreign.path(name).parent
    found = cli(
        "export",
        source / "target",
        "--draft",
        source / "draft",
        "-o",
        output,
        "--precision",
        "fp32",
    )
    assert found.code == 0, found.err
    assert found.err == ""
    [line] = [line for line in found.out.splitlines() if "tokenizer" in line]
    assert line.startswith("the draft has a tokenizer of its own")
    assert shown in line
    assert shown in " ".join(cli("inspect", output).out.split())
    assert cli("run", output, "x", "-n", 4, *FAST).code == 0
