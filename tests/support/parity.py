"""Helpers to compare an exported model with transformers: sequences, a token tree, a distance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import torch
from onnx.external_data_helper import ExternalDataInfo

from edgespec import bundle as bundles
from edgespec.export import last_rows
from edgespec.export.formats.tile_formats import TILE_FORMATS
from edgespec.export.formats.tiles import tile_weights
from edgespec.llm.load.models import load_model
from edgespec.runtime.plan import HOST, Placement
from edgespec.runtime.sequences.model import AFTER, Rows
from edgespec.tuning.calibrating import opener
from edgespec.tuning.quality import logits_of

# Float32 sums in another order differ by at most 1e-6, as measured.
SAME = 1e-5
# States make some rows small before a norm, which then shows more of their last digits; so does
# attention that is sharp, as of Gemma 4 with random weights, whose scores are not scaled.
SAME_STATES = 1e-4

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
PROMPT = np.random.default_rng(7).integers(0, 331, 400).tolist()
# Parents of rows: two branches that split again; the root is row 0.
PARENTS = (None, 0, 0, 1, 1, 2, 4)
TREE_TOKENS = (17, 3, 250, 99, 3, 41, 330)
CHUNK = 64


def reference(model, tokens, cache=None):
    """Returns transformers' logits of the last token, [V]."""
    with torch.no_grad():
        given = {} if cache is None else {"past_key_values": cache}
        return model(torch.tensor([tokens]), **given).logits[0, -1].numpy()


def calibration_logits(checkpoint, texts):
    """Returns the logits [B * T, V] of the float32 layers that calibration reads texts with."""
    return logits_of(checkpoint, last_rows(checkpoint, texts, opener()))


def distance(found, expected):
    assert found.shape == expected.shape
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def path_to(row):
    """Returns the rows from the root to this one."""
    parent = PARENTS[row]
    return [row] if parent is None else [*path_to(parent), row]


def load(bundle, role=bundles.TARGET, threads=1):
    """Returns a role of a bundle, or of its folder, ready for passes on its native graph."""
    opened = bundle if isinstance(bundle, bundles.Bundle) else bundles.load(bundle)
    return load_model(opened, role, Placement(HOST), threads)


class Text:
    """A sequence that a model reads."""

    def __init__(self, model):
        self.model = model
        self.sequence = model.sequence([])

    def rows(self, tokens, parents=None):
        """Returns rows behind the sequence, all of whose logits are wanted: a chain, or a tree."""
        if parents is None:
            parents = range(AFTER, len(tokens) - 1)
        parents = [AFTER if each is None else each for each in parents]
        return Rows(self.sequence, list(tokens), parents, list(range(len(tokens))))

    def read(self, tokens, chunk=CHUNK):
        """Appends tokens, read in passes of so many; returns the logits of each, [n, V]."""
        found = []
        for start in range(0, len(tokens), chunk):
            rows = self.rows(tokens[start : start + chunk])
            found.append(self.model.forward([rows])[0].copy())
            rows.accept(range(len(rows.tokens)))
        return np.concatenate(found)

    def tree(self, accepted=()):
        """Returns the logits of `TREE_TOKENS`, [7, V]; the text goes on with accepted rows."""
        rows = self.rows(TREE_TOKENS, PARENTS)
        found = self.model.forward([rows])[0].copy()
        rows.accept(accepted)
        return found


def logits_of_bundle(bundle, tokens):
    """Returns the logits of all tokens, [n, V]."""
    return Text(load(bundle)).read(tokens)


@dataclass(frozen=True)
class Stored:
    """A matrix of a bundle's file: its values [N, K] in float32, and their format of tiles."""

    values: np.ndarray
    format: str


def stored(bundle, role=bundles.TARGET):
    """Returns the matrices that the products of a graph read, by the names of tensors."""
    graph = onnx.load(
        bundle.path / bundle.manifest.roles[role].native.graph, load_external_data=False
    ).graph
    places = {
        each.name: ExternalDataInfo(each)
        for each in graph.initializer
        if each.data_location == onnx.TensorProto.EXTERNAL
    }
    shapes = {each.name: list(each.dims) for each in graph.initializer}
    found = {}
    for node in graph.node:
        if node.op_type not in ("BlockLinear", "BlockEmbedding"):
            continue
        values = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        formats = values.get("formats", values.get("format")).decode().split()
        rows = values["columns"] if isinstance(values["columns"], list) else [values["columns"]]
        names = [name for name in node.input if name in places]
        for name, form, count in zip(names, formats, rows, strict=True):
            kind = TILE_FORMATS[form]
            place = places[name]
            raw = np.fromfile(
                bundle.path / place.location, np.uint8, shapes[name][0], "", place.offset
            )
            tiles = raw.reshape(-(-count // 16), -1, kind.unit_bytes)
            width = tiles.shape[1] * kind.unit
            found[name] = Stored(tile_weights(form, tiles, count, width), form)
    return found
