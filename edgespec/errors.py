"""Every error a user can cause. Each message names the value and the remedy."""

from __future__ import annotations


def reason(error: object, most: int = 200) -> str:
    """What somebody else's error says, in one line that is not too long."""
    return " ".join(str(error).split())[:most]


class EdgespecError(Exception):
    """Base of all errors raised on purpose; the CLI prints it and exits with `exit_code`."""

    exit_code = 2


class InputError(EdgespecError):
    """A prompt, option or file of the user's that cannot be used."""


class ContextLengthError(InputError):
    """The prompt does not fit the context."""


class CheckpointError(EdgespecError):
    """A checkpoint that is missing something, damaged or inconsistent."""


class UnsupportedModelError(CheckpointError):
    """A checkpoint that asks for something that is not implemented."""


class BundleError(EdgespecError):
    """A bundle that is missing, damaged, unsafe or of another format version."""


class ExportError(EdgespecError):
    """An export that could not be finished; nothing was left at the destination."""


class DeviceError(EdgespecError):
    """A device or engine that does not exist here or cannot run the model."""


class MemoryLimitError(EdgespecError):
    """Something that does not fit the memory it may use; the message has the numbers."""

    exit_code = 3
