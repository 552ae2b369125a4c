"""Stages compiled ahead of time, for machines that need not be here.

`runtime` has the compiler; what it makes becomes part of a bundle that is there already.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePosixPath

from edgespec import bundle as bundles
from edgespec.bundle import HALF_BIAS_OFF, NPU, TARGET, Bundle, Compiled, Variant
from edgespec.bundle.variants import replace_variant
from edgespec.errors import InputError
from edgespec.runtime.deployment.fixed_shapes import ahead_of_time
from edgespec.runtime.engines import Compiler, compiler
from edgespec.runtime.execution.stage_files import stage_file
from edgespec.runtime.shapes import Shapes

Report = Callable[[str, int, int], None]
"""Is called with a word for what is done, the files made and the files in all."""


def precompile(
    path: Path,
    device: str,
    shapes: Shapes | None = None,
    report: Report = lambda name, done, total: None,
) -> int:
    """Compile a bundle's target for a device, into the bundle.

    What was compiled before for the same device is replaced. Until all is compiled the bundle stays
    as it is.

    Args:
        path: of the bundle.
        device: such as qnn:x-elite.
        shapes: of calls there; each is compiled for itself; None: those that are chosen for the
            model's context where memory is not short.
        report: told how much is done.

    Returns:
        Bytes that the bundle has grown by.

    Raises:
        BundleError: if the bundle cannot be used.
        DeviceError: if the compiler is missing, or refuses a stage.
        InputError: if nothing is known of the device, or shapes are not fixed.
    """
    if shapes is not None and not shapes.capacities:
        raise InputError("shapes must be fixed to be compiled for: give them, as 8/32x1024")
    bundle, tool = bundles.load(path), compiler(device)
    if shapes is None:
        shapes = ahead_of_time(bundle.target.context_length)
    with tempfile.TemporaryDirectory(prefix=bundles.COMPILING, dir=path) as folder:
        made = _compiled(bundle, tool, device, shapes, Path(folder), report)
        variant = _variant(bundle)
        kept = tuple(each for each in variant.compiled if each.device != device)
        # Old files may have the names of new ones.
        bundle = replace_variant(bundle, replace(variant, compiled=kept))
        after = replace_variant(bundle, replace(variant, compiled=kept + made), Path(folder))
    return after.size - bundle.size


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


def _variant(bundle: Bundle) -> Variant:
    """The target's for NPUs; where its own stages suit them, one that names these."""
    found = bundle.variant(TARGET, NPU)
    target = bundle.target
    return found or Variant(TARGET, NPU, target.precision, HALF_BIAS_OFF, target.stages, (), {})
