"""The thread that alone uses CUDA."""

from __future__ import annotations

import threading

from edgespec.runtime.engines.portable.cuda import Cuda


def test_what_it_calls_while_it_works_is_done_at_once():
    call = Cuda.call.__get__(object())

    def names():
        return call(threading.current_thread), threading.current_thread()

    inner, outer = call(names)
    assert inner is outer
    assert inner is not threading.current_thread()
