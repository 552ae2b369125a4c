"""What people would use in edgespec's place: a file a peer, each in an environment of its own.

A peer runs in a process, which speaks one line of JSON a request on stdin and stdout. Its file is
imported on both sides, so what only the peer has is imported inside its functions. It has

* `REQUIREMENTS`: for pip; nothing: our own environment.
* `SETTINGS`: the ways to decode, and how each is set up; one of them is `plain`.
* one class with `texts`, made of a `Loading`: `texts(prompts, new_tokens, temperature, seed, began,
  known)` returns the new tokens of each prompt, and calls `began()` when the first has come. It
  uses nothing of earlier texts, but for so many `known` tokens of the prompt, which it has read.
  Where it can tell, `accepted` is how many drafted tokens are in the last texts.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Timer
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType

_HERE = Path(__file__).resolve().parent
_ENERGY = Path("/sys/class/powercap")
FILES = {
    "edgespec": _HERE / "own.py",
    "xllamacpp": _HERE.parents[1] / "edgespec/measuring/llama_cpp.py",
    "ik_llama.cpp": _HERE / "ik.py",
    "openvino-genai": _HERE / "openvino_genai.py",
    "onnxruntime-genai": _HERE / "ort_genai.py",
}
"""The file of each peer."""
PLAIN = "plain"
_MARKER = "installed.json"  # in an environment that is whole

# Our folder comes last, and -P leaves out the current one, so that no name hides a library's.
_START = "import sys; sys.path.append(sys.argv[1]); import peers; peers.serve(sys.argv[2])"
_GRACE = 5.0  # seconds to end in, once nobody asks any more
_PATIENCE = 1800.0  # seconds that an answer may take: conversions are the longest


class PeerError(Exception):
    """Why a peer, or one of its settings, could not be run."""


@dataclass(frozen=True)
class Loading:
    """How a peer is loaded.

    Attributes:
        target: the GGUF file.
        draft: that of its draft; None: there is none.
        setting: one of the peer's settings.
        threads: for its operators.
        context: tokens of all texts that are made at once.
        sequences: texts at once.
        folder: where the peer keeps models in its own format; empty: it has none of its own.
        checkpoint: folder of the target's checkpoint, for peers that read no GGUF files.
        draft_checkpoint: folder of the draft's.
        head: draft head that a text is drafted with in the draft's place: for edgespec as it was
            given, for others a GGUF file, see `peers.head_file`; None: in other settings.
        form: what that file holds, eagle3, dflash or dspark; None: there is no such file.
        keeps: whether texts may use what earlier ones have computed.
    """

    target: str
    draft: str | None
    setting: str
    threads: int
    context: int
    sequences: int
    folder: str
    checkpoint: str | None = None
    draft_checkpoint: str | None = None
    head: str | None = None
    form: str | None = None
    keeps: bool = False


@dataclass(frozen=True)
class Made:
    """Texts that were made at once.

    Attributes:
        tokens: the new ones of each.
        first: seconds to the first new token of any.
        seconds: until all had ended.
        first_cpu: seconds of processor time of the peer's process to the first new token.
        cpu: all of it.
        joules: that the processor took meanwhile, other programs' share among them; None: it
            doesn't tell, or not this user.
        accepted: drafted tokens among the new ones; None: the peer doesn't tell.
    """

    tokens: list[list[int]]
    first: float
    seconds: float
    first_cpu: float
    cpu: float
    joules: float | None = None
    accepted: int | None = None


def joules_since(begin: Mapping[Path, int]) -> float | None:
    """Returns the joules of all processors since `energy` was asked; None: unknown."""
    spent = 0
    for zone, before in begin.items():
        spent += (_read(zone / "energy_uj") - before) % _read(zone / "max_energy_range_uj")
    return spent / 1e6 if begin else None


def energy() -> dict[Path, int]:
    """Returns the counter of each processor (RAPL), in millionths of a joule, where it is told."""
    found = dict[Path, int]()
    for zone in sorted(_ENERGY.glob("intel-rapl:?")):
        with suppress(OSError):
            found[zone] = _read(zone / "energy_uj")
    return found


def _read(file: Path) -> int:
    return int(file.read_text(encoding="ascii"))


def module_of(name: str) -> ModuleType:
    """Imports a peer's file."""
    spec = importlib.util.spec_from_file_location(f"peer_{FILES[name].stem}", FILES[name])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def model_of(module: ModuleType) -> type[Any]:
    """Returns the class of a peer's file that makes texts."""
    classes: list[type[Any]] = [each for each in vars(module).values() if hasattr(each, "texts")]
    (found,) = classes
    return found


def python_of(name: str, cache: Path) -> Path:
    """Returns the interpreter of a peer's environment, which is made once and kept.

    Raises:
        PeerError: pip could not install what it needs.
    """
    wanted = list(module_of(name).REQUIREMENTS)
    if not wanted:
        return Path(sys.executable)
    folder = _environment(name, cache)
    python = folder / "bin" / "python"
    if is_installed(name, cache):
        return python
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "pip.log"
    with log.open("w", encoding="utf-8") as output:
        for command in (
            [sys.executable, "-m", "venv", str(folder)],
            [str(python), "-m", "pip", "install", "--only-binary", ":all:", *wanted],
        ):
            if subprocess.run(command, stdout=output, stderr=output, check=False).returncode:
                raise PeerError(f"not installed: see {log}")
    (folder / _MARKER).write_text(json.dumps(wanted))
    return python


