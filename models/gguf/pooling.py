"""How embeddings are made with a model in a GGUF file, which has a number for the pooling.

llama.cpp's server normalizes vectors whatever the model, and puts no prompt before texts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec.bundle.manifest import LAST_TOKEN, MEAN, Embedding
from edgespec.models.pooled import Pooled

if TYPE_CHECKING:
    from edgespec.models.fields import Fields

# llama.cpp's numbers, of which 2 is the first token and 4 a ranking.
_NONE, _POOLINGS = 0, {1: MEAN, 3: LAST_TOKEN}


def pooled_of(metadata: Fields, kind: str) -> Pooled | None:
    """Returns how embeddings are made; None if the model writes text.

    Args:
        metadata: The file's metadata.
        kind: Its architecture.

    Raises:
        UnsupportedModelError: It has another pooling, or its rows see those behind them.
    """
    name, causal = f"{kind}.pooling_type", f"{kind}.attention.causal"
    found = metadata.get(name)
    if found in (None, _NONE):
        return None
    if not isinstance(found, int) or found not in _POOLINGS:
        raise metadata.unsupported(name, "use a model with 1 (mean) or 3 (last token)")
    if metadata.get(causal) is False:
        raise metadata.unsupported(
            causal, "use an embedding model whose tokens see only those before them"
        )
    return Pooled(Embedding(_POOLINGS[found], True, {}), None)
