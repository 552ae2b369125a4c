"""Graphs and calls that fit nothing: of wrong types, shapes, attributes and numbers."""

from __future__ import annotations

import numpy as np
import tree_attention
from nodes import Node
from products import random_rows, random_tiles

TYPES = (np.float32, np.float16, np.float64, np.uint8, np.int8, np.int32, np.int64, np.bool_)
INTEGERS = (-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 7, 16, 17, 64, 513, 2**24, 2**31 - 1, 2**31,
            2**40, 2**63 - 1)  # fmt: skip
NUMBERS = (0.0, -0.0, 1e-45, 1e-38, 1e30, 3e38, -3e38, np.inf, -np.inf, np.nan)
TEXTS = (
    "",
    "q4_0",
    "q4_0 q8_0",
    "q6_k",
    "f32 f32 f32",
    "q4",
    " ",
    "silu",
    "own",
    "other",
    "x" * 2000,
)


def linear(rng):
    name = str(rng.choice(["q4_0", "q4_1", "q8_0", "f16", "q6_k", "q2_k", "mxfp4"]))
    width = 256 if name.endswith("k") else 45
    arrays = {
        "x": random_rows(3, width, rng),
        "bias": rng.normal(size=20).astype(np.float32),
        "residual": rng.normal(size=(3, 20)).astype(np.float32),
        "w": random_tiles(name, 20, width, rng),
    }
    return "BlockLinear", [*arrays], arrays, {"formats": name, "columns": [20], "factor": 0.5}


def embedding(rng):
    arrays = {"ids": rng.integers(0, 20, 4), "w": random_tiles("q4_0", 20, 45, rng)}
    return "BlockEmbedding", [*arrays], arrays, {"format": "q4_0", "columns": 20, "width": 45}


def gate(rng):
    arrays = {"x": random_rows(3, 70, rng)}
    return "GatedUnit", ["x"], arrays, {"activation": "clamped", "alpha": 1.7, "limit": 7.0}


def attention(rng):
    layer = tree_attention.LAYERS[str(rng.choice([*tree_attention.LAYERS]))]
    cache = str(rng.choice([*tree_attention.CACHES]))
    arrays = tree_attention.random_call(layer, cache, rng, (5, 66), 5)
    attributes = {
        "heads": layer.heads,
        "kv_heads": layer.kv_heads,
        "head_dim": layer.head_dim,
        "source": layer.source,
        "gated": int(layer.gated),
        "q_eps": 1e-6,
        "k_eps": 1e-6,
    }
    return "TreeAttention", tree_attention.NAMES, arrays, attributes | layer.attributes


def experts(rng):
    tiles = np.concatenate([random_tiles("q4_0", 20, 45, rng) for _ in range(3)])
    arrays = {
        "x": random_rows(4, 45, rng),
        "experts": rng.integers(0, 3, (4, 2)),
        "bias": rng.normal(size=(3, 20)).astype(np.float32),
        "shares": rng.random((4, 2)).astype(np.float32),
        "w": tiles,
    }
    return "ExpertLinear", [*arrays], arrays, {"formats": "q4_0", "columns": [20], "experts": 3}


PATHS = ("write", "parent", "sequence", "recent", "starts")


def paths(rng):
    """Four rows of two sequences with five and no committed rows, in a pool of 12 slots."""
    order = rng.permutation(12).astype(np.int32)
    lists = (order[:4], [-1, 0, 0, -1], [0, 0, 0, 1], order[4:9], [0, 5, 5])
    return dict(zip(PATHS, (np.array(each, np.int32) for each in lists), strict=True))


def convolution(rng):
    arrays = {
        "x": rng.normal(size=(4, 33)).astype(np.float32),
        "weight": rng.normal(size=(3, 11)).astype(np.float32),
        "pool": rng.normal(size=(12, 11)).astype(np.float32),
    } | paths(rng)
    return "ShortConv", [*arrays], arrays, {}


def recurrence(rng):
    heads = 2
    keys = 9
    values = 21
    channels = 2 * keys + heads * values
    strips = 2
    numbers = channels + keys + heads + heads * strips * 16
    shapes = {
        "x": (4, channels + heads * values + 2 * heads),
        "weight": (3, channels),
        "factor": (heads,),
        "bias": (heads,),
        "norm": (values,),
        "pool": (12, numbers),
        "states": (5, heads, strips, keys, 16),
    }
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    arrays |= paths(rng) | {"carry": np.array([[1, 2, 3, 1], [-1, 0, 0, 0]], np.int32)}
    attributes = {"key_heads": 1, "value_heads": heads, "key_size": keys, "value_size": values}
    return "GatedDelta", [*arrays], arrays, attributes


