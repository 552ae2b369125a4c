"""Opens the models of a bundle: their graphs, where the plan has put them, and their pools."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from edgespec.bundle import DRAFT, TARGET, Bundle
from edgespec.errors import BundleError
from edgespec.llm.load.adapters import AdapterSet
from edgespec.llm.load.graphs import NO_ADAPTERS, GraphOpener, native_graph, rotation_tables
from edgespec.llm.load.options import LAYER_SKIP, LoadOptions
from edgespec.runtime.drafters.frequent import FrequentTokens
from edgespec.runtime.drafters.shared_pool import AssistantGraph
from edgespec.runtime.kernels import library
from edgespec.runtime.plan import HOST, MemoryPlan, Placement
from edgespec.runtime.sequences.model import NATIVE, Graph, Model
from edgespec.runtime.speculation.generation import AUTO

_FREQUENT = 1 << 16
"""Tokens that a draft model scores where a text has few others; vocabularies begin with the most
frequent ones."""


@dataclass
class ModelSet:
    """The models of a bundle, opened.

    Attributes:
        roles: the target, and the draft if one is loaded; none once they are closed.
        part: the target without the sublayers of the best skip set, over its pool; None: there is
            none, or it is not to draft.
        frequent: what scores the draft model's frequent tokens alone; None: nothing does.
        adapters: the adapters of the target.
    """

    roles: dict[str, Model]
    part: Model | None = None
    frequent: FrequentTokens | None = None
    adapters: AdapterSet = NO_ADAPTERS

    def close(self) -> None:
        """Frees the models."""
        for model in self.roles.values():
            model.close()
        self.roles.clear()
        self.part = None
        self.frequent = None


def load_models(bundle: Bundle, options: LoadOptions, plan: MemoryPlan) -> ModelSet:
    """Loads the models of a plan, and what else drafts by their weights.

    Raises:
        BundleError: if a skip set is not one of the target's.
        CheckpointError: if an adapter is damaged, not supported, or not one of the target.
        DeviceError: if a device refuses a graph.
        InputError: if a portable graph cannot be made, or two adapters have one name.
    """
    features = DRAFT in plan.roles and bundle.manifest.roles[DRAFT].is_head
    threads = options.threads
    adapters = AdapterSet.load(bundle, options.adapter_files)
    roles = dict[str, Model]()
    for name, placed in plan.roles.items():
        if bundle.manifest.roles[name].attends_target:
            roles[name] = load_assistant_draft(bundle, roles[TARGET], placed, threads)
            continue
        added = adapters if name == TARGET else NO_ADAPTERS
        opener = GraphOpener(bundle, name, threads, features, adapters=added)
        roles[name] = opener.model(placed, plan.slots[name])
    part = _best_part(bundle, options, roles[TARGET], plan.roles[TARGET], adapters)
    frequent = None
    if DRAFT in roles and roles[DRAFT].device == NATIVE:
        frequent = _frequent(bundle, threads)
    return ModelSet(roles, part, frequent, adapters)


def load_model(
    bundle: Bundle,
    name: str,
    placed: Placement,
    threads: int | None = None,
) -> Model:
    """Loads a role, which has a native graph; its portable graph is made where that runs.

    Args:
        bundle: the bundle.
        name: name of the role.
        placed: where it runs.
        threads: number of threads on the CPU; None: one for each physical core.

    Raises:
        DeviceError: if the device refuses the graph.
        InputError: if a portable graph cannot be made.
    """
    return GraphOpener(bundle, name, threads).model(placed)


def load_part(
    bundle: Bundle,
    target: Model,
    skipped: Collection[int],
    threads: int | None = None,
    placed: Placement | None = None,
    adapters: AdapterSet = NO_ADAPTERS,
) -> Model:
    """Loads the target without some of its sublayers, over the pool of the whole target.

    Args:
        bundle: the bundle.
        target: the whole target, on one device.
        skipped: numbers of sublayers.
        threads: number of threads on the CPU; None: one for each physical core.
        placed: where the target runs; None: by its native graph. A device has copies of the
            weights that are left.
        adapters: the target's adapters.

    Raises:
        DeviceError: if the device refuses the graph.
        InputError: if a portable graph cannot be made.
        ValueError: if the graph has no such sublayers, or needs them.
    """
    from edgespec.runtime.engines.parts import without  # loads the onnx package

    part = without(bundle.path / bundle.target.native.graph, skipped)
    place = placed or Placement(HOST)
    opener = GraphOpener(bundle, TARGET, threads, adapters=adapters)
    graph, _ = opener.open_part(place, part)
    made = Model(
        graph, target.pool, rotation_tables(bundle, TARGET), target.prefixes, target.device
    )
    made.picture_width = target.picture_width
    made.adapts = target.adapts
    return made


def load_scoring(bundle: Bundle, name: str, count: int, threads: int | None = None) -> Graph | None:
    """Loads the native graph of a role so that it scores the first tokens alone.

    Returns:
        The graph, over the same weights; None if the role scores no more, or not in one matrix.

    Raises:
        DeviceError: if ONNX Runtime refuses the graph.
    """
    role = bundle.manifest.roles[name]
    file = bundle.path / role.native.graph
    if role.vocab_size <= count or role.native.adopted or library() is None:
        return None
    from edgespec.runtime.engines.parts import scoring  # loads the onnx package

    try:
        part = scoring(file, count)
    except ValueError:
        return None
    return native_graph(file, threads, part)


def load_assistant_draft(
    bundle: Bundle, target: Model, placed: Placement, threads: int | None = None
) -> Model:
    """Loads a draft head that reads keys and values of the target, over the target's pool.

    Raises:
        DeviceError: if the device refuses the graph.
    """
    graph, _ = GraphOpener(bundle, DRAFT, threads, features=True).open_whole(placed)
    graph = AssistantGraph(graph, bundle.target.hidden_size, bundle.target.hidden_size)
    device = NATIVE if placed.native else placed.device
    return Model(graph, target.pool, rotation_tables(bundle, DRAFT), target.prefixes, device)


def _best_part(
    bundle: Bundle,
    options: LoadOptions,
    target: Model,
    placed: Placement,
    adapters: AdapterSet,
) -> Model | None:
    """Loads the target without the sublayers of its best skip set, if that may draft.

    On a device it has weights of its own, so there it must be asked for.
    """
    sets = bundle.manifest.skip_sets
    if options.draft == AUTO:  # which leaves out what was found not to pay
        sets = tuple(each for each in sets if each.score is None or each.score.pays)
    wanted = options.draft == LAYER_SKIP or (options.draft == AUTO and placed.native)
    if not sets or not wanted or placed.behind is not None:
        return None
    try:
        return load_part(bundle, target, sets[0].skipped, options.threads, placed, adapters)
    except ValueError as error:
        raise BundleError(f"{bundle.path}: skip_sets[0]: {error}") from error


def _frequent(bundle: Bundle, threads: int | None) -> FrequentTokens | None:
    """Loads what scores the draft's frequent tokens alone, if it is a model of all the target's."""
    role = bundle.manifest.roles[DRAFT]
    others = role.tokenizer or role.native.ids or role.mask_token is not None
    if role.is_head or others:
        return None
    graph = load_scoring(bundle, DRAFT, _FREQUENT, threads)
    return None if graph is None else FrequentTokens(graph, _FREQUENT)
