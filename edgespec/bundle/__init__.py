"""The bundle: the folder that export writes and the runtime loads.

``manifest.json`` describes the roles (``target``, perhaps ``draft``), their ONNX graphs and the
size and SHA-256 of every file. Sizes are checked at every load, hashes once per (path, size,
mtime), but for those that export has just written; `Bundle.verify` hashes everything.

This module is the whole interface between export and runtime, and re-exports the manifest's
records.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Container
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from edgespec.bundle.checks import manifest_fault
from edgespec.bundle.graphs import external_files
from edgespec.bundle.manifest import (
    CHUNKS,
    FEATURES,
    FIRST_TOKEN,
    FORMAT,
    LAST_HIDDEN,
    LAST_TOKEN,
    LOGITS,
    MEAN,
    OWN_FEATURES,
    PART,
    PLACE,
    READS_TARGET,
    RECURRENT_ROWS,
    SIGHT,
    TARGET_FEATURES,
    Block,
    Embedding,
    FileEntry,
    Growth,
    Manifest,
    Native,
    PairMessages,
    PoolShape,
    Precision,
    Reranking,
    Role,
    RopeTable,
    StateShape,
)
from edgespec.bundle.pictures import (
    PICTURED,
    PICTURES,
    PIXELS,
    PLACES,
    ROWS,
    PictureTiles,
    PixelGrid,
    Vision,
)
from edgespec.bundle.skips import Promise, SkipScore, SkipSet
from edgespec.errors import BundleError
from edgespec.system import records
from edgespec.system.cachedir import cache_folder, warn_unwritable
from edgespec.system.files import open_regular, read_file

MANIFEST = "manifest.json"
_CHUNK = 1 << 20  # bytes that are read at once
TARGET, DRAFT = "target", "draft"
_LARGEST = 64 << 20  # bytes of a manifest
_KEEPS = "int8"  # precision of weights, of which none is better than a checkpoint has quantized
DRAFT_TOKENIZER = "draft-tokenizer.json"
"""The file that an export writes where the draft's tokens are not the target's."""


@dataclass(frozen=True)
class Bundle:
    """A bundle on disk whose manifest and file sizes have been checked.

    Attributes:
        path: folder of the bundle.
        manifest: contents of its ``manifest.json``.
    """

    path: Path
    manifest: Manifest

    @property
    def target(self) -> Role:
        """The model whose text is produced."""
        return self.manifest.roles[TARGET]

    @property
    def draft(self) -> Role | None:
        """The draft model or draft head, if there is one."""
        return self.manifest.roles.get(DRAFT)

    @property
    def digest(self) -> str:
        """A hash of the manifest, which covers every file; identifies measurements and caches."""
        text = json.dumps(records.encode(self.manifest), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def size(self) -> int:
        """Total bytes of all files in the manifest."""
        return sum(entry.size for entry in self.manifest.files.values())

    @property
    def quantization(self) -> str:
        """How the target's weights are rounded: int4 and so on, or as its own file calls it.

        That is such as Q4_K_M, of a file whose matrices stayed as they were, but for those that
        have 8 bits where the file's form has no operator.
        """
        precision = self.target.precision.weights
        own = self.manifest.provenance.get(source_format(TARGET), "").partition(" (")[0]
        return own if own and precision == _KEEPS else precision

    def role_size(self, name: str) -> int:
        """Returns the bytes on disk of one role's graph and weights."""
        native = self.manifest.roles[name].native
        return sum(self.manifest.files[each].size for each in (native.graph, native.data))

    def verify(self) -> None:
        """Hashes every file and compares it with the manifest, which lists what graphs read, too.

        Raises:
            BundleError: if a hash differs, or a graph has weights elsewhere; it names the first
                such file.
        """
        for name, entry in self.manifest.files.items():
            found = sha256(self.path / name)
            if found != entry.sha256:
                raise BundleError(
                    f"{self.path / name}: SHA-256 is {found[:12]}…, the manifest says "
                    f"{entry.sha256[:12]}…: the file is damaged, export or download it again"
                )
        roles = self.manifest.roles.values()
        graphs = [role.native.graph for role in roles]
        graphs += [role.vision.graph for role in roles if role.vision is not None]
        for graph in graphs:
            _require_listed(self.path / graph, self.manifest.files)


def source_format(role: str) -> str:
    """Returns under which key a provenance has the format of a checkpoint's quantized matrices."""
    return f"{role} format"


def load(path: Path) -> Bundle:
    """Opens a bundle and checks its files.

    Raises:
        BundleError: if it is missing, of another format version, damaged or unsafe.
    """
    manifest = _read_manifest(path)
    for name, entry in manifest.files.items():
        _check_inside(path, name)
        file = path / name
        if not file.is_file():
            raise BundleError(f"{path}: file {name!r} is missing: export or download it again")
        if file.stat().st_size != entry.size:
            raise BundleError(
                f"{file}: {file.stat().st_size} bytes, the manifest says {entry.size}: "
                "the file is damaged, export or download it again"
            )
    for referenced in used_files(manifest):
        if referenced not in manifest.files:
            raise BundleError(f"{path / MANIFEST}: {referenced!r} is used but not listed in files")
    bundle = Bundle(path, manifest)
    _verify_once(bundle)
    return bundle


def keep_verified(path: Path) -> None:
    """Lets a bundle be opened without hashing it again: all its files were hashed just now.

    Raises:
        BundleError: if its manifest is damaged.
    """
    _leave(_marker(Bundle(path, _read_manifest(path))))