def space(rng):
    _, _, arrays, attributes = recurrence(rng)
    heads = arrays["factor"].size
    channels = arrays["weight"].shape[1]
    values = heads * attributes["value_size"]
    shapes = {
        "x": (4, values + channels + heads),
        "weight": (3, channels),
        "shift": (channels,),
        "factor": (heads,),
        "bias": (heads,),
        "skip": (heads,),
        "norm": (values,),
    }
    own = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    arrays = own | {name: each for name, each in arrays.items() if name not in own}
    return "StateSpace", [*arrays], arrays, attributes


def rows(rng):
    arrays = {"x": random_rows(3, 70, rng)}
    operator = str(rng.choice(["Norm", "Moments", "Softmax", "Sigmoid"]))
    if operator == "Norm":
        arrays |= {name: rng.normal(size=70).astype(np.float32) for name in ("weight", "bias")}
    attributes = {"epsilon": 1e-6} if operator in ("Norm", "Moments") else {}
    return operator, [*arrays], arrays, attributes


MAKERS = (linear, embedding, gate, attention, experts, convolution, recurrence, space, rows)


def worse(arrays, attributes, rng):
    """Changes something, in place."""
    name = str(rng.choice([*arrays]))
    each = arrays[name]
    kind = int(rng.integers(0, 9))
    if kind == 0:
        del arrays[name]
    elif kind == 1:
        with np.errstate(invalid="ignore", over="ignore"):
            arrays[name] = each.astype(TYPES[rng.integers(len(TYPES))])
    elif kind == 2:
        arrays[name] = np.ascontiguousarray(each[..., : int(rng.integers(0, each.shape[-1] + 1))])
    elif kind == 3:
        arrays[name] = np.ascontiguousarray(each[: int(rng.integers(0, each.shape[0] + 1))])
    elif kind == 4:
        shape = [(-1,), (1, -1), (-1, 1), (1, 1, 1, 1, 1, -1)][rng.integers(4)]
        arrays[name] = each.reshape(shape) if each.size else each
    elif kind <= 6 and each.size:
        each = each.copy()
        places = rng.integers(0, each.size, int(rng.integers(1, 4)))
        if each.dtype.kind == "f":
            with np.errstate(over="ignore"):
                each.reshape(-1)[places] = rng.choice(NUMBERS, len(places)).astype(each.dtype)
        elif each.dtype.kind in "iu":
            info = np.iinfo(each.dtype)
            wide = [min(max(int(number), info.min), info.max) for number in INTEGERS]
            each.reshape(-1)[places] = rng.choice(np.array(wide, each.dtype), len(places))
        arrays[name] = each
    elif attributes:
        key = str(rng.choice([*attributes]))
        values = (
            lambda: int(rng.choice(np.array(INTEGERS))),
            lambda: float(rng.choice(NUMBERS)),
            lambda: str(rng.choice(TEXTS)),
            lambda: rng.choice(np.array(INTEGERS), int(rng.integers(1, 70))).tolist(),
        )
        same = {int: 0, float: 1, str: 2, list: 3}[type(attributes[key])]
        attributes[key] = values[same if rng.random() < 0.8 else int(rng.integers(4))]()


def computed(seed, count):
    """Runs graphs that are more or less wrong: how many of each operator ran, and were refused."""
    rng = np.random.default_rng(int(seed))
    found = {maker.__name__: np.zeros(2, np.int64) for maker in MAKERS}
    for number in range(int(count)):
        maker = MAKERS[number % len(MAKERS)]
        operator, names, arrays, attributes = maker(rng)
        for _ in range(int(rng.integers(1, 4))):
            if arrays:
                worse(arrays, attributes, rng)
        try:
            node = Node(operator, names, arrays, threads=int(rng.integers(1, 3)), **attributes)
            node(arrays)
        except Exception as error:
            if "onnxruntime" not in type(error).__module__:
                raise
            found[maker.__name__][1] += 1
        else:
            found[maker.__name__][0] += 1
    return found
