"""`edgespec inspect`: the contents of a bundle, as tables or JSON."""

from __future__ import annotations

import argparse
import json
from statistics import fmean

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from edgespec import bundle as bundles
from edgespec.bundle import Bundle, Role, Variant
from edgespec.bundle.sublayers import ATTENTION, INJECTION
from edgespec.cli.arguments import add_bundle
from edgespec.cli.assignment import assignment_table, assignments
from edgespec.errors import DeviceError
from edgespec.runtime.deployment.placement import borders
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.runtime.text.vocabulary_map import VocabularyMap
from edgespec.system import records

_SHORT_HASH = 12
_MATRICES = {ATTENTION: 4, INJECTION: 2}  # of other sublayers: 3
_WITHOUT_KEYS = 2  # of attention that reads another layer's keys and values


def configure(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    add_bundle(parser)
    parser.add_argument("--verify", action="store_true", help="check the hash of every file")
    parser.add_argument(
        "--device", metavar="DEVICE",
        help="compile the target for this NPU, such as qnn:emulated, and list the nodes that are "
        "left to the CPU; any such node is an error unless the name ends in #partly",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the manifest and more as JSON")


def execute(arguments: argparse.Namespace) -> int:
    """Prints the contents of the manifest, after checking all hashes if requested."""
    bundle = bundles.load(arguments.bundle)
    if arguments.verify:
        bundle.verify()
    told = [] if arguments.device is None else assignments(bundle, arguments.device)
    refused = any(each.elsewhere for each in told) and not arguments.device.endswith("#partly")
    if arguments.json:
        facts = {
            "path": str(bundle.path),
            "digest": bundle.digest,
            "verified": arguments.verify,
            "cuts": _cuts(bundle.target),
            "borders": borders(bundle.target),
            **({"assignment": records.encode(told)} if told else {}),
        }
        print(json.dumps(facts | records.encode(bundle.manifest)))
        return DeviceError.exit_code if refused else 0
    console = Console(markup=False)  # paths may have brackets
    console.print(_roles(bundle))
    if bundle.draft is not None and bundle.draft.tokenizer:
        console.print(VocabularyMap.of(bundle, Tokenizer.from_folder(bundle.path)))
    if bundle.manifest.variants:
        console.print(_variants(bundle.manifest.variants))
    if bundle.manifest.skip_sets:
        console.print(_skip_sets(bundle))
    console.print(_files(bundle))
    made = ", ".join(f"{key} {value}" for key, value in bundle.manifest.provenance.items())
    console.print(f"format {bundle.manifest.format}, made from: {made}")
    if arguments.verify:
        console.print(f"the hashes of all {len(bundle.manifest.files)} files are correct")
    if told:
        console.print(assignment_table(arguments.device, told))
    return DeviceError.exit_code if refused else 0


def _roles(bundle: Bundle) -> Table:
    """Returns a table with one column per role, so that it fits eighty characters."""
    table = Table(title=str(bundle.path), title_justify="left")
    table.add_column("role")
    columns = []
    for name, role in bundle.manifest.roles.items():
        table.add_column(name, overflow="fold")
        columns.append({"size": decimal(bundle.role_size(name)), **_facts(role)})
    for fact in columns[0]:
        if any(column[fact] for column in columns):
            table.add_row(fact, *(column[fact] for column in columns))
    return table


def _stored(precision: str, block_size: int) -> str:
    return f"{precision}, blocks of {block_size}" if precision.startswith("int") else precision


def _wide(role: Role) -> str:
    wide = len(role.precision.wide)
    matrices = sum(
        _MATRICES.get(each.kind, 3 * (max(each.experts, 1) + (each.beside > 0)))
        if each.source is None
        else _WITHOUT_KEYS
        for each in role.layout
    )
    return f"; int8 for {wide} of {matrices} matrices" if wide else ""


def _head(role: Role) -> str:
    precision = role.precision
    kept = next((each for each in precision.kept if each.part == "lm_head"), None)
    if kept is None:
        return _stored(precision.lm_head, precision.block_size)
    return _stored(f"int{kept.bits}", kept.block_size)


def _kept(role: Role) -> str:
    """Describes the matrices that are stored in the blocks of the checkpoint's file."""
    return "\n".join(
        f"{len(each.names)} of {each.part} in {_stored(f'int{each.bits}', each.block_size)}"
        f"{' with zero points' if each.zero_points else ''}"
        for each in role.precision.kept
    )


def _facts(role: Role) -> dict[str, str]:
    precision = role.precision
    return {
        "architecture": _architecture(role),
        "parameters": _parameters(role),
        "layers": str(role.layers),
        "stages": _stages(role),
        "hidden size": str(role.hidden_size),
        "heads": f"{role.heads}, {role.kv_heads} for keys and values, of {role.head_dim}",
        "vocabulary": _vocabulary(role),
        "context": f"{role.context_length:,} tokens",
        "embeddings": "" if role.embedding is None else str(role.embedding),
        "weights": _stored(precision.weights, precision.block_size) + _wide(role),
        "output projection": _head(role) if role.embedding is None else "none",
        "kept as stored": _kept(role),
        "KV cache": precision.kv,
        "same text with drafts": "yes, on engines that support it"
        if role.ordered
        else "except at near-ties of two tokens",
        "quantization error": _error(role.quantization_error),
    }


def _parameters(role: Role) -> str:
    active = role.active_parameters
    each = "" if active == role.parameters else f", of which a token reads {active:,}"
    return f"{role.parameters:,}{each}"


def _architecture(role: Role) -> str:
    if not role.trees:
        return f"{role.architecture}, exported by another program: drafts are chains"
    if not role.is_head:
        return role.architecture
    return f"{role.architecture} head, reads layers {', '.join(map(str, role.taps))}"


def _vocabulary(role: Role) -> str:
    size, scored = f"{role.vocab_size:,}", role.output_tokens
    mask = "" if role.mask_token is None else f", mask {role.mask_token}"
    return (f"{scored:,} of {size} scored" if scored else size) + mask


def _stages(role: Role) -> str:
    """Describes how many stages there are, and where they are cut."""
    cuts = _cuts(role)
    if not cuts:
        return "1"
    names = map(role.layout.name, cuts)
    layers = ", ".join(map(str, borders(role)))
    split = f"can be split between devices before {layers}" if layers else "one device only"
    return f"{len(role.stages)}, cut before {', '.join(names)}; {split}"


def _cuts(role: Role) -> list[int]:
    """Returns the sublayers before which a stage ends."""
    return [stage.start for stage in role.stages[1:]]


def _error(errors: dict[str, float]) -> str:
    """Formats relative RMS errors: the mean over tensors, and the worst one."""
    if not errors:
        return "none"
    worst = max(errors, key=errors.__getitem__)
    return f"{fmean(errors.values()):.2%} mean, {errors[worst]:.2%} worst: {worst}"


def _skip_sets(bundle: Bundle) -> Table:
    """Returns a table of the skip sets, with their estimated speeds when the bundle was made."""
    table = Table(title="layer-skip drafts", title_justify="left")
    table.add_column("left out", overflow="fold")
    for column in ("stages", "cost", "plain", "text", "agreed", "drafts", "tokens/s"):
        table.add_column(column, justify="right")
    stages = bundle.target.stages
    for each in bundle.manifest.skip_sets:
        left_out = set(each.skipped)
        run = sum(stage.start not in left_out for stage in stages)
        score = each.score
        promised = ["not measured"] + [""] * 5
        if score is not None:
            kinds = (score.greedy, score.sampled)
            promised = [
                f"{score.draft_cost:.0%}",
                f"{score.plain_tokens_per_second:.1f}",
                "greedy\nsampled",
                "\n".join(f"{kind.agreement:.0%}" for kind in kinds),
                "\n".join(str(kind.chain) for kind in kinds),
                "\n".join(f"{kind.tokens_per_second:.1f}" for kind in kinds),
            ]
        left_out_names = bundle.target.layout.describe(each.skipped)
        table.add_row(left_out_names, f"{run} of {len(stages)}", *promised)
    return table


def _variants(variants: tuple[Variant, ...]) -> Table:
    """Returns a table of the variants."""
    table = Table("variant", "weights", "KV cache", title="variants", title_justify="left")
    table.add_column("quantization error", overflow="fold")
    table.add_column("compiled for", overflow="fold")
    for each in variants:
        compiled = dict.fromkeys(
            f"{made.device} {made.rows}x{made.capacity}" for made in each.compiled
        )
        name, precision = f"{each.role} for {each.name}", each.precision
        table.add_row(
            name, precision.weights, precision.kv, _error(each.quantization_error),
            "\n".join(compiled) or "none",
        )  # fmt: skip
    return table


def _files(bundle: Bundle) -> Table:
    table = Table("file")
    table.add_column("size", justify="right")
    table.add_column("SHA-256")
    for name, entry in bundle.manifest.files.items():
        table.add_row(name, decimal(entry.size), entry.sha256[:_SHORT_HASH] + "…")
    return table
