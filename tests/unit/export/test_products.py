"""Products and calibration, whose numbers may not depend on threads; BLAS has one."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from nodes import needs_library
from threadpoolctl import threadpool_info, threadpool_limits

from edgespec.export import RoundedMatrices, Texts, calibrate, last_rows
from edgespec.export.formats import products
from edgespec.export.formats.products import product, upper_moments
from edgespec.models import load_checkpoint
from edgespec.system.machine import extensions
from edgespec.tuning.calibrating import opener

TEXTS = np.random.default_rng(1).integers(331, size=(3, 48)).tolist()


def blas_threads():
    return {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}


def gaussian(*shape):
    return np.random.default_rng(0).standard_normal(shape, np.float32)


@pytest.mark.parametrize("rows", [0, 1, 256, 700])
def test_products_are_put_together(rows):
    x = gaussian(rows, 300)
    weight = gaussian(31, 300)
    np.testing.assert_allclose(product(x, weight), x @ weight.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("width", [1, 256, 700])
def test_moments_are_complete_from_the_diagonal_on(width):
    """Also of columns that are part of a wider matrix."""
    x = gaussian(90, width + 40)[:, 40:]
    expected = np.triu(x.T @ x)
    np.testing.assert_allclose(np.triu(upper_moments(x)), expected, rtol=1e-4, atol=1e-4)


def test_any_number_of_threads_gives_the_same_bits(monkeypatch):
    x = gaussian(1100, 300)
    weight = gaussian(333, 300)
    found = []
    for threads in (1, 2, 5):
        monkeypatch.setattr(products, "_threads", lambda threads=threads: threads)
        found.append((product(x, weight).tobytes(), upper_moments(x).tobytes()))
    assert len(set(found)) == 1


@needs_library
def test_blas_has_one_thread_while_a_model_reads(saved_checkpoint, tmp_path):
    seen = []
    checkpoint = load_checkpoint(saved_checkpoint("llama"))

    def progress(done, total):
        seen.append(blas_threads())

    names = [each.weight for part in checkpoint.decoder.sublayers for each in part.linears]
    spool = RoundedMatrices(tmp_path, dict.fromkeys(names, "q4_0"))
    with threadpool_limits(3, user_api="blas"), spool as rounded:
        before = blas_threads()
        if before in ({1}, set()):
            pytest.skip("BLAS has one thread, or no number of threads that can be set")
        calibrate(checkpoint, Texts(TEXTS[:2], TEXTS[2:]), rounded, opener(), progress)
        last_rows(checkpoint, TEXTS, opener(), progress)
        assert blas_threads() == before
    assert seen == [{1}] * 4


EXPORT = """
import sys
from pathlib import Path
from edgespec import export
from edgespec.tuning.calibrating import TextCalibration
source, output = map(Path, sys.argv[1:])
export.make(source, output, calibration=TextCalibration())
"""


def test_a_bundle_is_the_same_with_any_number_of_blas_threads(saved_checkpoint, tmp_path):
    """With kernels of OpenBLAS whose last digits depend on that, where they can run."""
    source = saved_checkpoint("llama", hidden_size=192, intermediate_size=320)
    found = set()
    environment = dict(os.environ)
    if "avx2" in extensions():
        environment["OPENBLAS_CORETYPE"] = "Haswell"
    for threads in "12":
        environment |= {"OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
        command = [sys.executable, "-c", EXPORT, str(source), str(tmp_path / threads)]
        subprocess.run(command, env=environment, cwd=tmp_path, check=True)
        found.add((tmp_path / threads / "target.tiles").read_bytes())
    assert len(found) == 1
