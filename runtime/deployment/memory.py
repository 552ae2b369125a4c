"""Computes how much memory a bundle needs, and reduces it to a limit, before anything is loaded.

Memory is counted per device and means anonymous plus shared pages. Engines estimate the memory of a
stage; this module adds it up and compares it with the limit. If it does not fit, these are reduced
or given up, in this order:

1. the part of a default context beyond `USUAL_CONTEXT`;
2. the prefill chunk, which only affects the time to the first token, and the draft tree's size;
   with them the second pair of rows and capacity of an NPU;
3. the draft model;
4. the rest of a default context;
5. stages that are already compiled for an NPU, if other shapes need less;
6. the preferred engines, for others that need less, if the user left the choice open.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from edgespec.bundle import DRAFT, TARGET, Bundle, Role
from edgespec.runtime.deployment.demands import HOST, MIB, Demand, FixedShape
from edgespec.runtime.deployment.fixed_shapes import chosen_shapes, fixed
from edgespec.runtime.deployment.options import MODEL_DRAFTS
from edgespec.runtime.deployment.resolve import Request, seen_tokens, text_rows
from edgespec.runtime.engines import (
    CallSizes,
    Engine,
    Engines,
    Fixable,
    Footprint,
    cache_bytes,
    joined_names,
)
from edgespec.runtime.execution.features import FEATURE_ROWS, feature_width
from edgespec.runtime.execution.sizes import cache_groups, stage_sizes
from edgespec.runtime.execution.stage_files import role_shapes, takes_texts
from edgespec.runtime.shapes import (
    ANY_SHAPES,
    COLUMNS,
    FIXED_WINDOW,
    ROW_BUCKETS,
    Shape,
    Shapes,
    capacity_bucket,
    kept_rows,
    row_bucket,
)

USUAL_CONTEXT = 4096
"""Default context in tokens that is kept before the draft model is: a longer one gives way first.

Models allow 32 times as many. llama.cpp and Ollama use the same number as their default.
"""

# Python with numpy, tokenizers and this package. A parsed tokenizer takes eight times its file.
_INTERPRETER_BYTES = 21 * MIB
_TOKENIZER_FACTOR = 8

# Memory of an engine's library that is imported but not used: ONNX Runtime's; OpenVINO's is less.
_IMPORTED_BYTES = 8 * MIB

_CHUNKS = (ROW_BUCKETS[-1], 64, 32, 16, 8)  # rows of a prompt that a call reads at most


@dataclass(frozen=True)
class RoleFit:
    """Engines for a role that memory has room for.

    Attributes:
        engines: the first choice that fits, one engine for each stage; NPUs have their shapes.
        others: further choices of the request that fit too; their NPUs have the same shapes.
        cache_rows: number of rows that its cache can grow to.
    """

    engines: Engines
    others: tuple[Engines, ...]
    cache_rows: int


@dataclass(frozen=True)
class Fit:
    """The part of a request that fits into memory.

    Attributes:
        fits: whether all `devices` stay within their limits; if not, this is the choice that needs
            least memory.
        context: maximum number of tokens of prompt and output together.
        draft: the draft source.
        max_tree: maximum number of nodes of a draft tree.
        prefill_chunk: rows of a call that reads a prompt.
        roles: the roles that are loaded, by name.
        devices: memory demand of each device, for trees of the requested size or of `max_tree`
            nodes if that is less.
        shapes: shapes that NPUs are compiled for, smallest first; the engines have them too.
    """

    fits: bool
    context: int
    draft: str
    max_tree: int
    prefill_chunk: int
    roles: Mapping[str, RoleFit]
    devices: tuple[Demand, ...]
    shapes: tuple[FixedShape, ...]


@dataclass(frozen=True)
class _Choice:
    """One combination of engines and sizes.

    Attributes:
        engines: engines of each role, one for each stage.
        context: maximum number of tokens of prompt and output together.
        draft: the draft source.
        tree: maximum number of nodes of a draft tree.
        chunk: rows of a call that reads a prompt.
        ready: compiled shapes of each role that may be used.
    """

    engines: Mapping[str, Engines]
    context: int
    draft: str
    tree: int
    chunk: int
    ready: Mapping[str, Collection[Shape]]


def fit(request: Request) -> Fit:
    """Finds the best choice that memory has room for; only the manifest is read.

    Returns:
        The first choice that fits, in the order that this module's docstring lists. If none fits,
        the one that needs least memory, with `fits` false.
    """
    account = _Account(request)
    choices = tuple(_choices(request))
    for choice in choices:
        if account.fits(choice):
            return account.fit(choice)
    return account.fit(min(choices, key=account.total))


def _chunks(bundle: Bundle) -> Sequence[int]:
    """Returns the possible numbers of rows of a prefill chunk, largest first.

    A target in several stages starts with half the rows: each stage keeps its own buffers, and the
    smaller chunk makes up for them at little cost in prompt speed.
    """
    return _CHUNKS if len(bundle.target.stages) == 1 else _CHUNKS[1:]


def _choices(request: Request) -> Iterator[_Choice]:
    roles, chunks = request.roles, _chunks(request.bundle)
    sizes = list(itertools.product(request.drafts, _call_sizes(request.tree, chunks)))
    compiled = {name: each.ready for name, each in roles.items()}
    for combination in itertools.product(*(each.choices for each in roles.values())):
        engines = dict(zip(roles, combination, strict=True))
        for ready in (compiled, {}) if any(compiled.values()) else ({},):
            for context in request.contexts:
                spare = context > max(USUAL_CONTEXT, request.contexts[-1])
                for draft, (tree, chunk) in sizes[:1] if spare else sizes:
                    yield _Choice(engines, context, draft, tree, chunk, ready)


def _call_sizes(tree: int, chunks: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yields tree nodes and rows of a prefill chunk: first the chunk shrinks, then the tree."""
    for chunk in chunks:
        yield tree, chunk
    while tree > 1:
        tree //= 2
        yield tree, chunks[-1]


