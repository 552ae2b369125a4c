"""Which engines share a processor, so that overlapping them cannot pay."""

from __future__ import annotations

import pytest

from edgespec.runtime.costs.contention import apart


@pytest.mark.parametrize(
    ("target", "draft", "expected"),
    [
        ("cuda:0", "onnxruntime:cpu", True),
        ("cuda:0", "cuda:0", False),
        ("onnxruntime:cpu", "openvino:cpu#8x512", False),
        ("qnn:emulated#8x512", "openvino:cpu", False),
        ("qnn:npu#8/32x1024", "onnxruntime:cpu", True),
        ("qnn:npu#8/32x1024#partly", "onnxruntime:cpu", False),
        ("qnn:npu#partly", "onnxruntime:cpu", False),
        ("qnn:npu#partly", "cuda:0", True),
        ("qnn:npu#8x512#partly", "qnn:npu", False),
    ],
)
def test_engines_are_apart_if_they_share_no_processor(target, draft, expected):
    assert apart([target], [draft]) is expected
    assert apart([draft], [target]) is expected
