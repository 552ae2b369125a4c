"""Calls of TreeAttention: random ones, what they give in float64, and rows in other company."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from nodes import Node

NAMES = (
    "qkv", "cos", "sin", "pool", "scales", "write", "parent", "sequence", "context", "starts",
    "q_norm", "k_norm", "sinks", "key_scale", "sight", "slopes",
    "nearness",
)  # fmt: skip
CACHES = {"fp32": np.float32, "fp16": np.float16, "int8": np.int8}


@dataclass(frozen=True)
class Layer:
    """One attention: attributes of the node, and its weights."""

    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 20
    half: int = 10  # of the elements that are rotated; 0: none
    norms: str = ""  # of queries and keys: "", "head" or "all" (one vector of all heads)
    sinks: bool = False
    source: str = "own"
    gated: bool = False
    attributes: dict[str, float] = field(default_factory=dict)
    sight: bool = False  # rows see others than their ancestors, or nothing
    slopes: bool = False  # scores fall with distance
    reach: int = 0  # positions to both sides that have numbers of their own; 0: there are none

    @property
    def dim(self):
        """Size of the pool's rows."""
        return -(-self.head_dim // 16) * 16

    @property
    def widths(self):
        """Sizes of the parts of `qkv`."""
        keys = self.kv_heads * self.head_dim
        asked = self.heads * self.head_dim * (2 if self.gated else 1)
        writes = self.source != "other"
        values = self.source == "own"
        return asked, keys * writes, keys * values

    def weights(self, rng):
        """Norms, sinks, slopes and what is added by distance."""
        found = {}
        for name, heads in (("q_norm", self.heads), ("k_norm", self.kv_heads)):
            size = self.head_dim * (heads if self.norms == "all" else 1)
            if self.norms:
                found[name] = rng.normal(1, 0.2, size).astype(np.float32)
        if self.sinks:
            found["sinks"] = rng.normal(size=self.heads).astype(np.float32)
        if self.slopes:
            found["slopes"] = rng.uniform(0.01, 0.5, self.heads).astype(np.float32)
        if self.reach:
            shape = self.heads, 2 * self.reach + 1
            found["nearness"] = rng.normal(size=shape).astype(np.float32)
        return found

    @property
    def options(self):
        """Attributes of the node."""
        found = {"scale": self.head_dim**-0.5} | self.attributes
        if self.norms:
            found = {"q_eps": 1e-6, "k_eps": 1e-6} | found
        own = ("heads", "kv_heads", "head_dim", "source")
        return {name: getattr(self, name) for name in own} | {"gated": int(self.gated)} | found

    def first_seen(self, place):
        """The first place that a row at a place sees."""
        window = self.attributes.get("window", 0)
        if self.attributes.get("chunked"):
            return place - place % window
        return max(0, place - window + 1) if window else 0

    def node(self, arrays, **options):
        """The session of a node; `arrays` has those of some call."""
        return Node("TreeAttention", NAMES, arrays, **self.options, **options)


LAYERS = {
    "heads": Layer(4, 4, 16, 8),
    "groups": Layer(8, 2, 64, 32),
    "one key head for 96": Layer(96, 1, 16, 8),
    "large heads": Layer(2, 1, 512, 0),
    "padded": Layer(),
    "window": replace(Layer(), attributes={"window": 5}),
    "long window": replace(Layer(), attributes={"window": 70}),
    "chunks": replace(Layer(), attributes={"window": 6, "chunked": 1}),
    "long chunks": replace(Layer(), attributes={"window": 70, "chunked": 1}),
    "soft cap": replace(Layer(), attributes={"soft_cap": 2.0}),
    "sinks": Layer(sinks=True),
    "norms": Layer(norms="head"),
    "norms of all heads": Layer(norms="all"),
    "norms after rotation": Layer(norms="head", attributes={"norm_after_rope": 1}),
    "gated": Layer(gated=True),
    "partly rotated": Layer(half=4),
    "not rotated": Layer(half=0),
    "keys are values": Layer(source="keys", attributes={"v_eps": 1e-5}, norms="head"),
    "keys of another layer": Layer(source="other", norms="head"),
    "sight": Layer(sight=True),
    "slopes": Layer(sight=True, slopes=True),
    "slopes and window": Layer(slopes=True, attributes={"window": 70}),
    "nearness": Layer(sight=True, reach=3),
    "slopes, nearness and window": Layer(slopes=True, reach=80, attributes={"window": 70}),
    "sight and window": Layer(sight=True, attributes={"window": 6}),
    "all": Layer(8, 2, 24, 6, "head", True, "own", True,
                 {"window": 33, "soft_cap": 20.0, "v_eps": 1e-5, "scale": 0.3}),
}  # fmt: skip


def empty_pool(layer, cache, slots, rng):
    """A pool of random rows, as if another text had been there, with zeros behind each."""
    shape = (2, layer.kv_heads, slots, layer.dim)
    if cache == "int8":
        pool = rng.integers(-127, 128, shape, np.int8)
        scales = rng.uniform(0.001, 0.02, shape[:3]).astype(np.float32)
    else:
        pool = rng.normal(size=shape).astype(CACHES[cache])
        scales = None
    pool[..., layer.head_dim :] = 0
    return {"pool": pool} | ({} if scales is None else {"scales": scales})


def random_call(layer, cache, rng, lengths=(70, 3), rows=12, chain=0.5):
    """A call of rows of sequences that have `lengths` committed slots, in a random tree.

    Args:
        layer: the node.
        cache: name of the cache's type.
        rng: what draws.
        lengths: numbers of committed slots.
        rows: how many rows.
        chain: how likely a row follows the row before.

    Returns:
        The arrays of the node's inputs.
    """
    slots = sum(lengths) + rows + int(rng.integers(1, 9))
    order = rng.permutation(slots).astype(np.int32)
    sequence = np.sort(rng.integers(0, len(lengths), rows)).astype(np.int32)
    if rng.random() < 0.3:
        rng.shuffle(sequence)
    parent = np.full(rows, -1, np.int32)
    for row in range(1, rows):
        earlier = np.flatnonzero(sequence[:row] == sequence[row])
        if len(earlier) and rng.random() < 0.9:
            parent[row] = earlier[-1] if rng.random() < chain else rng.choice(earlier)
    arrays = empty_pool(layer, cache, slots, rng) | layer.weights(rng)
    arrays |= {
        "qkv": rng.normal(size=(rows, sum(layer.widths))).astype(np.float32),
        "write": order[:rows],
        "parent": parent,
        "sequence": sequence,
        "context": order[rows : rows + sum(lengths)],
        "starts": np.cumsum([0, *lengths], dtype=np.int32),
    }
    if layer.sight:
        arrays["sight"] = np.full(rows, -1, np.int32)
        for row in range(rows):
            later = np.flatnonzero(sequence[row:] == sequence[row])
            if rng.random() < 0.8:
                arrays["sight"][row] = rng.choice(later)
    if layer.half:
        angles = rng.uniform(0, 6, (rows, layer.half))
        arrays |= {
            "cos": np.cos(angles).astype(np.float32),
            "sin": np.sin(angles).astype(np.float32),
        }
    return arrays


def path(arrays, row):
    """Slots of a row's sequence and of its ancestors, its own last."""
    ancestors = []
    each = row
    while each >= 0:
        ancestors.append(arrays["write"][each])
        each = arrays["parent"][each]
    first, end = arrays["starts"][arrays["sequence"][row] :][:2]
    return np.concatenate([arrays["context"][first:end], ancestors[::-1]]).astype(np.int32)


def _normal(x, weight, eps):
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)
    return x if weight is None else x * weight


