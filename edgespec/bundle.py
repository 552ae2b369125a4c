"""The bundle: the one folder in which export and runtime meet.

``manifest.json`` describes the roles (``target``, perhaps ``draft``), their ONNX stages and the
size and SHA-256 of every file. Sizes are checked at every load, hashes once per (path, size,
mtime); `Bundle.verify` hashes everything.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from edgespec import records, sublayers
from edgespec.cachedir import cache_folder
from edgespec.errors import BundleError

FORMAT = 2
MANIFEST = "manifest.json"
TARGET, DRAFT = "target", "draft"


@dataclass(frozen=True)
class Tensor:
    """A boundary tensor of a stage; symbolic dimensions (S, C, R) are strings."""

    name: str
    dtype: str
    shape: tuple[str, ...]


@dataclass(frozen=True)
class Stage:
    """A run of consecutive sublayers in one ONNX file, `start` included and `stop` not.

    Sublayer 2 i is the attention of layer i, 2 i + 1 its MLP; behind those of the last layer comes
    the head (norm and output projection), as one sublayer more. The embedding belongs to the first.
    """

    graph: str
    data: str
    start: int
    stop: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    @property
    def cached(self) -> range:
        """The layers whose keys and values it computes."""
        first = (self.start + 1) // 2
        keys = [tensor for tensor in self.inputs if tensor.name.endswith(".key")]
        return range(first, first + len(keys))

    @property
    def results(self) -> tuple[Tensor, ...]:
        """The outputs that the host reads: all but the cache's new rows."""
        return tuple(output for output in self.outputs if output.name != "new_kv")


@dataclass(frozen=True)
class SkipScore:
    """What a skip set promised where the bundle was made.

    Attributes:
        agreement: share of the calibration text's positions at which the draft's likeliest token
            was the target's.
        draft_cost: seconds of a draft's call over those of the whole model's, for one row.
        chain: drafted tokens of a round at which it promised most.
        tokens_per_second: promised.
        plain_tokens_per_second: of the same model without drafts, from the same measurement.
        engine: measured on.
    """

    agreement: float
    draft_cost: float
    chain: int
    tokens_per_second: float
    plain_tokens_per_second: float
    engine: str

    @property
    def speedup(self) -> float:
        """Over plain decoding; below 1 where that was faster."""
        return self.tokens_per_second / self.plain_tokens_per_second


@dataclass(frozen=True)
class SkipSet:
    """Sublayers that a draft on the target's own stages leaves out.

    Attributes:
        skipped: their numbers (`sublayers`), ascending.
        score: None: never measured.
    """

    skipped: tuple[int, ...]
    score: SkipScore | None = None

    @property
    def name(self) -> str:
        """What is left out, as people write it."""
        return sublayers.describe(self.skipped)


@dataclass(frozen=True)
class Precision:
    """What the numbers of a role are stored as.

    Attributes:
        weights: int4, int8, fp16 or fp32.
        lm_head: the same for the output projection.
        kv: fp16 or fp32, the cache.
        block_size: weights that share one scale (0: not quantized).
    """

    weights: str
    lm_head: str
    kv: str
    block_size: int


@dataclass(frozen=True)
class Role:
    """One model of a bundle.

    Attributes:
        inv_freq: [head_dim / 2] RoPE frequencies in radians per position.
        bias_off: what `attention_bias` holds where a row must not look.
        eos_ids: tokens that end a text.
        parameters: how many weights the model has (tied ones once).
        quantization_error: relative RMS error of each quantized tensor.
    """

    architecture: str
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    inv_freq: tuple[float, ...]
    eos_ids: tuple[int, ...]
    bias_off: float
    parameters: int
    precision: Precision
    stages: tuple[Stage, ...]
    quantization_error: dict[str, float]


