"""The draft sources that a bundle's native graphs offer, loaded."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from edgespec.bundle import DRAFT, TARGET, Bundle, Role
from edgespec.errors import BundleError, InputError, reason
from edgespec.llm.load.open import load_assistant, load_model, load_part, load_scoring
from edgespec.llm.load.options import DRAFTS, LoadOptions
from edgespec.runtime.arrays import Floats
from edgespec.runtime.drafters.ahead import AheadDrafter, AheadHeadDrafter, AheadModelDrafter
from edgespec.runtime.drafters.assistant import AssistantDrafter
from edgespec.runtime.drafters.base import Drafter
from edgespec.runtime.drafters.block import BlockDrafter, Pairs
from edgespec.runtime.drafters.grammar import GrammarDrafter
from edgespec.runtime.drafters.growth import Ids, TreeDrafter
from edgespec.runtime.drafters.head import HeadDrafter
from edgespec.runtime.drafters.lookup import LookupDrafter
from edgespec.runtime.drafters.model import Frequent, ModelDrafter
from edgespec.runtime.drafters.parallel import ParallelDrafter, ParallelHeadDrafter
from edgespec.runtime.drafters.prediction import PredictionDrafter
from edgespec.runtime.drafters.recycling import RecyclingDrafter, Successors
from edgespec.runtime.drafters.skip import SkipDrafter
from edgespec.runtime.drafters.translated import RecodedDrafter, SharedDrafter
from edgespec.runtime.plan import HOST, MemoryPlan
from edgespec.runtime.sequences.model import NATIVE, Model
from edgespec.runtime.speculation.generation import AUTO, NO_DRAFT
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.runtime.text.vocabulary_map import VocabularyMap

_log = logging.getLogger(__name__)

ON_CORES = {NATIVE, "openvino:cpu", "qnn:emulated"}
"""Engines and devices that use the CPU's cores, as `HOST` does."""

_FREQUENT = 1 << 16
"""Tokens that a draft model scores where a text has few others; vocabularies begin with the most
frequent ones."""

_TARGET_SECONDS, _DRAFT_SECONDS = 0.5, 0.25  # to measure what passes cost


