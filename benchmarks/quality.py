"""Compares the quality of precisions with llama.cpp's, on texts not used for calibration.

    python benchmarks/quality.py smollm2-135m --work work --permute
    python benchmarks/quality.py qwen-coder-1.5b --work work --permute --ours int4 --gguf Q4_K_M

Each precision is exported as users get it and read by `edgespec eval --suite --against` the same
checkpoint in fp32. GGUF files are quantized by llama.cpp itself (without an importance matrix),
widened again, and read in fp32. Needs `pip install "edgespec[real]" llama-cpp-python`.

For a model that is only available quantized, use `--permute`: see permuted_checkpoint.py. Files
below --work are kept and used again.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common import exit_code, names, print_result, print_table
from peers.gguf_file import write_gguf
from reading import weight_bytes

from edgespec.errors import InputError
from edgespec.measuring.suite import TEXTS
from edgespec.runtime.engines import CPU_ENGINES

_OURS: dict[str, list[str]] = {
    "int4": [],
    "int4-small": ["--precision", "int4-small"],
    "int4-no-calibration": ["--no-calibration"],
    "int4-blocks-of-32": ["--block-size", "32"],
    "int4-blocks-of-64": ["--block-size", "64"],
    "int4-kv-fp16": ["--kv-precision", "fp16"],
    "int8": ["--precision", "int8"],
    "fp16": ["--precision", "fp16"],
}
_GGUF = ("Q4_0", "Q4_K_S", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0")
_REFERENCE = ["--precision", "fp32"]


@dataclass(frozen=True)
class Quality:
    """The quality of a precision on the suite.

    Attributes:
        weights: name of the precision.
        mb: megabytes of all weights.
        perplexity: perplexity by kind of text.
        mean_kl: mean KL divergence from the checkpoint in fp32, in nats, by kind of text and over
            `all` tokens.
        agreement: share of all positions at which both have the same likeliest token.
    """

    weights: str
    mb: float
    perplexity: dict[str, float]
    mean_kl: dict[str, float]
    agreement: float


def main() -> None:
    arguments = _parse_arguments()
    source = arguments.checkpoint
    work = arguments.work / source.name
    work.mkdir(parents=True, exist_ok=True)
    if arguments.permute:
        source = _made(work / "permuted", "permuted_checkpoint.py", source)
    reference = _exported(source, work / "fp32", _REFERENCE)
    device = arguments.device
    found = [_original(source, reference, device)]
    for name in arguments.gguf:
        folder, size = _widened(source, work, name)
        bundle = _exported(folder, work / f"{name}-bundle", _REFERENCE)
        found.append(_quality(name, size, bundle, reference, device))
    for name in arguments.ours:
        bundle = _exported(source, work / name, _OURS[name])
        found.append(_quality(name, weight_bytes(bundle), bundle, reference, device))
    print_table(
        ["weights", "MB", *(f"KL, {kind}" for kind in (*TEXTS, "all")), "same arg-max",
         *(f"perplexity, {kind}" for kind in TEXTS)],
        [
            [q.weights, round(q.mb), *(round(v, 4) for v in q.mean_kl.values()),
             round(q.agreement, 3), *(round(v, 3) for v in q.perplexity.values())]
            for q in found
        ],
    )  # fmt: skip
    print_result(
        "quality",
        {
            "checkpoint": arguments.checkpoint.name,
            "permuted": arguments.permute,
            "device": device,
            "qualities": list(map(asdict, found)),
        },
    )


def _made(folder: Path, script: str, source: Path) -> Path:
    """Runs another script of this folder, unless its output exists; returns the output."""
    if not folder.exists():
        command = [sys.executable, str(Path(__file__).with_name(script)), str(source)]
        subprocess.run([*command, "-o", str(folder)], check=True)
    return folder


def _exported(source: Path, bundle: Path, options: list[str]) -> Path:
    if not bundle.exists():
        command = [sys.executable, "-m", "edgespec", "export", str(source), "-o", str(bundle)]
        subprocess.run([*command, *options], check=True)
    return bundle


def _widened(source: Path, work: Path, name: str) -> tuple[Path, int]:
    """Returns a widened checkpoint of a GGUF file, and the bytes of the file's tensors."""
    file, plain = work / f"{name}.gguf", work / "F16.gguf"
    if not plain.exists():
        write_gguf(source, plain, "F16")
    if not file.exists():
        _quantize(plain, file, name)
    folder = work / f"{name}-checkpoint"
    if not folder.exists():
        _made(folder, "gguf_checkpoint.py", file)
        # Read back from GGUF, some tokenizers split texts otherwise.
        shutil.copyfile(source / "tokenizer.json", folder / "tokenizer.json")
    from gguf import GGUFReader

    return folder, sum(int(tensor.n_bytes) for tensor in GGUFReader(file).tensors)