def _turned(layer, arrays, x, name):
    """Queries or keys [S, heads, head_dim], normalized and rotated."""
    eps = layer.attributes.get(f"{name}_eps", 1e-6 if layer.norms else 0)
    weight = arrays.get(f"{name}_norm")
    late = layer.attributes.get("norm_after_rope")

    def norms(x):
        if not eps:
            return x
        if layer.norms == "all":
            return _normal(x.reshape(len(x), -1), weight, eps).reshape(x.shape)
        return _normal(x, weight, eps)

    x = x if late else norms(x)
    if half := layer.half:
        cos, sin = (arrays[each].astype(np.float64)[:, None] for each in ("cos", "sin"))
        a = x[..., :half]
        b = x[..., half : 2 * half]
        x = np.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., 2 * half :]], -1)
    return norms(x) if late else x


def parts(layer, arrays):
    """Queries, gates, keys and values of a call, [S, heads, head_dim] float64."""
    asked, keys, values = np.split(
        arrays["qkv"].astype(np.float64), np.cumsum(layer.widths)[:2], axis=1
    )
    rows = len(asked)
    asked = asked.reshape(rows, layer.heads, -1, layer.head_dim)
    queries = asked[:, :, 0]
    gates = asked[:, :, 1] if layer.gated else None
    if layer.source == "other":
        return _turned(layer, arrays, queries, "q"), gates, None, None
    keys = keys.reshape(rows, layer.kv_heads, layer.head_dim)
    values = values.reshape(keys.shape) if layer.source == "own" else keys
    if eps := layer.attributes.get("v_eps"):
        values = _normal(values, None, eps)
    return _turned(layer, arrays, queries, "q"), gates, _turned(layer, arrays, keys, "k"), values


