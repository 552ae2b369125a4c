"""Who may import whom, read from the source of every module, and how much a step enters."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
from importlib.util import find_spec
from pathlib import Path

import pytest
from checkout import ROOT

import edgespec

PACKAGES = ("edgespec", "edgespec.models", "edgespec.export", "edgespec.runtime")


def all_modules():
    """Source of every module of the package by its full name, in a checkout as in a wheel."""
    found = {}
    for package in PACKAGES:
        root = Path(find_spec(package).origin).parent
        for path in root.rglob("*.py"):
            if (path.parent / "__init__.py").exists():  # else scripts, which are not installed
                inner = path.relative_to(root).with_suffix("").parts
                found[".".join([package, *inner]).removesuffix(".__init__")] = path
    return found


MODULES = all_modules()


def test_all_packages_are_installed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found = {name for name, path in MODULES.items() if path.name == "__init__.py"}
    assert set(project["tool"]["setuptools"]["packages"]) == found


def imports(name):
    """Full names of the modules that a module imports, anywhere in it, `import_module` included."""
    return imports_in(ast.parse(MODULES[name].read_text(encoding="utf-8")), name)


def imports_in(tree, name):
    """See `imports`, of what is in a tree of the module."""
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
        "edgespec.llm.llm",
        "edgespec.cli.commands.run",
        "edgespec.models.families.llama",
        "edgespec.export.graph_builder",
        "edgespec.runtime.drafters.model",
    } <= MODULES.keys()
    engines = part("edgespec.runtime.engines")
    assert {"onnxruntime", "openvino"} <= {
        root for name in engines for root in foreign_imports(name)
    }
    assert "edgespec.bundle" in imports("edgespec.export.exporter")


# From the ground up: a module imports from its own level and from earlier ones. The loop and the
# contract of its drafters have one level.
LEVELS = (
    "errors", "system", "bundle", "models", "export", "store", "runtime.arrays",
    "runtime.kernels", "runtime.engines", "runtime.text.schema", "runtime.sampling", "runtime.text",
    "runtime.vision", "runtime.sequences", "runtime.plan",
    "runtime.speculation runtime.drafters.base", "runtime.drafters", "llm", "measuring", "tuning",
    "training", "mcp", "serve", "batch", "cli",
)  # fmt: skip
LEVEL_OF = {f"edgespec.{each}": n for n, names in enumerate(LEVELS) for each in names.split()}


def level(name):
    """The number of a module's level; None: what only has a docstring has none."""
    found = [each for each in LEVEL_OF if within(name, each)]
    return LEVEL_OF[max(found, key=len)] if found else None


def test_every_module_has_a_level_and_every_level_a_module():
    roots = {"edgespec", "edgespec.__main__", "edgespec.runtime"}
    assert {name for name in MODULES if level(name) is None} == roots
    assert LEVEL_OF.keys() <= MODULES.keys()


def test_no_import_goes_up():
    for name in MODULES:
        if level(name) is None:
            continue
        up = {each for each in own_imports(name) if (level(each) or 0) > level(name)}
        assert not up, f"{name} imports {sorted(up)}"


def test_no_imports_go_in_a_circle():
    """Not even those within functions; types alone may."""
    left = {name: imports_of_code(name) & MODULES.keys() - {name, "edgespec"} for name in MODULES}
    while ends := {name for name, found in left.items() if not found & left.keys()}:
        left = {name: found for name, found in left.items() if name not in ends}
    circles = {name: sorted(found & left.keys()) for name, found in left.items()}
    assert not circles


def imports_of_code(name):
    """What a module imports when it runs; see `imports`."""
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    for_types = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    for node in for_types:
        node.body = []
    return imports_in(tree, name)


def test_export_and_runtime_meet_in_the_bundle_alone():
    for name in part("edgespec.runtime"):
        assert not [i for i in own_imports(name) if within(i, "edgespec.export", "edgespec.models")]
    for name in part("edgespec.export", "edgespec.models"):
        assert not [i for i in own_imports(name) if within(i, "edgespec.runtime")]


def test_only_engines_import_engines():
    for name in MODULES:
        if not within(name, "edgespec.runtime.engines"):
            assert not foreign_imports(name) & {"onnxruntime", "openvino"}, name
            if within(name, "edgespec.runtime"):
                assert not [i for i in own_imports(name) if within(i, "edgespec.runtime.engines")]


FOREIGN = {
    "engines": None,
    "sampling.grammar": {"llguidance"},
    "sampling.trials": {"llguidance"},
    "text": {"tokenizers", "jinja2"},
    "vision": {"PIL"},
}


