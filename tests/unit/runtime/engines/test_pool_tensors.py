"""Keys and values as two tensors of a device: together they are like one."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
from onnx import TensorProto

from edgespec.runtime.engines.portable.transfers import PoolTensors, bound_parts


def test_both_are_read_and_written_as_one():
    rng = np.random.default_rng(0)
    keys, values = (rng.random((1, 2, 5, 4)).astype(np.float16) for _ in range(2))
    pool = PoolTensors(*map(ort.OrtValue.ortvalue_from_numpy, (keys, values)))
    assert (pool.shape(), pool.element_type()) == ([2, 2, 5, 4], TensorProto.FLOAT16)
    np.testing.assert_array_equal(pool.numpy(), np.concatenate([keys, values]))
    other = rng.random((2, 2, 5, 4)).astype(np.float16)
    pool.update_inplace(other)
    np.testing.assert_array_equal(pool.numpy(), other)
    np.testing.assert_array_equal(pool.values.numpy(), other[1:])


def test_tensors_have_the_names_of_inputs():
    assert bound_parts("rows.3", "one") == {"rows.3": "one"}
    assert bound_parts("pool.3", PoolTensors(1, 2)) == {"pool.3.keys": 1, "pool.3.values": 2}
