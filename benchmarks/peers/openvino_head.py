"""A draft head as OpenVINO GenAI takes it: a model in OpenVINO's format, made of a GGUF file.

Its pipeline changes both models. What leaves the target's `layers.N` becomes an output, which it
finds by the names and forms of nodes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from peers.openvino_dflash import TOKENS, DFlashGraph
from peers.openvino_eagle3 import Eagle3Graph

if TYPE_CHECKING:
    from pathlib import Path

DFLASH = "dflash"
_GRAPH = "openvino_model.xml"
_GRAPHS = {"eagle3": Eagle3Graph, DFLASH: DFlashGraph}  # of the forms that the library drafts with
_IDS = "d2t"
_LAYER = re.compile(r'"model\.layers\.self_attn\.add1\.layer(\d+)"')


def write_openvino_target(model: Path, folder: Path) -> None:
    """Writes a target whose layers are called as in other models, so that they are found.

    Args:
        model: folder of what the library makes of a GGUF file.
        folder: folder to create; weights are linked.

    Raises:
        ValueError: Its layers have other names than those that are known.
    """
    graph = model / _GRAPH
    text, layers = _LAYER.subn(r'"model.layers.\1/add"', graph.read_text(encoding="utf-8"))
    if not layers:
        raise ValueError(
            f"{graph}: no layers are called as by openvino-genai 2026.4, {_LAYER.pattern}: "
            "delete its folder, and have that release make it"
        )
    folder.mkdir(parents=True)
    for file in model.iterdir():
        if file.suffix in (".bin", ".json") or "tokenizer" in file.name:
            (folder / file.name).symlink_to(file.resolve())
    (folder / graph.name).write_text(text, encoding="utf-8")


def write_openvino_head(file: Path, form: str, target: Path, folder: Path) -> None:
    """Writes the model of a head.

    Args:
        file: GGUF file of the head, as llama.cpp's converter writes it.
        form: what it holds: eagle3, dflash or dspark.
        target: folder of its target's model, for the tokenizer.
        folder: folder to create.

    Raises:
        ValueError: The library cannot use such a head.
    """
    if form not in _GRAPHS:
        raise ValueError(
            f"{form}: OpenVINO GenAI drafts with {' and '.join(_GRAPHS)} heads: train one by "
            f"`edgespec train-draft --kind {DFLASH}`, or leave openvino-genai out by --peers"
        )
    import gguf
    import openvino

    reader = gguf.GGUFReader(file)
    facts = {name: field.contents() for name, field in reader.fields.items() if "." in name}
    tensors = {
        each.name: gguf.quants.dequantize(each.data, each.tensor_type)
        for each in reader.tensors
        if each.name != _IDS
    }
    ids = [each.data for each in reader.tensors if each.name == _IDS]
    model = _GRAPHS[form](facts, tensors).model(*ids)
    folder.mkdir(parents=True)
    for each in target.glob("openvino_*tokenizer.*"):
        (folder / each.name).symlink_to(each.resolve())
    openvino.save_model(model, folder / _GRAPH, compress_to_fp16=False)


def block_of(folder: Path) -> int:
    """Returns how many tokens a DFlash drafter that was written proposes at once."""
    graph = (folder / _GRAPH).read_text(encoding="utf-8")
    found = re.search(rf'<{TOKENS} value="(\d+)"', graph)
    assert found is not None, "it is written with each"
    return int(found[1])
