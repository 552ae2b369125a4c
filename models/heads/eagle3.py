"""Reads a draft head in the format of EAGLE-3, in its flat layout or in that of `speculators`.

The latter also holds P-EAGLE (2026), the same with masks, by which it drafts in one call.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from edgespec.errors import CheckpointError
from edgespec.models.config import ModelConfig
from edgespec.models.families.llama import Llama
from edgespec.models.families.qwen3 import Qwen3
from edgespec.models.fields import ConfigFields
from edgespec.models.formats.safetensors_folder import SafetensorsFolder
from edgespec.models.formats.tensors import check_shapes
from edgespec.models.heads.checkpoint import (
    HeadCheckpoint,
    HeadFiles,
    TargetSizes,
    check_agrees,
    check_parts,
)
from edgespec.models.heads.head import Fusion, Head, HeadLayer, Masks
from edgespec.models.layers.elements import Linear
from edgespec.models.layers.rope import Rope, rope_from_config

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from edgespec.models.formats.tensors import TensorSource

FLAT = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")
"""Names of the flat layout in `architectures`."""

FUSION = "edgespec_fusion"
"""Our own field: `gated` for Dovetail's fusion; heads of other tools concatenate and lack it."""

GATED = "gated"
"""The value of this field."""

EAGLE3, PEAGLE = "eagle3", "peagle"
"""Forms of a head, as `speculators` calls them; the second one drafts several tokens at once."""

_TYPE = "speculators_model_type"
_MOST_DRAFTED = 64
_USUALLY_DRAFTED = 8
_LAYER, _FLAT_LAYER = "layers.0", "midlayer."
_TAP_NORMS = ("aux_norm_low", "aux_norm_mid", "aux_norm_high")
_CONCATENATED = "concat"
_TAPS = "eagle_aux_hidden_state_layer_ids"
_IDS = "d2t"
_KNOWN = "t2d"
_EMBEDDING = "embed_tokens.weight"
_SPECULATORS = "transformer_layer_config"
_DEFAULTS = {**Llama.defaults, "num_hidden_layers": 1}

_log = logging.getLogger(__name__)


def is_eagle3(fields: ConfigFields) -> bool:
    """Whether a config is that of an EAGLE-3 or P-EAGLE head."""
    names = fields.get("architectures")
    return fields.get(_TYPE) in (EAGLE3, PEAGLE) or (
        isinstance(names, list) and bool(set(FLAT).intersection(map(str, names)))
    )


def load_eagle3(files: HeadFiles, target: TargetSizes) -> HeadCheckpoint:
    """Opens a head, and checks it against its target.

    Raises:
        UnsupportedModelError: The config asks for something that is not implemented.
        CheckpointError: Something is missing, damaged, inconsistent, or of another target.
    """
    fields = files.fields
    tensors = files.tensors(_usual)
    flat = fields.get(_SPECULATORS) is None
    _check_format(fields, flat)
    layer = fields if flat else fields.group(_SPECULATORS)
    config = ModelConfig.from_fields(layer.with_defaults(_DEFAULTS), ConfigFields({}, layer.source))
    head = _Reader(fields, config, flat, target, tensors.names).head()
    unknown = tensors.names - head.tensors().keys() - {_IDS, _KNOWN, _EMBEDDING}
    check_parts(tensors, unknown, "an EAGLE-3 head")
    check_shapes(tensors, head.tensors())
    assert head.lm_head is not None, "it has its own"
    ids = read_ids(files.path, tensors, head.lm_head.out_features, target)
    return HeadCheckpoint(files.path, head, tensors, ids)


def _usual(name: str) -> str:
    """Returns the name of a tensor in the layout of `speculators`, or for an older one."""
    stem, _, kind = name.rpartition(".")
    if stem in _TAP_NORMS:
        return f"fc_norm.{_TAP_NORMS.index(stem)}.{kind}"
    return name.replace(_FLAT_LAYER, f"{_LAYER}.", 1) if name.startswith(_FLAT_LAYER) else name


def _check_format(fields: ConfigFields, flat: bool) -> None:
    if not flat:
        if fields.get(_TYPE) not in (EAGLE3, PEAGLE):
            raise fields.unsupported(_TYPE, "use a head of type eagle3, peagle, dflash or dspark")
        return
    if not is_eagle3(fields):
        raise fields.unsupported(
            "architectures", f"give an EAGLE-3 head ({' or '.join(FLAT)}, or of `speculators`)"
        )


