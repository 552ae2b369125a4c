"""The draft sources of a bundle: a table from the kind of draft to what makes its drafter."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from edgespec.bundle import DRAFT, TARGET, Bundle, Role
from edgespec.errors import BundleError, InputError, reason
from edgespec.llm.load.models import ModelSet
from edgespec.llm.load.options import DRAFTS, HEAD, LAYER_SKIP, MODEL, PARALLEL, LoadOptions
from edgespec.runtime.arrays import Floats, Ids
from edgespec.runtime.drafters.ahead import AheadGrower
from edgespec.runtime.drafters.base import Drafter
from edgespec.runtime.drafters.block import BlockGrower
from edgespec.runtime.drafters.block_head import BlockQuery, Pairs
from edgespec.runtime.drafters.grammar import GrammarDrafter
from edgespec.runtime.drafters.head import HeadReader
from edgespec.runtime.drafters.levels import LevelGrower
from edgespec.runtime.drafters.lookup import LookupDrafter
from edgespec.runtime.drafters.masks import HeadMaskQuery, MaskQuery
from edgespec.runtime.drafters.model import ModelDrafter
from edgespec.runtime.drafters.prediction import PredictionDrafter
from edgespec.runtime.drafters.reader import ModelReader
from edgespec.runtime.drafters.recycling import RecyclingDrafter, Successors
from edgespec.runtime.drafters.shared_pool import AssistantReader, SharedPoolReader
from edgespec.runtime.drafters.translated import RecodedGrower, RecodedReader, SharedReader
from edgespec.runtime.plan import HOST
from edgespec.runtime.sequences.model import NATIVE, Model
from edgespec.runtime.sequences.queue import measuring
from edgespec.runtime.speculation.generation import AUTO, NO_DRAFT
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.runtime.text.vocabulary.mapping import VocabularyMap

_log = logging.getLogger(__name__)

ON_CORES = {NATIVE, "openvino:cpu", "qnn:emulated"}
"""Engines and devices that use the CPU's cores, as `HOST` does."""

_TARGET_SECONDS, _DRAFT_SECONDS = 0.5, 0.25  # to measure what passes cost


@dataclass(frozen=True)
class DraftSources:
    """All that drafts for a target.

    Attributes:
        drafters: the cheapest first; none once they are closed.
        recycling: what recycles tokens, among the drafters if there are any.
        names: allowed values of a text's `draft_source`.
        timings: what is to be found out of the costs of passes, see `Engine`.
    """

    drafters: list[Drafter]
    recycling: RecyclingDrafter
    names: tuple[str, ...]
    timings: list[Iterator[None]]

    def close(self) -> None:
        """Lets go of the models."""
        self.drafters.clear()
        self.timings.clear()


@dataclass(frozen=True)
class DrafterParts:
    """What drafters are made of.

    Attributes:
        bundle: the bundle.
        options: how it is loaded.
        tokenizer: tokenizer of the target.
        models: its models.
        recycling: what recycles tokens.
    """

    bundle: Bundle
    options: LoadOptions
    tokenizer: Tokenizer
    models: ModelSet
    recycling: RecyclingDrafter

    @property
    def draft(self) -> tuple[Role, Model] | None:
        """The bundle's draft, if it is loaded."""
        role = self.bundle.draft
        model = self.models.roles.get(DRAFT)
        return None if role is None or model is None else (role, model)


def _parallel(parts: DrafterParts) -> ModelDrafter | None:
    """Returns what drafts by a model that predicts several tokens in a call."""
    if parts.draft is None:
        return None
    role, model = parts.draft
    if role.is_head or role.tokenizer or role.mask_token is None:
        return None
    reader = ModelReader(model, role.context_length, _ids(parts.bundle, role))
    return ModelDrafter(BlockGrower(PARALLEL, reader, MaskQuery(role.mask_token)))


