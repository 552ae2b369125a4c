"""Checks that the values in a manifest are in range, beyond their types."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from edgespec.bundle.caches import KEY_VALUE, SCALES, is_rows_symbol
from edgespec.bundle.manifest import (
    FEATURES,
    LAST_HIDDEN,
    LOGITS,
    POOLINGS,
    Manifest,
    Native,
    Precision,
    Role,
    SkipSet,
    Stage,
    Tensor,
    Variant,
)
from edgespec.bundle.sublayers import (
    ATTENTION,
    FUSION,
    KINDS,
    RECURRENT,
    RECURRENT_PARTS,
    RecurrentShape,
    is_new_rows,
    window_of,
)

_BLOCKS = ("int4", "int8")
_FLOATS = ("fp16", "fp32")
_WEIGHTS = (*_BLOCKS, *_FLOATS)
_VARIANT_WEIGHTS = (*_WEIGHTS, "w8a16", "w4a16")
_DTYPES = ("float16", "float32", "int8", "int32", "int64")
_INNER = [("next_hidden",)]
_LAST = [(LOGITS,), ("top_ids", "top_logits", "logsumexp")]
_OF_HEAD = [(*_LAST[1], "next_hidden")]
_OF_EMBEDDING: list[tuple[str, ...]] = [(LAST_HIDDEN,)]

# The smallest and largest allowed sizes of a role. No real model comes near the upper limits, which
# keep a damaged manifest from causing endless work.
_MOST_HEADS, _MOST_DIM = 4096, 512
_MOST_BEFORE, _MOST_NUMBERS = 15, 2**24  # of a recurrent layer
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
_WIDEST = 1 << 24  # of the sizes of caches, rotation tables and recurrent sublayers
_MOST_DIGITS = 10  # digits of a dimension
_PAST = (*KEY_VALUE, *SCALES, *RECURRENT_PARTS)
_PARTS_OF_STATE = 4
_CACHE_DIMENSIONS = 3

_Check = tuple[str, object, bool]
"""A field's name, its value, and whether the value is valid."""


def fault(manifest: Manifest) -> str | None:
    """Describes the first invalid value of a manifest; None if all are valid."""
    for field, value, valid in _checks(manifest):
        if not valid:
            return f"manifest.{field} is {value!r:.80}, which is not valid"
    return None


def _checks(manifest: Manifest) -> Iterator[_Check]:
    for name, role in manifest.roles.items():
        yield from _of_role(f"roles.{name}", role)
    for number, variant in enumerate(manifest.variants):
        role = manifest.roles[variant.role]
        yield from _of_variant(f"variants[{number}]", variant, role)
    yield from _of_taps(manifest)
    yield from _of_embedding(manifest)
    for number, skips in enumerate(manifest.skip_sets):
        yield from _of_skips(f"skip_sets[{number}]", skips, manifest.roles["target"])


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
    freq = role.inv_freq
    yield f"{where}.inv_freq", freq, len(freq) == role.head_dim // 2 and _finite(freq)
    scale = role.attention_factor
    yield f"{where}.attention_factor", scale, 0 < scale < math.inf
    yield f"{where}.eos_ids", role.eos_ids, all(each >= 0 for each in role.eos_ids)
    yield f"{where}.bias_off", role.bias_off, -math.inf < role.bias_off < 0
    yield from _of_precision(f"{where}.precision", role.precision, _WEIGHTS)
    yield f"{where}.layer_inputs", role.layer_inputs, 0 <= role.layer_inputs <= 1 << 20
    yield from _of_layout(where, role)
    if role.native is None or not role.native.adopted:
        yield from _of_stages(f"{where}.stages", role.stages, role)
    if texts := role.stages_of_texts:
        yield from _of_stages(f"{where}.stages_of_texts", texts, role)
        cuts = [stage.start for stage in texts]
        yield f"{where}.stages_of_texts", cuts, cuts == [stage.start for stage in role.stages]
    if role.native is not None:
        yield from _of_native(f"{where}.native", role.native, role)


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
        sized = not each.state or (len(each.state) == 4 and min(each.state) >= 1)
        yield f"{place}.state", each.state, sized and math.prod(each.state) <= _MOST_NUMBERS