def read_ids(
    path: Path, tensors: TensorSource, outputs: int, target: TargetSizes
) -> NDArray[np.int64]:
    """Returns the target's id of each output; `d2t` holds offsets from the output's number.

    In GGUF files it holds ids.

    Raises:
        CheckpointError: It is missing although there are fewer outputs than tokens, or wrong.
    """
    numbers = np.arange(outputs, dtype=np.int64)
    if _IDS not in tensors.names:
        if outputs != target.vocab_size:
            raise CheckpointError(
                f"{path} has no tensor {_IDS}, which says what its {outputs} outputs stand for "
                f"(the target has {target.vocab_size}): download the head again"
            )
        return numbers[: target.tokens]
    if isinstance(tensors, SafetensorsFolder):
        found = tensors.read_integers(_IDS)
    else:
        found = tensors.read(_IDS).astype(np.int64)
        numbers = np.zeros_like(numbers)
    if found.shape != (outputs,):
        raise CheckpointError(
            f"{path}: {_IDS} has shape {list(found.shape)}, must be [{outputs}]: download the "
            "head again"
        )
    ids = numbers + found
    if len(np.unique(ids)) < outputs or ids.min() < 0 or ids.max() >= target.vocab_size:
        raise CheckpointError(
            f"{path}: {_IDS} maps outputs to ids from {ids.min()} to {ids.max()}, "
            f"{outputs - len(np.unique(ids))} of them twice; it must hold offsets to ids below "
            f"{target.vocab_size}: use a head of this target"
        )
    return ids


