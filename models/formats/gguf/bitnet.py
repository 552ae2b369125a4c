"""Configs of the first BitNet models in GGUF files."""

from __future__ import annotations

from edgespec.models.formats.gguf.config import ConfigReader

_SCALE = "attn_q.scale"


class BitNetReader(ConfigReader):
    """BitNet, whose scales are in the weights."""

    def special(self) -> dict[str, object]:
        """See `ConfigReader`.

        Raises:
            UnsupportedModelError: Scales are tensors of their own, as in files of 2024.
        """
        if self._anywhere(_SCALE):
            raise self.metadata.unsupported(
                "general.architecture", f"with {_SCALE}: use a file without these tensors"
            )
        return {}
