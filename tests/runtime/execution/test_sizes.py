"""Tests of the sizes of a role's stages, and of what engines derive from them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cuts import EMBEDDED
from manifests import manifest_of
from parity import made

from edgespec import bundle as bundles
from edgespec.bundle import DRAFT, TARGET
from edgespec.export import ExportOptions, export_bundle
from edgespec.runtime.engines import CPU_ENGINES, CallSizes, engine
from edgespec.runtime.execution.sizes import stage_sizes

"""As of a bundle from before: whether the output projection is the embedding is guessed."""


def test_sizes_of_a_stage_come_from_the_manifest():
    [target], [draft] = (stage_sizes(EMBEDDED, role) for role in (TARGET, DRAFT))
    assert (target.hidden, target.intermediate, target.vocab) == (256, 768, 4096)
    assert target.tied
    assert target.matmul_bytes == role_bytes()
    assert target.embedding_bytes == vocabulary_bytes(bits=8)
    assert target.result_bytes == 4 * 4096
    assert draft.result_bytes == 128 * (8 + 4) + 4
    role = EMBEDDED.target
    for precision, nbytes in (("fp16", 2), ("fp32", 4)):
        stored = replace(role.precision, scales=precision)
        sizes = sizes_as(replace(role, precision=stored), role_bytes())
        assert sizes.scale_bytes == nbytes


@pytest.mark.parametrize(("precision", "bits"), [("int8", 8), ("fp16", 16), ("fp32", 32)])
def test_the_vocabulary_has_a_precision_of_its_own(precision, bits):
    role = EMBEDDED.target
    sizes = sizes_as(
        replace(role, precision=replace(role.precision, lm_head=precision)), 50_000_000
    )
    floats = precision.startswith("fp")
    expected = 4096 * 256 * bits // 8 if floats else vocabulary_bytes(bits)
    assert (sizes.embedding_bytes, sizes.matmul_bytes) == (expected, 50_000_000)


def vocabulary_bytes(bits):
    """Bytes of the embedded target's tied matrix, with a float16 scale for each block."""
    precision = EMBEDDED.target.precision
    assert (precision.block_size, precision.scales) == (128, "fp16")
    return 4096 * 256 * bits // 8 + 4096 * 256 // 128 * 2


def sizes_as(role, size):
    """Sizes of the target's single stage, if the target were this role with so many bytes."""
    data = replace(EMBEDDED.manifest.files["target.data"], size=size)
    files = {**EMBEDDED.manifest.files, "target.data": data}
    roles = {**EMBEDDED.manifest.roles, TARGET: role}
    manifest = replace(EMBEDDED.manifest, roles=roles, files=files)
    [sizes] = stage_sizes(replace(EMBEDDED, manifest=manifest), TARGET)
    return sizes


def role_bytes():
    return EMBEDDED.manifest.files["target.data"].size


# Tied and untied checkpoints


@pytest.fixture(scope="module", params=["fp16", "fp32"])
def tied_and_untied(request, tmp_path_factory):
    """Bundles of models that differ only in whether the output projection is the embedding."""
    folder, found = tmp_path_factory.mktemp("ties"), {}
    for tied in (True, False):
        made(folder / f"{tied}", "llama", tie_word_embeddings=tied, vocab_size=331)
        output = folder / f"{tied}-bundle"
        export_bundle(folder / f"{tied}", output, options=ExportOptions(request.param))
        found[tied] = bundles.load(output)
    return found


def test_a_manifest_says_whether_the_output_projection_is_the_embedding(tied_and_untied):
    for tied, bundle in tied_and_untied.items():
        assert manifest_of(bundle.path)["roles"][TARGET]["tied"] is tied
        [sizes] = stage_sizes(bundle, TARGET)
        assert sizes.tied is tied
        assert sizes.intermediate == pytest.approx(160, abs=1)


@pytest.mark.parametrize("name", CPU_ENGINES)
def test_an_untied_model_takes_a_mapped_embedding_more_and_no_more_products(name, tied_and_untied):
    """Packing and calls concern the same matrices in both."""
    (tied,), (untied,) = (stage_sizes(tied_and_untied[each], TARGET) for each in (True, False))
    embedding = 331 * 64 * int(untied.precision[2:]) // 8
    # Vectors are float32 in any case, and alignment takes a few bytes.
    assert untied.embedding_bytes == pytest.approx(embedding, rel=0.05)
    assert untied.file_bytes - tied.file_bytes == pytest.approx(embedding, abs=64)
    assert untied.matmul_bytes == pytest.approx(tied.matmul_bytes, rel=0.05)
    calls = CallSizes(128, 512, 8)
    more = engine(name).footprint(untied, calls)
    less = engine(name).footprint(tied, calls)
    taken = [each.weights + each.repacked + each.loading for each in (less, more)]
    assert taken[1] == pytest.approx(taken[0], rel=0.05)
    mapped = more.mapped - less.mapped
    assert mapped == pytest.approx(embedding if name.startswith("openvino") else 0, abs=4096)


SMALL_GATE = {"hidden": 576, "intermediate": 1536}


@pytest.mark.parametrize(
    ("precision", "changes", "again"),
    [
        ("fp32", SMALL_GATE, True),
        ("fp16", SMALL_GATE, True),
        ("int4", SMALL_GATE, False),
        ("fp32", {"hidden": 896, "intermediate": 4864}, False),  # wide
        ("fp32", {"hidden": 2048, "intermediate": 5632}, False),  # large
        ("fp32", {"hidden": 64, "intermediate": 160}, False),  # narrow
    ],
)
def test_openvino_packs_small_gates_twice(precision, changes, again):
    [sizes] = stage_sizes(EMBEDDED, TARGET)
    block = 128 if precision == "int4" else 0
    stage = replace(sizes, precision=precision, block_size=block, **changes)
    taken = engine("openvino:cpu").footprint(stage, CallSizes(8, 512, 8))
    once = stage.matmul_bytes * (2 if precision == "fp16" else 1)
    more = taken.repacked - once - stage.widening_bytes(stage.matmul_bytes)
    assert more == again * 8 * 4 * stage.hidden * stage.intermediate
