"""How fast memory is read."""

from __future__ import annotations

from edgespec.system import bandwidth


def test_memory_is_read(monkeypatch):
    monkeypatch.setattr(bandwidth, "_PART", 1 << 16)
    assert 1e4 < bandwidth.bandwidth(1, 0.01) < 1e13