@dataclass(frozen=True)
class FileEntry:
    """Size in bytes and SHA-256 (hex) of one file of the bundle."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """Everything the runtime knows about a bundle.

    Attributes:
        skip_sets: of the target, the best first; its stages are cut where one begins or ends.
    """

    format: int
    roles: dict[str, Role]
    tokenizer: tuple[str, ...]
    provenance: dict[str, str]
    files: dict[str, FileEntry]
    skip_sets: tuple[SkipSet, ...]


@dataclass(frozen=True)
class Bundle:
    """A bundle on disk whose manifest and file sizes have been checked."""

    path: Path
    manifest: Manifest

    @property
    def target(self) -> Role:
        """The model whose text is produced."""
        return self.manifest.roles[TARGET]

    @property
    def draft(self) -> Role | None:
        """The model that drafts, where there is one."""
        return self.manifest.roles.get(DRAFT)

    @property
    def digest(self) -> str:
        """A hash of the manifest, and with it of every file: names measurements and caches."""
        text = json.dumps(records.encode(self.manifest), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def role_size(self, name: str) -> int:
        """Bytes on disk of the graphs and weights of one role."""
        files = {f for s in self.manifest.roles[name].stages for f in (s.graph, s.data)}
        return sum(self.manifest.files[f].size for f in files)

    def verify(self) -> None:
        """Hash every file.

        Raises:
            BundleError: naming the first file that differs.
        """
        for name, entry in self.manifest.files.items():
            found = sha256(self.path / name)
            if found != entry.sha256:
                raise BundleError(
                    f"{self.path / name}: SHA-256 is {found[:12]}…, the manifest says "
                    f"{entry.sha256[:12]}…: the file is damaged, export or download it again"
                )


def load(path: Path) -> Bundle:
    """Open a bundle.

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
    for referenced in _references(manifest):
        if referenced not in manifest.files:
            raise BundleError(f"{path / MANIFEST}: {referenced!r} is used but not listed in files")
    bundle = Bundle(path, manifest)
    _verify_once(bundle)
    return bundle


def describe_files(folder: Path) -> dict[str, FileEntry]:
    """Sizes and hashes of all files in a folder, the manifest left out."""
    return {
        file.name: FileEntry(file.stat().st_size, sha256(file))
        for file in sorted(folder.iterdir())
        if file.name != MANIFEST
    }


def save_manifest(folder: Path, manifest: Manifest) -> None:
    """Write ``manifest.json``."""
    text = json.dumps(records.encode(manifest), indent=1, ensure_ascii=False)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def sha256(path: Path) -> str:
    """Hex digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_manifest(path: Path) -> Manifest:
    file = path / MANIFEST
    if not file.is_file():
        hint = (
            f": it looks like a checkpoint, run `edgespec export {path} -o BUNDLE` first"
            if (path / "config.json").is_file()
            else f": it holds no {MANIFEST}"
            if path.exists()
            else ": no such folder"
        )
        raise BundleError(f"{path} is not a bundle{hint}")
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
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
    return manifest


def _references(manifest: Manifest) -> list[str]:
    stages = [s for role in manifest.roles.values() for s in role.stages]
    return [f for s in stages for f in (s.graph, s.data)] + list(manifest.tokenizer)


def _check_inside(folder: Path, name: str) -> None:
    """Refuse names that leave the folder, by `..`, an absolute path or a symbolic link."""
    pure = PurePosixPath(name)
    unsafe = pure.is_absolute() or ".." in pure.parts or any(c in name for c in "\\:\0")
    if unsafe or not (folder / name).resolve().is_relative_to(folder.resolve()):
        raise BundleError(f"{folder / MANIFEST}: {name!r} leaves the bundle: do not use it")


def _verify_once(bundle: Bundle) -> None:
    """Hash the files unless the same (path, size, mtime) passed before."""
    state = "\n".join(
        f"{(bundle.path / name).resolve()} {entry.sha256} {(bundle.path / name).stat().st_mtime_ns}"
        for name, entry in sorted(bundle.manifest.files.items())
    )
    folder = cache_folder("verified")
    marker = folder / hashlib.sha256(state.encode()).hexdigest()[:32] if folder else None
    if marker is not None and marker.exists():
        return
    bundle.verify()
    if marker is not None:
        try:
            marker.touch()
        except OSError:
            return  # the next load hashes again
