"""A portable graph of standard operators in a few lines, and what it computes, in numpy."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from onnx import parser, save
from onnx.numpy_helper import from_array

from edgespec.bundle import RopeTable
from edgespec.runtime.sequences.model import RotationTable

VOCABULARY = 40
LAYERS = 2
HEADS = 2
DIM = 16
WINDOWS = (None, 5)  # by layer
ROPE = RopeTable("default", tuple(1.0 / 100 ** (n / 8) for n in range(8)), 1.0)

_WIDTH = HEADS * DIM


def shapes():
    """The layers, as pools take them."""
    return [
        SimpleNamespace(layer=layer, kv_heads=HEADS, dim=DIM, window=window)
        for layer, window in enumerate(WINDOWS)
    ]


def weights():
    draw = np.random.default_rng(0).standard_normal
    names = [f"{part}.{layer}" for layer in range(LAYERS) for part in "qkvo"]
    made = {name: draw((_WIDTH, _WIDTH)) / _WIDTH**0.5 for name in names}
    made["embedding"] = draw((VOCABULARY, _WIDTH))
    return {name: each.astype(np.float32) for name, each in made.items()}


def expected(tokens):
    """Logits and hidden row of the last token, [V] and [D], computed from all of them at once."""
    table = weights()
    x = table["embedding"][tokens]
    positions = list(range(len(tokens)))
    cos, sin = RotationTable(ROPE).at(positions, len(tokens) - 1)
    for layer, window in enumerate(WINDOWS):
        q, k, v = (
            (x @ table[f"{part}.{layer}"]).reshape(-1, HEADS, DIM).transpose(1, 0, 2)
            for part in "qkv"
        )
        q, k = (
            np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
            for a, b in (np.split(each, 2, -1) for each in (q, k))
        )
        distance = np.subtract.outer(positions, positions)
        hidden = (distance < 0) | (distance >= (window or len(tokens)))
        scores = np.where(hidden, -np.inf, q @ k.transpose(0, 2, 1))
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = shares / shares.sum(-1, keepdims=True) @ v
        x = x + mixed.transpose(1, 0, 2).reshape(-1, _WIDTH) @ table[f"o.{layer}"]
    return x[-1] @ table["embedding"].T, x[-1]


_LAYER = """
q{n}_flat = MatMul(x{n}, "q.{n}")
k{n}_flat = MatMul(x{n}, "k.{n}")
v{n}_flat = MatMul(x{n}, "v.{n}")
{heads}
k{n}_new = Unsqueeze(k{n}_rotated, first)
v{n}_new = Unsqueeze(v{n}, first)
new{n} = Concat <axis = 0> (k{n}_new, v{n}_new)
"new.{n}" = Cast <to = {kind}> (new{n})
old_keys{n} = Cast <to = 1> ("pool.{n}.keys")
old_values{n} = Cast <to = 1> ("pool.{n}.values")
all_keys{n} = Concat <axis = 2> (old_keys{n}, k{n}_new)
all_values{n} = Concat <axis = 2> (old_values{n}, v{n}_new)
keys{n} = Gather <axis = 0> (all_keys{n}, zero)
values{n} = Gather <axis = 0> (all_values{n}, zero)
keys{n}_turned = Transpose <perm = [0, 2, 1]> (keys{n})
scores{n} = MatMul(q{n}_rotated, keys{n}_turned)
masked{n} = Add(scores{n}, "{bias}")
shares{n} = Softmax <axis = -1> (masked{n})
mixed{n} = MatMul(shares{n}, values{n})
mixed{n}_turned = Transpose <perm = [1, 0, 2]> (mixed{n})
mixed{n}_flat = Reshape(mixed{n}_turned, flat)
out{n} = MatMul(mixed{n}_flat, "o.{n}")
x{next} = Add(x{n}, out{n})
"""
_HEADS = """{n}_split = Reshape({n}_flat, by_head)
{n} = Transpose <perm = [1, 0, 2]> ({n}_split)"""
_ROTATION = """{n}_a, {n}_b = Split <axis = -1, num_outputs = 2> ({n})
{n}_ac = Mul({n}_a, rope_cos)
{n}_bs = Mul({n}_b, rope_sin)
{n}_bc = Mul({n}_b, rope_cos)
{n}_as = Mul({n}_a, rope_sin)
{n}_first = Sub({n}_ac, {n}_bs)
{n}_second = Add({n}_bc, {n}_as)
{n}_rotated = Concat <axis = -1> ({n}_first, {n}_second)"""


_FUSED_LAYER = """
q{n} = MatMul(x{n}, "q.{n}")
k{n} = MatMul(x{n}, "k.{n}")
v{n} = MatMul(x{n}, "v.{n}")
qkv{n} = Concat <axis = -1> (q{n}, k{n}, v{n})
packed{n} = Reshape(qkv{n}, batch)
mixed{n}, "keys.{n}.after", "values.{n}.after" = com.microsoft.GroupQueryAttention
    <num_heads = {heads}, kv_num_heads = {heads}, do_rotary = 1, scale = 1.0>
    (packed{n}, , , "keys.{n}", "values.{n}", end, total, cos, sin, , "{seen}")
