"""Fixtures of all tests."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from shutil import copytree
from types import SimpleNamespace

if "PYTEST_XDIST_WORKER" in os.environ:
    # Before numpy and torch are loaded: workers take all cores, and threads of each beside those
    # of the others would wait by spinning. Processes that tests start take it over.
    for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(_name, "1")

import pytest
from hypothesis import settings

from edgespec.cli import main

# The same examples every time, however slow the machine is.
settings.register_profile("edgespec", derandomize=True, deadline=None)
settings.load_profile("edgespec")

SOFTWARE_GPUS = [
    Path(folder, "vk_swiftshader_icd.json")
    for folder in ("/usr/lib/chromium", "/usr/lib/chromium-browser", "/opt/google/chrome")
]


@pytest.fixture(scope="session", autouse=True)
def cache_of_its_own(tmp_path_factory):
    """Neither read nor fill the user's cache, in this process and in those it starts.

    Nor read the user's own file of models.
    """
    own = tmp_path_factory.mktemp("settings") / "models.toml"
    own.touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGESPEC_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("EDGESPEC_CATALOGUE", str(own))
        yield


@pytest.fixture(scope="session", autouse=True)
def gpu_in_software():
    """Let WebGPU use SwiftShader if a browser has installed it, as in CI.

    This must happen before any test asks for GPUs, because a process looks for them only once.
    """
    found = [driver for driver in SOFTWARE_GPUS if driver.exists()]
    with pytest.MonkeyPatch.context() as patch:
        if found and "VK_DRIVER_FILES" not in os.environ:
            patch.setenv("VK_DRIVER_FILES", str(found[0]))
            patch.setenv("ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER", "1")
        yield


@pytest.fixture(scope="session")
def pairs(tmp_path_factory):
    """Small bundles by name, each made at its first use."""
    from pairs import Pairs  # late, because it imports torch

    return Pairs(tmp_path_factory.mktemp("pairs"))


@pytest.fixture(scope="module")
def natives(pairs):
    """Loaded native models of small bundles, by name and draft."""
    from native_llms import loaded

    return cache(lambda name, draft="auto": loaded(pairs, name, draft))


@pytest.fixture
def long_calls(monkeypatch):
    """The rows of each call that a GPU made through layers on the host; no trial is made."""
    from edgespec.llm.load import graphs
    from edgespec.runtime.engines.portable import layerwise

    monkeypatch.setattr(graphs, "reads_prompts", lambda *_: True)
    calls = []
    make = layerwise.LayerwiseGraph.__call__

    def counted(graph, feeds):
        calls.append(len(feeds["write"]))
        return make(graph, feeds)

    monkeypatch.setattr(layerwise.LayerwiseGraph, "__call__", counted)
    return calls


@pytest.fixture(scope="session")
def real_bundle(tmp_path_factory):
    """Bundles of real checkpoints by name and options, each made once for all workers."""
    from real import Exports

    base = tmp_path_factory.getbasetemp()
    return Exports((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "real")


@pytest.fixture
def own_cache(monkeypatch, tmp_path):
    """The path of an empty cache folder of the test's own."""
    monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def saved_checkpoint(tmp_path_factory):
    """Small checkpoints by architecture and config, made once; tests may change only copies."""
    from checkpoints import make_checkpoint  # late, because it imports torch

    @cache
    def folder(architecture, **config):
        path = tmp_path_factory.mktemp(architecture)
        make_checkpoint(path, architecture, **config)
        return path

    return folder


@pytest.fixture(scope="session")
def exported(saved_checkpoint, tmp_path_factory):
    """A bundle with a target in int4 and a draft in fp16; tests may change only copies."""
    from edgespec import export
    from edgespec.export import ExportOptions

    source = saved_checkpoint("llama")
    folder = tmp_path_factory.mktemp("exported") / "bundle"
    export.make(source, folder, source, ExportOptions(draft_precision="fp16"))
    return folder


@pytest.fixture
def folder(exported, tmp_path):
    """A copy of that bundle for one test."""
    return copytree(exported, tmp_path / "bundle")


@pytest.fixture
def output(tmp_path):
    """A destination for exports in a folder of its own, so that leftovers beside it are seen."""
    (tmp_path / "made").mkdir()
    return tmp_path / "made" / "bundle"


@pytest.fixture(scope="session")
def served_bundle(tmp_path_factory):
    """A bundle for servers: random weights in fp32, with a chat template."""
    from servers import make_bundle

    return make_bundle(tmp_path_factory.mktemp("served"))


@pytest.fixture
def cli(capsys, monkeypatch):
    """Run the CLI in this process; returns exit code, stdout and stderr."""

    def run(*arguments, stdin=b"", terminal=False):
        class Stdin(io.TextIOWrapper):
            def isatty(self):
                return terminal

        # The encoding is what Windows has for pipes.
        monkeypatch.setattr(sys, "stdin", Stdin(io.BytesIO(stdin), "cp1252"))
        monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return SimpleNamespace(code=code, out=captured.out, err=captured.err)

    return run


@pytest.fixture
def interruptible():
    """Ctrl-C interrupts, which background jobs of a shell ignore, and does so again afterwards."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGINT, previous) is signal.default_int_handler


@pytest.fixture
def start(tmp_path):
    """Run the CLI in a process of its own, away from the checkout."""
    started = []

    def run(*arguments, both=False, stdin=subprocess.DEVNULL, **environment):
        # Background jobs of a shell ignore SIGINT, and so would their children.
        code = (
            "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
            "from edgespec.cli import main; sys.exit(main())"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if both else subprocess.PIPE,
            cwd=tmp_path,
            env={**os.environ, **environment},
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()
