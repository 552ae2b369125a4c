"""Models in GGUF files whose rows see all of their text: those that make vectors, or rank texts."""

from __future__ import annotations

from edgespec.models.formats.gguf.config import ConfigReader

RANKING = 4
"""llama.cpp's number of the way to pool that is a ranking."""


class EncoderReader(ConfigReader):
    """BERT and what is stored as BERT: RoBERTa and XLM-RoBERTa, whose first places are left out."""

    def special(self) -> dict[str, object]:
        """See `ConfigReader`."""
        parts: dict[str, object] = {"type_vocab_size": self.rows_of("token_types.weight")}
        if self.get("pooling_type") != RANKING:
            return parts
        labels = {str(number): "" for number in range(self.rows_of("cls.output.weight"))}
        return {**parts, "architectures": ["BertForSequenceClassification"], "id2label": labels}
