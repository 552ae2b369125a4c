"""Checks that the values in a manifest are in range, beyond their types."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from edgespec.bundle.manifest import (
    LAST_TOKEN,
    POOLINGS,
    Manifest,
    Native,
    Precision,
    Role,
    RopeTable,
)
from edgespec.bundle.pictures import Vision
from edgespec.bundle.skips import SkipSet
from edgespec.bundle.sublayers import ATTENTION, FUSION, KINDS
from edgespec.system import records

_BLOCKS = ("int4", "int6", "int8")
_FLOATS = ("fp16", "fp32")

# The smallest and largest allowed sizes of a role. No real model comes near the upper limits, which
# keep a damaged manifest from causing endless work.
_MOST_HEADS, _MOST_DIM = 4096, 640
_MOST_ROWS = 64  # of a block
# of a recurrent layer
_MOST_BEFORE = 15
_MOST_NUMBERS = 2**24
_MOST_GROWTH, _FARTHEST = 1e3, 1 << 31  # of queries, and positions
_SIZES = {
    "layers": (1, 10_000),
    "hidden_size": (1, 1 << 20),
    "heads": (1, 1 << 20),
    "kv_heads": (1, 1 << 20),
    "head_dim": (2, 1 << 20),
    "vocab_size": (1, 1 << 24),
    "context_length": (2, 1 << 31),
    "parameters": (1, 1 << 50),
}
_MOST_PIXELS, _FILTERS = 4096, 6  # of a side; Pillow's
_MOST_SCALED = 1 << 24  # pixels of a picture that keeps its proportions
_MOST_TILES, _MOST_TILED = 64, 1 << 25  # of a picture that is cut into squares, and its pixels
_WIDEST = 1 << 24  # of rotation tables
_PARTS_OF_STATE = 4

_Check = tuple[str, object, bool]
"""A field's name, its value, and whether the value is valid."""


def manifest_fault(manifest: Manifest) -> str | None:
    """Describes the first invalid value of a manifest; None if all are valid."""
    for field, value, valid in _checks(manifest):
        if not valid:
            return f"manifest.{field} is {value!r:.80}, which is not valid"
    roles = [replace(role, embedding=None, ranking=None) for role in manifest.roles.values()]
    parts = (*manifest.roles, *manifest.tokenizer, *roles)
    if (text := _unprintable(records.encode(parts))) is not None:
        return f"{text!a:.80} in it holds control characters"
    return None


