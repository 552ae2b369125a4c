"""The model that a bundle's role is simulated as: its sizes, and the bundle with these sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from edgespec.bundle import Bundle, FileEntry, Precision, Role, Stage, Tensor
from edgespec.bundle.sublayers import ATTENTION, Sublayers
from edgespec.errors import InputError

_BLOCK = 128
_BITS = 4 + 16 / _BLOCK  # bits per weight: int4, and a float16 scale for each block


@dataclass(frozen=True)
class StatedModel:
    """The sizes of a model in int4, as `edgespec export` would make it.

    Attributes:
        name: common name of the model.
        layers: number of layers, each with attention and MLP.
        hidden: width of the residual stream.
        intermediate: width of the MLP.
        heads: number of query heads.
        kv_heads: number of key and value heads.
        head_dim: width of a head.
        vocab: number of logits of a row.
        tied: whether the output projection is the embedding.
        source: where these numbers are from.
    """

    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    source: str

    @property
    def parameters(self) -> int:
        """Number of parameters of the embedding and all matrices."""
        return self.macs() + (0 if self.tied else self.vocab * self.hidden)

    @property
    def layout(self) -> Sublayers:
        """The sublayers of the model."""
        return Sublayers.pairs(self.layers, self.intermediate)

    def macs(self, start: int = 0, stop: int | None = None) -> int:
        """Returns the multiplications per row in these sublayers: as many as weights."""
        layout = self.layout
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        mlp = 3 * self.hidden * self.intermediate
        part = range(start, layout.head + 1 if stop is None else stop)
        head = self.vocab * self.hidden * (layout.head in part)
        inner = layout[part.start : part.stop]
        return head + sum(attention if each.kind == ATTENTION else mlp for each in inner)

    def stretched(self, number: int, layout: Sublayers) -> int:
        """Returns the sublayer of this model that corresponds to one of another model's."""
        own = self.layout
        if number >= layout.head:  # the head, or the end after it
            return own.head + number - layout.head
        layer = layout.layer_of(number)
        stands_for = own.of_layer(round(layer * self.layers / layout.layers))
        return stands_for[min(number - layout.first(layer), len(stands_for) - 1)]


def as_stated(bundle: Bundle, models: Mapping[str, StatedModel]) -> Bundle:
    """Returns a bundle with the sizes of these models, for calculations; it has no such files.

    Tokenizer, context length and the number of stages stay the same. Each stage keeps its share of
    the layers.

    Raises:
        InputError: if a role has no model, or one with fewer layers.
    """
    roles, files = {}, dict(bundle.manifest.files)
    for name, role in bundle.manifest.roles.items():
        if name not in models:
            raise InputError(
                f"the machine states no model for the role {name!r}: add it beside "
                f"{', '.join(models)}"
            )
        model = models[name]
        if model.layers < role.layers:
            raise InputError(
                f"the machine states {model.layers} layers for the role {name!r}, which has "
                f"{role.layers}: state a model of as many or more"
            )
        roles[name] = _role(role, model)
        data = {stage.data for stage in role.stages}
        size = int(model.parameters * bytes_per_weight() / len(data))
        files |= {file: FileEntry(size, files[file].sha256) for file in data}
    return replace(bundle, manifest=replace(bundle.manifest, roles=roles, files=files))


def bytes_per_weight() -> float:
    """Returns the bytes per weight of every simulated model."""
    return _BITS / 8


def _role(role: Role, model: StatedModel) -> Role:
    return replace(
        role,
        layers=model.layers,
        hidden_size=model.hidden,
        heads=model.heads,
        kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        vocab_size=model.vocab,
        parameters=model.parameters,
        sublayers=tuple(model.layout),
        precision=Precision("int4", "int4", "fp16", _BLOCK, "fp16"),
        stages=tuple(_stage(stage, role, model) for stage in role.stages),
        tied=model.tied,
    )


def _stage(stage: Stage, role: Role, model: StatedModel) -> Stage:
    start, stop = (model.stretched(end, role.layout) for end in (stage.start, stage.stop))
    cached = model.layout.attentions(range(start, stop))
    widths = dict.fromkeys(("next_hidden", "last_hidden"), model.hidden) | {"logits": model.vocab}
    return replace(
        stage,
        start=start,
        stop=stop,
        inputs=(
            *(each for each in stage.inputs if not each.name.startswith("past.")),
            *(_past(layer, part, model) for layer in cached for part in ("key", "value")),
        ),
        outputs=tuple(
            replace(each, shape=(each.shape[0], str(widths[each.name])))
            if each.name in widths
            else each
            for each in stage.outputs
        ),
    )


def _past(layer: int, part: str, model: StatedModel) -> Tensor:
    return Tensor(
        f"past.{layer}.{part}", "float16", (str(model.kv_heads), "C", str(model.head_dim))
    )
