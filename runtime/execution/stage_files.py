"""Selects the files of a role's stages for an engine: the bundle's own or those of a variant."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import PurePosixPath

from edgespec.bundle import (
    DRAFT,
    HALF_BIAS_OFF,
    NPU,
    Bundle,
    Compiled,
    Precision,
    Role,
    Stage,
)
from edgespec.errors import DeviceError
from edgespec.runtime.engines import (
    CompiledFile,
    Engine,
    Engines,
    Fixable,
    Result,
    StageFile,
    common_shapes,
)
from edgespec.runtime.shapes import Shape, Shapes

_log = logging.getLogger(__name__)


def stage_file(
    bundle: Bundle, name: str, number: int, engine: Engine, *, texts: bool = True
) -> StageFile:
    """Returns the files of a stage for an engine.

    Args:
        bundle: the bundle.
        name: name of the role.
        number: number of the stage.
        engine: engine that will compile it.
        texts: whether to take the graph for several texts, if the bundle and the engine allow it.

    Raises:
        DeviceError: if the bundle has no stage that suits the engine.
    """
    role = bundle.manifest.roles[name]
    stage, precision, compiled = _stage_for(bundle, name, number, engine, texts)
    return StageFile(
        graph=bundle.path / stage.graph,
        data=bundle.path / stage.data,
        # Without the hashes of files, the digest would be the same for different weights.
        key=f"{bundle.digest}-{PurePosixPath(stage.graph).stem}" if bundle.manifest.files else None,
        role=name,
        layout=role.layout,
        start=stage.start,
        stop=stage.stop,
        cache_groups=stage.cache_groups,
        block_size=precision.smallest_block,
        results=tuple(
            Result(output.name, output.dtype, output.shape[0], tuple(map(int, output.shape[1:])))
            for output in stage.results
        ),
        recurrent=role.layout.recurrent(range(stage.start, min(stage.stop, role.layout.head))),
        compiled=tuple(
            CompiledFile(
                each.device,
                Shape(each.rows, each.capacity),
                each.compiler,
                bundle.path / each.graph,
            )
            for each in compiled
            if each.stage == number and _is_still_of(each, bundle, stage)
        ),
        borrowed=bundle.path / stage.borrowed if stage.borrowed else None,
        several_texts=stage.several_texts,
    )


def takes_texts(engine: Engine) -> bool:
    """Returns whether calls of an engine may hold rows of several texts."""
    return engine.several_texts and engine.variant is None and not engine.shapes.capacities


def suited(role: Role, engines: Sequence[Engine]) -> list[Engine]:
    """Returns the engines that run a role; all if none does, so that loading says why."""
    return [
        each
        for each in engines
        if (not role.recurrent or _recurs(each))
        and (each.integer_caches or role.precision.kv != "int8")
    ] or list(engines)


def _recurs(engine: Engine) -> bool:
    return engine.keeps_states and not engine.shapes.capacities


def require_suited(bundle: Bundle, name: str, engine: Engine) -> None:
    """Check that an engine can run a role.

    Raises:
        DeviceError: if it cannot run the role's layers or weights, and the bundle has no variant
            for it.
    """
    role = bundle.manifest.roles[name]
    precision = role.precision
    if role.recurrent and not _recurs(engine):
        raise DeviceError(
            f"{engine.name} cannot run the {name} of {bundle.path}: it has recurrent layers, which "
            "only onnxruntime:cpu and openvino:cpu can run, without fixed shapes: use one of those"
        )
    if role.recurrent and name == DRAFT:
        raise DeviceError(
            f"{bundle.path}: its draft has recurrent layers, which only native graphs run "
            "(edgespec run and bench, on CPUs): use --draft lookup or --draft none"
        )
    variant = None if engine.variant is None else bundle.variant(name, engine.variant)
    if precision.kv == "int8" and variant is None and not engine.integer_caches:
        raise DeviceError(
            f"{engine.name} cannot run the {name} of {bundle.path}: its caches have 8 bits, which "
            "only CPU engines can read: use --device cpu, or export it again with "
            "--kv-precision fp16"
        )
    if engine.variant is not None and not role.trees:
        raise DeviceError(
            f"{engine.name} cannot run the {name} of {bundle.path}: another program exported its "
            "graph, whose shapes change with the text: use --device cpu, or export the original "
            "checkpoint"
        )
    # Only quantized weights need operators that ONNX itself does not have.
    if engine.variant is not None and precision.block_size and variant is None:
        raise DeviceError(
            f"{engine.name} cannot run the {name} of {bundle.path}: it has {precision.weights} "
            f"weights and no variant for the {engine.variant}: export it again with "
            "--npu-precision fp16"
        )


def ready_shapes(bundle: Bundle, name: str, number: int, engine: Fixable) -> frozenset[Shape]:
    """Returns the shapes of a stage that the bundle holds compiled for an engine."""
    variant = bundle.variant(name, NPU)
    if variant is None:
        return frozenset()
    return frozenset(
        Shape(each.rows, each.capacity)
        for each in variant.compiled
        if each.stage == number
        and engine.takes(each.device, each.compiler)
        and _is_of(each, bundle, variant.stages[number])
    )


def bias_off(bundle: Bundle, name: str, engines: Sequence[Engine]) -> float:
    """Returns the bias that masks a row in all of a role's stages on their engines."""
    found = [bundle.manifest.roles[name].bias_off]
    for wanted in {engine.variant for engine in engines if engine.variant is not None}:
        variant = bundle.variant(name, wanted)
        found.append(HALF_BIAS_OFF if variant is None else variant.bias_off)
    return max(found)


