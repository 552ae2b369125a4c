r"""Exports damaged and hostile models, and counts what goes wrong: nothing should.

    python tests/hostile/damaged_models.py --files 500

Each is exported, or refused in one line with exit code 2 that names it, and leaves nothing behind.
Meanwhile memory stays below twice the size of the model that was damaged, or 128 MiB if that is
more, above what the process takes when it has nothing to do: the kernel's high-water mark of
resident memory, pages of mapped files among it, which is reset before each. Processes that only
read are started by one that makes small random models. Linux only. It ends with exit code 1 if
there are faults.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import io
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec import bundle as bundles
from edgespec.cli import main as edgespec
from edgespec.errors import BundleError
from edgespec.models.formats.gguf.header import read_header
from edgespec.system.environment import MIB

sys.path += [str(Path(__file__).parents[2] / each) for each in ("benchmarks", "tests/support")]

import damage
from common import count, exit_code, names, print_result, print_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_SECONDS, _LONGEST = 10.0, 1500  # of a model, and letters of a line
_HOSTILE_BYTES = 8 * MIB
_LEAST_MEMORY = 128 * MIB  # that any model may take
_TOWER = "gguf:mmproj"  # whose file lies beside an intact one
_WIDE = {"hidden_size": 512, "intermediate_size": 1536}
_EXPERTS = {"moe_intermediate_size": 512}
KINDS: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "gguf:llama": ("llama", {}),
    "gguf:gemma4": ("gemma4_text", {}),
    "gguf:gpt-oss": ("gpt_oss", {"intermediate_size": 256}),
    "gguf:granitehybrid": (
        "granitemoehybrid",
        {"num_local_experts": 3, "mamba_n_heads": 64, "intermediate_size": 256},
    ),
    "gguf:lfm2": ("lfm2", {}),
    "gguf:mmproj": ("gemma3", {"hidden_size": 512, "intermediate_size": 1024}),
    "gguf:nemotron_h_moe": (
        "nemotron_h_moe",
        {**_EXPERTS, "mamba_num_heads": 32, "mamba_head_dim": 16, "n_groups": 2},
    ),
    "gguf:qwen35": ("qwen3_5_text", {"num_hidden_layers": 4, "layer_types": None}),
    "gguf:qwen3moe": ("qwen3_moe", _EXPERTS),
    "gguf:hostile": ("llama", {}),
    "folder:llama": ("llama", {"max_shard_size": "5MB"}),
    "folder:qwen3_moe": ("qwen3_moe", _EXPERTS),
    "folder:gemma3": ("gemma3_text", {}),
    "folder:hostile": ("llama", {}),
}
"""Architectures and sizes of the models that are damaged, by their form and a name."""


@dataclass
class Outcome:
    """What became of damaged models of a kind.

    Attributes:
        kind: one of `KINDS`.
        models: number of them.
        exported: how many were exported all the same.
        reasons: number of different ways in which the others were refused.
        size_mib: size of the model that was damaged.
        memory_mib: most memory that one took.
        seconds: longest that one took, of processor time.
        faults: what went wrong.
    """

    kind: str
    models: int = 0
    exported: int = 0
    reasons: int = 0
    size_mib: float = 0.0
    memory_mib: float = 0.0
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)


def main() -> None:
    """Prints the table, and raises SystemExit if there are faults."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Raw)
    parser.add_argument(
        "--files", type=count, default=500, help="damaged models, beside hostile ones"
    )
    parser.add_argument("--seed", type=int, default=33)
    parser.add_argument(
        "--kinds", type=lambda text: names(text, [*KINDS]), default=[*KINDS], help="default all"
    )
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)  # in the other processes
    given = parser.parse_args()
    damaged = [kind for kind in given.kinds if not kind.endswith("hostile")]
    each = -(-given.files // max(1, len(damaged)))
    if given.read is not None:
        print(json.dumps(asdict(_read(given.read, given.kinds[0], each, given.seed))))
        return
    found = [_of_kind(kind, each, given.seed) for kind in given.kinds]
    header = ["kind", "models", "exported", "reasons", "MiB", "MiB of memory", "seconds", "faults"]
    rows = [[*astuple(own)[:-1], len(own.faults)] for own in found]
    print_table(header, rows)
    faults = [f"{own.kind}: {fault}" for own in found for fault in own.faults]
    print(*faults, sep="\n", end="\n" if faults else "")
    total = {"models": sum(own.models for own in found), "faults": len(faults)}
    print_result("damaged_models", {**total, "kinds": [asdict(own) for own in found]})
    if faults:
        raise SystemExit(1)


class _Raw(argparse.RawDescriptionHelpFormatter):
    pass


def _of_kind(kind: str, files: int, seed: int) -> Outcome:
    """Makes a model, and has another process read damaged copies of it."""
    import torch
    from checkpoints import make_checkpoint, write_tokenizer
    from ggufs import write_gguf
    from mmprojs import write_pair
    from towers import save_pictured

    architecture, sizes = KINDS[kind]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "intact", "model")
        if kind == _TOWER:
            save_pictured(folder, architecture, text=_WIDE, vision=sizes)
            write_pair(folder, folder.parent, "Q8_0").rename(folder.parent / "file.gguf")
        else:
            make_checkpoint(folder, architecture, dtype=torch.bfloat16, **{**_WIDE, **sizes})
            write_tokenizer(folder, 331)
        if kind.startswith("gguf") and kind != _TOWER:
            write_gguf(folder, folder.parent / "file.gguf", "Q8_0")
        own = ["--kinds", kind, "--files", str(files), "--seed", str(seed), "--read", place]
        environment = {**os.environ, "EDGESPEC_CACHE": str(Path(place, "cache"))}
        command = [sys.executable, __file__, *own]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        return Outcome(kind, faults=[f"exit code {done.returncode}: {done.stderr[-2000:]}"])
    return Outcome(**json.loads(done.stdout.splitlines()[-1]))


