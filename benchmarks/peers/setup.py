"""What a peer needs before it runs: an environment, and the checkpoints in its format.

Both are made once and kept in a cache folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from peers import peer
from peers.base import Checkpoints, PeerError
from peers.process import PeerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_CONFIG = "config.json"
_POSITIONS = "max_position_embeddings"


def installed(name: str, cache: Path) -> bool:
    """Whether a peer's environment is there, or it needs none."""
    needs = peer(name)
    return not needs.requirements or _marker(cache, needs.home).exists()


def _marker(cache: Path, home: str) -> Path:
    """Says with what an environment was installed, once it was."""
    return cache / "environments" / home / "installed.json"


def environment(
    name: str, requirements: Sequence[str], cache: Path, build: Mapping[str, str] | None = None
) -> Path:
    """The interpreter of a virtual environment with these packages; without any, our own.

    Args:
        name: Of its folder.
        requirements: For pip.
        cache: Where environments are kept.
        build: Variables for what pip builds from source; with some, no earlier build is taken.

    Raises:
        PeerError: pip could not install what it needs.
    """
    if not requirements:
        return Path(sys.executable)
    folder = cache / "environments" / name
    marker = _marker(cache, name)
    wanted = [*requirements, *(f"{key}={value}" for key, value in (build or {}).items())]
    python = folder / "bin" / "python"
    if marker.exists() and json.loads(marker.read_text()) == wanted:
        return python
    fresh = ["--no-cache-dir", "--force-reinstall"] if build else []
    variables = {**os.environ, **(build or {})}
    log = cache / "environments" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as output:
        for command in (
            [sys.executable, "-m", "venv", str(folder)],
            [str(python), "-m", "pip", "install", *fresh, *requirements],
        ):
            done = subprocess.run(
                command, stdout=output, stderr=subprocess.STDOUT, env=variables, check=False
            )
            if done.returncode:
                raise PeerError(f"not installed: {_reason(log)} (see {log})")
    marker.write_text(json.dumps(wanted))
    return python


def converted(name: str, python: Path, checkpoints: Checkpoints, cache: Path) -> Path:
    """The folder with both models in a peer's format.

    Raises:
        PeerError: The conversion failed.
    """
    models = f"{peer(name).home}-{peer(name).precision}"
    folder = cache / "models" / f"{checkpoints.target.name}-{digest(checkpoints)}" / models
    if folder.exists():
        return folder
    # Under its final name only when it is complete.
    partial = folder.with_name(f"{models}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    with PeerProcess(python, name, partial.with_suffix(".log")) as process:
        try:
            process.convert(checkpoints, partial)
        except PeerError as error:
            raise PeerError(f"not converted: {error}") from error
    return partial.rename(folder)


def digest(checkpoints: Checkpoints) -> str:
    """Names a pair of checkpoints as they are now."""
    facts = [
        (str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns)
        for file in _files(checkpoints)
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]


def stretched(checkpoints: Checkpoints, positions: int, cache: Path) -> Checkpoints:
    """The same weights, said to be made for so many positions or more; the same pair if they are.

    What lies behind the original number is no language any more, and costs as much as if it were.
    """
    if all(_positions(folder) >= positions for folder in _folders(checkpoints)):
        return checkpoints
    place = cache / "stretched" / f"{digest(checkpoints)}-{positions}"
    for folder in _folders(checkpoints):
        copy = place / f"{folder.name}-{positions}"
        copy.mkdir(parents=True, exist_ok=True)
        for file in folder.iterdir():
            link = copy / file.name
            if file.name != _CONFIG and not link.exists():
                link.symlink_to(file.resolve())
        if not (copy / _CONFIG).exists():
            config = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
            config[_POSITIONS] = max(config[_POSITIONS], positions)
            (copy / _CONFIG).write_text(json.dumps(config))
    target, draft = checkpoints.target, checkpoints.draft
    return replace(
        checkpoints,
        target=place / f"{target.name}-{positions}",
        draft=draft and place / f"{draft.name}-{positions}",
    )


def _positions(folder: Path) -> int:
    positions: int = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))[_POSITIONS]
    return positions


def _folders(checkpoints: Checkpoints) -> list[Path]:
    return [path for path in (checkpoints.target, checkpoints.draft) if path is not None]


def _files(checkpoints: Checkpoints) -> Iterator[Path]:
    for folder in _folders(checkpoints):
        yield from sorted(file for file in folder.iterdir() if file.is_file())


def _reason(log: Path) -> str:
    """The last line of a log that says what went wrong."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["no word"])[-1]
