"""Searches the Hub for repositories of GGUF files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgespec.models.formats.gguf.architectures import ARCHITECTURES
from edgespec.models.named import HUB_ID

_PATIENCE = 10.0  # seconds until the Hub has answered
_LICENCE = "license:"  # what a tag with a licence begins with
_TOLD = ("downloads", "gguf", "tags")


@dataclass(frozen=True)
class HubRepository:
    """A repository with GGUF files.

    Attributes:
        name: owner/name.
        downloads: downloads of the last month.
        parameters: number of weights; 0: the Hub does not tell.
        architecture: `general.architecture` of its files; empty: the Hub does not tell.
        licence: the licence's name; empty: the Hub does not tell.
    """

    name: str
    downloads: int
    parameters: int
    architecture: str
    licence: str

    @property
    def readable(self) -> bool:
        """Whether its files may be read: nothing is known that speaks against it."""
        return not self.architecture or self.architecture in ARCHITECTURES

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> HubRepository:
        """Reads what the Hub tells of one, which may lack anything but its name."""
        files = told.get("gguf") or {}
        tags = [each for each in told.get("tags") or () if each.startswith(_LICENCE)]
        return cls(
            str(told["id"]),
            int(told.get("downloads") or 0),
            int(files.get("total") or 0),
            str(files.get("architecture") or ""),
            tags[0].removeprefix(_LICENCE) if tags else "",
        )


def search_hub(word: str, most: int) -> Sequence[HubRepository] | None:
    """Returns repositories of GGUF files for a word, the most downloaded first.

    Args:
        word: what their names have.
        most: the largest number of them.

    Returns:
        The repositories; None if the Hub does not answer.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import build_hf_headers, get_session

    asked = {"search": word, "filter": "gguf", "sort": "downloads", "limit": most, "expand": _TOLD}
    try:
        answer = get_session().get(
            f"{constants.ENDPOINT}/api/models",
            params=asked,
            headers=build_hf_headers(),
            timeout=_PATIENCE,
        )
        answer.raise_for_status()
        found = [HubRepository.of(each) for each in answer.json()]
    except MemoryError:
        raise
    except Exception:  # its type depends on the HTTP library, and on what a proxy answers instead
        return None
    return [each for each in found if HUB_ID.fullmatch(each.name)][:most]
