"""Ways to compute a mixture of experts so that only chosen experts are read, compared on a layer.

    python benchmarks/expert_operators.py [KIND...]

Layers of 64 experts of 512 in int4 (blocks of 128) at hidden size 1024, of which a row chooses 4:

* `grouped`: rows sorted by expert, split, and two products for each expert: what bundles have.
* `by-expert`: each expert finds its rows by itself, with NonZero, and scatters its results.
* `dense`: every expert computes every row.
* `qmoe`: ONNX Runtime's own operator, which OpenVINO does not have.
* `gather`: weights of chosen experts are gathered, widened and multiplied for each row.

Figures are milliseconds of processor time of one thread for four layers, and whether all rows have
the bits that they have in a call of their own (with a twin). The last line is JSON.
"""

from __future__ import annotations

import json
import sys
import time
from statistics import median
from typing import Any

import numpy as np
import onnxruntime as ort
import openvino as ov
from onnx import TensorProto, helper, numpy_helper

_HIDDEN, _WIDTH, _EXPERTS, _CHOSEN, _LAYERS, _BLOCK = 1024, 512, 64, 4, 4, 128
_ROWS, _CALLS = (1, 2, 4, 8, 16), 7
KINDS = ("grouped", "by-expert", "dense", "qmoe", "gather")


