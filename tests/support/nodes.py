"""Single nodes of the native operators, run by ONNX Runtime."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

from edgespec.runtime.kernels import library, usable_kernels

DOMAIN = "edgespec"
MISSING = library() is None


def run_node(operator, inputs, threads=1, **attributes):
    """Runs a node; inputs that are None are left out. Returns its output."""
    given = {f"x{n}": each for n, each in enumerate(inputs) if each is not None}
    names = tuple("" if each is None else f"x{n}" for n, each in enumerate(inputs))
    types = tuple((name, each.dtype.str, each.ndim) for name, each in given.items())
    frozen = tuple((name, _frozen(value)) for name, value in attributes.items())
    return _session(operator, names, types, frozen, threads).run(None, given)[0]


def _frozen(value):
    return tuple(value) if isinstance(value, list) else value


@cache
def _session(operator, names, types, attributes, threads):
    values = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), [None] * rank
        )
        for name, dtype, rank in types
    ]
    plain = {name: list(v) if isinstance(v, tuple) else v for name, v in attributes}
    node = helper.make_node(operator, list(names), ["y"], domain=DOMAIN, **plain)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    graph = helper.make_graph([node], "node", values, [y])
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    options.register_custom_ops_library(str(library()))
    return ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


def results_by_kernel(script, folder):
    """Runs a file once with each instruction set; it saves its arrays to the path that it gets."""
    found = {}
    for name in usable_kernels():
        path = Path(folder, f"{name}.npz")
        paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
        environment = {**os.environ, "EDGESPEC_KERNELS": name, "PYTHONPATH": paths}
        subprocess.run([sys.executable, script, str(path)], env=environment, check=True)
        found[name] = dict(np.load(path))
    return found


def same_bits(found, expected):
    np.testing.assert_array_equal(
        np.ascontiguousarray(found).view(np.uint32), np.ascontiguousarray(expected).view(np.uint32)
    )


def check_kernels_agree(script, folder):
    """Checks that all instruction sets give the bits of plain C++."""
    found = results_by_kernel(script, folder)
    for results in found.values():
        assert results.keys() == found["plain"].keys()
        for name, values in results.items():
            same_bits(values, found["plain"][name])