def _unprintable(value: object) -> str | None:
    """Returns a text among JSON values that would do something to a terminal; None if none does."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        return next((found for each in value if (found := _unprintable(each)) is not None), None)
    return value if isinstance(value, str) and not value.isprintable() else None


def _checks(manifest: Manifest) -> Iterator[_Check]:
    for name, role in manifest.roles.items():
        yield from _of_role(f"roles.{name}", role)
    yield from _of_taps(manifest)
    yield from _of_embedding(manifest)
    for number, skips in enumerate(manifest.skip_sets):
        yield from _of_skips(f"skip_sets[{number}]", skips, manifest.roles["target"])
    for name, value in (manifest.sampling or {}).items():
        yield f"sampling.{name}", value, name.isidentifier() and math.isfinite(value)


def _of_role(where: str, role: Role) -> Iterator[_Check]:
    for name, (least, most) in _SIZES.items():
        value = getattr(role, name)
        yield f"{where}.{name}", value, least <= value <= most
    own = where.endswith(".target") and role.tokenizer  # the target's is the bundle's
    yield f"{where}.tokenizer", role.tokenizer, not own
    outputs = role.output_tokens
    yield f"{where}.output_tokens", outputs, 0 <= outputs <= role.vocab_size
    mask = role.mask_token
    yield f"{where}.mask_token", mask, mask is None or 0 <= mask < role.vocab_size
    if (block := role.block) is not None:
        yield f"{where}.block", block, role.is_head and mask is not None
        yield f"{where}.block.selects", block.selects, 0 <= block.selects <= role.vocab_size
        yield f"{where}.block.selects", block.selects, bool(block.pairs) or not block.selects
        yield f"{where}.block.rows", block.rows, 2 - block.from_anchor <= block.rows <= _MOST_ROWS
    if role.vision is not None:
        yield from _of_vision(f"{where}.vision", role.vision, role)
    yield f"{where}.inv_freq", role.inv_freq, len(role.inv_freq) == role.head_dim // 2
    yield f"{where}.eos_ids", role.eos_ids, all(each >= 0 for each in role.eos_ids)
    yield from _of_precision(f"{where}.precision", role.precision)
    yield f"{where}.layer_inputs", role.layer_inputs, 0 <= role.layer_inputs <= 1 << 20
    yield from _of_layout(where, role)
    yield from _of_tables(where, role.rope_tables)
    yield from _of_native(f"{where}.native", role.native, role)


def _of_vision(where: str, vision: Vision, role: Role) -> Iterator[_Check]:
    yield f"{where}.token", vision.token, 0 <= vision.token < role.vocab_size
    for name, least in (("rows", 1), ("size", 1), ("longest", 0)):
        value = getattr(vision, name)
        yield f"{where}.{name}", value, least <= value <= _MOST_PIXELS
    patch = vision.patch
    pixels = vision.rows * vision.size**2
    fits = patch > 0 and vision.size % patch == 0 and pixels <= _MOST_SCALED
    yield f"{where}.patch", patch, patch == 0 or fits
    if (grid := vision.grid) is not None:
        yield f"{where}.grid", grid, 1 <= grid.least <= grid.most <= _MOST_PIXELS**2
        yield f"{where}.size", vision.size, vision.size**2 <= grid.most
        sections = (0, 0) if grid.sections is None else grid.sections
        fits = not grid.in_blocks or sum(sections) <= role.head_dim // 2
        form = len(sections) == 2 and min(sections) >= 0
        yield f"{where}.grid.sections", sections, form and fits
        yield f"{where}.grid.layers", grid.layers, 0 <= grid.layers <= role.layers
    if (tiles := vision.tiles) is not None:
        whole = tiles.size == vision.size if grid is None else tiles.size % vision.size == 0
        yield f"{where}.tiles.size", tiles.size, whole and 1 <= tiles.size <= _MOST_PIXELS
        yield f"{where}.tiles", tiles, 1 <= tiles.least <= tiles.most <= _MOST_TILES
        pixels = tiles.most * tiles.size**2
        yield f"{where}.tiles.most", tiles.most, pixels <= _MOST_TILED
        yield f"{where}.tiles.larger", tiles.larger, 0 <= tiles.larger < math.inf
    around = vision.around or (0, 0)
    yield f"{where}.around", around, all(0 <= each < role.vocab_size for each in around)
    yield f"{where}.mean", vision.mean, len(vision.mean) == 3 and _finite(vision.mean)
    std = vision.std
    yield f"{where}.std", std, len(std) == 3 and _finite(std) and min(std) > 0
    yield f"{where}.resample", vision.resample, 0 <= vision.resample < _FILTERS


def _of_native(where: str, native: Native, role: Role) -> Iterator[_Check]:
    tables = {table.name for table in role.rope_tables}
    yield f"{where}.ropes", native.ropes, tables.issuperset(native.ropes)
    layers = [pool.layer for pool in native.pools]
    known = layers == sorted(set(layers)) and all(0 <= each < role.layers for each in layers)
    yield f"{where}.pools", layers, known
    for number, pool in enumerate(native.pools):
        place = f"{where}.pools[{number}]"
        yield f"{place}.kv_heads", pool.kv_heads, 1 <= pool.kv_heads <= _MOST_HEADS
        least = 1 if native.adopted else 16
        yield f"{place}.dim", pool.dim, pool.dim % least == 0 and least <= pool.dim <= _MOST_DIM
        yield f"{place}.window", pool.window, pool.window is None or pool.window >= 1
    for number, each in enumerate(native.recurrent):
        place = f"{where}.recurrent[{number}]"
        yield f"{place}.layer", each.layer, 0 <= each.layer < role.layers
        yield f"{place}.width", each.width, 1 <= each.width <= _MOST_NUMBERS
        yield f"{place}.before", each.before, 0 <= each.before <= _MOST_BEFORE
        sized = not each.state or (len(each.state) == _PARTS_OF_STATE and min(each.state) >= 1)
        yield f"{place}.state", each.state, sized and math.prod(each.state) <= _MOST_NUMBERS


def _of_taps(manifest: Manifest) -> Iterator[_Check]:
    """Checks that the target returns what its draft head reads."""
    target = manifest.roles["target"]
    taps = target.taps
    layers = target.layers
    known = list(taps) == sorted(set(taps)) and all(0 <= each <= layers for each in taps)
    yield "roles.target.taps", taps, known
    for name, role in manifest.roles.items():
        if name != "target":
            yield f"roles.{name}.taps", role.taps, role.taps == (taps if role.is_head else ())
        if role.attends_target:
            read = [each.source for each in role.layout if each.kind == ATTENTION]
            kept = {pool.layer for pool in target.native.pools}
            yield f"roles.{name}.sublayers: sources", read, kept.issuperset(read)


def _of_embedding(manifest: Manifest) -> Iterator[_Check]:
    """Checks that only a target alone embeds or ranks, and how it does."""
    for name, role in manifest.roles.items():
        alone = len(manifest.roles) == 1 and not manifest.skip_sets and not role.taps
        if (found := role.embedding) is not None:
            place = f"roles.{name}.embedding"
            known = ("", *found.prompts)
            yield place, found, alone
            yield f"{place}.pooling", found.pooling, found.pooling in POOLINGS
            yield f"{place}.default_prompt", found.default_prompt, found.default_prompt in known
            yield f"{place}.width", found.width, 0 <= found.width <= 1 << 20
        if (ranking := role.ranking) is not None:
            place = f"roles.{name}.ranking"
            yield place, ranking, alone and role.embedding is None
            written = bool(ranking.template) + (ranking.messages is not None)
            yield f"{place}.template", ranking.template, written < 2
            poolings = (LAST_TOKEN,) if written else POOLINGS
            yield f"{place}.pooling", ranking.pooling, ranking.pooling in poolings


def _of_layout(where: str, role: Role) -> Iterator[_Check]:
    before = 0
    readable = set[int]()  # the layers whose attention has keys of its own
    for number, each in enumerate(role.sublayers):
        place = f"{where}.sublayers[{number}]"
        yield f"{place}.layer", each.layer, before <= each.layer <= before + (number > 0)
        yield f"{place}.kind", each.kind, each.kind in KINDS and (each.kind != FUSION or not number)
        yield f"{place}.width", each.width, each.width >= 0
        yield f"{place}.experts", each.experts, each.experts >= 0
        yield f"{place}.chosen", each.chosen, (each.chosen > 0) == (each.experts > 0)
        yield f"{place}.chosen", each.chosen, 0 <= each.chosen <= each.experts
        yield f"{place}.beside", each.beside, each.beside >= 0
        yield f"{place}.weights", each.weights, 0 <= each.weights <= role.parameters
        yield (
            f"{place}.source",
            each.source,
            each.source is None or each.source in readable or role.attends_target,
        )
        if each.kind == ATTENTION and each.source is None:
            readable.add(each.layer)
        before = each.layer
    layers = before + 1 if role.sublayers else 0
    yield f"{where}.layers", role.layers, role.layers == layers


def _of_tables(where: str, tables: Sequence[RopeTable]) -> Iterator[_Check]:
    names = [table.name for table in tables]
    yield f"{where}.ropes", names, len(set(names)) == len(names)
    for table in tables:
        freq = table.inv_freq
        factor = table.attention_factor
        known = 0 < len(freq) <= _WIDEST and _finite(freq)
        yield f"{where}: RoPE table {table.name}: inv_freq", freq, known
        yield f"{where}: RoPE table {table.name}: attention_factor", factor, 0 < factor < math.inf
        if (growth := table.growth) is not None:
            known = 0 < growth.scale <= _MOST_GROWTH
            known = known and 1 <= growth.span <= _FARTHEST and 0 <= growth.offset <= _FARTHEST
            yield f"{where}: RoPE table {table.name}: growth", growth, known


def _of_precision(where: str, precision: Precision) -> Iterator[_Check]:
    weights = (*_BLOCKS, *_FLOATS)
    for name, known in (("weights", weights), ("lm_head", weights), ("kv", ("int8", *_FLOATS))):
        value = getattr(precision, name)
        yield f"{where}.{name}", value, value in known
    least = 0 if {precision.weights, precision.lm_head}.isdisjoint(_BLOCKS) else 1
    yield f"{where}.block_size", precision.block_size, precision.block_size >= least


def _of_skips(where: str, skips: SkipSet, target: Role) -> Iterator[_Check]:
    known = bool(skips.skipped) and set(skips.skipped) <= set(range(target.layout.head))
    yield f"{where}.skipped", skips.skipped, known and not target.layout.bereft(skips.skipped)
    if skips.score is not None:
        score = skips.score
        figures = (
            score.draft_cost,
            score.plain_tokens_per_second,
            *(promise.tokens_per_second for promise in (score.greedy, score.sampled)),
        )
        yield f"{where}.score", score, min(figures) > 0 and _finite(figures)


def _finite(values: Sequence[float]) -> bool:
    return all(map(math.isfinite, values))
