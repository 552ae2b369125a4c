"""GPUs that tests run on, where this machine has them or a driver in software."""

from __future__ import annotations

import pytest

from edgespec.runtime.engines.portable import examined


def usable(name):
    """Returns the name of a device; what this machine does not have is skipped with the reason."""
    found = examined(name)
    if found.reason is not None:
        pytest.skip(found.reason)
    return name
