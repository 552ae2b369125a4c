"""Sends a draft head to the Hugging Face Hub, where `--draft owner/name` finds it."""

from __future__ import annotations

from pathlib import Path

from edgespec.errors import ExportError, InputError, first_line
from edgespec.models.heads.opening import is_head
from edgespec.models.named import HUB_ID

_SENT = ("config.json", "README.md", "*.safetensors")
_LICENSE = "license: "


def upload_head(folder: Path, repository: str, private: bool = False) -> str:
    """Sends a head's files; what a training needs to go on stays here.

    Args:
        folder: folder of the head.
        repository: where to, owner/name; it is made if it is not there.
        private: whether a new one is seen by its owner alone.

    Returns:
        The address of what was sent.

    Raises:
        ExportError: if the Hub cannot be reached, or refuses it.
        InputError: if it is no head, or the repository no name of one.
    """
    if not folder.is_dir() or not is_head(folder):
        raise InputError(f"{folder} is no draft head: give the folder that train-draft wrote")
    if not HUB_ID.fullmatch(repository):
        raise InputError(f"{repository!r:.80} is no repository: give owner/name")
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        sent = api.upload_folder(
            repo_id=repository,
            folder_path=folder,
            allow_patterns=list(_SENT),
            ignore_patterns=["*/*"],
        )
    except MemoryError:
        raise
    except Exception as error:  # its type depends on the HTTP library that the Hub client uses
        raise ExportError(
            f"{repository}: sending {folder} to the Hub failed ({first_line(error)}): log in with "
            "`hf auth login` by a token that may write, and check the name and the connection"
        ) from error
    return str(sent)


def set_license(card: Path, license_name: str) -> None:
    """Writes a licence into a head's card.

    Args:
        card: the card, as `train-draft` writes it.
        license_name: as the Hub calls it, such as apache-2.0.

    Raises:
        InputError: if the card has no place for it.
    """
    lines = card.read_text("utf-8").split("\n")
    places = [n for n, line in enumerate(lines) if line.startswith(_LICENSE)]
    if not places:
        raise InputError(f"{card} has no line with {_LICENSE!r}: write one in its first lines")
    lines[places[0]] = _LICENSE + license_name
    card.write_text("\n".join(lines), "utf-8")
