"""How much memory a bundle takes, and what of it fits: arithmetic, done before anything is loaded.

Memory is counted per device and means anonymous plus shared pages. Engines say what they take for
a stage; here that is added up and fitted to a limit. What does not fit gives way in this order:

1. what a context of our choice has beyond `USUAL_CONTEXT`;
2. the prefill chunk, which costs time to the first token only, and the draft tree's size; with them
   the second pair of rows and capacity of an NPU;
3. the draft model;
4. the rest of the context;
5. what is compiled for an NPU already, where other shapes take less;
6. the placement: an engine that needs less, where the user left the choice open.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from edgespec.bundle import DRAFT, TARGET, Bundle, Role
from edgespec.runtime.deployment.fixed_shapes import chosen_shapes, fixed
from edgespec.runtime.deployment.plans import HOST, MIB, Demand, FixedShape, Plan
from edgespec.runtime.engines import (
    CallSizes,
    Engine,
    Engines,
    Fixable,
    Footprint,
    joined,
)
from edgespec.runtime.execution.sizes import kv_bytes, stage_sizes
from edgespec.runtime.execution.stage_files import role_shapes
from edgespec.runtime.shapes import (
    ANY_SHAPES,
    COLUMNS,
    FIXED_WINDOW,
    ROW_BUCKETS,
    SCRATCH_ROWS,
    Shape,
    Shapes,
    capacity_bucket,
    row_bucket,
)

LEAST_CONTEXT = capacity_bucket(1)
"""A context is not shortened below this many tokens unasked: prompts would no longer fit."""

USUAL_CONTEXT = 4096
"""Tokens beyond these are not worth a draft model, unasked: models are made for 32 times as many.

llama.cpp and Ollama draw the line there, too.
"""

# Python with numpy, tokenizers and this package. Parsing a tokenizer makes eight bytes of each one.
_INTERPRETER_BYTES = 21 * MIB
_TOKENIZER_FACTOR = 8

# Of an engine's library that is only imported, to be weighed: ONNX Runtime's, OpenVINO's is less.
_IMPORTED_BYTES = 8 * MIB

_CHUNKS = (ROW_BUCKETS[-1], 64, 32, 16, 8)  # rows of a prompt that a call reads at most


@dataclass(frozen=True)
class Wishes:
    """What the user wants, the dearest first; only what is listed may be fallen back to.

    Attributes:
        contexts: tokens of prompt and output.
        drafts: draft sources.
        engines: of each role, what may run it.
        tree: nodes of a draft tree.
        width: rows of a draft model's calls.
        texts: caches to have at once.
        ready: of a role, the shapes that no NPU has to compile any more.
    """

    contexts: Sequence[int]
    drafts: Sequence[str]
    engines: Mapping[str, Sequence[Engines]]
    tree: int
    width: int
    texts: int = 1
    ready: Mapping[str, Collection[Shape]] = field(default_factory=dict)

    @property
    def all_engines(self) -> Iterator[Engine]:
        """Every one that may come to run a stage, as often as there are such stages."""
        for choices in self.engines.values():
            yield from itertools.chain.from_iterable(choices)


@dataclass(frozen=True)
class _Choice:
    """One way to run a bundle; `ready` is of those shapes that are to be used."""

    engines: Mapping[str, Engines]
    context: int
    draft: str
    tree: int
    chunk: int
    ready: Mapping[str, Collection[Shape]]


def context_choices(context: int) -> tuple[int, ...]:
    """This context and the shorter ones that are worth falling back to, longest first."""
    shorter = []
    size = LEAST_CONTEXT
    while size < context:
        shorter.append(size)
        size = capacity_bucket(size + 1)
    return (context, *reversed(shorter))


def plan(bundle: Bundle, wishes: Wishes, limits: Mapping[str, int]) -> Plan:
    """The best that fits.

    Args:
        bundle: of which only the manifest is read.
        wishes: what to try.
        limits: bytes that may be used of each device's memory.

    Returns:
        The first choice that fits, in the order that this module describes; where none does, the
        one that needs least, with `fits` false.
    """
    account = _Account(bundle, wishes, limits)
    choices = tuple(_choices(wishes, _chunks(bundle)))
    for choice in choices:
        if account.fits(choice):
            return account.planned(choice)
    return account.planned(min(choices, key=account.total))


def _chunks(bundle: Bundle) -> Sequence[int]:
    """Rows of a prefill chunk, the most first.

    For a target in several stages half the rows make up for what each stage keeps by itself, and
    cost little of a prompt's time.
    """
    return _CHUNKS if len(bundle.target.stages) == 1 else _CHUNKS[1:]


def _choices(wishes: Wishes, chunks: Sequence[int]) -> Iterator[_Choice]:
    ways = list(itertools.product(wishes.drafts, _call_sizes(wishes.tree, chunks)))
    for engines in _placements(wishes.engines):
        for ready in (wishes.ready, {}) if any(wishes.ready.values()) else ({},):
            for context in wishes.contexts:
                spare = context > max(USUAL_CONTEXT, wishes.contexts[-1])
                for draft, (tree, chunk) in ways[:1] if spare else ways:
                    yield _Choice(engines, context, draft, tree, chunk, ready)


def _placements(engines: Mapping[str, Sequence[Engines]]) -> Iterator[Mapping[str, Engines]]:
    """All combinations, the first of each role first."""
    for combination in itertools.product(*engines.values()):
        yield dict(zip(engines, combination, strict=True))


def _call_sizes(tree: int, chunks: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Nodes of a tree and rows of a prefill chunk: first the chunk shrinks, then the tree."""
    for chunk in chunks:
        yield tree, chunk
    while tree > 1:
        tree //= 2
        yield tree, chunks[-1]


