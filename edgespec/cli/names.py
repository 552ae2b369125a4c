"""Names of models for clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgespec.bundle import Bundle


def model_name(bundle: Bundle) -> str:
    """Returns the name of the bundle's folder, or of the embedded pair's target."""
    from edgespec.models.embedded import BUNDLE

    if bundle.path.resolve() == BUNDLE.resolve():
        return bundle.manifest.provenance["target"]
    return bundle.path.resolve().name
