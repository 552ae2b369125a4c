"""Checks that only one distribution of ONNX Runtime is installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from edgespec.errors import DeviceError

# All of them install the folder `onnxruntime`.
_DISTRIBUTIONS = ("onnxruntime", "onnxruntime-directml", "onnxruntime-openvino", "onnxruntime-gpu")


def require_one_distribution() -> None:
    """Refuses an environment in which distributions have overwritten each other's files.

    Raises:
        DeviceError: if several distributions are installed.
    """
    found = [name for name in _DISTRIBUTIONS if _is_installed(name)]
    if len(found) > 1:
        raise DeviceError(
            f"{' and '.join(found)} are installed and overwrite each other's files: "
            f"pip uninstall -y {' '.join(found)} && pip install {found[-1]}"
        )


def _is_installed(distribution: str) -> bool:
    try:
        version(distribution)
    except PackageNotFoundError:
        return False
    return True
