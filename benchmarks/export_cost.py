"""Measures seconds, peak memory and bundle size of `edgespec export`.

    python benchmarks/export_cost.py wide-7m --draft wide-1m --precision int4

The export runs in a separate process. Its memory is anonymous plus shared memory, which the machine
must really have. Mapped pages of the checkpoint do not count: the system can reclaim them.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from common import Watched, print_result, watch

from edgespec.system.environment import MIB


def main() -> int:
    arguments = _parse_arguments()
    command = [sys.executable, "-m", "edgespec", "export", str(arguments.checkpoint)]
    command += ["--precision", arguments.precision]
    if arguments.draft is not None:
        command += ["--draft", str(arguments.draft)]
    runs: list[Watched] = []
    bundle_bytes = 0
    for run in range(arguments.runs):
        with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch:
            bundle = Path(scratch) / "bundle"
            try:
                runs.append(watch([*command, "-o", str(bundle)]))
            except subprocess.CalledProcessError as error:
                return error.returncode  # the export has said why
            bundle_bytes = _size(bundle)
        print(f"run {run + 1}: {runs[-1].seconds:.1f} s, {runs[-1].peak_mib:.0f} MiB", flush=True)
    sources = [path for path in (arguments.checkpoint, arguments.draft) if path is not None]
    print_result(
        "export_cost",
        {
            "checkpoints": [path.name for path in sources],
            "precision": arguments.precision,
            "seconds": round(statistics.median(run.seconds for run in runs), 2),
            "peak_anonymous_shared_mib": round(max(run.peak_mib for run in runs)),
            "runs": len(runs),
            "source_mib": round(sum(map(_size, sources)) / MIB, 1),
            "bundle_mib": round(bundle_bytes / MIB, 1),
        },
    )
    return 0


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time and memory of an export.")
    parser.add_argument("checkpoint", type=Path, help="folder of the target")
    parser.add_argument("--draft", type=Path, help="folder of the draft")
    parser.add_argument("--precision", default="int4", help="precision, as for edgespec export")
    parser.add_argument(
        "--runs", type=int, default=3, help="repeats; the median time is reported (default 3)"
    )
    parser.add_argument("--scratch", type=Path, help="folder for temporary bundles")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
