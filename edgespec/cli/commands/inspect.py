"""`edgespec inspect`: the contents of a bundle, as tables or JSON."""

from __future__ import annotations

import argparse
import json
from statistics import fmean

from rich.filesize import decimal
from rich.table import Table

from edgespec import bundle as bundles
from edgespec.bundle import Bundle, Role
from edgespec.cli.arguments import add_model
from edgespec.cli.consoles import HarmlessConsole
from edgespec.cli.models import chosen
from edgespec.cli.terminal import tell
from edgespec.llm.options import conversational
from edgespec.system import records

_SHORT_HASH = 12


def configure(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    add_model(parser)
    parser.add_argument("--verify", action="store_true", help="check the hash of every file")
    parser.add_argument("--json", action="store_true", help="print the manifest and more as JSON")


def execute(arguments: argparse.Namespace) -> int:
    """Prints the contents of the manifest, after checking all hashes if requested."""
    bundle = bundles.load(chosen(arguments, fetch=False))
    manifest = bundle.manifest
    if arguments.verify:
        bundle.verify()
    if arguments.json:
        facts = {
            "path": str(bundle.path),
            "digest": bundle.digest,
            "verified": arguments.verify,
        }
        tell(json.dumps(facts | records.encode(manifest)))
        return 0
    console = HarmlessConsole()
    console.print(_roles(bundle))
    if bundle.draft is not None and bundle.draft.tokenizer:
        from edgespec.runtime.text.tokenizer import Tokenizer
        from edgespec.runtime.text.vocabulary.mapping import VocabularyMap

        console.print(str(VocabularyMap.of(bundle, Tokenizer.of(bundle))))
    if manifest.skip_sets:
        console.print(_skip_sets(bundle))
    console.print(_files(bundle))
    made = ", ".join(f"{key} {value}" for key, value in manifest.provenance.items())
    console.print(f"format {manifest.format}, made from: {made}")
    if arguments.verify:
        console.print(f"the hashes of all {len(manifest.files)} files are correct")
    return 0


def _sampling(asked: dict[str, float] | None) -> str:
    found = conversational(asked)
    told = ", ".join(f"{name} {value:g}" for name, value in found.items())
    return f"{told} ({'the authors say nothing' if asked is None else 'as the authors ask'})"


def _roles(bundle: Bundle) -> Table:
    """Returns a table with one column per role, so that it fits eighty characters."""
    table = Table(title=str(bundle.path), title_justify="left")
    table.add_column("role")
    columns = []
    for name, role in bundle.manifest.roles.items():
        table.add_column(name, overflow="fold")
        columns.append(_facts(bundle, role) | {"portable graphs": _portable(bundle, name)})
    for fact in columns[0]:
        if any(column[fact] for column in columns):
            table.add_row(fact, *(column[fact] for column in columns))
    return table


def _facts(bundle: Bundle, role: Role) -> dict[str, str]:
    chats = role is bundle.target and role.writes
    native = role.native
    active = role.active_parameters
    read = "" if active == role.parameters else f", of which a token reads {active:,}"
    formats = sorted(native.formats.items(), key=lambda each: -each[1])
    total = sum(native.formats.values())
    return {
        "size": decimal(sum(bundle.manifest.files[f].size for f in (native.graph, native.data))),
        "architecture": _architecture(role),
        "parameters": f"{role.parameters:,}{read}",
        "layers": str(role.layers),
        "hidden size": str(role.hidden_size),
        "heads": f"{role.heads}, {role.kv_heads} for keys and values, of {role.head_dim}",
        "vocabulary": _vocabulary(role),
        "context": f"{role.context_length:,} tokens",
        "chats": _sampling(bundle.manifest.sampling) if chats else "",
        "embeddings": "" if role.embedding is None else str(role.embedding),
        "ranks": "" if role.ranking is None else str(role.ranking),
        "images": _images(role),
        "weights": ", ".join(
            name if count == total else f"{count / total:.1%} {name}" for name, count in formats
        ),
        "KV cache": f"{role.precision.kv}, {len(native.pools)} layers",
        "recurrent": f"{len(native.recurrent)} layers" if native.recurrent else "",
        "quantization error": _error(role.quantization_error),
    }


def _portable(bundle: Bundle, name: str) -> str:
    """Tells of the graphs for devices that were made so far."""
    if bundle.manifest.roles[name].native.adopted:
        return ""
    from edgespec.llm.load.portable import portable_forms

    lines = []
    for device, form in portable_forms(bundle, name).items():
        if form.nodes is not None:
            told = f"{device}: {form.nodes:.1f} nodes a layer"
            if form.trial is not None:
                told += f", in {'half' if form.trial.passed else 'single'} precision"
            lines.append(told)
        if (trial := form.prompts) is not None:
            told = f"{device}, with {trial.layers} layers on the CPU: prompts are read"
            lines.append(f"{told} {trial.verdict}")
    return "\n".join(lines)


def _error(errors: dict[str, float]) -> str:
    """Formats relative RMS errors: the mean over tensors, and the worst one."""
    if not errors:
        return "none"
    worst = max(errors, key=errors.__getitem__)
    return f"{fmean(errors.values()):.2%} mean, {errors[worst]:.2%} worst: {worst}"


def _images(role: Role) -> str:
    if role.vision is None:
        return ""
    size = role.vision.size
    rows = role.vision.rows
    tiles = role.vision.tiles
    cut = "" if tiles is None else f", cut into up to {tiles.most} pieces of {tiles.size} pixels"
    if (grid := role.vision.grid) is not None:
        return f"of any size, of {rows} to {grid.most // size**2} tokens each{cut}"
    if tiles is not None:
        return f"of any size{cut}, of {rows} tokens each"
    if role.vision.patch:
        return f"in their proportions, of {role.vision.fewest} to {rows} tokens each"
    return f"pieces of {size} pixels, of {rows} tokens each"


def _architecture(role: Role) -> str:
    if role.native.adopted:
        return f"{role.architecture}, exported by another program"
    if not role.is_head:
        return role.architecture
    return f"{role.architecture} head, reads layers {', '.join(map(str, role.taps))}"


def _vocabulary(role: Role) -> str:
    size = f"{role.vocab_size:,}"
    scored = role.output_tokens
    mask = "" if role.mask_token is None else f", mask {role.mask_token}"
    return (f"{scored:,} of {size} scored" if scored else size) + mask


def _skip_sets(bundle: Bundle) -> Table:
    """Returns a table of the skip sets, with their estimated speeds when the bundle was made."""
    table = Table(title="layer-skip drafts", title_justify="left")
    table.add_column("left out", overflow="fold")
    for column in ("cost", "plain", "text", "agreed", "drafts", "tokens/s"):
        table.add_column(column, justify="right")
    for each in bundle.manifest.skip_sets:
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
        table.add_row(bundle.target.layout.describe(each.skipped), *promised)
    return table


def _files(bundle: Bundle) -> Table:
    table = Table("file")
    table.add_column("size", justify="right")
    table.add_column("SHA-256")
    for name, entry in bundle.manifest.files.items():
        table.add_row(name, decimal(entry.size), entry.sha256[:_SHORT_HASH] + "…")
    return table
