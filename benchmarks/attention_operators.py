"""What attention to a cache costs: by the precision of the cache, and as an operator of its own.

    python benchmarks/attention_operators.py --rows 1,8,64 --capacity 1024,8192

One layer with the heads of Qwen2.5-1.5B (12 queries, 2 keys, of 128), whose rows see a whole cache:

* `products`: the two products with keys and values alone, in float32: what no form can do without.
* `float32`, `float16`, `int8`: with a softmax between them, and caches of these types, of which
  int8 has a scale for each row and head. Bundles have these forms.
* `operator`: ONNX's Attention (opset 23), which the engines compute in one piece.

Figures are milliseconds of processor time of one thread, the least of several calls. The last line
is JSON.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime as ort
import openvino as ov
from common import counts, exit_code, print_result, print_table
from onnx import TensorProto, helper

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_KEYS, _GROUP, _WIDTH, _CALLS = 2, 6, 128, 9
FORMS = ("products", "float32", "float16", "int8", "operator")
_DTYPES = {"float16": np.float16, "int8": np.int8}


def model(form: str) -> bytes:
    """Returns the serialized model of a form; its inputs are those of `feeds`."""
    nodes: list[Any] = []

    def op(kind: str, *inputs: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, list(inputs), [f"v{len(nodes)}"], **attributes))
        return f"v{len(nodes) - 1}"

    if form == "operator":
        mixed = op("Attention", "q", "k", "v")
    else:
        keys, values = ("k", "v") if form not in _DTYPES else (
            op("Cast", name, to=TensorProto.FLOAT) for name in "kv"
        )  # fmt: skip
        shares = op("MatMul", "q", op("Transpose", keys, perm=[0, 1, 3, 2]))
        if form == "int8":
            shares = op("Mul", shares, op("Transpose", "k_scale", perm=[0, 1, 3, 2]))
        if form != "products":
            shares = op("Softmax", shares, axis=-1)
        if form == "int8":
            shares = op("Mul", shares, op("Transpose", "v_scale", perm=[0, 1, 3, 2]))
        mixed = op("MatMul", shares, values)
    nodes.append(helper.make_node("Identity", [mixed], ["y"]))
    inputs = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), [1, _KEYS, None, array.shape[3]]
        )
        for name, array in feeds(form, 1, 1).items()
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, _KEYS, None, _WIDTH])
    graph = helper.make_graph(nodes, form, inputs, [output])
    opsets = [helper.make_opsetid("", 23)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())


def feeds(form: str, rows: int, capacity: int) -> dict[str, Any]:
    """Returns a call's inputs; queries that share keys lie one after the other."""
    rng = np.random.default_rng(0)
    found: dict[str, Any] = {
        "q": rng.standard_normal((1, _KEYS, _GROUP * rows, _WIDTH), np.float32)
    }
    for name in "kv":
        numbers = rng.standard_normal((1, _KEYS, capacity, _WIDTH), np.float32)
        found[name] = (9 * numbers if form == "int8" else numbers).astype(
            _DTYPES.get(form, np.float32)
        )
        if form == "int8":
            found[f"{name}_scale"] = np.full((1, _KEYS, capacity, 1), 0.1, np.float32)
    return found


def on_onnxruntime(form: str) -> Callable[[Mapping[str, Any]], object]:
    """Returns a function that makes a call with ONNX Runtime."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model(form), options, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(None, inputs)


def on_openvino(form: str) -> Callable[[Mapping[str, Any]], object]:
    """Returns a function that makes a call with OpenVINO."""
    config = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": "1", "NUM_STREAMS": "1"}
    core = ov.Core()
    request = core.compile_model(
        core.read_model(model(form), b""), "CPU", config
    ).create_infer_request()

    def call(inputs: Mapping[str, Any]) -> object:
        for name, array in inputs.items():
            request.set_tensor(name, ov.Tensor(array, shared_memory=True))
        return request.infer()

    return call


def least(call: Callable[[Mapping[str, Any]], object], inputs: Mapping[str, Any]) -> float:
    """Returns the milliseconds of processor time of the cheapest call."""
    times = []
    for _ in range(_CALLS):
        begin = time.process_time()
        call(inputs)
        times.append(1e3 * (time.process_time() - begin))
    return round(min(times[1:]), 2)


def main() -> None:
    """Measures all forms on both engines."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=counts, default=[1, 8, 64])
    parser.add_argument("--capacity", type=counts, default=[1024, 8192])
    arguments = parser.parse_args()
    table = []
    for name, made in (("ONNX Runtime", on_onnxruntime), ("OpenVINO", on_openvino)):
        calls = {form: made(form) for form in FORMS}
        for capacity in arguments.capacity:
            for rows in arguments.rows:
                found = [least(calls[form], feeds(form, rows, capacity)) for form in FORMS]
                table.append([name, capacity, rows, *found])
    header = ["engine", "rows of the cache", "rows", *FORMS]
    print_table(header, table)
    print_result("attention_operators", {"header": header, "table": table})


if __name__ == "__main__":
    sys.exit(exit_code(main))