class _Account:
    """Adds up what a choice takes."""

    def __init__(self, bundle: Bundle, wishes: Wishes, limits: Mapping[str, int]) -> None:
        self._bundle = bundle
        self._stages = {name: stage_sizes(bundle, name) for name in wishes.engines}
        self._python_bytes = _INTERPRETER_BYTES + _tokenizer_bytes(bundle)
        self._imported = {_library(engine) for engine in wishes.all_engines}
        self._width = wishes.width
        self._texts = wishes.texts
        self._ready = wishes.ready
        self._limits = limits

    def _shapes(self, role: str, engines: Engines) -> Shapes:
        return role_shapes(self._bundle.manifest.roles[role], engines)

    def fits(self, choice: _Choice) -> bool:
        return _all_fit(self._demands(choice))

    def total(self, choice: _Choice) -> int:
        return sum(demand.total for demand in self._demands(choice))

    def planned(self, choice: _Choice) -> Plan:
        engines = {role: self._engines(role, choice) for role in _loaded(choice.draft)}
        demands = self._demands(choice)
        return Plan(
            fits=_all_fit(demands),
            context=choice.context,
            draft=choice.draft,
            max_tree=min(self._largest_tree(choice), self._rows_of_calls(TARGET, choice) - 1),
            prefill_chunk=self._chunk(choice),
            engines={role: tuple(each.name for each in used) for role, used in engines.items()},
            devices=demands,
            shapes=tuple(
                shape
                for role, used in engines.items()
                for shape in self._fixed_shapes(role, used, choice)
            ),
        )

    def _engines(self, role: str, choice: _Choice) -> Engines:
        """What runs a role, with shapes for those that must have some and have none yet."""
        rows, needed = self._most_rows(role, choice), text_rows(role, self._seen(role, choice))
        return fixed(choice.engines[role], chosen_shapes(rows, needed, choice.ready.get(role, ())))

    def _fixed_shapes(self, role: str, engines: Engines, choice: _Choice) -> Iterator[FixedShape]:
        """What a role's NPUs are compiled for."""
        npus = [
            (stage, engine)
            for stage, engine in zip(self._stages[role], engines, strict=True)
            if isinstance(engine, Fixable)
        ]
        if not npus:
            return
        shapes = self._shapes(role, engines)
        calls = self._calls(role, choice, shapes)
        for shape in shapes.all:
            alone = Shapes(shape[:1], shape[1:])
            taken = [engine.fixed(alone).footprint(stage, calls) for stage, engine in npus]
            yield FixedShape(
                role,
                joined(_library(engine) for _, engine in npus),
                shape,
                sum(each.weights + each.logits + each.workspace for each in taken),
                shape in self._ready.get(role, ()),
            )

    def _largest_tree(self, choice: _Choice) -> int:
        """With the pending token it fills a bucket, unless only the smaller tree fits."""
        if choice.draft == "none":
            return 0
        trees = (rows - 1 for rows in reversed(ROW_BUCKETS) if rows - 1 > choice.tree)
        larger = (tree for tree in trees if self.fits(replace(choice, tree=tree)))
        return next(larger, choice.tree)

    def _demands(self, choice: _Choice) -> tuple[Demand, ...]:
        prints: defaultdict[str, list[Footprint]] = defaultdict(list)
        shared: defaultdict[str, dict[tuple[str, str], int]] = defaultdict(dict)
        kv: defaultdict[str, int] = defaultdict(int)
        libraries = dict.fromkeys(self._imported, _IMPORTED_BYTES)
        inputs = 0
        for name in _loaded(choice.draft):
            engines = self._engines(name, choice)
            shapes = self._shapes(name, engines)
            calls = self._calls(name, choice, shapes)
            rows = cache_rows(name, self._seen(name, choice), shapes)
            for stage, engine in zip(self._stages[name], engines, strict=True):
                taken = engine.footprint(stage, calls)
                prints[engine.memory].append(taken)
                known = shared[engine.memory].get((name, engine.name), 0)
                shared[engine.memory][name, engine.name] = max(known, taken.shared)
                row = 2 * stage.layers * stage.kv_width * kv_bytes(self._bundle, name, engine)
                kv[engine.memory] += self._texts * rows * row
                libraries[_library(engine)] = engine.library_bytes
            inputs += _input_bytes(self._bundle.manifest.roles[name], calls)
        baseline = self._python_bytes + sum(libraries.values())
        return tuple(
            Demand(
                device=device,
                baseline=baseline if device == HOST else 0,
                weights=sum(p.weights for p in prints[device]),
                repacked=sum(p.repacked for p in prints[device]),
                kv=kv[device],
                logits=(logits := sum(p.logits for p in prints[device])),
                # Loading comes before any text: its peak counts where that takes less later.
                workspace=max(
                    sum(p.workspace for p in prints[device])
                    + sum(shared[device].values())
                    + (inputs if device == HOST else 0),
                    max((p.loading for p in prints[device]), default=0) - kv[device] - logits,
                ),
                limit=self._limits[device],
                mapped=sum(p.mapped for p in prints[device]),
            )
            for device in sorted({HOST, *prints})
        )

    def _calls(self, name: str, choice: _Choice, shapes: Shapes) -> CallSizes:
        rows = min(self._round_rows(name, choice), shapes.rows[-1])
        most = max(rows, self._chunk(choice))
        return CallSizes(most, cache_rows(TARGET, choice.context, shapes), rows)

    def _chunk(self, choice: _Choice) -> int:
        """Rows of a prompt that a call reads at most: as many as calls of every role have."""
        return min(
            choice.chunk, *(self._rows_of_calls(name, choice) for name in _loaded(choice.draft))
        )

    def _rows_of_calls(self, name: str, choice: _Choice) -> int:
        return self._shapes(name, self._engines(name, choice)).rows[-1]

    def _seen(self, name: str, choice: _Choice) -> int:
        return self._bundle.manifest.roles[name].window(choice.context)

    def _most_rows(self, name: str, choice: _Choice) -> int:
        return max(self._round_rows(name, choice), choice.chunk)

    def _round_rows(self, name: str, choice: _Choice) -> int:
        return row_bucket(self._width if name == DRAFT else choice.tree + 1)


