"""Choice of the tokens that a draft may propose, by how often a text uses them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgespec.models import load_checkpoint
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.tuning.texts import calibration_text


@dataclass(frozen=True)
class DraftVocabulary:
    """The tokens that a draft may propose.

    Attributes:
        ids: their ids, ascending.
        tokens: number of tokens in the tokenizer's vocabulary.
        covered: share of the tokens of the text's second half that are among those chosen by its
            first half.
    """

    ids: tuple[int, ...]
    tokens: int
    covered: float

    def __str__(self) -> str:
        return (
            f"draft vocabulary: {len(self.ids):,} of {self.tokens:,} tokens, which cover "
            f"{self.covered:.1%} of the calibration text"
        )


def choose_draft_vocabulary(draft: Path, size: int, text: Path | None = None) -> DraftVocabulary:
    """Chooses the most used tokens.

    Args:
        draft: the draft's checkpoint.
        size: number of tokens to choose.
        text: file with a text such as the model will write; None for the built-in passages.

    Raises:
        BundleError: if the tokenizer cannot be read.
        CheckpointError: if the checkpoint is damaged or not supported.
        InputError: if the text is empty or not UTF-8.
        OSError: if the text cannot be read.
    """
    checkpoint = load_checkpoint(draft)
    tokenizer = Tokenizer.from_files(checkpoint.tokenizer_files, draft)
    # The export leaves out added tokens for which the model has no row.
    tokens = range(min(tokenizer.vocab_size, checkpoint.config.vocab_size))
    used = tokenizer.encode(calibration_text(text)[0])
    first, second = used[: len(used) // 2], used[len(used) // 2 :]
    known = set(_most_used(first, size, tokens, tokenizer.special_ids))
    covered = sum(token in known for token in second) / max(len(second), 1)
    ids = sorted(_most_used(used, size, tokens, tokenizer.special_ids))
    return DraftVocabulary(tuple(ids), len(tokens), covered)


def _most_used(text: Sequence[int], size: int, tokens: range, special: Iterable[int]) -> list[int]:
    """Returns special tokens, then a text's tokens, then those with the lowest ids.

    Byte-pair vocabularies number their tokens by how often they were seen.

    Args:
        text: token ids of the text.
        size: number of tokens to return; fewer if there are not so many.
        tokens: the ids to choose from.
        special: ids of special tokens.
    """
    often = (token for token, _ in Counter(text).most_common())
    ranked = dict.fromkeys((*special, *often, *tokens))
    return [token for token in ranked if token in tokens][:size]