def stages_for(
    bundle: Bundle, name: str, engines: Sequence[Engine], *, texts: bool = True
) -> tuple[Stage, ...]:
    """Returns a role's stages as they run on these engines; some may be a variant's.

    See `stage_file` for the arguments.
    """
    return tuple(_stage_for(bundle, name, n, each, texts)[0] for n, each in enumerate(engines))


def role_shapes(role: Role, engines: Engines) -> Shapes:
    """Returns the shapes that calls of a role are rounded up to.

    With ordered attention they are only the ones in which rows can be alike.

    Raises:
        InputError: if engines have no shapes in common.
    """
    shapes = common_shapes(engines)
    own = (s for s, each in zip(role.stages, engines, strict=True) if each.variant is None)
    return shapes.exact() if any(stage.ordered for stage in own) else shapes


def _stage_for(
    bundle: Bundle, name: str, number: int, engine: Engine, texts: bool
) -> tuple[Stage, Precision, tuple[Compiled, ...]]:
    """Returns a stage that the engine accepts, its precision, and its compiled graphs."""
    require_suited(bundle, name, engine)
    role = bundle.manifest.roles[name]
    variant = bundle.variant(name, engine.variant) if engine.variant else None
    if variant is None:
        own = role.stages_of_texts if texts and takes_texts(engine) else ()
        return (own or role.stages)[number], role.precision, ()
    return variant.stages[number], variant.precision, variant.compiled


def _is_of(compiled: Compiled, bundle: Bundle, stage: Stage) -> bool:
    """Returns whether a graph was compiled from the stage as it is; if not, it is of no use."""
    files = bundle.manifest.files
    return compiled.source == tuple(files[each].sha256 for each in (stage.graph, stage.data))


def _is_still_of(compiled: Compiled, bundle: Bundle, stage: Stage) -> bool:
    """Does the same as `_is_of`, and warns if the graph is outdated."""
    if _is_of(compiled, bundle, stage):
        return True
    _log.warning(
        "%s: %s was compiled from another %s: compiling anew",
        bundle.path, compiled.graph, stage.graph,
    )  # fmt: skip
    return False
