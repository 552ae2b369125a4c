"""Loads a bundle: checks what the user asked for, decides what runs where, and compiles it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from edgespec import bundle as bundles
from edgespec.api.learned import Learned
from edgespec.api.prompt_files import PromptFiles
from edgespec.models.embedded import BUNDLE
from edgespec.runtime.decoding.fair_lock import FairLock
from edgespec.runtime.deployment import deployment as deployments
from edgespec.runtime.deployment.deployment import Deployment, Loaded
from edgespec.runtime.deployment.options import PLANNED_DRAFTS, LoadOptions
from edgespec.runtime.deployment.resolve import suited_to
from edgespec.runtime.text.tokenizer import Tokenizer

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadedBundle:
    """A bundle whose models are compiled.

    Attributes:
        bundle: the bundle.
        options: the user's options, as they are for this bundle.
        tokenizer: tokenizer of the target.
        deployment: what runs where.
        roles: the compiled roles by name; whoever closes the bundle empties it.
        learned: what texts teach.
        prompt_files: files of the prompt cache; None if there is none.
        lock: lock that is held during each round of a text.
    """

    bundle: bundles.Bundle
    options: LoadOptions
    tokenizer: Tokenizer
    deployment: Deployment
    roles: dict[str, Loaded]
    learned: Learned
    prompt_files: PromptFiles | None
    lock: FairLock


def load(path: str | Path | None, asked: LoadOptions) -> LoadedBundle:
    """Loads a bundle. What cannot be used is refused before anything is measured or compiled.

    Args:
        path: folder of the bundle; None for the embedded pair.
        asked: the user's options.

    Raises:
        EdgespecError: see `LLM`.
    """
    bundle = bundles.load(BUNDLE if path is None else Path(path))
    options = suited_to(bundle, asked)
    tokenizer = Tokenizer.from_folder(bundle.path)
    prompt_files = PromptFiles.asked_for(options)
    deployment = deployments.deploy(bundle, options)
    for line in deployment.warnings:
        _log.warning("%s", line)
    deployment.require_fit()
    lock = FairLock()
    learned = Learned(bundle, options)
    deployment = deployments.with_costs(deployment, always=options.draft in PLANNED_DRAFTS)
    roles = deployments.load(deployment)
    return LoadedBundle(bundle, options, tokenizer, deployment, roles, learned, prompt_files, lock)
