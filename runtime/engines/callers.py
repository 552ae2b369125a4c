"""Errors of the caller's, which arrive while a library works and are none of its own."""

from __future__ import annotations

from edgespec.errors import ReentryError

_LIBRARIES = ("edgespec", "onnxruntime", "openvino")  # whose frames raise what a library says


def raise_if_callers(error: Exception) -> None:
    """Raises an error of a caller's again, as a signal's handler raises it during a pass.

    Such a handler runs wherever Python happens to be, and no device has failed.

    Args:
        error: what a call of a library has raised.
    """
    if isinstance(error, ReentryError):
        raise error
    raised = error.__traceback__
    while raised is not None and raised.tb_next is not None:
        raised = raised.tb_next
    module = "" if raised is None else str(raised.tb_frame.f_globals.get("__name__", ""))
    if raised is not None and module.partition(".")[0] not in _LIBRARIES:
        raise error
