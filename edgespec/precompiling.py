"""Stages compiled ahead of time, for machines that need not be here.

`runtime` has the compiler; what it makes becomes part of a bundle that is there already.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePosixPath

from edgespec import bundle as bundles
from edgespec.bundle import NPU, TARGET, Bundle, Compiled, FileEntry, Variant
from edgespec.errors import InputError
from edgespec.runtime.buckets import NPU_SHAPES, Shapes
from edgespec.runtime.engines import Compiler, compiler
from edgespec.runtime.stage_files import stage_file

Report = Callable[[str, int, int], None]
"""Is called with a word for what is done, the files made and the files in all."""


def precompile(
    path: Path,
    device: str,
    shapes: Shapes = NPU_SHAPES,
    report: Report = lambda name, done, total: None,
) -> int:
    """Compile a bundle's target for a device, into the bundle.

    What was compiled before for the same device is replaced. Until all is compiled the bundle stays
    as it is.

    Args:
        path: of the bundle.
        device: such as qnn:x-elite.
        shapes: of calls there; each is compiled for itself.
        report: told how much is done.

    Returns:
        Bytes that the bundle has grown by.

    Raises:
        BundleError: if the bundle cannot be used.
        DeviceError: if the compiler is missing, or refuses a stage.
        InputError: if nothing is known of the device, or shapes are not fixed.
    """
    if not shapes.capacities:
        raise InputError("shapes must be fixed to be compiled for: give them, as 8/32x1024")
    bundle, tool = bundles.load(path), compiler(device)
    with tempfile.TemporaryDirectory(prefix=".compiling-", dir=path) as folder:
        made = _compiled(bundle, tool, device, shapes, Path(folder), report)
        files = bundles.describe_files(Path(folder))
        bundle = _without(bundle, device)
        for name in files:
            (Path(folder) / name).replace(path / name)
    variant = _variant(bundle)
    _save(bundle, replace(variant, compiled=variant.compiled + made), files)
    return sum(entry.size for entry in files.values())


def _compiled(
    bundle: Bundle, tool: Compiler, device: str, shapes: Shapes, folder: Path, report: Report
) -> tuple[Compiled, ...]:
    """The target's stages, compiled one after the other."""
    made: list[Compiled] = []
    stages = range(len(bundle.target.stages))
    total = len(stages) * len(shapes.all)
    for number in stages:
        stage = stage_file(bundle, TARGET, number, tool)
        files = bundle.manifest.files
        source = tuple(files[each.name].sha256 for each in (stage.graph, stage.data))
        for shape in shapes.all:
            stem = PurePosixPath(stage.graph.name).stem
            name = f"{stem}-{device.replace(':', '-')}-{shape.rows}x{shape.capacity}.onnx"
            before = set(folder.iterdir())
            tool.precompile(stage, shape, folder / name)
            data = {file.name for file in set(folder.iterdir()) - before} - {name}
            made.append(
                Compiled(device, tool.compiler, number, *shape, name, tuple(sorted(data)), source)
            )
            report("compile", len(made), total)
    return tuple(made)


def _without(bundle: Bundle, device: str) -> Bundle:
    """The bundle without what was compiled for a device before."""
    variant = _variant(bundle)
    stale = [each for each in variant.compiled if each.device == device]
    if not stale:
        return bundle
    names = {name for each in stale for name in (each.graph, *each.data)}
    files = {name: entry for name, entry in bundle.manifest.files.items() if name not in names}
    bundle = replace(bundle, manifest=replace(bundle.manifest, files=files))
    kept = tuple(each for each in variant.compiled if each.device != device)
    bundle = _save(bundle, replace(variant, compiled=kept), {})
    for name in names:
        (bundle.path / name).unlink(missing_ok=True)
    return bundle


def _save(bundle: Bundle, variant: Variant, files: dict[str, FileEntry]) -> Bundle:
    """Have the manifest list a variant, in place of what it said of it, and files more."""
    others = (each for each in bundle.manifest.variants if each.role != TARGET or each.name != NPU)
    manifest = replace(
        bundle.manifest, variants=(*others, variant), files=bundle.manifest.files | files
    )
    with tempfile.TemporaryDirectory(prefix=".compiling-", dir=bundle.path) as folder:
        bundles.save_manifest(Path(folder), manifest)
        (Path(folder) / bundles.MANIFEST).replace(bundle.path / bundles.MANIFEST)
    return replace(bundle, manifest=manifest)


def _variant(bundle: Bundle) -> Variant:
    """The target's for NPUs; where its own stages suit them, one that names these."""
    for variant in bundle.manifest.variants:
        if (variant.role, variant.name) == (TARGET, NPU):
            return variant
    return Variant(TARGET, NPU, bundle.target.precision, bundle.target.stages)