def _read(place: Path, kind: str, files: int, seed: int) -> Outcome:
    """Exports damaged copies of the model that lies in a folder."""
    file = place / "intact" / "file.gguf"
    folder = place / "intact" / "model"
    intact = file if kind.startswith("gguf") else folder
    source = place / f"damaged{intact.suffix}"
    outcome = Outcome(kind)
    reasons = set[str]()
    size = _HOSTILE_BYTES if kind.endswith("hostile") else _size(intact)
    most = max(_LEAST_MEMORY, 2 * size)
    outcome.size_mib = round(size / MIB, 1)
    damaged = source
    for warm in (intact, place / "none.gguf"):  # what is imported counts for nothing
        _exported(warm, place)
        shutil.rmtree(place / "bundle", ignore_errors=True)
    if kind == _TOWER:
        shutil.copy(intact, source)
        (intact,) = file.parent.glob("mmproj*")
        damaged = place / intact.name
    make = _copies(kind, intact, damaged, random.Random(seed))
    for number in range(files):
        if next(make, False) is False:
            break
        idle = _idle()
        begun = time.process_time()
        code, said = _exported(source, place)
        seconds = time.process_time() - begun
        memory = _resident("VmHWM") - idle
        outcome.models += 1
        outcome.exported += code == 0
        outcome.memory_mib = round(max(outcome.memory_mib, memory / MIB), 2)
        outcome.seconds = round(max(outcome.seconds, seconds), 2)
        faults = [*_faults(code, said, damaged, place)]
        faults += [f"{memory / MIB:.0f} MiB of memory"] if memory > most else []
        faults += [f"{seconds:.1f} seconds"] if seconds > _SECONDS else []
        outcome.faults += [f"{number} {said[:200]!r}: {fault}" for fault in faults]
        if code:
            reasons.add(said.replace(str(damaged), "")[:60])
        shutil.rmtree(place / "bundle", ignore_errors=True)
    outcome.reasons = len(reasons)
    return outcome


def _copies(kind: str, intact: Path, source: Path, chance: random.Random) -> Iterator[None]:
    """Writes a damaged model to a path, again and again."""
    if kind == "gguf:hostile":
        for content in damage.hostile_ggufs(_HOSTILE_BYTES):
            source.write_bytes(content)
            yield
    elif kind == "folder:hostile":
        shutil.copytree(intact, source)
        yield from damage.hostile_folders(source, _HOSTILE_BYTES)
    elif kind.startswith("gguf"):
        start = min(entry.start for entry in read_header(intact).entries.values())
        while True:
            source.write_bytes(damage.damaged_gguf(intact.read_bytes(), start, chance))
            yield
    else:
        while True:
            shutil.rmtree(source, ignore_errors=True)
            shutil.copytree(intact, source)
            damage.harm(source, chance)
            yield


def _exported(source: Path, place: Path) -> tuple[int, str]:
    """Exports a model; returns the exit code, and what was said on stderr."""
    precision = ["--precision", "fp16"] if source.is_dir() else []
    with redirect_stderr(io.StringIO()) as said, redirect_stdout(io.StringIO()):
        code = edgespec(["export", str(source), "-o", str(place / "bundle"), *precision])
    return code, said.getvalue()


def _faults(code: int, said: str, source: Path, place: Path) -> Iterator[str]:
    """Yields what is wrong with how an export ended."""
    left = [each.name for each in place.iterdir() if each.name.startswith((".", "bundle"))]
    if code == 0:
        try:
            bundles.load(place / "bundle")
        except BundleError as error:
            yield f"a bundle that is none: {error}"
        return
    line = said.rstrip("\n")
    if code != 2:
        yield f"exit code {code}"
    if "\n" in line or not line.isprintable() or len(line) > _LONGEST:
        yield "not one line that can be read"
    if str(source) not in line:
        yield "the model is not named"
    if left:
        yield f"left behind: {left}"


def _idle() -> int:
    """Returns the bytes that the process takes now, and forgets what it took before."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return _resident("VmRSS")


def _resident(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(each.stat().st_size for each in files)


if __name__ == "__main__":
    sys.exit(exit_code(main))