def attended(layer, arrays):
    """The output of a call in float64, by what its pool holds afterwards."""
    queries, gates, _, _ = parts(layer, arrays)
    pool = arrays["pool"].astype(np.float64)[..., : layer.head_dim]
    if "scales" in arrays:
        pool = pool * arrays["scales"][..., None]
    scale = layer.attributes.get("scale", layer.head_dim**-0.5)
    cap = layer.attributes.get("soft_cap", 0)
    out = np.empty((len(queries), layer.heads, layer.head_dim))
    for row, each in enumerate(queries):
        sight = arrays["sight"][row] if layer.sight else 0
        begin = layer.first_seen(len(path(arrays, row)) - 1)
        if len(seen := path(arrays, row + max(sight, 0))[begin:]) == 0 or sight < 0:
            out[row] = 0
            continue
        keys, values = pool[:, :, seen]
        group = each.reshape(layer.kv_heads, -1, layer.head_dim)
        scores = np.einsum("kgd,ktd->kgt", group * scale, keys)
        scores = cap * np.tanh(scores / cap) if cap else scores
        behind = begin + np.arange(len(seen)) - (len(path(arrays, row)) - 1)
        if layer.slopes:
            slopes = arrays["slopes"].astype(np.float64).reshape(*scores.shape[:2], 1)
            scores = scores - slopes * np.abs(behind)
        if layer.reach:
            added = arrays["nearness"][:, layer.reach + np.clip(behind, -layer.reach, layer.reach)]
            scores = scores + added.reshape(scores.shape)
        sinks = arrays["sinks"].reshape(*scores.shape[:2], 1) if layer.sinks else -np.inf
        largest = np.maximum(scores.max(-1, keepdims=True), sinks)
        shares = np.exp(scores - largest)
        shares /= shares.sum(-1, keepdims=True) + np.exp(sinks - largest)
        out[row] = np.einsum("kgt,ktd->kgd", shares, values).reshape(layer.heads, -1)
    if gates is not None:
        out /= 1 + np.exp(-gates)
    return out.reshape(len(out), -1)


def reference(seed):
    """A random call of each layer with each cache: outputs, the pool, and both in float64."""
    rng = np.random.default_rng(int(seed))
    found = {}
    for name, layer in LAYERS.items():
        for cache in CACHES:
            arrays = random_call(layer, cache, rng, lengths=(70, 3, 0), rows=14)
            before = arrays["pool"].copy()
            y = layer.node(arrays)(arrays)
            key = f"{name} {cache}"
            found |= {f"{key} y": y, f"{key} wanted": attended(layer, arrays)}
            found |= _written(key, layer, arrays, before)
    return found


def _written(key, layer, arrays, before):
    """What a call wrote to the pool, what it should have, and whether all else is as it was."""
    pool = arrays["pool"]
    write = arrays["write"]
    others = np.setdiff1d(np.arange(pool.shape[2]), write)
    same = np.array_equal(pool[:, :, others], before[:, :, others])
    if layer.source == "other":
        return {f"{key} kept": np.array(same and np.array_equal(pool, before))}
    same = same and not pool[..., layer.head_dim :].any()
    rows = pool[:, :, write, : layer.head_dim].astype(np.float32)
    if "scales" in arrays:
        rows = rows * arrays["scales"][:, :, write, None]
    _, _, keys, values = parts(layer, arrays)
    wanted = np.stack([keys, values]).swapaxes(1, 2)
    return {f"{key} kept": np.array(same), f"{key} rows": rows, f"{key} wanted rows": wanted}


