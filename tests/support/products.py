"""Products with tiles: random tiles, and what kernels compute, in numpy to the last bit."""

from __future__ import annotations

import numpy as np
from nodes import Node, linear_node

from edgespec.export.formats.tile_formats import TILE_FORMATS
from edgespec.export.formats.tiles import bytes_of, tile_weights

ROWS = (*range(1, 10), 16, 17)
"""Numbers of rows of a call: up to more than twice what kernels take together."""

SHAPES = {
    256: ((40, 512), (5, 256)),
    128: ((40, 256), (5, 128)),
    64: ((40, 128), (5, 64)),
    32: ((40, 101), (16, 64), (3, 31)),
    1: ((40, 37), (16, 1)),
}
"""Some [N, K] for units of some size."""


def random_tiles(name, rows, columns, rng):
    """Tiles of a format with random levels and scales; what lies behind the matrix is random."""
    kind = TILE_FORMATS[name]
    shape = kind.shape(rows, columns)
    stored = rng.integers(0, 256, shape, np.uint8).view(kind.layout)[..., 0]
    for field in kind.layout.names:
        if field in ("d", "dmin") or (field == "m" and "dmin" not in kind.layout.names):
            stored[field] = rng.normal(0, 0.1, stored[field].shape)
        elif field == "e":
            stored[field] = rng.integers(110, 135, stored[field].shape)
        elif field == "z":
            stored[field] &= 2**kind.bits - 1
        elif field == "values":
            values = rng.normal(size=stored[field].shape).astype(np.float32)
            if name == "bf16":
                stored[field] = values.view(np.uint32) >> 16
            else:
                stored[field] = values
    return bytes_of(stored, rows)