class Sources:
    """The target of a bundle, and all that drafts for it.

    Args:
        bundle: a bundle with native graphs.
        options: options for loading it.
        tokenizer: tokenizer of the target.
        plan: where the models run, with how many slots.

    Attributes:
        models: the target and the draft, if one is loaded, by their names.
        drafters: the cheapest first.
        recycling: the one of them that recycles tokens.
        names: allowed values of a text's `draft_source`.
        timings: what is to be found out of costs, see `Engine`.

    Raises:
        BundleError: if a file of the draft is damaged.
        DeviceError: if ONNX Runtime refuses a graph.
        InputError: if the bundle does not have the draft source.
    """

    def __init__(
        self, bundle: Bundle, options: LoadOptions, tokenizer: Tokenizer, plan: MemoryPlan
    ) -> None:
        self._bundle = bundle
        self._options = options
        if bundle.target.embedding is not None:
            _require_no_drafts(options)
        features = DRAFT in plan.roles and bundle.manifest.roles[DRAFT].is_head
        self.models = {
            name: load_model(bundle, name, placed, options.threads, plan.slots[name], features)
            for name, placed in plan.roles.items()
            if not bundle.manifest.roles[name].attends_target
        }
        if len(self.models) < len(plan.roles):
            self.models[DRAFT] = load_assistant(
                bundle, self.models[TARGET], plan.roles[DRAFT], options.threads
            )
        self.drafters: list[Drafter] = []
        self.timings: list[Iterator[None]] = []
        self.recycling = RecyclingDrafter(self._successors)
        self.names: tuple[str, ...] = (NO_DRAFT,)
        if options.draft != NO_DRAFT and bundle.target.embedding is None:
            self.timings.append(self.models[TARGET].measuring(_TARGET_SECONDS))
            dear = [*self._by_draft(tokenizer), *self._by_skips()]
            for each in dear[1:]:  # they are alternatives
                each.in_auto = False
            cheap = PredictionDrafter(), LookupDrafter(), self.recycling
            grammar = GrammarDrafter()
            self.drafters = [*cheap, grammar, *dear, *([grammar] if dear else [])]
            found = {each.name for each in self.drafters} | {NO_DRAFT, options.draft}
            self.names = tuple(name for name in DRAFTS if name in found)
            if options.draft not in (AUTO, *(each.name for each in self.drafters)):
                raise InputError(
                    f"{bundle.path} has nothing that drafts by {options.draft}: use another "
                    f"--draft, of {', '.join(self.names)}"
                )
        ahead = any(isinstance(each, AheadDrafter) for each in self.drafters)
        if options.pipeline == "overlap" and not ahead:
            raise InputError(
                f"pipeline is 'overlap', and {bundle.path} has no draft in use that can go on "
                "while the target works: a model that has the target's tokenizer and no recurrent "
                "layers, or a head that drafts token by token; use another pipeline"
            )

    def close(self) -> None:
        """Frees the models and all that drafts."""
        for model in self.models.values():
            model.close()
        self.models.clear()
        self.drafters.clear()
        self.timings.clear()

    def _successors(self) -> Successors:
        """Returns what recycling begins with."""
        vocab_size = self._bundle.target.vocab_size
        memory = self._options.draft_memory
        if memory is None or not Path(memory).exists():
            return Successors(vocab_size)
        return Successors.load(Path(memory), self._bundle.digest, vocab_size)

    def _by_draft(self, tokenizer: Tokenizer) -> list[TreeDrafter]:
        """Returns the drafters that use the bundle's draft, the best one first."""
        role = self._bundle.draft
        if role is None or DRAFT not in self.models:
            return []
        model = self.models[DRAFT]
        context = role.context_length
        self.timings.append(model.measuring(_DRAFT_SECONDS))
        vocabularies = VocabularyMap.of(self._bundle, tokenizer)
        if vocabularies is not None:
            _log.info("%s", vocabularies)
            translated = SharedDrafter if vocabularies.shares_enough else RecodedDrafter
            return [translated(model, context, vocabularies)]
        ids = _ids(self._bundle, role)
        if role.is_head:
            # Rows that read the head's own output guess less well, so not by default.
            ahead = self._options.pipeline == "overlap"
            return [_by_head(self._bundle, role, model, ids, ahead)]
        made = AheadModelDrafter if self._overlaps(model) else ModelDrafter
        frequent = None
        if model.device == NATIVE and ids is None and role.mask_token is None:
            graph = load_scoring(self._bundle, DRAFT, _FREQUENT, self._options.threads)
            frequent = None if graph is None else Frequent(graph, _FREQUENT)
        drafters: list[TreeDrafter] = [made(model, context, ids, frequent)]
        if role.mask_token is not None:
            drafters.insert(0, ParallelDrafter(model, context, role.mask_token, ids))
        return drafters

    def _overlaps(self, draft: Model) -> bool:
        """Whether a draft model is to go on drafting while the target works."""
        apart = not _devices(draft) & _devices(self.models[TARGET])
        asked = {"auto": apart, "serial": False, "overlap": True}[self._options.pipeline]
        return asked and draft.pool.recurrent is None  # which wants nodes of one depth in a call

    def _by_skips(self) -> list[TreeDrafter]:
        """Returns the drafter by the best skip set, if there is one."""
        sets = self._bundle.manifest.skip_sets
        draft = self._options.draft
        if draft == AUTO:  # which leaves out what was found not to pay
            sets = tuple(each for each in sets if each.score is None or each.score.pays)
        target = self.models[TARGET]
        if not sets or draft not in (AUTO, SkipDrafter.name) or target.device != NATIVE:
            return []
        try:
            model = load_part(self._bundle, target, sets[0].skipped, self._options.threads)
        except ValueError as error:
            raise BundleError(f"{self._bundle.path}: skip_sets[0]: {error}") from error
        self.timings.append(model.measuring(_DRAFT_SECONDS))
        return [SkipDrafter(model)]


def _by_head(bundle: Bundle, role: Role, model: Model, ids: Ids | None, ahead: bool) -> TreeDrafter:
    """Returns the drafter that uses a bundle's draft head, and perhaps goes on, if it can."""
    context = role.context_length
    block = role.block
    mask = role.mask_token
    if role.attends_target:
        return AssistantDrafter(model)
    if block is None or mask is None:
        return (AheadHeadDrafter if ahead else HeadDrafter)(model, context, ids)
    if not block.features:
        pairs: Pairs | None = None
        if block.pairs:
            with _read(bundle.path / block.pairs) as file:
                pairs = Pairs.read(file, role.vocab_size, ids)
        return BlockDrafter(model, context, mask, block, ids, pairs)
    width = len(role.taps) * bundle.target.hidden_size
    features = _features(bundle.path / block.features, width)
    return ParallelHeadDrafter(model, context, mask, features, block.rows, ids)


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
