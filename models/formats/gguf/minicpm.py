"""Configs of MiniCPM and MiniCPM3 in GGUF files."""

from __future__ import annotations

from edgespec.models.formats.gguf.config import ConfigReader
from edgespec.models.formats.gguf.routed import LatentReader

_ORIGINAL = "original_max_position_embeddings"  # llama.cpp takes the whole context for it


class MiniCpmReader(ConfigReader):
    """MiniCPM: Granite whose scores have the usual factor."""

    def special(self) -> dict[str, object]:
        """See `ConfigReader`."""
        scale = self.head_dim**-0.5
        return {_ORIGINAL: self.integer("context_length"), "attention_multiplier": scale}


class MiniCpm3Reader(LatentReader):
    """MiniCPM3, whose heads have the usual size but for their keys."""

    def special(self) -> dict[str, object]:
        """See `ConfigReader`."""
        return {_ORIGINAL: self.integer("context_length"), **super().special()}

    @property
    def value_size(self) -> int:
        """See `LatentReader`."""
        return self.integer("embedding_length") // self.integer("attention.head_count")
