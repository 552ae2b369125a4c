"""Single nodes of the native operators, run by ONNX Runtime, and functions run by each kernel."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from edgespec.runtime.kernels import library

DOMAIN = "edgespec"
KERNELS = ("plain", "avx2", "avxvnni", "avx512", "neon", "dotprod", "i8mm")
# Another build of the library may be tested, such as one that looks for faults.
LIBRARY = os.environ.get("EDGESPEC_TEST_LIBRARY") or str(library() or "")
MISSING = not LIBRARY
needs_library = pytest.mark.skipif(MISSING, reason="edgespec was installed without a C++ compiler")


class Node:
    """A session of one node."""

    def __init__(self, operator, names, arrays, threads=2, **attributes):
        """Takes the node's inputs by name, of which those not in `arrays` are left out."""
        present = {name: arrays[name] for name in names if arrays.get(name) is not None}
        inputs = [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(each.dtype), [None] * each.ndim
            )
            for name, each in present.items()
        ]
        node = helper.make_node(
            operator,
            [name if name in present else "" for name in names],
            ["y"],
            domain=DOMAIN,
            **attributes,
        )
        result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
        graph = helper.make_graph([node], "node", inputs, [result])
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 4
        options.register_custom_ops_library(LIBRARY)
        self.names = [*present]
        self._session = ort.InferenceSession(
            model.SerializeToString(), options, ["CPUExecutionProvider"]
        )

    def __call__(self, arrays):
        """Runs it; a pool among the arrays is written to."""
        return self._session.run(None, {name: arrays[name] for name in self.names})[0]


def linear_node(arrays, formats, columns, **attributes):
    """BlockLinear, whose matrices are w0, w1 and so on."""
    names = ["x", "bias", "residual", *(f"w{i}" for i in range(len(columns)))]
    return Node("BlockLinear", names, arrays, formats=formats, columns=columns, **attributes)


def run_node(operator, inputs, threads=1, **attributes):
    """Runs a node; inputs that are None are left out. Returns its output."""
    given = {f"x{n}": each for n, each in enumerate(inputs) if each is not None}
    names = tuple("" if each is None else f"x{n}" for n, each in enumerate(inputs))
    types = tuple((name, each.dtype.str, each.ndim) for name, each in given.items())
    frozen = tuple((name, _frozen(value)) for name, value in attributes.items())
    return _kept_node(operator, names, types, frozen, threads)(given)


def _frozen(value):
    return tuple(value) if isinstance(value, list) else value


@cache
def _kept_node(operator, names, types, attributes, threads):
    arrays = {name: np.empty((0,) * rank, np.dtype(dtype)) for name, dtype, rank in types}
    plain = {name: list(v) if isinstance(v, tuple) else v for name, v in attributes}
    return Node(operator, names, arrays, threads=threads, **plain)


@cache
def usable():
    """The kernels that this processor can run, of those that were compiled, the best first."""
    if MISSING:
        return ()
    names = ctypes.CDLL(LIBRARY).edgespec_usable_kernels
    names.restype = ctypes.c_char_p
    return tuple(names().decode().split(", "))


def _run(kernel, program, *arguments):
    """Runs Python where operators use some kernels: which are used is decided once a process."""
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = os.environ | {
        "EDGESPEC_KERNELS": kernel,
        "EDGESPEC_TEST_LIBRARY": LIBRARY,
        "PYTHONPATH": paths,
    }
    run = subprocess.run(
        [sys.executable, "-P", "-c", program, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, f"{kernel}: {run.stderr[-4000:]}"


@cache
def by_kernel(kernel, module, function, *arguments):
    """Calls a function of a module with strings, once, where operators use some kernels.

    Skips where the processor does not have them.

    Returns:
        The arrays by name that the function returns.
    """
    if kernel not in usable():
        pytest.skip(f"this machine has no {kernel}: only {', '.join(usable())} ran")
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "arrays.npz"))
        program = (
            f"import sys, numpy, {module} as found\n"
            f"numpy.savez({path!r}, **found.{function}(*sys.argv[1:]))"
        )
        _run(kernel, program, *arguments)
        with np.load(path) as arrays:
            return dict(arrays)


def assert_same(found, wanted):
    """Arrays by name have the same bits; what is no number may have others."""
    assert found.keys() == wanted.keys()
    for name, each in found.items():
        other = wanted[name]
        assert (each.dtype, each.shape) == (other.dtype, other.shape), name
        bits = np.dtype(f"u{each.itemsize}")
        same = np.ascontiguousarray(each).view(bits) == np.ascontiguousarray(other).view(bits)
        if each.dtype.kind == "f":
            same |= np.isnan(each) & np.isnan(other)
        assert same.all(), f"{name}: {np.argwhere(~same)[:5].tolist()} of {each.shape}"


def same_bits(found, expected):
    np.testing.assert_array_equal(
        np.ascontiguousarray(found).view(np.uint32), np.ascontiguousarray(expected).view(np.uint32)
    )
