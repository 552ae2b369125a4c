"""Reads drafters of blocks in the formats of DFlash and DSpark, in two layouts.

DFlash (Chen et al., 2026) predicts a block of tokens in one call; DSpark (DeepSeek-AI, 2026) adds
what the token before tells, and how far the block can be trusted, DFlash2 (Z Lab, 2026) what the
token before and the row tell together, and convolutions around each sublayer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgespec.models.config import ModelConfig
from edgespec.models.families.qwen3 import Qwen3
from edgespec.models.fields import ConfigFields
from edgespec.models.formats.tensors import check_shapes
from edgespec.models.heads.block_head import BlockHead, BlockLayer, Convolutions, Markov
from edgespec.models.heads.checkpoint import (
    HeadCheckpoint,
    HeadFiles,
    TargetSizes,
    check_agrees,
    check_parts,
)
from edgespec.models.heads.eagle3 import read_ids
from edgespec.models.heads.head import Fusion
from edgespec.models.layers.elements import Linear
from edgespec.models.layers.rope import rope_from_config

if TYPE_CHECKING:
    from collections.abc import Mapping

DFLASH = "dflash"
DFLASH2 = "dflash2"
DSPARK = "dspark"

_FLAT: Mapping[str, str] = {
    "DFlashDraftModel": DFLASH,
    "DFlash2DraftModel": DFLASH2,
    "DFlash2BeamDraftModel": DFLASH2,
    "DSparkDraftModel": DSPARK,
    "Qwen3DSparkModel": DSPARK,
}
"""Forms by their names in `architectures` of the flat layout."""

_GROUPS = "dflash_config", "dspark_config"
_SPECULATORS, _TYPE = "transformer_layer_config", "speculators_model_type"
_MOST_ROWS = 64
# What other drafters of this kind have, with the values that mean that one has it not.
_ABSENT: Mapping[str, tuple[object, ...]] = {
    "projector_type": (None,),
    "attention_sink_bias": (None, False),
    "attention_value_scale": (None, 1.0),
    "final_logit_softcapping": (None, 0.0),
    "output_multiplier": (None, 1.0),
    "has_embed_tokens": (None, False),
    "use_gemma_norm": (None, False),
}
_OF_DFLASH2 = dict.fromkeys(("conv_kernel_size", "selector_rank"), (None, 0))
_OF_TARGET = {"embed_tokens.weight", "verifier_norm.weight", "verifier_lm_head.weight", "t2d"}
_IDS, _PROJECTION = "d2t", "lm_head.weight"


def is_block_head(fields: ConfigFields) -> bool:
    """Whether a config is that of a block drafter, perhaps of one that is not known."""
    return _form(fields) != ""


def load_block_head(files: HeadFiles, target: TargetSizes) -> HeadCheckpoint:
    """Opens a block drafter, and checks it against its target.

    Raises:
        UnsupportedModelError: The config asks for something that is not implemented.
        CheckpointError: Something is missing, damaged, inconsistent, or of another target.
    """
    fields = files.fields
    tensors = files.tensors(lambda name: name.removeprefix("model."))
    form = _form(fields)
    if form not in (DFLASH, DFLASH2, DSPARK):
        if fields.get(_TYPE) is not None:
            raise fields.unsupported(
                _TYPE, "use a head of type eagle3, peagle, dflash, dflash2 or dspark"
            )
        raise fields.unsupported("architectures", f"give one of {', '.join(_FLAT)}")
    flat = fields.get(_SPECULATORS) is None
    own = fields
    for name in _GROUPS:
        own = own.changed(**fields.group(name).values)
    layer = own if flat else own.group(_SPECULATORS)
    config = ModelConfig.from_fields(
        layer.with_defaults(Qwen3.defaults), ConfigFields({}, layer.source)
    )
    head = _Reader(own, config, form, flat, target).head()
    shapes = head.tensors()
    ignored = _OF_TARGET | {_IDS}
    if head.lm_head is None:
        ignored |= {_PROJECTION}
    check_parts(tensors, tensors.names - shapes.keys() - ignored, f"a {form} head")
    check_shapes(tensors, shapes)
    ids = np.arange(target.tokens, dtype=np.int64)
    if head.lm_head is not None:
        ids = read_ids(files.path, tensors, head.lm_head.out_features, target)
    return HeadCheckpoint(files.path, head, tensors, ids)


def _form(fields: ConfigFields) -> str:
    """Returns what a config calls its block drafter, perhaps one that is not known; else ""."""
    found = fields.get(_TYPE)
    if found is not None:
        return str(found) if str(found).startswith((DFLASH, DSPARK)) else ""
    names = fields.get("architectures")
    for name in names if isinstance(names, list) else ():
        if "DFlash" in str(name) or "DSpark" in str(name):
            return _FLAT.get(str(name), str(name))
    return DFLASH if fields.get(_GROUPS[0]) is not None else ""


class _Reader:
    """Builds the description of a block drafter from its config.

    Args:
        fields: config.json, with what groups of it hold beside the rest.
        config: the sizes and options of the decoder layers.
        form: which it is.
        flat: whether the layout is the flat one.
        target: what it must agree with.
    """

    def __init__(
        self, fields: ConfigFields, config: ModelConfig, form: str, flat: bool, target: TargetSizes
    ) -> None:
        self._fields = fields
        self._config = config
        self._form = form
        self._flat = flat
        self._target = target

    def head(self) -> BlockHead:
        """Returns the description."""
        config = self._config
        fields = self._fields
        hidden = self._config.hidden_size
        self._check()
        model = Qwen3(config, "layers")
        taps = self._taps()
        outputs = fields.integer("draft_vocab_size", config.vocab_size)
        whole = outputs == config.vocab_size
        anchored = fields.get("sample_from_anchor")
        return BlockHead(
            architecture=self._form,
            taps=taps,
            fusion=Fusion(
                Linear("fc.weight", len(taps) * hidden, hidden),
                output_norm=model.norm("hidden_norm", hidden),
            ),
            layers=tuple(self._layer(model, index) for index in range(config.num_layers)),
            norm=model.norm("norm", hidden),
            lm_head=None if whole else Linear(_PROJECTION, hidden, outputs),
            size=fields.integer("block_size", most=_MOST_ROWS),
            mask_token=fields.token("mask_token_id", self._target.vocab_size),
            from_anchor=(
                self._form == DSPARK if anchored is None else fields.flag("sample_from_anchor")
            ),
            markov=self._markov(outputs),
            hidden_size=hidden,
            vocab_size=config.vocab_size,
            context_length=config.context_length,
            rope=rope_from_config(config.fields, config.head_dim),
        )

    def _check(self) -> None:
        config = self._config
        fields = self._fields
        target = self._target
        layer = config.fields
        hidden = target.hidden_size
        check_agrees(layer, {"hidden_size": hidden, "vocab_size": target.vocab_size})
        check_agrees(fields, {"num_target_layers": target.layers, "target_hidden_size": hidden})
        absent = _ABSENT if self._form == DFLASH2 else {**_ABSENT, **_OF_DFLASH2}
        fields.only(absent, "use a draft head without it")
        if config.recurrent:
            raise layer.unsupported("layer_types", "use a draft head that attends in every layer")

    def _layer(self, model: Qwen3, index: int) -> BlockLayer:
        fields = self._fields
        attention = model.attention(index)
        # Of layers with a window, a row sees no later row of its block by default.
        both_ways = fields.get("sliding_window_non_causal")
        if both_ways is not None:
            both_ways = fields.flag("sliding_window_non_causal")
        elif self._form == DFLASH2:
            both_ways = True
        causal = attention.window is not None and not both_ways
        if fields.get("is_causal") is not None:
            causal = fields.flag("is_causal")
        if self._form != DFLASH2:
            return BlockLayer(attention, model.mlp(index), causal)
        around = [
            self._convolutions(f"layers.{index}.{part}_conv") for part in ("attention", "mlp")
        ]
        return BlockLayer(attention, model.mlp(index), causal, *around)

    def _convolutions(self, name: str) -> Convolutions:
        fields = self._fields
        hidden = self._config.hidden_size
        taps = fields.integer("conv_kernel_size", most=fields.integer("block_size"))
        size = fields.integer("conv_group_size", most=hidden)
        if hidden % size:
            raise fields.invalid("conv_group_size", f"must divide hidden_size={hidden}")
        count = 2 * taps * (hidden // size)
        projection = Linear(f"{name}.kernel_projection.weight", hidden, count)
        return Convolutions(f"{name}.base_kernel", projection, taps)

    def _taps(self) -> tuple[int, ...]:
        """Returns the layers whose entering rows are read.

        `speculators` names these layers; the flat layout those whose *output* is read, so it is one
        less. The last one's is left out there, since transformers gives it behind the last norm.
        """
        name = "target_layer_ids" if self._flat else "aux_hidden_state_layer_ids"
        shift = int(self._flat)
        found = self._fields.get(name)
        last = self._target.layers - 2 * shift
        if (
            not isinstance(found, list)
            or not found
            or not all(isinstance(each, int) and 0 <= each <= last for each in found)
            or found != sorted(set(found))
        ):
            raise self._fields.invalid(name, f"must be layers of the target from 0 to {last}")
        return tuple(each + shift for each in found)

    def _markov(self, outputs: int) -> Markov | None:
        fields = self._fields
        confidence = None
        if self._form == DFLASH2:
            return self._selector(outputs)
        if self._form != DSPARK:
            return None
        if fields.get("markov_head_type") not in (None, "vanilla"):
            raise fields.unsupported("markov_head_type", "use a head whose type is vanilla")
        rank = fields.integer("markov_rank", most=2**14)
        if fields.get("enable_confidence_head") in (None, True):
            joined = fields.get("confidence_head_with_markov") in (None, True)
            width = self._config.hidden_size + rank * joined
            confidence = Linear(
                "confidence_head.proj.weight", width, 1, "confidence_head.proj.bias"
            )
        name = "markov_head.markov_w"
        previous = Linear(f"{name}1.weight", rank, self._config.vocab_size)
        return Markov(previous, Linear(f"{name}2.weight", rank, outputs), confidence)

    def _selector(self, outputs: int) -> Markov:
        """Returns by what DFlash2 selects among the likeliest tokens of a position."""
        fields = self._fields
        config = self._config
        name = "candidate_selector"
        if outputs != config.vocab_size:
            raise fields.unsupported("draft_vocab_size", "use a drafter of all tokens")
        rank = fields.integer("selector_rank", most=2**14)
        return Markov(
            Linear(f"{name}.predecessor_codebook", rank, config.vocab_size),
            Linear(f"{name}.successor_codebook", rank, outputs),
            factors=Linear(f"{name}.hidden_projection.weight", config.hidden_size, rank),
            selects=fields.integer("selector_top_k", most=outputs),
        )