def random_rows(rows, columns, rng):
    """Activations [rows, columns], with blocks of zeros and of very small and large numbers."""
    x = rng.normal(size=(rows, columns)).astype(np.float32)
    x[rows // 2, :32] = 0
    x[rows // 3, -20:] *= np.float32(1e-36)
    x[-1] *= np.float32(1e8)
    return x


def fma(a, b, c):
    """a * b + c of float32, rounded once."""
    product = a.astype(np.float64) * b.astype(np.float64)
    c = c.astype(np.float64)
    total = product + c
    back = total - product
    rest = (product - (total - back)) + (c - back)
    # Rounding to odd first makes rounding twice rounding once (Boldo and Melquiond, 2008).
    bits = total.view(np.int64)
    step = np.where((rest > 0) == (total > 0), 1, -1)
    bits = np.where((rest != 0) & (bits & 1 == 0), bits + step, bits)
    return bits.view(np.float64).astype(np.float32)


def rounded(x):
    """Activations as kernels round them: levels [S, blocks, 32] and scales [S, blocks]."""
    blocks = np.pad(x, ((0, 0), (0, -x.shape[1] % 32))).reshape(len(x), -1, 32)
    largest = np.abs(blocks).max(-1)
    some = largest >= np.float32(1e-30)
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.where(some, np.float32(127) / largest, np.float32(0))
    levels = np.rint(blocks * inverse[..., None]).astype(np.int64)
    return levels, np.where(some, largest / np.float32(127), np.float32(0))


def product(x, name, tiles, columns):
    """x W^T [S, columns] by the order of operations in runtime/kernels/kernels.h."""
    kind = TILE_FORMATS[name]
    stored = np.ascontiguousarray(tiles).view(kind.layout)[..., 0]
    width = stored.shape[1] * kind.unit
    total = np.zeros((len(x), len(stored), 16), np.float32)
    if kind.unit == 1:
        weights = tile_weights(name, tiles, len(stored) * 16, width)
        weights = weights.reshape(len(stored), 16, width)
        for k in range(width):
            total = fma(weights[..., k], x[:, k, None, None], total)
        return total.reshape(len(x), -1)[:, :columns]
    # Tiles whose scales are 1 and whose minimums are 0 give the integers themselves.
    integers = _integers(kind, stored, width)
    scale, minimum = _scales(kind, stored)
    parts = scale.shape[1]
    levels, row_scales = rounded(x)
    levels = np.pad(levels.reshape(len(x), -1), ((0, 0), (0, width - 32 * levels.shape[1])))
    levels = levels.reshape(len(x), parts, -1)
    integers = integers.astype(np.int64).reshape(len(stored), 16, parts, -1)
    for part in range(parts):
        exact = np.einsum("sk,tlk->stl", levels[:, part], integers[:, :, part])
        block = part * levels.shape[2] // 32
        row_scale = row_scales[:, block, None, None]
        total = fma(exact.astype(np.float32), scale[:, part] * row_scale, total)
        if minimum is not None:
            count = levels[:, part].sum(-1).astype(np.float32)[:, None, None]
            total = fma(minimum[:, part], row_scale * count, total)
    return total.reshape(len(x), -1)[:, :columns]


def _integers(kind, stored, width):
    """The levels less their zero points, [16 tiles, width]."""
    plain = stored.copy()
    for field in kind.layout.names:
        if field not in ("levels", "blocks"):
            plain[field] = {"d": kind.times, "s": 1, "e": 128}.get(field, 0)
    if kind.name == "nvfp4":
        plain["s"] = 15 << 3  # whose bits are those of 1 in half precision
    found = tile_weights(
        kind.name,
        plain.view(np.uint8).reshape(*stored.shape, kind.unit_bytes),
        len(stored) * 16,
        width,
    )
    return found - np.float32(1 / 8) if kind.name == "iq1_s" else found


def _scales(kind, stored):
    """Scales and minimums [tiles, parts, 16] of each part of 16 or 32 columns."""
    shape = (len(stored), -1, 16)
    if kind.name == "mxfp4":
        return np.ldexp(np.float32(1), stored["e"].astype(np.int32) - 128).reshape(shape), None
    d = stored["d"].astype(np.float32)
    names = kind.layout.names
    if "n" in names:
        numbers = np.stack([stored["n"] & 15, stored["n"] >> 4], axis=3).reshape(
            *d.shape[:2], -1, 16
        )
        odd = 2 * (numbers & (7 if kind.name == "iq1_s" else 15)).astype(np.float32) + 1
        scale = (d[:, :, None] / np.float32(kind.times) * odd).reshape(shape)
        shift = np.where(numbers & 8, np.float32(-1 / 8), np.float32(1 / 8)).reshape(shape)
        return scale, scale * shift if kind.name == "iq1_s" else None
    if "s" not in names:
        minimum = None
        if "m" in names:
            minimum = stored["m"].astype(np.float32).reshape(shape)
        elif "z" in names:
            minimum = -(d * stored["z"].astype(np.float32)).reshape(shape)
        return np.repeat(d, kind.unit // 32, axis=1).reshape(shape), minimum
    s = stored["s"] & 15 if kind.name == "q2_k" else stored["s"]
    if kind.name == "nvfp4":
        s = ((s & 127).astype(np.uint16) << 7).view(np.float16)
    scale = (d[:, :, None] * s.astype(np.float32)).reshape(shape)
    if "dmin" not in names:
        return scale, None
    m = stored["s"] >> 4 if kind.name == "q2_k" else stored["m"]
    least = stored["dmin"].astype(np.float32)[:, :, None] * m.astype(np.float32)
    return scale, -least.reshape(shape)


def cases():
    """Calls by name: attributes of the node, and arrays."""
    rng = np.random.default_rng(7)
    found = {}
    for name, kind in TILE_FORMATS.items():
        for number, (rows, columns) in enumerate(SHAPES[kind.unit]):
            arrays = {
                "x": random_rows(ROWS[-1], columns, rng),
                "w0": random_tiles(name, rows, columns, rng),
            }
            attributes = {"formats": name, "columns": [rows]}
            if number != 1:
                arrays["bias"] = rng.normal(size=rows).astype(np.float32)
                attributes["factor"] = 0.37
            if number != 2:
                arrays["residual"] = rng.normal(size=(ROWS[-1], rows)).astype(np.float32)
            found[f"{name} {rows}x{columns}"] = attributes, arrays
    large = {"x": random_rows(ROWS[-1], 512, rng), "w0": random_tiles("q4_0", 1000, 512, rng)}
    found["q4_0 1000x512"] = {"formats": "q4_0", "columns": [1000]}, large
    return found


def outputs():
    """What kernels compute for `cases`: all rows, fewer, each alone, and by one thread."""
    found = {}
    for name, (attributes, arrays) in cases().items():
        node = linear_node(arrays, **attributes)
        for rows in ROWS:
            found[f"{name} {rows} rows"] = node(part_of(arrays, 0, rows))
        alone = [node(part_of(arrays, row, row + 1)) for row in range(ROWS[-1])]
        found[f"{name} alone"] = np.concatenate(alone)
        found[f"{name} one thread"] = linear_node(arrays, threads=1, **attributes)(arrays)
    return found


def part_of(arrays, first, last):
    """The arrays of some rows of a call."""
    rows = {"x", "residual"} & arrays.keys()
    return arrays | {name: arrays[name][first:last] for name in rows}


def fused():
    """Several matrices in one call, and one by one."""
    rng = np.random.default_rng(8)
    formats = ("q4_k", "f16", "q8_0", "q6_k")
    columns = (24, 7, 16, 33)
    width = 512
    arrays = {
        "x": random_rows(9, width, rng),
        "bias": rng.normal(size=sum(columns)).astype(np.float32),
    }
    matrices = [random_tiles(*each, width, rng) for each in zip(formats, columns, strict=True)]
    arrays |= {f"w{i}": each for i, each in enumerate(matrices)}
    found = {"fused": linear_node(arrays, " ".join(formats), list(columns))(arrays)}
    singles = []
    start = 0
    for name, count, tiles in zip(formats, columns, matrices, strict=True):
        one = {"x": arrays["x"], "bias": arrays["bias"][start : start + count], "w0": tiles}
        singles.append(linear_node(one, name, [count])(one))
        start += count
    return found | {"singles": np.concatenate(singles, 1)}


def embedded():
    """All rows of matrices, by BlockEmbedding and in numpy."""
    rng = np.random.default_rng(9)
    found = {}
    for name, kind in TILE_FORMATS.items():
        for rows, columns in SHAPES[kind.unit]:
            tiles = random_tiles(name, rows, columns, rng)
            if name == "mxfp4":
                stored = tiles.view(kind.layout)
                stored["e"] = rng.choice([0, 1, 2, 127, 128, 254], stored["e"].shape)
            arrays = {"ids": rng.permutation(rows), "w": tiles}
            node = Node(
                "BlockEmbedding", ["ids", "w"], arrays, format=name, columns=rows, width=columns
            )
            found[f"{name} {rows}x{columns} found"] = node(arrays)
            wanted = tile_weights(name, tiles, rows, columns)[arrays["ids"]]
            found[f"{name} {rows}x{columns} wanted"] = wanted
    return found


GATES = {
    "silu": {"activation": "silu"},
    "gelu": {"activation": "gelu_tanh"},
    "clamped": {"activation": "clamped", "alpha": 1.702, "limit": 7.0},
}


def gate_rows(columns):
    """Gates beside what they gate, [9, 2 * columns]."""
    x = np.random.default_rng(columns).normal(size=(9, 2 * columns)).astype(np.float32)
    factors = np.array([1, 4, 16, 80, 200, 1e-3, 1e-20, 1e20, 0], np.float32)
    return x * factors[:, None]


def gated():
    """Outputs of GatedUnit, with sizes that are no multiple of 16."""
    found = {}
    for name, attributes in GATES.items():
        for columns in (1, 35, 64, 3000):
            x = {"x": gate_rows(columns)}
            node = Node("GatedUnit", ["x"], x, **attributes)
            found[f"{name} {columns}"] = node(x)
            alone = [node({"x": row[None]}) for row in x["x"]]
            found[f"{name} {columns} alone"] = np.concatenate(alone)
    return found
