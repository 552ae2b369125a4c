"""The sizes of a role's stages that memory depends on, from its manifest."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from edgespec.bundle import Bundle, Precision, Role, Stage
from edgespec.bundle.caches import CacheGroup
from edgespec.bundle.sublayers import FUSION, INJECTION, MLP, RecurrentShape, Sublayer
from edgespec.runtime.engines import CallSizes, Engine, Engines, StageSizes, recurrent_bytes

_FLOAT_BYTES = {"fp16": 2, "fp32": 4}


def stage_sizes(bundle: Bundle, name: str) -> tuple[StageSizes, ...]:
    """Returns the sizes of each stage of a role; bytes of weights add up to the role's."""
    role = bundle.manifest.roles[name]
    data = sum(bundle.manifest.files[file].size for file in {each.data for each in role.stages})
    layout, intermediate = role.layout, _mlp_width(role)
    projects = role.embedding is None  # what makes embeddings has no output projection
    shared = role.tied and projects
    outputs = (role.output_tokens or role.vocab_size) if projects else 0
    borrowed = any(stage.borrowed for stage in role.stages)  # the embedding is the target's
    embedding_part = "lm_head" if shared or not projects else "embedding"
    embedding = _vocabulary_bytes(
        bundle.target if borrowed else role, role.vocab_size, embedding_part
    )
    table = _table_bytes(role)
    embedding_bytes = (embedding if borrowed else min(embedding, data)) + table
    head_bytes = min(_vocabulary_bytes(role, outputs, "lm_head"), data)
    own = (0 if borrowed else embedding_bytes) + (0 if shared else head_bytes)
    layer_bytes = max(data - own, 0)
    widths = [each.width or intermediate if each.kind == MLP else 0 for each in layout]
    parameters = (
        3 * role.hidden_size * (width * max(each.experts, 1) + each.beside)
        or _other_parameters(role, each)
        for each, width in zip(layout, widths, strict=True)
    )
    ends = list(accumulate(parameters, initial=0))

    def sizes(stage: Stage) -> StageSizes:
        # A head's first stage reads features, and its second one tokens.
        first, last = stage.start == int(role.is_head), stage is role.stages[-1]
        stop = min(stage.stop, layout.head)
        before, behind = (layer_bytes * ends[end] // ends[-1] for end in (stage.start, stop))
        held = layout.recurrent(range(stage.start, stop))
        return StageSizes(
            matmul_bytes=behind - before + (head_bytes if last else 0),
            embedding_bytes=embedding_bytes if first else 0,
            file_bytes=data + (embedding_bytes if borrowed else 0),
            tied=shared and first and last and not table,
            precision=_fewest_bits(role.precision),
            block_size=role.precision.smallest_block,
            scale_bytes=_FLOAT_BYTES[role.precision.scales],
            cache_groups=stage.cache_groups,
            hidden=role.hidden_size,
            intermediate=max(
                (
                    _row_width(role, layout[number], widths[number])
                    for number in range(stage.start, stop)
                ),
                default=0,
            ),
            heads=role.heads if stage.attends else 0,
            vocab=outputs if last else 0,
            result_bytes=_result_bytes(stage) if last else 0,
            passed_bytes=0 if last else _result_bytes(stage),
            recurrent_bytes=recurrent_bytes(list(held.values())) if held else 0,
            copies_cache=not role.trees,
        )

    return tuple(map(sizes, role.stages))


def role_bytes(bundle: Bundle, name: str, engines: Engines, calls: CallSizes) -> Counter[str]:
    """Returns the bytes of each memory that a role's stages take, without caches and results.

    The result is keyed by the name of the memory, such as the host's or a GPU's.
    """
    found = Counter[str]()
    for engine, stage in zip(engines, stage_sizes(bundle, name), strict=True):
        taken = engine.footprint(stage, calls)
        found[engine.memory] += taken.weights + taken.repacked + taken.workspace + taken.shared
    return found


def cache_groups(bundle: Bundle, name: str, number: int, engine: Engine) -> Sequence[CacheGroup]:
    """Returns the groups that a stage's cache has on this engine.

    The variant for the engine may store the cache at another precision.
    """
    variant = None if engine.variant is None else bundle.variant(name, engine.variant)
    stages = bundle.manifest.roles[name].stages if variant is None else variant.stages
    return stages[number].cache_groups


def _table_bytes(role: Role) -> int:
    """Returns the bytes of the table with layers' own inputs; 0 if there are none."""
    if not role.layer_inputs:
        return 0
    return _vocabulary_bytes(role, role.vocab_size, "table", role.layers * role.layer_inputs)


def _vocabulary_bytes(role: Role, tokens: int, part: str, width: int | None = None) -> int:
    """Returns the bytes of a matrix with a row per token.

    Args:
        role: the role.
        tokens: number of rows.
        part: lm_head or embedding, see `Kept`; in other cases all are stored alike.
        width: numbers of a row; None: those of a hidden row.
    """
    values, precision = tokens * (width or role.hidden_size), role.precision
    kept = next((each for each in precision.kept if each.part == part), None)
    if kept is not None:
        block = 8 * _FLOAT_BYTES[kept.scales] + kept.bits * kept.zero_points
        return values * kept.bits // 8 + values // kept.block_size * block // 8
    if precision.lm_head in _FLOAT_BYTES:
        return values * _FLOAT_BYTES[precision.lm_head]
    bits = 4 if precision.lm_head == "int4" else 8
    scales = values // precision.block_size * _FLOAT_BYTES[precision.scales]
    return values * bits // 8 + scales


def _fewest_bits(precision: Precision) -> str:
    """Returns the precision of the layers' weights; with kept ones, that of fewest bits.

    As with the smallest block, this counts more blocks than there are, and never fewer.
    """
    layers = (f"int{each.bits}" for each in precision.kept if each.part == "layers")
    return min([precision.weights, *layers])


def _row_width(role: Role, sublayer: Sublayer, width: int) -> int:
    """Returns the numbers between the matrices of an MLP for a row.

    In a mixture, a row is copied for each expert that it chooses.
    """
    if not sublayer.experts:
        return width
    return sublayer.chosen * (width + role.hidden_size) + sublayer.beside


def _other_parameters(role: Role, sublayer: Sublayer) -> int:
    """Returns the weights of a sublayer that is not an MLP; a head's attention reads two rows."""
    if sublayer.recurrent is not None:
        return _recurrent_parameters(role.hidden_size, sublayer.recurrent)
    if sublayer.kind == FUSION:
        return sublayer.width * role.hidden_size
    if sublayer.kind == INJECTION:
        return 2 * role.hidden_size * role.layer_inputs
    both = role.hidden_size * role.head_dim * (role.heads + 2 * role.kv_heads)
    return _attention_parameters(role) + (both if role.is_head else 0)


def _recurrent_parameters(hidden: int, shape: RecurrentShape) -> int:
    if not shape.state:
        return 4 * hidden * shape.width
    heads, key_heads, key_size, value_size = shape.state
    return hidden * (2 * key_heads * key_size + 3 * heads * value_size + 2 * heads)


def _attention_parameters(role: Role) -> int:
    return 2 * role.hidden_size * role.head_dim * (role.heads + role.kv_heads)


def _mlp_width(role: Role) -> int:
    """Returns the width of the MLPs, guessed by the parameters where a manifest has none."""
    known = max((each.width for each in role.layout), default=0)
    if known:
        return known
    embedding = role.vocab_size * role.hidden_size
    per_layer = (role.parameters - embedding) // role.layers - _attention_parameters(role)
    intermediate = max(per_layer // (3 * role.hidden_size), 1)
    if not role.tied:
        intermediate = max(intermediate - role.vocab_size // (3 * role.layers), 1)
    return intermediate


def _result_bytes(stage: Stage) -> int:
    """Returns the bytes of one row of the results that the host reads."""
    return sum(
        np.dtype(output.dtype).itemsize * math.prod(map(int, output.shape[1:]))
        for output in stage.results
    )