class _Account:
    """Adds up the memory that a choice needs."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._bundle = request.bundle
        self._stages = {name: stage_sizes(request.bundle, name) for name in request.roles}
        self._python_bytes = _INTERPRETER_BYTES + _tokenizer_bytes(request.bundle, request.roles)
        self._imported = {_library(engine) for engine in request.all_engines}

    def _shapes(self, role: str, engines: Engines) -> Shapes:
        return role_shapes(self._bundle.manifest.roles[role], engines)

    def fits(self, choice: _Choice) -> bool:
        return _all_fit(self._demands(choice))

    def total(self, choice: _Choice) -> int:
        return sum(demand.total for demand in self._demands(choice))

    def fit(self, choice: _Choice) -> Fit:
        demands, loaded = self._demands(choice), _loaded(choice.draft)
        return Fit(
            fits=_all_fit(demands),
            context=choice.context,
            draft=choice.draft,
            max_tree=min(self._largest_tree(choice), self._rows_of_calls(TARGET, choice) - 1),
            prefill_chunk=self._chunk(choice),
            roles={role: self._role(role, choice) for role in loaded},
            devices=demands,
            shapes=tuple(each for role in loaded for each in self._fixed_shapes(role, choice)),
        )

    def _role(self, role: str, choice: _Choice) -> RoleFit:
        chosen, (first, *others) = choice.engines[role], self._request.roles[role].choices
        engines = self._shaped(role, chosen, choice)
        return RoleFit(
            engines=engines,
            # If the first choice does not fit, nothing is known about the others.
            others=tuple(self._shaped(role, each, choice) for each in others)
            if chosen is first
            else (),
            cache_rows=cache_rows(role, self._seen(role, choice), self._shapes(role, engines)),
        )

    def _engines(self, role: str, choice: _Choice) -> Engines:
        """Returns a role's engines, with shapes."""
        return self._shaped(role, choice.engines[role], choice)

    def _shaped(self, role: str, engines: Engines, choice: _Choice) -> Engines:
        """Returns the engines; those that still need shapes get them."""
        rows, needed = self._most_rows(role, choice), text_rows(role, self._seen(role, choice))
        return fixed(engines, chosen_shapes(rows, needed, choice.ready.get(role, ())))

    def _fixed_shapes(self, role: str, choice: _Choice) -> Iterator[FixedShape]:
        """Yields the shapes that a role's NPUs are compiled for."""
        engines = self._engines(role, choice)
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
                joined_names(_library(engine) for _, engine in npus),
                shape,
                sum(each.weights + each.logits + each.workspace for each in taken),
                shape in self._request.roles[role].ready,
            )

    def _largest_tree(self, choice: _Choice) -> int:
        """Returns the largest tree that fits.

        Together with the pending token it fills a bucket of rows, unless only the tree of the
        choice fits.
        """
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
            parts = zip(self._stages[name], engines, strict=True)
            for number, (stage, engine) in enumerate(parts):
                taken = engine.footprint(stage, calls)
                prints[engine.memory].append(taken)
                known = shared[engine.memory].get((name, engine.name), 0)
                shared[engine.memory][name, engine.name] = max(known, taken.shared)
                held = cache_bytes(cache_groups(self._bundle, name, number, engine), rows)
                kv[engine.memory] += self._texts(name, engine) * (held + stage.recurrent_bytes)
                libraries[_library(engine)] = engine.library_bytes
            role = self._bundle.manifest.roles[name]
            inputs += _input_bytes(role, calls)
            kv[HOST] += self._request.texts * FEATURE_ROWS * 4 * feature_width(role)
        baseline = self._python_bytes + sum(libraries.values())
        return tuple(
            Demand(
                device=device,
                baseline=baseline if device == HOST else 0,
                weights=sum(p.weights for p in prints[device]),
                repacked=sum(p.repacked for p in prints[device]),
                kv=kv[device],
                logits=(logits := sum(p.logits for p in prints[device])),
                # Loading comes before any text, so its peak counts only if it exceeds their memory.
                workspace=max(
                    sum(p.workspace for p in prints[device])
                    + sum(shared[device].values())
                    + (inputs if device == HOST else 0),
                    max((p.loading for p in prints[device]), default=0) - kv[device] - logits,
                ),
                limit=self._request.limits[device],
                mapped=sum(p.mapped for p in prints[device]),
            )
            for device in sorted({HOST, *prints})
        )

    def _texts(self, name: str, engine: Engine) -> int:
        """Returns the number of caches of a role; those that lie side by side double at a time."""
        texts = self._request.texts
        side_by_side = self._bundle.manifest.roles[name].stages_of_texts and takes_texts(engine)
        return 1 << (texts - 1).bit_length() if side_by_side else texts

    def _calls(self, name: str, choice: _Choice, shapes: Shapes) -> CallSizes:
        rows = min(self._round_rows(name, choice), shapes.rows[-1])
        most = max(rows, self._chunk(choice))
        return CallSizes(most, cache_rows(name, self._seen(name, choice), shapes), rows)

    def _chunk(self, choice: _Choice) -> int:
        """Returns the rows of a prefill chunk, which calls of every role must allow."""
        return min(
            choice.chunk, *(self._rows_of_calls(name, choice) for name in _loaded(choice.draft))
        )

    def _rows_of_calls(self, name: str, choice: _Choice) -> int:
        return self._shapes(name, self._engines(name, choice)).rows[-1]

    def _seen(self, name: str, choice: _Choice) -> int:
        return seen_tokens(self._bundle, name, choice.context)

    def _most_rows(self, name: str, choice: _Choice) -> int:
        return max(self._round_rows(name, choice), choice.chunk)

    def _round_rows(self, name: str, choice: _Choice) -> int:
        return row_bucket(self._request.width if name == DRAFT else choice.tree + 1)