def test_the_arithmetic_of_speculation_needs_numpy_alone():
    for name in part("edgespec.runtime"):
        found = [lib for each, lib in FOREIGN.items() if within(name, f"edgespec.runtime.{each}")]
        assert found == [None] or foreign_imports(name) <= {"numpy"}.union(*found), name


def test_the_loop_names_no_drafter():
    for name in part("edgespec.runtime.speculation"):
        drafters = {i for i in own_imports(name) if within(i, "edgespec.runtime.drafters")}
        assert drafters <= {"edgespec.runtime.drafters.base"}, name


def test_export_needs_no_torch():
    for name in part("edgespec.export", "edgespec.models"):
        assert not foreign_imports(name) & {"torch", "transformers", "safetensors"}, name


def test_only_training_needs_torch():
    for name in MODULES:
        if not within(name, "edgespec.training", "edgespec.models.training"):
            assert "torch" not in foreign_imports(name), name


# Sizes


def test_no_function_is_long():
    """Its docstring aside."""
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path, tree in all_sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if lines_of(node) > LONGEST_FUNCTION
    ]
    assert not long


LONGEST_FUNCTION = 60


def lines_of(function):
    document = ast.get_docstring(function, clean=False) or ""
    told = document.count("\n") + 1 if document else 0
    return function.end_lineno - function.lineno + 1 - told


def all_sources():
    """Every file of Python in the checkout, with its tree."""
    for folder in ("edgespec", "models", "export", "runtime", "benchmarks", "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            yield path, ast.parse(path.read_text(encoding="utf-8"))


def test_no_class_or_function_has_the_name_of_another():
    """What every command has aside."""
    places = defaultdict(list)
    for name, path in MODULES.items():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                places[node.name].append(name)
    assert len(places) > 300
    places = {each: own for each, own in places.items() if each not in OF_COMMANDS}
    assert not {each: own for each, own in places.items() if len(own) > 1}


OF_COMMANDS = ("configure", "execute", "main")


def test_no_two_files_of_tests_have_one_name():
    names = Counter(each.name for each in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_the_formatter_skips_tables_alone():
    skipped = {
        f"{path.relative_to(ROOT)}": lines
        for path, tree in all_sources()
        if (lines := skipped_lines(path)) and (lines := lines - ends_of_tables(tree))
    }
    assert not skipped


def skipped_lines(path):
    lines = enumerate(path.read_text(encoding="utf-8").split("\n"), 1)
    return {number for number, line in lines if line.endswith(SKIPPED)}


SKIPPED = "# fmt: " + "skip"


def ends_of_tables(tree):
    """Last lines of data: what modules and classes call by name, and what tests are run on."""
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef)]
    named = [
        each for body in bodies for each in body if isinstance(each, ast.Assign | ast.AnnAssign)
    ]
    named = [each for each in named if any(isinstance(one, DATA) for one in ast.walk(each))]
    run = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("parametrize")
    ]
    return {node.end_lineno for node in [*named, *run]}


DATA = (ast.List, ast.Tuple, ast.Set, ast.Dict)


# Public names


PUBLIC = {
    "LLM": "edgespec.llm.llm",
    "Session": "edgespec.llm.sessions",
    "Stream": "edgespec.llm.stream",
    "Result": "edgespec.llm.result",
    "LoadOptions": "edgespec.llm.load.options",
    "GenerationOptions": "edgespec.llm.options",
    "ChatOptions": "edgespec.llm.chat",
    "freeze_support": "edgespec.system.children",
}


def test_public_names():
    assert sorted(edgespec.__all__) == sorted([*PUBLIC, "__version__", "errors", "export"])
    assert {name: getattr(edgespec, name).__module__ for name in PUBLIC} == PUBLIC
    assert edgespec.export.make.__module__ == "edgespec.export.make"
    assert issubclass(edgespec.errors.InputError, edgespec.errors.EdgespecError)
    assert dir(edgespec) == sorted(edgespec.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Llm'"):
        edgespec.Llm  # noqa: B018


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


@pytest.fixture(scope="module")
def house():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        yield importlib.import_module("house")


@pytest.mark.slow
def test_a_step_enters_few_modules(house):
    """What `auto` tries depends on the time of passes, which neighbours may disturb."""
    found = [house.entered() for _ in range(3)]
    for draft, (_, most) in house.STEP.items():
        modules = min((each[draft] for each in found), key=len)
        assert len(modules) <= most, modules
