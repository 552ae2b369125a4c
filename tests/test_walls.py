"""Who may import whom, read from the source of every module."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Unpack, get_type_hints

import pytest

import edgespec
from edgespec import LLM
from edgespec.api.chat import ChatOptions
from edgespec.api.keywords import ChatKeywords, GenerationKeywords, LoadKeywords
from edgespec.api.loading import LoadOptions
from edgespec.api.options import GenerationOptions
from edgespec.api.sessions import Session

SUBPACKAGES = ("models", "export", "runtime")


def all_modules():
    """Source of every module of the package by its full name, in a checkout as in a wheel."""
    found = {"edgespec": Path(edgespec.__file__)}
    own = [str(Path(edgespec.__file__).parent)]
    walks = [pkgutil.walk_packages(own, "edgespec.", onerror=fail)]
    for name in SUBPACKAGES:
        package = importlib.import_module(f"edgespec.{name}")
        found[package.__name__] = Path(package.__file__)
        walks.append(pkgutil.walk_packages(package.__path__, f"edgespec.{name}.", onerror=fail))
    for walk in walks:
        for module in walk:
            # Found, not imported: engines load heavy libraries.
            path = Path(find_spec(module.name).origin)
            if path.suffix == ".py":  # the compiled operators look like a module
                found[module.name] = path
    return found


def fail(name):
    raise ImportError(name)


MODULES = all_modules()


def imports(name):
    """Full names of the modules that a module imports, anywhere in it, `import_module` included."""
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    package = name if MODULES[name].name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) + 1 - node.level]
                base = ".".join([*parents, *([base] if base else [])])
            # `from package import module` reaches the module.
            names = {f"{base}.{alias.name}" for alias in node.names}
            found |= names & MODULES.keys() or {base}
        elif isinstance(node, ast.Constant) and node.value in MODULES.keys() - {"edgespec"}:
            found.add(node.value)
    return found


def within(name, *packages):
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def own_imports(name):
    return {found for found in imports(name) if within(found, "edgespec")}


def foreign_imports(name):
    """Top-level names of what is neither ours nor the standard library's."""
    roots = {found.partition(".")[0] for found in imports(name)}
    return roots - set(sys.stdlib_module_names) - {"edgespec"}


def part(*packages):
    return [name for name in MODULES if within(name, *packages)]


def test_every_module_is_seen():
    """The tests below would pass on an empty list."""
    assert {
        "edgespec.api.llm",
        "edgespec.cli.commands.run",
        "edgespec.models.families.llama",
    } <= MODULES.keys()
    assert {"edgespec.export.components.graph", "edgespec.runtime.drafters.model"} <= MODULES.keys()
    assert {"onnxruntime", "openvino"} <= {
        root for name in part("edgespec.runtime.engines") for root in foreign_imports(name)
    }
    assert "edgespec.runtime.engines.cpu.openvino" in imports("edgespec.runtime.engines")
    assert "edgespec.bundle" in imports("edgespec.export.exporter")


# From the ground up: a module imports from its own floor and from those before it.
FLOORS = (
    "errors", "system", "bundle", "models", "export", "runtime.arrays", "runtime.shapes",
    "runtime.curve", "runtime.kernels", "runtime.engines", "runtime.sampling",
    "runtime.text", "runtime.sequences", "runtime.plan", "runtime.execution", "runtime.costs",
    "runtime.deployment", "runtime.drafters", "runtime.speculation", "runtime.planning",
    "runtime.decoding", "api", "measuring", "tuning", "training",
    "server", "batch", "cli",
)  # fmt: skip


def floor(name):
    """Where a module stands; the package itself and its docstring-only rooms stand nowhere."""
    places = [n for n, each in enumerate(FLOORS) if within(name, f"edgespec.{each}")]
    return places[-1] if places else None


def test_every_module_has_a_floor():
    roots = {"edgespec", "edgespec.__main__", "edgespec.runtime"}
    assert {name for name in MODULES if floor(name) is None} == roots


def test_no_import_goes_up():
    for name in MODULES:
        if floor(name) is None:
            continue
        up = {each for each in own_imports(name) if (floor(each) or 0) > floor(name)}
        assert not up, f"{name} imports {sorted(up)}"


def test_export_and_runtime_meet_in_the_bundle_alone():
    for name in part("edgespec.runtime"):
        assert not [i for i in own_imports(name) if within(i, "edgespec.export", "edgespec.models")]
    for name in part("edgespec.export", "edgespec.models"):
        assert not [i for i in own_imports(name) if within(i, "edgespec.runtime")]


ARITHMETIC = (
    "arrays", "speculation.tree", "sampling.noise", "sampling.truncation",
    "sampling.sampler", "drafters.ranking", "drafters.acceptance",
)  # fmt: skip


