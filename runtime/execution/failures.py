"""Turns errors of engines, which share no base class, into errors that name the device."""

from __future__ import annotations

from edgespec.errors import DeviceError, EdgespecError


class NamedFailures:
    """Turns whatever an engine raises into a `DeviceError` that names the device.

    A class and not a generator, because it is entered for every call of a decoding round.
    """

    def __init__(self, device: str) -> None:
        self._device = device

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # Engines' own errors share no base class but Exception.
        if isinstance(error, Exception) and not isinstance(error, EdgespecError):
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise DeviceError(f"{self._device} failed ({reason}): use another device") from error