def in_company(seed, count):
    """Random calls, and their rows one by one: in another pool, in other slots, by one thread.

    Returns:
        Outputs of all rows, and what calls wrote, `together` and `alone`.
    """
    rng = np.random.default_rng(int(seed))
    kinds = [
        (layer, cache)
        for layer in (
            "padded",
            "window",
            "long window",
            "long chunks",
            "slopes, nearness and window",
            "all",
        )
        for cache in CACHES
    ]
    nodes = {}
    found = {"together": [], "alone": [], "chunks": []}
    for number in range(int(count)):
        name, cache = kinds[number % len(kinds)]
        layer = LAYERS[name]
        lengths = rng.integers(0, (10, 140)[int(rng.integers(0, 2))], 2).tolist()
        rows = int(rng.integers(1, 90 if rng.random() < 0.1 else 20))
        arrays = random_call(layer, cache, rng, lengths, rows, chain=rng.choice([0.2, 0.9]))
        if (name, cache) not in nodes:
            nodes[name, cache] = [layer.node(arrays, threads=2), layer.node(arrays, threads=1)]
        both, one = nodes[name, cache]
        alone = _moved(arrays, rng)
        cut = _moved(arrays, rng)
        found["together"] += [both(arrays), *_kept(arrays)]
        found["alone"] += [_one_by_one(one, alone, rows), *_kept(alone)]
        found["chunks"] += [_in_chunks(both, cut, rows, rng), *_kept(cut)]
    return {key: np.concatenate([each.ravel() for each in value]) for key, value in found.items()}


def _moved(arrays, rng):
    """The same call in a larger pool of other slots."""
    slots = arrays["pool"].shape[2]
    places = rng.permutation(slots + int(rng.integers(0, 50))).astype(np.int32)
    found = dict(arrays)
    for name in ("pool", "scales"):
        if name in arrays:
            old = arrays[name]
            new = np.ones((*old.shape[:2], len(places), *old.shape[3:]), old.dtype)
            new[:, :, places[:slots]] = old
            found[name] = new
    return found | {name: places[arrays[name]] for name in ("write", "context")}


def _kept(arrays):
    """What the rows' slots hold, as float32."""
    names = [name for name in ("pool", "scales") if name in arrays]
    return [arrays[name][:, :, arrays["write"]].astype(np.float32) for name in names]


BY_ROW = ("qkv", "cos", "sin", "write", "parent", "sequence")


def _one_by_one(node, arrays, rows):
    found = []
    for row in range(rows):
        context = path(arrays, row)[:-1]
        one = arrays | {name: arrays[name][row : row + 1] for name in BY_ROW if name in arrays}
        one |= {
            "parent": np.array([-1], np.int32),
            "sequence": np.array([0], np.int32),
            "context": context,
            "starts": np.array([0, len(context)], np.int32),
        }
        found.append(node(one))
    return np.concatenate(found)


def _in_chunks(node, arrays, rows, rng):
    """Rows some at a time, each a sequence of its own, whose ancestors are committed meanwhile."""
    found = []
    first = 0
    while first < rows:
        last = min(rows, first + int(rng.integers(1, 9)))
        parent = []
        outside = []
        paths = []
        for row in range(first, last):
            each = int(arrays["parent"][row])
            if each >= first:  # in this chunk, hence in its parent's sequence
                parent.append(each - first)
                outside.append(outside[each - first])
            else:
                parent.append(-1)
                outside.append(len(paths))
                paths.append(path(arrays, row)[:-1])
        chunk = arrays | {name: arrays[name][first:last] for name in BY_ROW if name in arrays}
        chunk |= {
            "parent": np.array(parent, np.int32),
            "sequence": np.array(outside, np.int32),
            "context": np.concatenate([*paths, np.empty(0, np.int32)]).astype(np.int32),
            "starts": np.cumsum([0, *map(len, paths)], dtype=np.int32),
        }
        found.append(node(chunk))
        first = last
    return np.concatenate(found)