class Builder:
    """Builds a model of some layers in one of the ways."""

    def __init__(self, kind: str) -> None:
        self._nodes: list[Any] = []
        self._constants: dict[str, Any] = {}
        self._rng = np.random.default_rng(0)
        x = "x"
        for _ in range(_LAYERS):
            x = self._op("Add", x, self._layer(kind, x))
        self._nodes.append(helper.make_node("Identity", [x], ["y"]))

    def model(self) -> bytes:
        """Returns the serialized model."""
        ends = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["S", _HIDDEN]) for name in "xy"
        ]
        graph = helper.make_graph(
            self._nodes, "layers", ends[:1], ends[1:], list(self._constants.values())
        )
        opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets)
        model.ir_version = 11
        return bytes(model.SerializeToString())

    def _op(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        names = [f"v{len(self._nodes)}.{number}" for number in range(outputs)]
        self._nodes.append(helper.make_node(kind, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def _constant(self, values: Any, dtype: Any = np.int64) -> Any:
        array = np.ascontiguousarray(np.asarray(values, dtype).reshape(np.shape(values)))
        name = f"c{len(self._constants)}"
        self._constants[name] = numpy_helper.from_array(array, name)
        return name

    def _layer(self, kind: str, x: str) -> Any:
        router = self._rng.standard_normal((_HIDDEN, _EXPERTS)) * 0.05
        scores = self._op("MatMul", x, self._constant(router, np.float32))
        first = [self._weights(2 * _WIDTH, _HIDDEN) for _ in range(_EXPERTS)]
        last = [self._weights(_HIDDEN, _WIDTH) for _ in range(_EXPERTS)]
        if kind == "qmoe":
            return self._qmoe(x, scores, first, last)
        top, chosen = self._op("TopK", scores, self._constant([_CHOSEN]), outputs=2, axis=-1)
        shares = self._op("Softmax", top, axis=-1)
        if kind == "dense":
            zero = self._op("Mul", scores, self._constant(0, np.float32))
            spread = self._op("ScatterElements", zero, chosen, shares, axis=1)
            columns = self._op("Split", spread, outputs=_EXPERTS, axis=1, num_outputs=_EXPERTS)
            parts = [
                self._op("Mul", self._expert(x, *each), column)
                for *each, column in zip(first, last, columns, strict=True)
            ]
            return self._op("Sum", *parts)
        flat = self._op("Reshape", chosen, self._constant([-1]))
        pairs = getattr(self, f"_{kind.replace('-', '_')}")(x, flat, first, last)
        pairs = self._op("Reshape", pairs, self._constant([-1, _CHOSEN, _HIDDEN]))
        weighted = self._op("Mul", pairs, self._op("Unsqueeze", shares, self._constant([2])))
        return self._op("ReduceSum", weighted, self._constant([1]), keepdims=0)

    def _weights(self, rows: int, width: int) -> tuple[Any, Any]:
        packed = self._rng.integers(0, 256, (rows, width // _BLOCK, _BLOCK // 2), np.uint8)
        scales = self._rng.standard_normal((rows, width // _BLOCK)) * 0.005
        return packed, scales.astype(np.float32)

    def _product(self, x: str, weights: tuple[Any, Any]) -> Any:
        packed, scales = weights
        return self._op(
            "MatMulNBits", x, self._constant(packed, np.uint8), self._constant(scales, np.float32),
            domain="com.microsoft", K=packed.shape[1] * _BLOCK, N=len(packed), bits=4,
            block_size=_BLOCK, accuracy_level=4,
        )  # fmt: skip

    def _gated(self, both: str) -> Any:
        gate, up = self._op("Split", both, outputs=2, axis=-1, num_outputs=2)
        return self._op("Mul", self._op("Mul", gate, self._op("Sigmoid", gate)), up)

    def _expert(self, x: str, first: Any, last: Any) -> Any:
        return self._product(self._gated(self._product(x, first)), last)

    def _grouped(self, x: str, flat: str, first: Any, last: Any) -> Any:
        op, number = self._op, self._constant
        own = op("OneHot", flat, number([_EXPERTS]), number([0, 1]), axis=-1)
        exact = op("ReduceSum", own, number([0]), keepdims=0)
        counts = op("Add", exact, op("Mod", exact, number([2])))
        starts = op("CumSum", counts, number(0), exclusive=1)
        before = op("Mul", own, op("CumSum", own, number(0), exclusive=1))
        rank = op("ReduceSum", before, number([1]), keepdims=0)
        places = op("Add", op("Gather", starts, flat, axis=0), rank)
        zeros = op("Expand", number([0]), op("ReduceSum", counts, number([0]), keepdims=1))
        rows = op("ScatterElements", zeros, places, self._rows(flat), axis=0)
        parts = op("Split", op("Gather", x, rows, axis=0), counts, outputs=_EXPERTS, axis=0)
        found = [self._product(part, each) for part, each in zip(parts, first, strict=True)]
        inner = self._gated(op("Concat", *found, axis=0))
        parts = op("Split", inner, counts, outputs=_EXPERTS, axis=0)
        found = [self._product(part, each) for part, each in zip(parts, last, strict=True)]
        return op("Gather", op("Concat", *found, axis=0), places, axis=0)

    def _by_expert(self, x: str, flat: str, first: Any, last: Any) -> Any:
        op, number, rows = self._op, self._constant, self._rows(flat)
        found, places = [], []
        for expert, weights in enumerate(zip(first, last, strict=True)):
            own = op("NonZero", op("Equal", flat, number(expert)))
            own = op("Squeeze", own, number([0]))
            part = op("Gather", x, op("Gather", rows, own, axis=0), axis=0)
            found.append(self._expert(part, *weights))
            places.append(own)
        shape = op("Concat", op("Shape", flat), number([_HIDDEN]), axis=0)
        zeros = op("Expand", number([[0]], np.float32), shape)
        places = op("Unsqueeze", op("Concat", *places, axis=0), number([1]))
        return op("ScatterND", zeros, places, op("Concat", *found, axis=0))

    def _gather(self, x: str, flat: str, first: Any, last: Any) -> Any:
        rows = self._op("Gather", x, self._rows(flat), axis=0)
        rows = self._op("Unsqueeze", rows, self._constant([1]))
        inner = self._gated(self._gathered(rows, flat, first))
        return self._op("Squeeze", self._gathered(inner, flat, last), self._constant([1]))

    def _gathered(self, x: str, flat: str, weights: Any) -> Any:
        op = self._op
        packed = self._constant(np.stack([each[0] for each in weights]), np.uint8)
        scales = self._constant(np.stack([each[1] for each in weights]), np.float32)
        chosen, steps = (op("Gather", each, flat, axis=0) for each in (packed, scales))
        low = op("BitwiseAnd", chosen, self._constant(15, np.uint8))
        high = op("BitShift", chosen, self._constant(4, np.uint8), direction="RIGHT")
        both = op("Concat", *(op("Unsqueeze", each, self._constant([-1])) for each in (low, high)),
                  axis=-1)  # fmt: skip
        rows, blocks = weights[0][1].shape
        levels = op("Reshape", both, self._constant([-1, rows, blocks, _BLOCK]))
        centred = op("Sub", op("Cast", levels, to=TensorProto.FLOAT), self._constant(8, np.float32))
        wide = op("Mul", centred, op("Unsqueeze", steps, self._constant([-1])))
        wide = op("Reshape", wide, self._constant([-1, rows, blocks * _BLOCK]))
        return op("MatMul", x, op("Transpose", wide, perm=[0, 2, 1]))

    def _qmoe(self, x: str, router: str, first: Any, last: Any) -> Any:
        inputs = []
        for weights in (first, last):
            packed = np.stack([each[0].reshape(len(each[0]), -1) for each in weights])
            scales = np.stack([each[1] for each in weights])
            inputs += [self._constant(packed, np.uint8), self._constant(scales, np.float32), ""]
        return self._op(
            "QMoE", x, router, *inputs, domain="com.microsoft", k=_CHOSEN, block_size=_BLOCK,
            activation_type="swiglu", swiglu_fusion=1, activation_alpha=1.0, activation_beta=0.0,
            normalize_routing_weights=1, expert_weight_bits=4,
        )  # fmt: skip

    def _rows(self, flat: str) -> Any:
        ones = self._op("Add", self._op("Mul", flat, self._constant([0])), self._constant([1]))
        by_row = self._op("Reshape", ones, self._constant([-1, _CHOSEN]))
        rows = self._op("CumSum", by_row, self._constant(0), exclusive=1)
        return self._op("Reshape", rows, self._constant([-1]))


def onnxruntime(model: bytes) -> Any:
    """Returns a function that runs the model on ONNX Runtime."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return lambda x: session.run(None, {"x": x})[0]


def openvino(model: bytes) -> Any:
    """Returns a function that runs the model on OpenVINO."""
    config = {
        "INFERENCE_NUM_THREADS": "1", "INFERENCE_PRECISION_HINT": "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": str(_BLOCK),
    }  # fmt: skip
    compiled = ov.Core().compile_model(ov.Core().read_model(model), "CPU", config)
    return lambda x: compiled([x])[0].copy()


def measured(run: Any) -> tuple[dict[int, float], bool]:
    """Returns milliseconds by rows, and whether rows have the same bits in all calls."""
    x = np.random.default_rng(1).standard_normal((_ROWS[-1], _HIDDEN)).astype(np.float32)
    alone = [run(x[[row, row]])[0] for row in range(_ROWS[-1])]
    times, same = {}, True
    for count in _ROWS:
        same &= count == 1 or np.array_equal(run(x[:count]), alone[:count])
        seconds = []
        for _ in range(_CALLS):
            begin = time.process_time()
            run(x[:count])
            seconds.append(time.process_time() - begin)
        times[count] = round(1e3 * median(seconds), 2)
    return times, same


def main() -> None:
    """Measures each way on each engine."""
    results = {}
    for kind in sys.argv[1:] or KINDS:
        model = Builder(kind).model()
        for load in (onnxruntime, openvino):
            try:
                times, same = measured(load(model))
            except RuntimeError as error:
                reason = str(error).strip().splitlines()[-1]
                print(f"{kind} on {load.__name__}: refused ({reason})", flush=True)
                continue
            line = "  ".join(f"{count}: {ms:.1f}" for count, ms in times.items())
            bits = "same bits" if same else "other bits in company"
            print(f"{kind} on {load.__name__}, ms by rows: {line}; {bits}", flush=True)
            results[f"{kind} {load.__name__}"] = {"ms": times, "same_bits": same}
    print(json.dumps(results))


if __name__ == "__main__":
    main()