def _of_taps(manifest: Manifest) -> Iterator[_Check]:
    """Checks that the target returns what its draft head reads."""
    target = manifest.roles["target"]
    taps, layers = target.taps, target.layers
    known = list(taps) == sorted(set(taps)) and all(0 <= each <= layers for each in taps)
    yield "roles.target.taps", taps, known
    for name, role in manifest.roles.items():
        if name != "target":
            yield f"roles.{name}.taps", role.taps, role.taps == (taps if role.is_head else ())
            first = role.stages[0]
            widths = [_width(each) for each in first.inputs if each.name == "hidden"]
            read = len(taps) * target.hidden_size
            yield f"roles.{name}.stages[0].inputs", widths, widths == [read] * role.is_head
    variants = [(each.role, each.stages) for each in manifest.variants if each.role == "target"]
    texts = [("target", target.stages_of_texts)] if target.stages_of_texts else []
    for name, stages in (("target", target.stages), *texts, *variants):
        tapped = [_width(each) for s in stages for each in s.outputs if each.name == FEATURES]
        yield f"{name}: {FEATURES}", tapped, sum(tapped) == len(taps) * target.hidden_size


def _of_embedding(manifest: Manifest) -> Iterator[_Check]:
    """Checks that only a target alone is an embedding model, and how it makes vectors."""
    for name, role in manifest.roles.items():
        if (found := role.embedding) is None:
            continue
        place, known = f"roles.{name}.embedding", ("", *found.prompts)
        yield place, found, len(manifest.roles) == 1 and not manifest.skip_sets and not role.taps
        yield f"{place}.pooling", found.pooling, found.pooling in POOLINGS
        yield f"{place}.default_prompt", found.default_prompt, found.default_prompt in known
        yield f"roles.{name}.stages_of_texts", role.stages_of_texts, not role.stages_of_texts


def _width(tensor: Tensor) -> int:
    return int(tensor.shape[-1]) if tensor.shape and _is_size(tensor.shape[-1]) else -1


def _of_layout(where: str, role: Role) -> Iterator[_Check]:
    tables = [table.name for table in role.rope_tables]
    yield f"{where}.ropes", tables, len(set(tables)) == len(tables)
    for number, table in enumerate(role.ropes):
        place, freq = f"{where}.ropes[{number}]", table.inv_freq
        yield f"{place}.inv_freq", freq, 0 < len(freq) <= _WIDEST and _finite(freq)
        yield f"{place}.attention_factor", table.attention_factor, table.attention_factor > 0
    before = 0
    attending = set[int]()  # the layers whose attention has keys of its own
    for number, each in enumerate(role.sublayers):
        place = f"{where}.sublayers[{number}]"
        yield f"{place}.layer", each.layer, before <= each.layer <= before + (number > 0)
        yield f"{place}.kind", each.kind, each.kind in KINDS and (each.kind != FUSION or not number)
        yield f"{place}.width", each.width, each.width >= 0
        yield f"{place}.experts", each.experts, each.experts >= 0
        yield f"{place}.chosen", each.chosen, (each.chosen > 0) == (each.experts > 0)
        yield f"{place}.chosen", each.chosen, 0 <= each.chosen <= each.experts
        yield f"{place}.beside", each.beside, each.beside >= 0
        yield f"{place}.mask", each.mask, _is_mask(each.mask)
        yield f"{place}.rope", each.rope, each.rope in ("", *tables)
        known = (each.kind == RECURRENT) == (each.recurrent is not None)
        yield f"{place}.recurrent", each.recurrent, known and _is_recurrence(each.recurrent)
        yield f"{place}.source", each.source, each.source is None or each.source in attending
        if each.kind == ATTENTION and each.source is None:
            attending.add(each.layer)
        before = each.layer
    layers = role.layers if not role.sublayers else before + 1
    yield f"{where}.layers", role.layers, role.layers == layers


def _of_variant(where: str, variant: Variant, role: Role) -> Iterator[_Check]:
    yield f"{where}.bias_off", variant.bias_off, -math.inf < variant.bias_off < 0
    yield from _of_precision(f"{where}.precision", variant.precision, _VARIANT_WEIGHTS)
    yield from _of_stages(f"{where}.stages", variant.stages, role)
    for number, each in enumerate(variant.compiled):
        place = f"{where}.compiled[{number}]"
        yield f"{place}.stage", each.stage, 0 <= each.stage < len(variant.stages)
        yield f"{place}.rows", each.rows, each.rows > 0
        yield f"{place}.capacity", each.capacity, each.capacity > 0