def describe_files(folder: Path) -> dict[str, FileEntry]:
    """Returns the sizes and hashes of all files in a folder, except the manifest."""
    return {
        file.name: describe_file(file) for file in sorted(folder.iterdir()) if file.name != MANIFEST
    }


def describe_file(file: Path) -> FileEntry:
    """Returns the size and hash of a file."""
    return FileEntry(file.stat().st_size, sha256(file))


def save_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes ``manifest.json``."""
    text = json.dumps(records.encode(manifest), indent=1, ensure_ascii=False)
    # The provenance names the checkpoint's folder, whose name may not be valid Unicode.
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8", errors="replace")


def sha256(path: Path, read: Callable[[int], object] = lambda count: None) -> str:
    """Returns the SHA-256 of a file as hex digits.

    Args:
        path: the file.
        read: called with each number of bytes that were read.
    """
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            read(len(chunk))
    return digest.hexdigest()


def _require_listed(graph: Path, listed: Container[str]) -> None:
    """Checks that a session will open no file for a graph that is not listed."""
    if graph.suffix != ".onnx":  # ONNX Runtime reads others in another format
        raise BundleError(f"{graph}: a graph is not named .onnx: export it again")
    try:
        names = external_files(graph)
    except ValueError as error:
        raise BundleError(
            f"{graph}: it is no ONNX graph ({error}): export or download it again"
        ) from error
    for name in names:
        if name not in listed:
            raise BundleError(
                f"{graph}: its weights are in {name!r:.80}, which the manifest does not list: "
                "export or download it again"
            )


def _read_manifest(path: Path) -> Manifest:
    file = path / MANIFEST
    if not file.is_file():
        if (path / "config.json").is_file():
            hint = f"it looks like a checkpoint, run `edgespec export {path} -o BUNDLE` first"
        else:
            found = f"it has no {MANIFEST}" if path.exists() else "no such folder"
            hint = f"{found}: give a folder that `edgespec export MODEL -o BUNDLE` has written"
        raise BundleError(f"{path} is not a bundle: {hint}")
    try:
        _check_inside(path, MANIFEST)
        data = json.loads(read_file(file, _LARGEST).decode())
    except (ValueError, OSError, RecursionError) as error:
        raise BundleError(f"{file}: not readable as JSON ({error}): export it again") from error
    version = data.get("format") if isinstance(data, dict) else None
    if version != FORMAT:
        raise BundleError(
            f"{file}: format {version!r}, this edgespec reads {FORMAT}: "
            "export the checkpoint again or install the matching version"
        )
    try:
        manifest = records.decode(Manifest, data, "manifest")
    except records.RecordError as error:
        raise BundleError(f"{file}: {error}: export the checkpoint again") from error
    if TARGET not in manifest.roles:
        raise BundleError(f"{file}: no role {TARGET!r} among {sorted(manifest.roles)}")
    if wrong := manifest_fault(manifest):
        raise BundleError(f"{file}: {wrong}: export the checkpoint again")
    return manifest


def used_files(manifest: Manifest) -> list[str]:
    """Returns the names of all files that a manifest refers to; names may repeat."""
    roles = manifest.roles.values()
    files = [f for role in roles for f in (role.native.graph, role.native.data, role.native.ids)]
    files += [role.tokenizer for role in roles]
    blocks = [role.block for role in roles if role.block is not None]
    files += [file for block in blocks for file in (block.pairs, block.features)]
    for vision in (role.vision for role in roles if role.vision is not None):
        files += vision.graph, vision.data
    return [each for each in files if each] + list(manifest.tokenizer)


def _check_inside(folder: Path, name: str) -> None:
    """Checks that a file name is valid and stays in the folder.

    Refused are `..`, absolute paths, unprintable characters, and symbolic links that lead outside,
    except those of the Hub's cache to the blobs of the same repository.

    Raises:
        BundleError: if the name is refused.
    """
    pure = PurePosixPath(name)
    unsafe = pure.is_absolute() or ".." in pure.parts or any(c in name for c in "\\:")
    unsafe = unsafe or not name.isprintable()
    if unsafe:
        raise BundleError(
            f"{folder / MANIFEST}: file name {name!r} is outside the bundle's folder or invalid: "
            "do not use this bundle"
        )
    inside = folder.resolve()
    found = (folder / name).resolve()
    # The Hub's cache: REPOSITORY/snapshots/COMMIT/name links to REPOSITORY/blobs/hash.
    blobs = [p.parent / "blobs" for p in inside.parents if p.name == "snapshots"]
    if not any(found.is_relative_to(each) for each in (inside, *blobs)):
        raise BundleError(
            f"{folder / name} is a link to {found}, outside the bundle's folder: put the file "
            "itself there, or do not use this bundle"
        )


def _verify_once(bundle: Bundle) -> None:
    """Verifies all hashes unless they were verified for the same paths, sizes and mtimes."""
    marker = _marker(bundle)
    if marker is not None and marker.exists():
        return
    bundle.verify()
    _leave(marker)


def _marker(bundle: Bundle) -> Path | None:
    """Returns the file that is there once a bundle was verified; None without a cache folder."""
    state = "\n".join(
        f"{(bundle.path / name).resolve()} {entry.sha256} {(bundle.path / name).stat().st_mtime_ns}"
        for name, entry in sorted(bundle.manifest.files.items())
    )
    folder = cache_folder("verified")
    # Folder names may not be valid Unicode.
    digest = hashlib.sha256(state.encode(errors="surrogatepass")).hexdigest()[:32]
    return folder / digest if folder else None


def _leave(marker: Path | None) -> None:
    if marker is not None:
        try:
            marker.touch()
        except OSError as error:
            warn_unwritable(marker.parent, error)