def is_installed(name: str, cache: Path) -> bool:
    """Whether a peer has the environment that it needs."""
    wanted = list(module_of(name).REQUIREMENTS)
    marker = _environment(name, cache) / _MARKER
    return not wanted or (marker.exists() and json.loads(marker.read_text()) == wanted)


def _environment(name: str, cache: Path) -> Path:
    return cache / "environments" / name


class Peer:
    """A peer with a setting in a process of its own, made ready; a context manager that ends it.

    Args:
        name: the peer's.
        loading: how it is loaded.
        cache: folder of environments, models and logs.

    Attributes:
        started: when its process was started, by the system's monotonic clock.
        versions: of the packages that it requires.

    Raises:
        PeerError: it cannot be run, here and in all methods.
    """

    def __init__(self, name: str, loading: Loading, cache: Path) -> None:
        python = python_of(name, cache)
        environment = dict(os.environ)
        if loading.folder:
            environment["EDGESPEC_CACHE"] = loading.folder
        if python != Path(sys.executable):  # what makes us importable may hide modules of its own
            environment.pop("PYTHONPATH", None)
        self._last_words = cache / "logs" / f"{name}-{loading.setting}.log"
        self._last_words.parent.mkdir(parents=True, exist_ok=True)
        self.started = time.monotonic()
        with self._last_words.open("a", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                [str(python), "-P", "-c", _START, str(_HERE.parent), name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
            )
        with ExitStack() as stack:
            stack.callback(self.close)
            self.versions: dict[str, str] = self._ask("load", **asdict(loading))
            stack.pop_all()

    def texts(
        self,
        prompts: Sequence[Sequence[int]],
        new_tokens: int,
        temperature: float = 0,
        seed: int = 0,
        known: int = 0,
    ) -> Made:
        """Makes texts at once, each as if it were the first: nothing of an earlier one is used.

        Args:
            prompts: token ids of each.
            new_tokens: of each.
            temperature: 0 for greedy texts.
            seed: of sampling.
            known: so many tokens of a single prompt are read before, as those of an earlier turn.
        """
        asked = {"prompts": prompts, "new_tokens": new_tokens, "known": known}
        return Made(**self._ask("texts", **asked, temperature=temperature, seed=seed))

    def seconds(self, rows: int, length: int) -> float:
        """Returns the processor time of a pass over rows, all scored, behind a text."""
        found: float = self._ask("seconds", rows=rows, length=length)
        return found

    def close(self) -> None:
        """Ends the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):  # it may have ended already
                pipe.close()
        try:
            self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, verb: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        watchdog = Timer(_PATIENCE, self._process.kill)
        watchdog.start()
        try:
            self._process.stdin.write(json.dumps([verb, arguments]) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            watchdog.cancel()
        if not line:
            status = self._process.wait()
            raise PeerError(f"its process ended with status {status}, see {self._last_words}")
        answer = json.loads(line)
        if "error" in answer:
            raise PeerError(answer["error"])
        return answer["answer"]


def serve(name: str) -> None:
    """Answers on the peer's side until nobody asks any more; the first question is `load`."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries print, and stdout is for answers
    verbs = _Verbs(module_of(name))
    for line in sys.stdin:
        verb, arguments = json.loads(line)
        ask: Callable[..., Any] = getattr(verbs, verb)
        try:
            answer = {"answer": ask(**arguments)}
        except Exception as error:  # whatever it is, it is the reason in the table
            answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        print(json.dumps(answer), file=answers, flush=True)


class _Verbs:
    """The questions."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._model = None

    def load(self, **loading: Any) -> dict[str, str]:
        setting = loading["setting"]
        settings = self._module.SETTINGS
        if setting not in settings:
            raise PeerError(f"{setting} is none of its settings: {', '.join(settings)}")
        self._model = model_of(self._module)(SimpleNamespace(**loading))
        packages = [each.partition("==")[0] for each in self._module.REQUIREMENTS]
        return {each: importlib.metadata.version(each) for each in packages}

    def texts(self, **asked: Any) -> dict[str, Any]:
        assert self._model is not None, "load comes first"
        if known := asked["known"]:
            before = {"prompts": [asked["prompts"][0][:known]], "new_tokens": 1, "known": 0}
            self._model.texts(**{**asked, **before}, began=lambda: None)
        counters = energy()
        begin = time.perf_counter(), time.process_time()
        first = list[tuple[float, float]]()

        def began() -> None:
            first.append(spent())

        def spent() -> tuple[float, float]:
            return time.perf_counter() - begin[0], time.process_time() - begin[1]

        tokens = self._model.texts(**asked, began=began)
        seconds, cpu = spent()
        joules = joules_since(counters)
        first.append((seconds, cpu))  # of a peer that cannot tell
        whole = [list(map(int, each)) for each in tokens]
        accepted = getattr(self._model, "accepted", None)
        return asdict(Made(whole, first[0][0], seconds, first[0][1], cpu, joules, accepted))

    def seconds(self, rows: int, length: int) -> float:
        assert self._model is not None, "load comes first"
        found: float = self._model.seconds(rows, length)
        return found
