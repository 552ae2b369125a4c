"""Commands and options as users of Ollama and llama.cpp type them."""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.errors import InputError

ELSEWHERE = {
    "ps": "no model stays loaded behind a command: `edgespec list` shows those that are ready, and "
    "a server says at /api/ps which it has loaded",
    "stop": "no model stays loaded behind a command, and Ctrl-C ends a server",
    "create": "`edgespec pull MODEL` makes a model ready, --system and --config FILE give what a "
    "Modelfile says, and `edgespec export` makes a bundle to ship",
    "cp": "`edgespec models name OLD NEW` gives a model another name",
    "signin": "there are no accounts; models that need one on the Hub want `hf auth login`",
}
"""Further commands of Ollama, and what there is instead."""

MODEL_OPTIONS = ("-m", "--model", "-hf", "-hfr", "--hf-repo")
OF_LLAMA_CPP = {
    "-c": "--context",
    "--ctx-size": "--context",
    "-t": "--threads",
    "-ngl": "--gpu-layers",
    "--n-gpu-layers": "--gpu-layers",
    "--predict": "-n",
    "--n-predict": "-n",
    "-s": "--seed",
    "--temp": "--temperature",
    "-md": "--draft",
    "--model-draft": "--draft",
    "-sys": "--system",
    "--system-prompt": "--system",
    "-np": "--parallel",
    "-no-cnv": "--raw",
    "--no-conversation": "--raw",
    "-r": "--stop",
    "--reverse-prompt": "--stop",
}
"""Options as users of llama.cpp type them, and ours."""
_CHATS = "`edgespec chat MODEL` talks in the terminal"
_SETTING = "it is an option of --config FILE, as repetition_penalty = 1.1"
_SAMPLER = "it is an option of --config FILE, with _ for -, as xtc_probability = 0.5"
_SIGMA = "it is an option of --config FILE, as top_n_sigma = 1.0"
_NEEDLESS = "leave it out, since it is so without being asked for, or not needed here"
INSTEAD = {
    **dict.fromkeys(("-cnv", "--conversation", "-i", "--interactive"), _CHATS),
    **dict.fromkeys(("--repeat-penalty", "--presence-penalty", "--frequency-penalty"), _SETTING),
    **dict.fromkeys(("--dry-multiplier", "--xtc-probability", "--mirostat"), _SAMPLER),
    "--typical": "it is an option of --config FILE, as typical_p = 0.9",
    **dict.fromkeys(("--top-nsigma", "--top-n-sigma"), _SIGMA),
    **dict.fromkeys(
        (
            "--jinja",
            "-fa",
            "--flash-attn",
            "-b",
            "--batch-size",
            "-ub",
            "--mlock",
            "--no-mmap",
            "--color",
            "-e",
            "--no-display-prompt",
            "--nowordwrap",
            "--keepalive",
            "--insecure",
        ),
        _NEEDLESS,
    ),
    "--format": "--json-schema FILE makes an answer follow a JSON schema",
    "-p": "`edgespec run MODEL -p PROMPT` answers one prompt; --system tells a chat how to answer",
    "--mmproj": "put the file that reads images beside the model's, with mmproj in its name",
    "-hff": "name the file behind the repository, as owner/name:FILE.gguf",
    "--hf-file": "name the file behind the repository, as owner/name:FILE.gguf",
}
"""Options of others that are none here, and what there is instead."""

SETTINGS_OF_OLLAMA = {"num_predict": "max_new_tokens", "repeat_penalty": "repetition_penalty"}
SETTINGS_INSTEAD = {
    "num_ctx": "start the chat with --context N",
    "format": "/set json_schema FILE makes answers follow a JSON schema",
    "quiet": "/stats shows the speed of an answer, when it is asked for",
    "verbose": "/stats shows the speed of an answer",
    "think": "/set thoughts on shows reasoning, off folds it to a line",
    "wordwrap": "words are wrapped on a terminal, code is not",
    "history": "earlier lines come back by the arrow keys, unless they begin with a space",
}
"""What Ollama's chat takes behind /set, and what there is instead."""


def translated(argv: Sequence[str]) -> Sequence[str]:
    """Returns arguments with llama.cpp's options as ours, and the model's behind the command."""
    end = [*argv, "--"].index("--")
    model = list[str]()
    words = list[str]()
    given = iter(argv[1:end])
    for word in given:
        name, equals, value = word.partition("=")
        if name in MODEL_OPTIONS:
            found = value if equals else next(given, "")
            if not found:
                raise InputError(f"{name} names no model: give a file or owner/name behind it")
            model.append(found)
        else:
            words.append(OF_LLAMA_CPP.get(name, name) + equals + value)
    return [*argv[:1], *model, *words, *argv[end:]]
