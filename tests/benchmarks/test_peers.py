"""The comparison with peers, without any: its tables, files and processes."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from checkpoints import make_checkpoint

from edgespec.models import load_checkpoint
from edgespec.models.embedded import BUNDLE

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CHECKPOINTS = ROOT / "models" / "embedded" / "checkpoints"
sys.path.append(str(ROOT / "benchmarks"))  # last: both folders have modules of the same name

base, gguf_file, lines, ort, peers, process, setup = map(
    importlib.import_module,
    (
        "peers.base", "peers.gguf_file", "peers.lines",
        "peers.onnxruntime_genai", "peers", "peers.process", "peers.setup",
    ),
)  # fmt: skip

PROMPT = (10, 11, 12, 13)


def row(peer, setting, repeat, seconds, tokens=11, prompt=0, temperature=0.0):
    """A text whose first token took 0.1 s and the others `seconds`."""
    made = tuple(range(tokens))
    return lines.Row(peer, setting, temperature, repeat, prompt, 4, made, 0.1, 0.1 + seconds)


def way(peer, setting, verdicts=()):
    return lines.Way(peer, setting, "int4", 2.0, 100.0, verdicts)


def test_lines_are_medians_over_repeats_and_compare_with_the_best_plain_peer():
    ways = [way("a", "plain"), way("b", "plain"), way("b", "draft", ("yes", "no", "yes"))]
    rows = [
        *(row("a", "plain", repeat, 1.0) for repeat in range(3)),
        *(row("b", "plain", repeat, 0.5) for repeat in range(3)),
        *(row("b", "draft", repeat, s) for repeat, s in enumerate((0.2, 0.25, 1.0))),
    ]
    slow, fast, draft = lines.speed_lines(ways, rows, 0.0)
    assert (slow.tokens_per_second, slow.to_best_plain) == (10.0, 0.5)
    assert (fast.tokens_per_second, fast.to_best_plain) == (20.0, 1.0)
    assert (draft.tokens_per_second, draft.least, draft.most) == (40.0, 10.0, 50.0)
    assert (draft.to_best_plain, draft.tpot_ms, draft.ttft_ms) == (2.0, 25.0, 100.0)
    assert (slow.equal, draft.equal) == ("-", "1 no, 2 yes")
    assert len(draft.cells()) == len(lines.SPEED_HEADER)


def test_lines_count_all_tokens_of_a_repeat_and_leave_out_other_temperatures():
    rows = [row("a", "plain", 0, 1.0), row("a", "plain", 0, 1.0, tokens=31, prompt=1)]
    [line] = lines.speed_lines([way("a", "plain")], rows, 0.0)
    assert line.tokens_per_second == 20.0  # not the mean of its texts' speeds
    rows = [row("a", "plain", 0, 1.0, temperature=0.8), row("b", "plain", 0, 0.0, tokens=1)]
    ways = [way("a", "plain", ("yes",)), way("b", "plain")]
    assert lines.speed_lines(ways, rows, 0.0) == []
    [line] = lines.speed_lines(ways, rows, 0.8)
    assert line.equal == "-"  # verdicts are on greedy texts


def test_contexts_have_a_column_each_and_a_dash_where_nothing_came():
    rows = [row("a", "plain", 0, 1.0), row("a", "plain", 1, 3.0), row("a", "plain", 2, 2.0)]
    header, [line] = lines.context_cells([way("a", "plain")], rows, (512, 2048))
    assert header[3:] == [
        "TTFT ms at 512",
        "TTFT ms at 2048",
        "ms/token at 512",
        "ms/token at 2048",
        "peak MiB",
    ]
    peak = round(way("a", "plain").peak_mib)
    assert line == ["a", "int4", "plain", 100.0, "-", 200.0, "-", peak]


def test_peers_that_give_no_scores_say_only_whether_texts_are_equal():
    request = base.Request(PROMPT, 2, 0.0, 0)
    judge = base.Unjudged()
    assert judge.verdict(request, (1, 2), [1, 2]) == "yes"
    assert judge.verdict(request, (1, 2), (1, 3)) == "differs"
    assert lines.tally(["yes", "differs", "yes"]) == "1 differs, 2 yes"


def test_a_stopwatch_takes_the_first_token_and_the_last():
    watch = base.Stopwatch()
    watch.take([])
    with pytest.raises(base.PeerError, match="no token"):
        watch.text()
    watch.take([5])
    watch.take(np.array([6, 7]))
    text = watch.text()
    assert text.tokens == (5, 6, 7)
    assert 0 < text.ttft < text.whole


@pytest.mark.parametrize("architecture", gguf_file.ARCHITECTURES)
def test_gguf_names_every_tensor_once(tmp_path, architecture):
    make_checkpoint(tmp_path, architecture)
    decoder = load_checkpoint(tmp_path).decoder
    names = gguf_file.gguf_names(decoder)
    assert names.keys() == decoder.tensors().keys()
    assert len(set(names.values())) == len(names)
    assert names["model.layers.1.self_attn.o_proj.weight"] == "blk.1.attn_output.weight"
    assert names["model.layers.0.post_attention_layernorm.weight"] == "blk.0.ffn_norm.weight"
    assert names["lm_head.weight"] == "output.weight"
    assert ("blk.0.attn_k.bias" in names.values()) == (architecture == "qwen2")
    assert ("blk.0.attn_q_norm.weight" in names.values()) == (architecture == "qwen3")


def test_gguf_does_not_store_a_tied_head():
    names = gguf_file.gguf_names(load_checkpoint(CHECKPOINTS / "python-1m").decoder)
    assert "output.weight" not in names.values()


def test_interleaved_heads_turn_in_pairs_as_the_original_ones_in_halves():
    """Scores of queries and keys are what counts; both are interleaved alike."""
    heads, half, width = 3, 4, 6
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((heads * 2 * half, width)).astype(np.float32)
    x = rng.standard_normal(width).astype(np.float32)
    turn = np.exp(1j * rng.standard_normal(half))

    first, second = (weight @ x).reshape(heads, 2, half).swapaxes(0, 1)
    expected = (first + 1j * second) * turn
    pairs = (gguf_file.interleaved(weight, heads) @ x).reshape(heads, half, 2)
    np.testing.assert_allclose((pairs[..., 0] + 1j * pairs[..., 1]) * turn, expected, rtol=1e-6)


def test_only_llamas_queries_and_keys_are_interleaved(tmp_path):
    make_checkpoint(tmp_path / "qwen2", "qwen2")
    qwen2 = load_checkpoint(tmp_path / "qwen2").decoder
    assert gguf_file.heads_to_interleave("qwen2", qwen2) == {}
    make_checkpoint(tmp_path / "llama", "llama")
    llama = load_checkpoint(tmp_path / "llama").decoder
    heads = gguf_file.heads_to_interleave("llama", llama)
    assert heads == {
        f"model.layers.{layer}.self_attn.{name}_proj.weight": count
        for layer in range(2)
        for name, count in (("q", 4), ("k", 1))
    }


@pytest.fixture
def genai_models(tmp_path):
    """What the builder of ONNX Runtime GenAI leaves behind, as far as `compose` reads it."""
    for role in ("target", "draft"):
        (tmp_path / role).mkdir()
        config = {"model": {"decoder": {"filename": "model.onnx", "head_size": len(role)}},
                  "search": {"past_present_share_buffer": True}}  # fmt: skip
        (tmp_path / role / "genai_config.json").write_text(json.dumps(config))
        for name in ("model.onnx", "model.onnx.data", "tokenizer.json"):
            (tmp_path / role / name).write_text(role)
    return tmp_path


@pytest.mark.parametrize("setting", ["plain", "lookup", "draft"])
def test_a_genai_folder_has_the_weights_below_it(genai_models, setting):
    folder = genai_models / "composed"
    folder.mkdir()
    ort.compose(base.Loading(setting, genai_models, 3, 64, (0,)), folder)
    config = json.loads((folder / "genai_config.json").read_text())
    model = config["model"]
    assert (folder / model["decoder"]["filename"]).read_text() == "target"
    assert model["decoder"]["session_options"] == {"intra_op_num_threads": 3}
    assert config["search"]["past_present_share_buffer"] == (setting == "plain")
    assert ("draft" in model) == (setting == "draft")
    if setting == "draft":
        assert (folder / model["draft"]["filename"]).read_text() == "draft"
        assert model["draft"]["head_size"] == len("draft")
    assert ".." not in model["decoder"]["filename"]
    files = {file.name for file in folder.iterdir() if file.is_file()}
    assert files == {"genai_config.json", "tokenizer.json"}


def test_stretched_checkpoints_have_the_same_weights_and_more_positions(tmp_path):
    pair = base.Checkpoints(CHECKPOINTS / "python-7m", CHECKPOINTS / "python-1m")
    assert setup.stretched(pair, 512, tmp_path) == pair
    longer = setup.stretched(pair, 1000, tmp_path)
    contexts = [
        load_checkpoint(path).config.context_length for path in (longer.target, longer.draft)
    ]
    assert contexts == [2048, 1000]
    long = setup.stretched(pair, 8192, tmp_path)
    for path, original in ((long.target, pair.target), (long.draft, pair.draft)):
        assert load_checkpoint(path).config.context_length == 8192
        assert (path / "model.safetensors").resolve() == (original / "model.safetensors").resolve()
    assert setup.stretched(pair, 8192, tmp_path) == long
    assert setup.digest(long) != setup.digest(pair)


def test_conversions_are_made_once_and_failures_leave_nothing(tmp_path, monkeypatch):
    pair = base.Checkpoints(CHECKPOINTS / "python-7m", None)
    asked = []

    class Told(process.PeerProcess):
        def __init__(self, *_):
            pass

        def __exit__(self, *_):
            pass

        def convert(self, checkpoints, output):
            asked.append(checkpoints)
            if len(asked) == 1:
                raise base.PeerError("no memory")

    monkeypatch.setattr(setup, "PeerProcess", Told)
    with pytest.raises(base.PeerError, match="not converted: no memory"):
        setup.converted("edgespec", Path(sys.executable), pair, tmp_path)
    folders = [setup.converted("edgespec", Path(sys.executable), pair, tmp_path) for _ in range(2)]
    assert folders[0] == folders[1]
    assert len(asked) == 2


@pytest.fixture
def pip(monkeypatch):
    """What would have been run, and with which variables; `pip.code` is what it ends with."""
    told = SimpleNamespace(code=0, commands=[], variables=[])

    def run(command, stdout, env, **_):
        told.commands.append(command[1:])
        told.variables.append(env)
        print("ERROR: No matching distribution\n\nsome advice", file=stdout, flush=True)
        if "venv" in command:
            Path(command[-1]).mkdir(parents=True, exist_ok=True)
        return SimpleNamespace(returncode=told.code)

    monkeypatch.setattr(setup.subprocess, "run", run)
    return told


def test_environments_are_made_once_and_again_for_other_needs(pip, tmp_path):
    assert not setup.installed("transformers", tmp_path)
    setup.environment("transformers", ("transformers",), tmp_path)
    assert setup.installed("transformers", tmp_path)
    pip.commands.clear()
    python = setup.environment("gguf", ("gguf",), tmp_path)
    assert pip.commands[1] == ["-m", "pip", "install", "gguf"]
    assert setup.environment("gguf", ("gguf",), tmp_path) == python
    assert len(pip.commands) == 2
    setup.environment("gguf", ("gguf",), tmp_path, {"CFLAGS": "-mno-amx-int8"})
    assert pip.commands[-1][3:] == ["--no-cache-dir", "--force-reinstall", "gguf"]
    assert pip.variables[-1]["CFLAGS"] == "-mno-amx-int8"
    assert setup.environment("", (), tmp_path) == Path(sys.executable)


def test_an_environment_that_cannot_be_installed_says_why(pip, tmp_path):
    pip.code = 1
    with pytest.raises(base.PeerError, match="not installed: ERROR: No matching distribution"):
        setup.environment("gguf", ("gguf",), tmp_path)


@pytest.fixture
def ours(tmp_path):
    """edgespec as a peer, with the embedded pair."""
    (tmp_path / "bundle").symlink_to(BUNDLE)
    with process.PeerProcess(Path(sys.executable), "edgespec", tmp_path / "log") as started:
        yield started


def test_a_peer_in_its_process_makes_texts_and_judges_them(ours, tmp_path):
    ours.load(base.Loading("lookup", tmp_path, 1, 64, (0,)))
    request = base.Request(PROMPT, 12, 0.0, 0)
    text = ours.make(request)
    assert len(text.tokens) == 12
    assert 0 < text.ttft < text.whole
    assert ours.started < text.first_at
    assert ours.make(request).tokens == text.tokens
    wrong = (*text.tokens[:5], text.tokens[5] ^ 1, *text.tokens[6:])
    assert ours.verdict(request, text.tokens, text.tokens) == "yes"
    assert ours.verdict(request, text.tokens, wrong) == "no"
    assert ours.peak_mib() > 10


def test_what_goes_wrong_in_a_peer_is_a_reason(ours, tmp_path):
    with pytest.raises(base.PeerError, match="KeyError: 'unknown'"):
        ours.load(base.Loading("unknown", tmp_path, 1, 64, (0,)))
    with pytest.raises(base.PeerError, match="load comes first"):
        ours.make(base.Request(PROMPT, 2, 0.0, 0))
    ours._process.kill()
    with pytest.raises(base.PeerError, match="status -9"):
        ours.make(base.Request(PROMPT, 2, 0.0, 0))


@pytest.mark.parametrize("name", peers.PEERS)
def test_peers_import_without_their_libraries(name):
    found = peers.peer(name)
    assert base.PLAIN in found.settings
    assert found.precision
