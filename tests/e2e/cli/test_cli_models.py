"""A user's first day: a model is named, fetched if need be, made into a bundle, and used."""

from __future__ import annotations

import json
import shutil

import huggingface_hub
import pytest
from checkpoints import make_checkpoint, write_tokenizer
from commandline import FAST, PROMPT, fails
from ggufs import write_gguf
from hubs import list_files
from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError

from edgespec.export import resolve_checkpoint
from edgespec.models.embedded import BUNDLE
from edgespec.models.named import hub_name

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
NAME = "owner/name-GGUF"
QUICK = [*FAST, "-n", 8, "--draft=none"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A chat model and one without a template, as GGUF files."""
    folder = tmp_path_factory.mktemp("files")
    make_checkpoint(folder / "c", "llama", hidden_size=64, intermediate_size=128, head_dim=32)
    write_tokenizer(folder / "c", 331)
    chat = {"tokenizer.chat_template": TEMPLATE}
    write_gguf(folder / "c", folder / "chatty.gguf", "Q8_0", **chat)
    write_gguf(folder / "c", folder / "plain.gguf", "Q8_0")
    return folder


def test_a_file_is_run_and_has_a_name_from_then_on(cli, files, own_cache):
    first = cli("run", files / "plain.gguf", PROMPT, *QUICK)
    assert (first.code, len(first.out) > 1) == (0, True)
    assert first.err.startswith("edgespec: making a bundle of plain, once: ")
    second = cli("run", "plain", PROMPT, *QUICK)
    assert second.out == first.out
    assert "edgespec:" not in second.err
    assert cli("inspect", "plain", "--json").code == 0


def test_without_a_prompt_a_chat_model_chats(cli, files, own_cache):
    chatted = cli("run", files / "chatty.gguf", *QUICK, stdin=b"hello\n", terminal=True)
    assert chatted.code == 0, chatted.err
    assert "/help shows the commands" in chatted.err
    piped = cli("run", "chatty", *QUICK, stdin=b"hello\n")
    assert "/help" not in piped.err
    assert "8 tokens (length)" in piped.err
    said = cli("run", files / "plain.gguf", *QUICK, terminal=True)
    assert said.code == 2
    assert "there is no prompt" in said.err
    assert "no chat template" in said.err
    fails(cli("run", "chatty", "--json", *QUICK, terminal=True), "there is no prompt")


def test_a_draft_is_named_like_a_model(cli, files, own_cache):
    alone = cli("run", files / "chatty.gguf", "-p", PROMPT, "--temperature", 0, *QUICK).out
    words = ["--draft", files / "plain.gguf", *FAST, "-n", 8, "--temperature", 0]
    assert cli("run", "chatty", "-p", PROMPT, *words).out == alone
    listed = json.loads(cli("models", "--json").out)
    assert {each["name"] for each in listed} == {"chatty", "chatty+plain"}
    fails(cli("run", "chatty", "-p", PROMPT, "--draft", "x.gguf"), "there is no model 'x.gguf'")
    fails(cli("plan", "chatty", "--draft", "magic"), "draft is 'magic': use one of auto")


def test_models_are_listed_named_and_removed(cli, files, own_cache):
    assert "0 models" in cli("models").out
    cli("inspect", files / "plain.gguf")
    (listed,) = json.loads(cli("models", "list", "--json").out)
    assert (listed["name"], listed["draft"]) == ("plain", None)
    assert listed["target"] == str(files / "plain.gguf")
    assert listed["size"] > 10_000
    shown = cli("models").out
    assert "plain" in shown
    assert "1 model," in shown
    assert cli("models", "name", "plain", "mine").out == "plain is called mine now\n"
    assert cli("run", "mine", PROMPT, *QUICK).code == 0
    assert cli("models", "rm", "mine").out == "removed mine\n"
    assert json.loads(cli("models", "--json").out) == []
    for words, part in (
        (["rm", "mine"], "there is no model 'mine'"),
        (["rm"], "takes the names"),
        (["name", "mine"], "takes two names"),
        (["list", "mine"], "takes no names"),
        (["drop"], "invalid choice: 'drop'"),
    ):
        fails(cli("models", *words), part)


def test_without_a_model_those_that_are_ready_are_named(cli, files, own_cache):
    words = ["chat", "-n", 2, *FAST]
    none = cli(*words, stdin=b"").err
    assert "or get one: `edgespec chat qwen3.5:0.8b`\n" in none
    cli("inspect", files / "plain.gguf")
    assert "; plain can be used, as in `edgespec chat plain`\n" in cli(*words, stdin=b"").err
    for number in range(6):
        shutil.copytree(own_cache / "models" / "plain", own_cache / "models" / f"q{number}")
    many = cli(*words, stdin=b"").err
    assert "; plain, q0, q1, q2, q3 and 2 more can be used, as in `edgespec chat plain`" in many


def test_the_demonstration_is_called_one(cli):
    words = ["-n", 2, *FAST]
    for given in (["run", PROMPT], ["chat"]):
        found = cli(*given, *words, stdin=b"")
        assert "this is python-7m, a demonstration that knows a little Python" in found.err
    assert "demonstration" not in cli("run", BUNDLE, PROMPT, *words).err


# From the Hub


@pytest.fixture
def hub(files, monkeypatch, tmp_path, own_cache):
    """A repository of GGUF files; the names of what is asked of the Hub."""
    asked = []
    snapshot = tmp_path / "models--owner--name-GGUF" / "snapshots" / "0123"
    listed = ["README.md", "mmproj-Q4_K_M.gguf", "name.Q8_0.gguf", "name-q4_k_m.gguf", "Q2_K.gguf"]

    def snapshot_download(repository, **_):
        asked.append(repository)
        return str(snapshot)

    def hf_hub_download(repository, name):
        asked.append(f"{repository}:{name}")
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        return shutil.copy(files / "plain.gguf", snapshot / name)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hf_hub_download)
    list_files(monkeypatch, listed)
    return asked


def test_a_repository_of_files_is_used_once_fetched(cli, hub, monkeypatch):
    first = cli("run", NAME, PROMPT, *QUICK)
    assert first.code == 0, first.err
    assert hub == [NAME, f"{NAME}:name-q4_k_m.gguf", f"{NAME}:mmproj-Q4_K_M.gguf"]
    second = cli("run", NAME, PROMPT, *QUICK)
    assert (second.out, len(hub)) == (first.out, 3)
    assert json.loads(cli("models", "--json").out)[0]["name"] == "name-gguf"
    assert cli("run", f"{NAME}:name.Q8_0.gguf", PROMPT, *QUICK).out == first.out


@pytest.mark.parametrize(
    ("pasted", "meant"),
    [
        ("hf.co/owner/name-GGUF", NAME),
        ("huggingface.co/owner/name-GGUF:latest", NAME),
        ("https://huggingface.co/owner/name-GGUF", NAME),
        ("https://huggingface.co/owner/name-GGUF/", NAME),
        ("https://huggingface.co/owner/name-GGUF/tree/main?x=1", NAME),
        ("https://huggingface.co/owner/name-GGUF/blob/main/q/a.gguf", f"{NAME}:q/a.gguf"),
        ("http://hf.co/owner/name-GGUF/resolve/main/a.gguf?download=true", f"{NAME}:a.gguf"),
        ("hf.co/owner/name-GGUF:Q8_0", f"{NAME}:Q8_0"),
        (f"{NAME}:latest", NAME),
        (f"{NAME}:Q8_0", f"{NAME}:Q8_0"),
        ("https://example.com/owner/name", "https://example.com/owner/name"),
        ("./hf.co/owner/name", "./hf.co/owner/name"),
    ],
)
def test_addresses_of_the_hub_are_names(pasted, meant):
    assert hub_name(pasted) == meant


def test_a_file_is_asked_for_by_its_precision(cli, hub, monkeypatch):
    whole = cli("run", f"{NAME}:name.Q8_0.gguf", PROMPT, *QUICK)
    for pasted in (f"hf.co/{NAME}:Q8_0", f"https://huggingface.co/{NAME}:q8_0"):
        hub.clear()
        assert cli("run", pasted, PROMPT, *QUICK).out == whole.out
        assert hub[0] == f"{NAME}:name.Q8_0.gguf"
    fails(cli("run", f"{NAME}:Q3_K_M", PROMPT), "no GGUF file in Q3_K_M: it has Q2_K, Q4_K_M, Q8_0")
    list_files(monkeypatch, ["model.safetensors"])
    fails(cli("run", f"{NAME}:Q4_K_M", PROMPT), "no GGUF file in Q4_K_M: leave out :Q4_K_M")


def test_options_of_llama_cpp_are_taken(cli, files, own_cache):
    ours = cli("run", files / "plain.gguf", PROMPT, "--threads=1", "--context=256", "-n", 8)
    for words in (
        ["run", "-m", files / "plain.gguf", "-p", PROMPT, "-t", 1, "-c", 256, "-n", 8],
        ["run", "-n", 8, f"--model={files / 'plain.gguf'}", "-t", 1, "--ctx-size=256", PROMPT],
        ["run", PROMPT, "-hf", "plain", "-s", 3, "--temp", 0, "-t", 1, "-c", 256, "--predict", 8],
    ):
        found = cli(*words)
        assert (found.code, found.out) == (0, ours.out), found.err
    assert cli("run", "plain", "-n", 2, *FAST, "--", "-m").code == 0  # a prompt


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["ps"], "`edgespec list` shows"),
        (["stop", "qwen"], "Ctrl-C ends a server"),
        (["create", "mine", "-f", "Modelfile"], "`edgespec pull MODEL` makes a model ready"),
        (["cp", "a", "b"], "`edgespec models name OLD NEW`"),
        (["-m", "model.gguf", "-p", "x"], "as in `edgespec run -m"),
        (["run", "-m"], "-m names no model"),
        (["chat", "-cnv"], "`edgespec chat MODEL`"),
        (["chat", "-p", "x"], "`edgespec run MODEL -p PROMPT`"),
        (["run", "x y", "--repeat-penalty", "1.1"], "--config FILE, as repetition_penalty = 1.1"),
        (["run", "x y", "-fa", "on"], "leave it out"),
    ],
)
def test_what_others_have_and_is_none_here_says_how(cli, words, told):
    fails(cli(*words), told)


@pytest.mark.parametrize(
    ("listed", "taken"),
    [
        (["a-Q8_0.gguf", "a-Q5_K_M.gguf", "a-F16.gguf"], "a-Q5_K_M.gguf"),
        (["UD/a-UD-Q4_K_XL.gguf", "a-IQ4_XS.gguf"], "UD/a-UD-Q4_K_XL.gguf"),
        (["q4_k_m/a-Q4_K_M.gguf", "a.Q4_K_M.gguf"], "a.Q4_K_M.gguf"),
        (["a-BF16-00002-of-00002.gguf", "a-BF16-00001-of-00002.gguf"],
         "a-BF16-00001-of-00002.gguf"),
        (["a-mxfp4.gguf", "mmproj-a-Q4_K_M.gguf"], "a-mxfp4.gguf"),
        (["a-IQ1_S.gguf", "a-UD-IQ2_XXS.gguf", "a-TQ1_0.gguf"], "a-UD-IQ2_XXS.gguf"),
    ],
)  # fmt: skip
def test_the_nearest_to_q4_k_m_is_taken(hub, monkeypatch, listed, taken):
    list_files(monkeypatch, listed)
    resolve_checkpoint(NAME)
    assert hub[1] == f"{NAME}:{taken}"


def test_a_repository_that_tells_no_precision(cli, hub, monkeypatch):
    list_files(monkeypatch, ["model.gguf"])
    fails(cli("run", NAME, PROMPT), "no file's name tells its precision", f"{NAME}:model.gguf")


@pytest.mark.parametrize(
    ("error", "part"),
    [
        (LocalEntryNotFoundError("no cached snapshot"), "the Hub cannot be reached: connect to"),
        (RepositoryNotFoundError.__new__(RepositoryNotFoundError), "no such repository, or it is"),
    ],
)
@pytest.mark.parametrize("name", ["owner/name", "owner/name:model.gguf"])
def test_what_cannot_be_fetched_is_said(cli, own_cache, monkeypatch, name, error, part):
    """And a Hub that does not answer is asked for its files once, not for half a minute."""
    listed = []

    def fail(*_, **__):
        raise error

    def unanswered(*asked, **_):
        listed.append(asked)
        raise ConnectionError

    monkeypatch.setattr(huggingface_hub, "model_info", unanswered)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    fails(cli("run", name, PROMPT), name, part)
    fails(cli("chat", BUNDLE, "--draft", name), name, part)
    assert len(listed) <= 2