@pytest.mark.parametrize("module", ARITHMETIC)
def test_the_arithmetic_of_speculation_needs_numpy_alone(module):
    siblings = [f"edgespec.runtime.{each}" for each in ARITHMETIC]
    for name in part(f"edgespec.runtime.{module}"):
        assert foreign_imports(name) <= {"numpy"}
        others = {found for found in own_imports(name) if not within(found, *siblings)}
        assert others <= {
            "edgespec.errors", "edgespec.system.options", "edgespec.system.files",
            "edgespec.bundle.caches",
        }  # fmt: skip


def test_the_search_for_skip_sets_needs_numpy_alone():
    for name in part("edgespec.export.skipping"):
        assert foreign_imports(name) <= {"numpy"}
        for found in own_imports(name):
            assert within(found, "edgespec.export.skipping", "edgespec.bundle", "edgespec.errors")


OPENERS = "edgespec.api.models", "edgespec.api.sources", "edgespec.tuning.calibrating"


def test_only_engines_import_engines():
    for name in MODULES:
        if not within(name, "edgespec.runtime.engines"):
            assert not foreign_imports(name) & {"onnxruntime", "openvino"}, name
            # The engines' package itself loads them by name, on demand.
            inner = own_imports(name) - {"edgespec.runtime.engines"}
            if name in OPENERS:
                inner -= {"edgespec.runtime.engines.native", "edgespec.runtime.engines.portable"}
            assert not [i for i in inner if within(i, "edgespec.runtime.engines")], name


@pytest.mark.parametrize(
    "name", ["edgespec.runtime.decoding.generate", "edgespec.runtime.decoding.pipelines"]
)
def test_the_loop_names_no_drafter_and_no_engine(name):
    path = MODULES[name]
    names = {
        alias.name
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert "TreeBudget" in names
    exported = set(importlib.import_module("edgespec.runtime.drafters").__all__)
    assert not names & (exported - {"Drafter", "TreeBudget", "drafting", "in_one_step"})
    concrete = ("edgespec.runtime.engines", "edgespec.runtime.deployment.selection")
    for found in own_imports(name):
        assert not within(found, *concrete), found
        assert not found.startswith("edgespec.runtime.drafters."), found


def test_export_needs_no_torch():
    for name in part("edgespec.export", "edgespec.models"):
        assert not foreign_imports(name) & {"torch", "transformers", "safetensors"}, name


def test_only_training_needs_torch():
    for name in MODULES:
        if not within(name, "edgespec.training", "edgespec.models.training"):
            assert "torch" not in foreign_imports(name), name


# Public names


def test_public_names():
    assert sorted(edgespec.__all__) == ["GenerationResult", "LLM", "__version__"]
    assert edgespec.LLM.__module__ == "edgespec.api.llm"
    assert edgespec.GenerationResult.__module__ == "edgespec.api.result"
    assert dir(edgespec) == sorted(edgespec.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Llm'"):
        edgespec.Llm  # noqa: B018


LOADING = (LoadOptions, LoadKeywords, {}, [LLM.__init__])
GENERATING = (
    GenerationOptions, GenerationKeywords, {"stop": str | Iterable[str]},
    [LLM.generate, LLM.stream, Session.generate, Session.stream],
)  # fmt: skip
CHATTING = (
    ChatOptions, ChatKeywords, {"stop": str | Iterable[str]},
    [LLM.chat, LLM.chat_stream, Session.chat],
)  # fmt: skip


@pytest.mark.parametrize(("kind", "keywords", "wider", "takers"), [LOADING, GENERATING, CHATTING])
def test_keywords_are_known_to_type_checkers_and_to_help(kind, keywords, wider, takers):
    assert get_type_hints(keywords) == get_type_hints(kind) | wider
    defaults = {field.name: field.default for field in fields(kind)}
    for taker in takers:
        parameters = inspect.signature(taker).parameters.values()
        only = {each.name: each.default for each in parameters if each.kind == each.KEYWORD_ONLY}
        assert only == defaults
        assert get_type_hints(taker)["options"] == Unpack[keywords]


LOADED = "import sys; print(*sorted({m.partition('.')[0] for m in sys.modules}))"


@pytest.mark.parametrize(
    "statement",
    ["import edgespec", "from edgespec import LLM", "import edgespec.cli.commands.train_draft"],
)
def test_importing_loads_no_engine(statement, tmp_path):
    command = [sys.executable, "-c", f"{statement}\n{LOADED}"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    assert "edgespec" in loaded
    assert not loaded & {"onnxruntime", "openvino", "torch", "onnx"}