def _model(parts: DrafterParts) -> ModelDrafter | None:
    """Returns what drafts by a model, token by token."""
    if parts.draft is None or parts.draft[0].is_head:
        return None
    role, model = parts.draft
    context = role.context_length
    vocabularies = VocabularyMap.of(parts.bundle, parts.tokenizer)
    if vocabularies is not None:
        _log.info("%s", vocabularies)
        if vocabularies.shares_enough:
            return ModelDrafter(LevelGrower(MODEL, SharedReader(model, context, vocabularies)))
        return ModelDrafter(RecodedGrower(MODEL, RecodedReader(model, context, vocabularies)))
    reader = ModelReader(model, context, _ids(parts.bundle, role), parts.models.frequent)
    ahead = _overlaps(parts, model)
    return ModelDrafter((AheadGrower if ahead else LevelGrower)(MODEL, reader))


def _head(parts: DrafterParts) -> ModelDrafter | None:
    """Returns what drafts by a draft head."""
    if parts.draft is None or not parts.draft[0].is_head:
        return None
    role, model = parts.draft
    ids = _ids(parts.bundle, role)
    context = role.context_length
    block = role.block
    mask = role.mask_token
    if role.attends_target:
        return ModelDrafter(LevelGrower(HEAD, AssistantReader(model)))
    if block is None or mask is None:
        # Rows that read the head's own output guess less well, so not by default.
        ahead = parts.options.pipeline == "overlap"
        reader = HeadReader(model, context, ids)
        return ModelDrafter((AheadGrower if ahead else LevelGrower)(HEAD, reader))
    if not block.features:
        pairs: Pairs | None = None
        if block.pairs:
            with _read(parts.bundle.path / block.pairs) as file:
                pairs = Pairs.read(file, role.vocab_size, ids)
        reader = HeadReader(model, context - block.rows, ids)  # the block is read besides
        return ModelDrafter(BlockGrower(HEAD, reader, BlockQuery(mask, block, pairs)))
    width = len(role.taps) * parts.bundle.target.hidden_size
    features = _features(parts.bundle.path / block.features, width)
    query = HeadMaskQuery(mask, features, block.rows)
    return ModelDrafter(BlockGrower(HEAD, HeadReader(model, context, ids), query))


def _layer_skip(parts: DrafterParts) -> ModelDrafter | None:
    """Returns what drafts by the target without some layers."""
    part = parts.models.part
    if part is None:
        return None
    return ModelDrafter(LevelGrower(LAYER_SKIP, SharedPoolReader(part)))


MAKERS: Mapping[str, Callable[[DrafterParts], Drafter | None]] = {
    PredictionDrafter.name: lambda parts: PredictionDrafter(),
    LookupDrafter.name: lambda parts: LookupDrafter(),
    RecyclingDrafter.name: lambda parts: parts.recycling,
    GrammarDrafter.name: lambda parts: GrammarDrafter(),
    PARALLEL: _parallel,
    MODEL: _model,
    HEAD: _head,
    LAYER_SKIP: _layer_skip,
}
"""What makes the drafter of each kind, the cheapest first; it returns None if a bundle has none."""


def make_drafters(
    bundle: Bundle, options: LoadOptions, tokenizer: Tokenizer, models: ModelSet
) -> DraftSources:
    """Makes all that drafts for the target of a bundle.

    Args:
        bundle: the bundle.
        options: options for loading it.
        tokenizer: tokenizer of the target.
        models: the opened models.

    Raises:
        BundleError: if a file of the draft is damaged.
        InputError: if the bundle does not have the draft source, or the draft memory is damaged.
    """
    recycling = RecyclingDrafter(lambda: _successors(bundle, options))
    parts = DrafterParts(bundle, options, tokenizer, models, recycling)
    made = dict[str, Drafter]()
    names: tuple[str, ...] = (NO_DRAFT,)
    if not bundle.target.writes:
        _require_no_drafts(options)
    elif options.draft != NO_DRAFT:
        made = {kind: each for kind, make in MAKERS.items() if (each := make(parts)) is not None}
        names = tuple(each for each in DRAFTS if each in (*made, NO_DRAFT, options.draft))
        if options.draft not in (AUTO, *made):
            raise InputError(
                f"{bundle.path} has nothing that drafts by {options.draft}: use another "
                f"--draft, of {', '.join(names)}"
            )
    drafters = [*made.values()]
    dear = [each for each in drafters if isinstance(each, ModelDrafter)]
    ahead = any(isinstance(each.grower, AheadGrower) for each in dear)
    if options.pipeline == "overlap" and not ahead:
        raise InputError(
            f"pipeline is 'overlap', and {bundle.path} has no draft in use that can go on "
            "while the target works: a model that has the target's tokenizer and no recurrent "
            "layers, or a head that drafts token by token; use another pipeline"
        )
    for each in dear[1:]:  # they are alternatives
        each.in_auto = False
    if dear:
        drafters.append(made[GrammarDrafter.name])  # again, for the nodes of these
    return DraftSources(drafters, recycling, names, _timings(models) if made else [])