def _of_precision(where: str, precision: Precision, weights: Sequence[str]) -> Iterator[_Check]:
    for name, known in (
        ("weights", weights), ("lm_head", weights), ("kv", ("int8", *_FLOATS)), ("scales", _FLOATS)
    ):  # fmt: skip
        value = getattr(precision, name)
        yield f"{where}.{name}", value, value in known
    least = 0 if {precision.weights, precision.lm_head}.isdisjoint(_BLOCKS) else 1
    yield f"{where}.block_size", precision.block_size, precision.block_size >= least
    for number, kept in enumerate(precision.kept):
        place = f"{where}.kept[{number}]"
        yield f"{place}.part", kept.part, kept.part in ("layers", "lm_head", "embedding")
        yield f"{place}.bits", kept.bits, kept.bits in (4, 8)
        yield f"{place}.block_size", kept.block_size, kept.block_size >= 1
        yield f"{place}.scales", kept.scales, kept.scales in _FLOATS


def _of_stages(where: str, stages: Sequence[Stage], role: Role) -> Iterator[_Check]:
    yield where, stages, bool(stages)
    start, head = 0, role.layout.head
    last_results = _OF_HEAD if role.is_head else _LAST
    if role.embedding is not None:
        last_results = _OF_EMBEDDING
    if role.is_head:  # a draft's levels run all but the fusion
        yield where, [stage.start for stage in stages], [s.start for s in stages] == [0, 1]
    for number, stage in enumerate(stages):
        place = f"{where}[{number}]"
        yield f"{place}.start", stage.start, stage.start == start
        last, end = stage is stages[-1], head + 1
        follows = stage.stop == end if last else start < stage.stop < end
        yield f"{place}.stop", stage.stop, follows
        names = tuple(each.name for each in stage.results if each.name != FEATURES)
        yield f"{place}.outputs", names, names in (last_results if last else _INNER)
        for kind, tensors in (("inputs", stage.inputs), ("outputs", stage.outputs)):
            for index, tensor in enumerate(tensors):
                yield f"{place}.{kind}[{index}].dtype", tensor.dtype, tensor.dtype in _DTYPES
                yield f"{place}.{kind}[{index}].name", tensor.name, _is_name(tensor.name)
                yield f"{place}.{kind}[{index}].shape", tensor.shape, _is_shape(tensor)
        for index, tensor in enumerate(stage.outputs):
            if not is_new_rows(tensor.name):
                known = len(tensor.shape) > 0 and all(map(_is_size, tensor.shape[1:]))
                yield f"{place}.outputs[{index}].shape", tensor.shape, known
        start = stage.stop


def _of_skips(where: str, skips: SkipSet, target: Role) -> Iterator[_Check]:
    within = all(0 <= each < target.layout.head for each in skips.skipped)
    yield f"{where}.skipped", skips.skipped, bool(skips.skipped) and within
    if skips.score is not None:
        score = skips.score
        figures = (
            score.draft_cost,
            score.plain_tokens_per_second,
            *(promise.tokens_per_second for promise in (score.greedy, score.sampled)),
        )
        yield f"{where}.score", score, min(figures) > 0 and _finite(figures)


def _is_mask(text: str) -> bool:
    try:
        window_of(text)
    except ValueError:
        return False
    return True


def _is_recurrence(shape: RecurrentShape | None) -> bool:
    if shape is None:
        return True
    sizes = (shape.width, shape.kernel, *shape.state)
    return len(shape.state) in (0, _PARTS_OF_STATE) and all(0 < each <= _WIDEST for each in sizes)


def _is_name(text: str) -> bool:
    """Whether a tensor name that begins with `past` names what a layer holds of a text."""
    first, *rest = text.split(".")
    return first != "past" or (len(rest) == 2 and _is_size(rest[0]) and rest[1] in _PAST)


def _is_shape(tensor: Tensor) -> bool:
    """Whether the shape of an input of keys or values is [KV, rows, hd], behind T or alone."""
    first, *rest = tensor.name.split(".")
    if first != "past" or rest[-1] not in (*KEY_VALUE, *SCALES):
        return True
    if len(tensor.shape) - (tensor.shape[:1] == ("T",)) != _CACHE_DIMENSIONS:
        return False
    heads, rows, width = tensor.shape[-_CACHE_DIMENSIONS:]
    return is_rows_symbol(rows) and all(
        _is_size(each) and 0 < int(each) <= _WIDEST for each in (heads, width)
    )


def _is_size(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS


def _finite(values: Sequence[float]) -> bool:
    return all(map(math.isfinite, values))