def _all_fit(demands: Iterable[Demand]) -> bool:
    return all(demand.total <= demand.limit for demand in demands)


def _library(engine: Engine) -> str:
    """Returns the engine's name without its shapes: its library is loaded once for all of them."""
    return engine.name.partition("#")[0]


def _loaded(draft: str) -> tuple[str, ...]:
    return (TARGET, DRAFT) if draft in MODEL_DRAFTS else (TARGET,)


def cache_rows(role: str, context: int, shapes: Shapes = ANY_SHAPES) -> int:
    """Returns the capacity in rows that a role's cache grows to.

    Args:
        role: name of the role.
        context: number of tokens that it sees at a time.
        shapes: shapes of its calls. Of fixed ones, the smallest sufficient capacity or else the
            largest is returned.
    """
    needed = text_rows(role, context)
    if not shapes.capacities:
        return capacity_bucket(needed)
    return next((each for each in shapes.capacities if each >= needed), shapes.capacities[-1])


def _input_bytes(role: Role, calls: CallSizes) -> int:
    """Returns the bytes of a role's inputs: biases, rotary angles and two rows of float64 scores.

    Stages after the first also get hidden rows, a head's first stage gets features, and ordered
    attention gets row indices.
    """
    ordered = any(stage.ordered for stage in role.stages)
    rings = role.rings
    columns = sum(
        kept_rows(calls.capacity, rings.get(mask)) + (COLUMNS if ordered else calls.rows)
        for mask in role.layout.masks
    )
    bias = 4 * calls.rows * columns
    places = ordered * 4 * calls.rows * (COLUMNS + FIXED_WINDOW + calls.rows)
    widths = sum(2 * len(table.inv_freq) for table in role.rope_tables)
    rotary = 4 * 2 * (calls.capacity + calls.rows) * widths
    features = role.layout[0].width if role.is_head else 0
    passed = (each for stage in role.stages[1:] for each in stage.inputs if each.name == "hidden")
    hidden = 4 * calls.rows * (features + sum(int(each.shape[-1]) for each in passed))
    return bias + places + rotary + hidden + 2 * 8 * role.vocab_size


def _tokenizer_bytes(bundle: Bundle, roles: Iterable[str]) -> int:
    """Returns the bytes of the target's tokenizer, and of a draft's own if that is loaded."""
    manifest = bundle.manifest
    sizes = (manifest.files[name].size for name in manifest.tokenizer if name.endswith(".json"))
    own = (manifest.roles[name].tokenizer for name in roles)
    more = sum(manifest.files[name].size for name in own if name)
    return _TOKENIZER_FACTOR * (max(sizes, default=0) + more)
