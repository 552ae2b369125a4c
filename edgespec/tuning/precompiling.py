"""Compilation of stages ahead of time, for devices that need not be in this machine.

The compiled stages are added to an existing bundle.
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
"""Called with the name of the step, the number of finished files and the number of all files."""


def precompile(
    path: Path,
    device: str,
    shapes: Shapes | None = None,
    report: Report = lambda name, done, total: None,
) -> int:
    """Compiles a bundle's target for a device and adds the result to the bundle.

    This replaces stages that were compiled for the same device before. The bundle does not change
    until everything is compiled.

    Args:
        path: folder of the bundle.
        device: device such as qnn:x-elite.
        shapes: shapes of calls, each of which is compiled separately; None for the shapes that the
            runtime chooses for the model's context if there is enough memory.
        report: see `Report`.

    Returns:
        Number of bytes that the bundle has grown by.

    Raises:
        BundleError: if the bundle cannot be used.
        DeviceError: if the compiler is missing, or refuses a stage.
        InputError: if the device is unknown, or the shapes are not fixed.
    """
    if shapes is not None and not shapes.capacities:
        raise InputError("shapes must be fixed to compile for them: give them as 8/32x1024")
    bundle, tool = bundles.load(path), compiler(device)
    if shapes is None:
        shapes = ahead_of_time(bundle.target.context_length)
    with tempfile.TemporaryDirectory(prefix=bundles.COMPILING, dir=path) as folder:
        made = _compiled(bundle, tool, device, shapes, Path(folder), report)
        variant = _variant(bundle)
        kept = tuple(each for each in variant.compiled if each.device != device)
        # Old files may have the same names as new ones, so they are removed first.
        bundle = replace_variant(bundle, replace(variant, compiled=kept))
        after = replace_variant(bundle, replace(variant, compiled=kept + made), Path(folder))
    return after.size - bundle.size


def _compiled(
    bundle: Bundle, tool: Compiler, device: str, shapes: Shapes, folder: Path, report: Report
) -> tuple[Compiled, ...]:
    """Compiles the target's stages one after the other."""
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
    """Returns the target's variant for NPUs; by default, one with the target's own stages."""
    found = bundle.variant(TARGET, NPU)
    target = bundle.target
    return found or Variant(TARGET, NPU, target.precision, HALF_BIAS_OFF, target.stages, (), {})