def _quantize(plain: Path, file: Path, name: str) -> None:
    try:
        import llama_cpp
    except ImportError:
        raise InputError("llama.cpp is needed: pip install llama-cpp-python") from None
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{name}")
    paths = (str(each).encode() for each in (plain, file))
    if llama_cpp.llama_model_quantize(*paths, ctypes.byref(parameters)):
        raise InputError(f"llama.cpp does not quantize {plain} to {name}")


def _original(source: Path, reference: Path, device: str) -> Quality:
    """Returns the reference itself, with the bytes of the checkpoint."""
    size = sum(file.stat().st_size for file in source.glob("*.safetensors"))
    found = _suite(reference, None, device)
    perplexity = {kind: found[kind]["perplexity"] for kind in TEXTS}
    return Quality("original", size / 1e6, perplexity, dict.fromkeys((*TEXTS, "all"), 0.0), 1.0)


def _quality(name: str, size: int, bundle: Path, reference: Path, device: str) -> Quality:
    found = _suite(bundle, reference, device)
    scored = {kind: found[kind]["scored"] for kind in TEXTS}
    against = {kind: found[kind]["against"] for kind in TEXTS}
    kl = {kind: against[kind]["mean_kl"] for kind in TEXTS}
    total = sum(scored.values())
    kl["all"] = sum(kl[kind] * scored[kind] for kind in TEXTS) / total
    agreed = sum(against[kind]["argmax_agreement"] * scored[kind] for kind in TEXTS)
    perplexity = {kind: found[kind]["perplexity"] for kind in TEXTS}
    return Quality(name, size / 1e6, perplexity, kl, agreed / total)


def _suite(bundle: Path, reference: Path | None, device: str) -> dict[str, dict[str, Any]]:
    """Returns the results of `edgespec eval --suite` for each text."""
    command = [
        sys.executable, "-m", "edgespec", "eval", str(bundle), "--suite", "--json",
        "--context", "1024", "--device", device,
    ]  # fmt: skip
    if reference is not None:
        command += ["--against", str(reference)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)["suite"]
    return found


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path, help="folder of the checkpoint")
    parser.add_argument(
        "--work", type=Path, required=True, help="folder for all files, which are kept"
    )
    parser.add_argument(
        "--device", choices=CPU_ENGINES, default=CPU_ENGINES[0],
        help=f"engine of all bundles, GGUF files' included (default {CPU_ENGINES[0]})",
    )  # fmt: skip
    parser.add_argument("--permute", action="store_true", help="permute the columns first")
    parser.add_argument(
        "--ours", type=lambda text: names(text, tuple(_OURS)) if text else [],
        default=["int4", "int4-small", "int8"], help=f"of {','.join(_OURS)}",
    )  # fmt: skip
    parser.add_argument(
        "--gguf", type=lambda text: names(text, _GGUF) if text else [],
        default=["Q4_K_M"], help=f"of {','.join(_GGUF)}; '' for none",
    )  # fmt: skip
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
