"""A bundle's target in PyTorch, on any of its devices.

It runs the native graph itself with the bundle's own numbers, so that features are those of the
target that will verify, up to the 8 bits that activations have on CPUs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from onnx import NodeProto
from torch import Tensor

from edgespec.bundle import LOGITS, PICTURED, PICTURES, Bundle
from edgespec.errors import InputError
from edgespec.export.graph_builder import entering
from edgespec.export.portable.lowering import attributes
from edgespec.runtime.sequences.model import RotationTable
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.system.machine import default_threads
from edgespec.training.device import TorchDevice
from edgespec.training.operators import OPERATORS
from edgespec.training.target_graph import TargetGraph
from edgespec.training.text_pass import Node, Operator, TextCache, TextPass

_LOGIT_ROWS = "logit_rows"
_POOL = {"TreeAttention": 3, "ShortConv": 2, "GatedDelta": 5, "StateSpace": 7}  # number of an input
_TILES = {"BlockEmbedding": 1, "BlockLinear": 3, "ExpertLinear": 4}  # the first input of tiles
_PART = 1 << 13  # rows of a matrix that are unpacked at a time
_MOST_POSITIONS = 1 << 17  # that have rotations: texts to learn from are far shorter


@dataclass(frozen=True)
class _Step:
    """A node of the graph.

    Attributes:
        operator: what it computes.
        node: what it computes with.
        reads: names of what it reads; empty ones are left out.
        gives: names of what it gives.
        done: names that nothing reads behind it.
    """

    operator: Operator
    node: Node
    reads: tuple[str, ...]
    gives: tuple[str, ...]
    done: tuple[str, ...] = ()


class TorchTarget:
    """A target, which runs over texts side by side.

    Args:
        bundle: its bundle.
        device: where it runs.
        taps: layers whose entering rows are wanted, see `Role.taps`.

    Attributes:
        bundle: see above.
        device: see above.
        role: what the bundle says of it.
        graph: its graph.

    Raises:
        ExportError: if an older version exported it.
        InputError: if another program exported it, or an operator is not known here.
    """

    def __init__(self, bundle: Bundle, device: TorchDevice, taps: Sequence[int] = ()) -> None:
        self.bundle = bundle
        self.device = device
        self.role = bundle.target
        self.graph = TargetGraph(bundle)
        self._taps = [entering(tap) for tap in taps]
        nodes = list(self.graph.graph.node)
        self._constants = {
            name: self._constant(each) for name, each in self.graph.constants.items()
        }
        self._matrices = self._unpacked(nodes)
        cut = next(n for n, node in enumerate(nodes) if _LOGIT_ROWS in node.input)
        self._hidden = nodes[cut].input[0]
        self._body = self._steps(nodes[:cut], {self._hidden, *self._taps})
        self._tail = self._steps(nodes[cut:], {LOGITS})
        self._ropes = dict(self._rotations())

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer."""
        return Tokenizer.from_folder(self.bundle.path)

    def text_bytes(self, length: int) -> int:
        """Returns the bytes that a text of so many tokens takes in a pass and a cache, about."""
        native = self.role.native
        half = self.device.half.itemsize
        kept = sum(2 * each.kv_heads * each.dim * half for each in native.pools)
        steps = (step.node.attributes.get("columns", 0) for step in self._body)
        widest = max(sum(each) for each in steps if isinstance(each, list))
        streams = len(self._taps) + 4
        states = sum(prod(each.state) for each in native.recurrent if each.state)
        return length * (kept + 4 * (streams * self.role.hidden_size + 3 * widest)) + 4 * states

    def begin(self, length: int) -> TextCache:
        """Returns an empty cache for texts of at most so many tokens."""
        return TextCache(length, self.device.half)

    @torch.no_grad()
    def forward(self, tokens: Tensor, rows: TextPass) -> tuple[Tensor, Tensor]:
        """Reads rows of texts.

        Args:
            tokens: [B, L] int64, on the device.
            rows: where they are.

        Returns:
            What `logits` reads, [B * L, ...]; and the features, [B * L, F] float32.
        """
        given: dict[str, Tensor] = {"input_ids": tokens.flatten()}
        places = rows.positions.flatten()
        for name, table in self._ropes.items():
            given[name] = table[places]
        if self.role.vision is not None:  # no row shows one
            width = self.role.vision.streams * self.role.hidden_size
            given[PICTURED] = torch.zeros_like(given["input_ids"], dtype=torch.bool)
            given[PICTURES] = torch.zeros(1, width, device=tokens.device)
        found = self._run(self._body, given, rows)
        features = [found[name] for name in self._taps]
        hidden = found[self._hidden]
        return hidden, torch.cat(features, -1) if features else hidden[:, :0]

    @torch.no_grad()
    def logits(self, hidden: Tensor, chosen: Tensor) -> Tensor:
        """Returns the logits of chosen rows of `forward`, [R, V] float32."""
        given: dict[str, Tensor] = {self._hidden: hidden, _LOGIT_ROWS: chosen}
        found: Tensor = self._run(self._tail, given, TextPass(chosen[None]))[LOGITS]
        return found

    @torch.no_grad()
    def embedded(self, tokens: Tensor) -> Tensor:
        """Returns what enters the first layer for tokens [...] on the device, [..., H]."""
        embedding = self.graph.embedding
        table = self._matrices[embedding.name]
        rows = torch.nn.functional.embedding(tokens, table)[..., : self.role.hidden_size]
        return rows.float() * embedding.factor

    def _run(
        self, steps: Sequence[_Step], given: dict[str, Tensor], rows: TextPass
    ) -> dict[str, Any]:
        values: dict[str, Any] = {**self._constants, **given}
        for step in steps:
            found = step.operator(step.node, rows, [values.get(name) for name in step.reads])
            parts = (found,) if isinstance(found, Tensor) else found
            values |= zip(step.gives, parts, strict=True)
            for name in step.done:
                del values[name]
        return values

    def _steps(self, nodes: Sequence[NodeProto], kept: set[str]) -> list[_Step]:
        last = {name: n for n, node in enumerate(nodes) for name in node.input}
        made = {name for node in nodes for name in node.output}
        steps = []
        for number, node in enumerate(nodes):
            operator = OPERATORS.get(node.op_type)
            if operator is None:
                raise InputError(
                    f"{self.graph.path} has {node.op_type}, which training can't read: choose "
                    "another target"
                )
            done = {name for name in node.input if last[name] == number and name in made}
            done |= {name for name in node.output if name not in last}
            own = self._node(node)
            first = _TILES.get(node.op_type, len(node.input))
            reads = tuple(node.input[:first])
            gives = tuple(node.output)
            steps.append(_Step(operator, own, reads, gives, tuple(done - kept - {""})))
        return steps

    def _node(self, node: NodeProto) -> Node:
        own = attributes(node)
        first = _TILES.get(node.op_type)
        matrices = () if first is None else tuple(self._matrices[n] for n in node.input[first:])
        pool = _POOL.get(node.op_type)
        return Node(own, matrices, "" if pool is None else node.input[pool])

    def _unpacked(self, nodes: Sequence[NodeProto]) -> dict[str, Tensor]:
        """Returns all matrices as floats, [rows, columns] each."""
        wanted = dict[str, tuple[str, int]]()
        for node in nodes:
            if node.op_type in _TILES:
                own = attributes(node)
                columns = own["columns"]
                forms = own["formats"].split() if "formats" in own else [own["format"]]
                columns = columns if isinstance(columns, list) else [columns]
                names = node.input[_TILES[node.op_type] :]
                for name, form, rows in zip(names, forms, columns, strict=True):
                    wanted[name] = (form, rows * own.get("experts", 1))
        with ThreadPoolExecutor(default_threads()) as pool:
            made = pool.map(lambda name: self._matrix(name, *wanted[name]), wanted)
            return dict(zip(wanted, made, strict=True))

    def _matrix(self, name: str, form: str, rows: int) -> Tensor:
        tiles = self.graph.tiles(name, form, rows)
        exact = form == "f32"
        kind = torch.float32 if exact else self.device.half
        made = torch.empty(rows, tiles.width, dtype=kind)
        for start in range(0, rows, _PART):
            stop = min(start + _PART, rows)
            made[start:stop] = torch.from_numpy(tiles.part(start, stop))
        return made.to(self.device.device)

    def _constant(self, value: npt.NDArray[np.generic]) -> Tensor:
        """Returns a constant; whole numbers are sizes, which PyTorch wants on the host."""
        made = torch.from_numpy(value)
        return made.to(self.device.device) if made.is_floating_point() else made

    def _rotations(self) -> Iterator[tuple[str, Tensor]]:
        """Yields cosines and sines of positions by their names in the graph."""
        places = np.arange(min(self.role.context_length, _MOST_POSITIONS))
        for table in self.role.rope_tables:
            if table.name in self.role.native.ropes:
                turns = RotationTable(table)
                for name, each in zip(turns.inputs, turns.at(places, len(places) - 1), strict=True):
                    yield name, torch.from_numpy(each).to(self.device.device)