mixed{n}_flat = Reshape(mixed{n}, flat)
out{n} = MatMul(mixed{n}_flat, "o.{n}")
x{next} = Add(x{n}, out{n})
"""


def write_fused_graph(path):
    """Writes the graph in its fused form."""
    layers = ""
    names = ["seen" if window is None else f"seen.{window}" for window in WINDOWS]
    for n, name in enumerate(names):
        layers += _FUSED_LAYER.format(n=n, next=n + 1, heads=HEADS, seen=name)
    caches = [f"{part}.{n}" for n in range(LAYERS) for part in ("keys", "values")]
    read = ", ".join(f'float[1, {HEADS}, P, {DIM}] "{name}"' for name in caches)
    after = ", ".join(f'float[1, {HEADS}, P, {DIM}] "{name}.after"' for name in caches)
    seen = ", ".join(f'float[1, 1, S, P] "{name}"' for name in names)
    turns = f'float["2P", {DIM // 2}]'
    model = parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
        small (int64[S] input_ids, float[S, {DIM // 2}] rope_cos, float[S, {DIM // 2}] rope_sin,
               {turns} "turns.rope_cos", int64["2S", 1] turn_rows, int32[1] end, int32[1] total,
               {seen}, {read}, int64[R] logit_rows)
            => (float[R, {VOCABULARY}] logits, float[S, {_WIDTH}] features,
                {turns} "turns.rope_cos.after", {after}) {{
            x0 = Gather(embedding, input_ids)
            turned = Concat <axis = 0> (rope_cos, rope_sin)
            "turns.rope_cos.after" = ScatterND("turns.rope_cos", turn_rows, turned)
            cos, sin = Split <axis = 0, num_outputs = 2> ("turns.rope_cos.after")
            {layers}
            features = Identity(x{LAYERS})
            wanted = Gather <axis = 0> (x{LAYERS}, logit_rows)
            logits = MatMul(wanted, head)
        }}"""
    )
    _write(model, path, batch=np.array([1, -1, 3 * _WIDTH]), flat=np.array([-1, _WIDTH]))


def write_graph(path, kv="float"):
    """Writes the graph, whose pools have numbers of this type."""
    kind = {"float": 1, "float16": 10}[kv]
    layers = ""
    for n, window in enumerate(WINDOWS):
        bias = "bias" if window is None else f"bias.{window}"
        heads = [_HEADS.format(n=f"{part}{n}") for part in "qkv"]
        heads += [_ROTATION.format(n=f"{part}{n}") for part in "qk"]
        parts = {"heads": "\n".join(heads), "kind": kind, "bias": bias}
        layers += _LAYER.format(n=n, next=n + 1, **parts)
    held = [f"pool.{n}.{part}" for n in range(LAYERS) for part in ("keys", "values")]
    pools = ", ".join(f'{kv}[1, {HEADS}, C, {DIM}] "{name}"' for name in held)
    new = ", ".join(f'{kv}[2, {HEADS}, S, {DIM}] "new.{n}"' for n in range(LAYERS))
    model = parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 21]>
        small (int64[S] input_ids, float[S, {DIM // 2}] rope_cos, float[S, {DIM // 2}] rope_sin,
               float[S, "C+S"] bias, float[S, "C+S"] "bias.{WINDOWS[1]}", {pools},
               int64[R] logit_rows)
            => (float[R, {VOCABULARY}] logits, float[S, {_WIDTH}] features, {new}) {{
            x0 = Gather(embedding, input_ids)
            {layers}
            features = Identity(x{LAYERS})
            wanted = Gather <axis = 0> (x{LAYERS}, logit_rows)
            logits = MatMul(wanted, head)
        }}"""
    )
    _write(
        model,
        path,
        by_head=np.array([-1, HEADS, DIM]),
        flat=np.array([-1, _WIDTH]),
        zero=np.array(0),
        first=np.array([0]),
    )


def _write(model, path, **constants):
    """Writes a graph with the weights, and with constants of its own."""
    table = weights()
    constants |= table | {"head": table["embedding"].T.copy()}
    model.graph.initializer.extend(from_array(each, name) for name, each in constants.items())
    save(model, path)