def _timings(models: ModelSet) -> list[Iterator[None]]:
    """Returns what finds out the costs of the target's passes, and of those that draft."""
    found = [models.roles[TARGET].measuring(_TARGET_SECONDS)]
    for each in (models.roles.get(DRAFT), models.part):
        if each is not None:
            timing = each.measuring if each.ranking is None else partial(measuring, each)
            found.append(timing(_DRAFT_SECONDS))
    return found


def _successors(bundle: Bundle, options: LoadOptions) -> Successors:
    """Returns what recycling begins with."""
    vocab_size = bundle.target.vocab_size
    memory = options.draft_memory
    if memory is None or not Path(memory).exists():
        return Successors(vocab_size)
    return Successors.load(Path(memory), bundle.digest, vocab_size)


def _overlaps(parts: DrafterParts, draft: Model) -> bool:
    """Whether a draft model is to go on drafting while the target works."""
    apart = not _devices(draft) & _devices(parts.models.roles[TARGET])
    asked = {"auto": apart, "serial": False, "overlap": True}[parts.options.pipeline]
    return asked and draft.pool.recurrent is None  # which wants nodes of one depth in a call


def _devices(model: Model) -> set[str]:
    """Returns the devices that a model runs on; those that are the CPU's cores are one."""
    names = {each.partition("#")[0] for each in model.device.split("+")}
    return {HOST if each in ON_CORES else each for each in names}


def _require_no_drafts(options: LoadOptions) -> None:
    """Refuses options of drafts, for a model that makes embeddings."""
    asked = {"draft": options.draft, "draft_memory": options.draft_memory}
    for name, value in asked.items():
        if value not in (None, AUTO, NO_DRAFT):
            raise InputError(
                f"{name} is {str(value)!r}: the model makes embeddings, so that there is no text "
                "to draft for: leave it out"
            )


def _ids(bundle: Bundle, draft: Role) -> Ids | None:
    """Reads the tokens that a draft's logits stand for; None: their own numbers."""
    if not draft.native.ids:
        return None
    count = draft.output_tokens or draft.vocab_size
    with _read(bundle.path / draft.native.ids) as file:
        ids = np.fromfile(file, "<i4").astype(np.int64)
        if len(ids) != count or not ((ids >= 0) & (ids < draft.vocab_size)).all():
            raise ValueError(f"it must hold {count} tokens below {draft.vocab_size}")
    return ids


def _features(path: Path, width: int) -> Floats:
    """Reads what masks read in place of features, [width] float32."""
    with _read(path) as file:
        features: Floats = np.load(file, allow_pickle=False)
        right = features.shape == (width,) and features.dtype == np.float32
        if not right or not np.isfinite(features).all():
            raise ValueError(f"it must hold {width} finite numbers")
    return features


@contextmanager
def _read(file: Path) -> Iterator[Path]:
    """Makes a ValueError about a file of the bundle an error that names it.

    Raises:
        BundleError: if its content is not what the manifest says.
    """
    try:
        yield file
    except ValueError as error:
        raise BundleError(f"{file}: {reason(error)}: export the checkpoint again") from error
