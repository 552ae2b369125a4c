"""Operators of the library alone: a node in a session, and functions run once for each kernel."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx import helper

from edgespec.runtime.kernels import library

KERNELS = ("plain", "avx2", "avxvnni", "avx512", "dotprod", "i8mm")
# Another build of the library, such as one that looks for faults, and what it must be loaded after.
LIBRARY = os.environ.get("EDGESPEC_TEST_LIBRARY") or str(library() or "")
PRELOAD = os.environ.get("EDGESPEC_TEST_PRELOAD", "")

needs_library = pytest.mark.skipif(not LIBRARY, reason="no compiled kernels")


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
            operator, [name if name in present else "" for name in names], ["y"],
            domain="edgespec", **attributes,
        )  # fmt: skip
        result = helper.make_tensor_value_info("y", 1, None)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("edgespec", 1)]
        model = helper.make_model(
            helper.make_graph([node], "g", inputs, [result]), opset_imports=opsets, ir_version=10
        )
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 4
        options.register_custom_ops_library(LIBRARY)
        self.names = [*present]
        self._session = ort.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )

    def __call__(self, arrays):
        """Runs it; a pool among the arrays is written to."""
        return self._session.run(None, {name: arrays[name] for name in self.names})[0]


def linear_node(arrays, formats, columns, **attributes):
    """BlockLinear, whose matrices are w0, w1 and so on."""
    names = ["x", "bias", "residual", *(f"w{i}" for i in range(len(columns)))]
    return Node("BlockLinear", names, arrays, formats=formats, columns=columns, **attributes)


def run_with(kernel, module, function, *arguments):
    """Calls a function of a module with strings, in a process whose operators use some kernels.

    Which kernels are used is decided once a process.

    Returns:
        The arrays by name that the function returns.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "arrays.npz")
        program = (
            f"import sys, numpy, {module} as found\n"
            f"numpy.savez({str(path)!r}, **found.{function}(*sys.argv[1:]))"
        )
        support = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        environment = os.environ | {"EDGESPEC_KERNELS": kernel, "PYTHONPATH": support}
        if PRELOAD:
            environment["LD_PRELOAD"] = PRELOAD
        run = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            env=environment, capture_output=True, text=True, check=False, cwd=folder,
        )  # fmt: skip
        assert run.returncode == 0, f"{kernel}: {run.stderr[-4000:]}"
        with np.load(path) as arrays:
            return dict(arrays)


def own_names():
    """Asks the library itself, which may not be loaded here."""
    import ctypes

    found = ctypes.CDLL(LIBRARY).edgespec_usable_kernels
    found.restype = ctypes.c_char_p
    return {"names": np.array(found().decode().split(", "))}


@cache
def usable():
    """The kernels that this processor can run, of those that were compiled."""
    return tuple(run_with("", "nodes", "own_names")["names"].tolist()) if LIBRARY else ()


@cache
def by_kernel(kernel, module, function, *arguments):
    """Like `run_with`, once; skips where the processor does not have the kernels."""
    if kernel not in usable():
        pytest.skip(f"this machine has no {kernel}: only {', '.join(usable())} ran")
    return run_with(kernel, module, function, *arguments)


def assert_same(found, wanted):
    """Arrays by name have the same bits; what is no number may have others."""
    assert found.keys() == wanted.keys()
    for name, each in found.items():
        other = wanted[name]
        assert (each.dtype, each.shape) == (other.dtype, other.shape), name
        same = each == other
        if each.dtype.kind == "f":
            same |= np.isnan(each) & np.isnan(other)
        assert same.all(), f"{name}: {np.argwhere(~same)[:5].tolist()} of {each.shape}"
