"""Damaged safetensors folders: each is read or refused in one line, at once, in little memory."""

from __future__ import annotations

import json
import random
import shutil
import time
import tracemalloc

import pytest
from checkpoints import make_checkpoint, write_tokenizer
from damage import TIMES, damaged, damaged_json, written

from edgespec.errors import CheckpointError
from edgespec.models import load_checkpoint

FILES, SEED = 120 * TIMES, 49
SECONDS, BYTES = 2.0, 16 * 2**20
JSON = ("config.json", "model.safetensors.index.json", "generation_config.json")


@pytest.fixture(scope="module", params=["llama", "qwen3_moe", "gemma3_text"])
def intact(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("intact")
    make_checkpoint(folder, request.param, max_shard_size="100KB")
    write_tokenizer(folder, 331)
    return folder


def harm(folder, chance):
    """Damages a file of the folder, its header above all."""
    shards = sorted(folder.glob("*.safetensors"))
    file = chance.choice([*(folder / name for name in JSON if (folder / name).exists()), *shards])
    content = file.read_bytes()
    if file.suffix == ".json" and chance.random() < 0.8:
        file.write_bytes(written(damaged_json(json.loads(content), chance)))
        return
    if file.suffix == ".json":
        file.write_bytes(damaged(content, len(content), chance, (0,)))
        return
    length = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:length])
    if chance.random() < 0.5:
        file.write_bytes(damaged(content, length, chance, (0,)))
    else:
        text = written(damaged_json(header, chance))
        file.write_bytes(len(text).to_bytes(8, "little") + text + content[length:])


def test_no_damaged_folder_does_harm(intact, tmp_path):
    chance, reasons, read = random.Random(SEED), set(), 0
    for number in range(FILES):
        folder = shutil.copytree(intact, tmp_path / "model")
        harm(folder, chance)
        tracemalloc.start()
        begun = time.process_time()
        try:
            checkpoint = load_checkpoint(folder)
            for name in checkpoint.decoder.tensors():
                checkpoint.tensors.read(name)
            read += 1
        except CheckpointError as error:
            message = str(error)
            assert message.isprintable(), number
            assert len(message) < 1000, number
            reasons.add(message.replace(str(folder), "")[:40])
        finally:
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        assert time.process_time() - begun < SECONDS, number
        assert peak < BYTES, number
        shutil.rmtree(folder)
    assert read > FILES // 25
    assert len(reasons) > 15