class _Reader:
    """Builds the description of a head from its config.

    Args:
        fields: config.json.
        config: the sizes and options of the decoder layer.
        flat: whether the layout is the flat one.
        target: what the head must agree with.
        names: names of its tensors.
    """

    def __init__(
        self,
        fields: ConfigFields,
        config: ModelConfig,
        flat: bool,
        target: TargetSizes,
        names: frozenset[str],
    ) -> None:
        self._fields = fields
        self._config = config
        self._flat = flat
        self._target = target
        self._names = names
        self._form = EAGLE3 if flat else str(fields.get(_TYPE))
        family = Qwen3 if config.model_type == "qwen3" else Llama
        self._model = family(config, "layers")

    def head(self) -> Head:
        """Returns the description."""
        config = self._config
        hidden = self._config.hidden_size
        self._check_layer()
        layers = range(1, config.num_layers)
        embedding = self._embedding()
        outputs = self._fields.integer("draft_vocab_size", config.vocab_size)
        taps = self._taps()
        return Head(
            architecture=self._form,
            taps=taps,
            fusion=self._fusion(len(taps)),
            embedding=embedding,
            layer=self._decoder_layer(),
            norm=self._model.norm("norm", hidden),
            lm_head=Linear("lm_head.weight", hidden, outputs),
            norm_output=self._fields.flag("norm_output"),
            hidden_size=hidden,
            vocab_size=config.vocab_size,
            context_length=config.context_length,
            rope=self._rope(),
            further=tuple(
                each
                for index in layers
                for each in (self._model.attention(index), self._model.mlp(index))
            ),
            masks=self._masks(len(taps)) if self._form == PEAGLE else None,
        )

    def _check_layer(self) -> None:
        config = self._config
        layer = self._config.fields
        size = self._target.vocab_size
        if self._flat and config.num_layers != 1:
            raise layer.unsupported("num_hidden_layers", "a head has one layer in the flat layout")
        check_agrees(layer, {"vocab_size": size})
        if set(config.windows) != {None}:
            named = "layer_types" if layer.get("layer_types") is not None else "sliding_window"
            raise layer.unsupported(named, "use a head whose attention has no window")
        if config.mlp_bias:
            raise layer.unsupported("mlp_bias", "use a head without biases in its MLP")

    def _embedding(self) -> str | None:
        if _EMBEDDING in self._names:
            return _EMBEDDING
        if self._config.hidden_size != self._target.hidden_size:
            raise self._config.fields.invalid(
                "hidden_size",
                f"must be the target's, {self._target.hidden_size}, since the head has no "
                f"{_EMBEDDING} of its own",
            )
        return None

    def _taps(self) -> tuple[int, ...]:
        """Returns the layers whose entering rows are read.

        The field of `speculators` and vLLM names these layers. The one in `eagle_config`, which
        SGLang and SpecForge use, names the layers whose *output* is read, so it is one less.
        """
        place = self._fields
        shift = 0
        if place.get(_TAPS) is None:
            place = self._fields.group("eagle_config")
            shift = 1
        found = place.get(_TAPS)
        layers = self._target.layers
        if not found:  # absent, or an empty list
            return default_taps(layers)
        if (
            not isinstance(found, list)
            or not all(isinstance(n, int) and 0 <= n + shift <= layers for n in found)
            or len(set(found)) < len(found)
        ):
            raise place.invalid(_TAPS, f"must be layers of the target, which has {layers}")
        return tuple(sorted(each + shift for each in found))

    def _fusion(self, taps: int) -> Fusion:
        fields = self._fields
        size = self._target.hidden_size
        norm = self._model.norm
        check_agrees(fields, {"target_hidden_size": size})
        group = fields.group("eagle_config") if self._flat else fields
        whole = fields.flag("norm_before_fc") or group.flag("norm_before_fc")
        each = fields.flag("fc_norm") or fields.flag("use_aux_norm")
        return Fusion(
            fc=Linear("fc.weight", taps * size, self._config.hidden_size),
            norm=norm("input_norm", taps * size) if whole else None,
            tap_norms=tuple(norm(f"fc_norm.{n}", size) for n in range(taps)) if each else (),
        )

    def _masks(self, taps: int) -> Masks:
        """Returns how P-EAGLE drafts; the depths that it was trained for are its proposal's."""
        fields = self._fields
        token = fields.token("mask_token_id", self._target.vocab_size)
        methods = fields.group("speculators_config").get("proposal_methods")
        first = methods[0] if isinstance(methods, list) and methods else {}
        proposal = ConfigFields(first if isinstance(first, dict) else {}, fields.source)
        rows = proposal.integer("speculative_tokens", _USUALLY_DRAFTED, most=_MOST_DRAFTED)
        return Masks(token, rows, "mask_hidden", taps * self._target.hidden_size)

    def _decoder_layer(self) -> HeadLayer:
        hidden = self._config.hidden_size
        model = self._model
        kind = self._fields.get(FUSION) or _CONCATENATED
        if kind not in (_CONCATENATED, GATED):
            raise self._fields.unsupported(FUSION, f"use {_CONCATENATED} or {GATED}")
        gated = kind == GATED
        attention = model.attention(0)
        width = hidden if gated else 2 * hidden
        q, k, v = (replace(each, in_features=width) for each in attention.linears[:3])
        return HeadLayer(
            token_norm=model.norm(f"{_LAYER}.input_layernorm", hidden),
            hidden_norm=model.norm(f"{_LAYER}.hidden_norm", hidden),
            gate=Linear(f"{_LAYER}.fusion_gate.weight", 2 * hidden, hidden) if gated else None,
            norm_before_residual=self._norm_before_residual(),
            attention=replace(attention, norm=None, q=q, k=k, v=v),
            mlp=model.mlp(0),
        )

    def _norm_before_residual(self) -> bool:
        """Returns the flag; tools disagree on what its absence means in `speculators`' layout."""
        field = "norm_before_residual"
        if not self._flat and self._fields.get(field) is None:
            raise self._fields.invalid(field, "must be true or false: some tools assume either")
        return self._fields.flag(field)

    def _rope(self) -> Rope | None:
        """Returns the rotation; None for the target's, if the config does not state one.

        Configs were published that lack it although the head was trained with the target's.
        """
        layer = self._config.fields
        size = self._config.head_dim
        theirs = np.asarray(self._target.inv_freq)
        if all(layer.get(name) is None for name in ("rope_theta", "rope_parameters")):
            if size != 2 * len(theirs):
                raise layer.invalid("rope_theta", "must be given: the target's has another size")
            if not theirs.all():
                raise layer.invalid(
                    "rope_theta", "must be given: the target rotates only a part of its heads"
                )
            _log.warning("%s has no rope_theta: the target's is used", layer.source)
            return None
        rope = rope_from_config(layer, size)
        differs = len(rope.inv_freq) != len(theirs) or not np.allclose(rope.inv_freq, theirs)
        if differs and theirs.all():  # a head rotates whole heads in any case
            _log.warning(
                "%s: its rotary embedding (rope_theta) is not the target's: if few drafts are "
                "accepted, correct it",
                layer.source,
            )
        return rope


def default_taps(layers: int) -> tuple[int, ...]:
    """Returns the layers that EAGLE-3 reads by default: an early, a middle and a late one."""
    return tuple(sorted({min(2, layers), layers // 2, max(layers - 3, 0)}))