def _all_fit(demands: Iterable[Demand]) -> bool:
    return all(demand.total <= demand.limit for demand in demands)


def _library(engine: Engine) -> str:
    """The engine's name without its shapes: what is loaded once for all of them."""
    return engine.name.partition("#")[0]


def _loaded(draft: str) -> tuple[str, ...]:
    return (TARGET, DRAFT) if draft == "model" else (TARGET,)


def text_rows(role: str, context: int) -> int:
    """Cache rows that a role needs to see this many tokens."""
    return context + (SCRATCH_ROWS if role == DRAFT else 0)


def cache_rows(role: str, context: int, shapes: Shapes = ANY_SHAPES) -> int:
    """The capacity that a role's cache grows to.

    Args:
        role: whose.
        context: tokens that it sees at a time.
        shapes: of its calls; where they are fixed, one that is long enough or the longest.
    """
    needed = text_rows(role, context)
    if not shapes.capacities:
        return capacity_bucket(needed)
    return next((each for each in shapes.capacities if each >= needed), shapes.capacities[-1])


def _input_bytes(role: Role, calls: CallSizes) -> int:
    """What the runtime makes: biases, rotary angles, two float64 score rows.

    Every stage behind the first gets hidden rows, too; ordered attention is told where rows are.
    """
    ordered = any(stage.ordered for stage in role.stages)
    bias = 4 * calls.rows * (calls.capacity + (COLUMNS if ordered else calls.rows))
    places = ordered * 4 * calls.rows * (COLUMNS + FIXED_WINDOW + calls.rows)
    rotary = 4 * 2 * (calls.capacity + calls.rows) * role.head_dim
    hidden = 4 * calls.rows * role.hidden_size * (len(role.stages) - 1)
    return bias + places + rotary + hidden + 2 * 8 * role.vocab_size


def _tokenizer_bytes(bundle: Bundle) -> int:
    manifest = bundle.manifest
    sizes = (manifest.files[name].size for name in manifest.tokenizer if name.endswith(".json"))
    return _TOKENIZER_FACTOR * max(sizes, default=0)
