"""Imports point one way, and what is private to a package stays there.

The arrows are contracts in pyproject.toml, which `make lint` checks; here they
are broken.
"""

import ast
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = ROOT / "tf_convpar"
LINT = pathlib.Path(sys.executable).with_name("lint-imports")


def lint(folder):
    run = subprocess.run(
        [LINT, "--no-cache"], cwd=folder, capture_output=True, text=True
    )
    return run.returncode, run.stdout + run.stderr


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A copy of what is imported, and of the contracts."""
    folder = tmp_path_factory.mktemp("sources")
    shutil.copy(ROOT / "pyproject.toml", folder)
    only_python = shutil.ignore_patterns("*.so", "*.json", "__pycache__")
    shutil.copytree(PACKAGE, folder / PACKAGE.name, ignore=only_python)
    return folder


DOWN = "Imports point down"
CIRCLE = "No circles, neither of packages nor within one"


@pytest.mark.parametrize(
    "file, line, contract",
    [
        ("ops/_shards.py", "from tf_convpar.layers import Split", DOWN),
        ("plans/_table.py", "from tf_convpar import placement", DOWN),
        ("cluster/spec.py", "from tf_convpar.strategy import devices", DOWN),
        (
            "cluster/spec.py",
            "def late():\n    import tf_convpar.planner",
            DOWN,
        ),
        (
            "algorithms/_names.py",
            "from tf_convpar.algorithms import _choose",
            CIRCLE,
        ),
        (
            "planner/_link.py",
            "from tf_convpar.planner.star import Network",
            CIRCLE,
        ),
    ],
)
def test_contracts_break(sources, file, line, contract):
    path = sources / PACKAGE.name / file
    before = path.read_text()
    path.write_text(f"{before}\n{line}\n")
    try:
        code, said = lint(sources)
    finally:
        path.write_text(before)
    assert code == 1, said
    assert f"{contract} BROKEN" in said
    assert path.stem in said


def test_contracts_hold(sources):
    code, said = lint(sources)
    assert code == 0, said
    assert "2 kept, 0 broken" in said


def imports(file):
    """Modules that a file names in its imports, those in functions too."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_private_modules_stay_in_their_package():
    """`tf_convpar.x._y` is for `x`: what others need, `x` exports."""
    wrong, own = [], 0
    for file in PACKAGE.rglob("*.py"):
        package = file.relative_to(PACKAGE).parts[0]
        for name in imports(file):
            parts = name.split(".")
            if parts[0] != PACKAGE.name or len(parts) < 3:
                continue
            if parts[1] == package:
                own += parts[2].startswith("_")
            elif any(part.startswith("_") for part in parts[2:]):
                wrong.append(f"{file.relative_to(ROOT)}: {name}")
    assert not wrong, "\n".join(wrong)
    assert own > 100


# What tests may still take from inside a package: what a process remembers, and
# parts that no result shows. Each is one less to be free to change.
INSIDE = {
    "algorithms._choose",
    "callbacks._rebalance",
    "callbacks._sync_errors",
    "cli._checks",
    "cli._models",
    "cli._one_device",
    "cli._restarts.Restarted",
    "cli._restarts.watch",
    "cli._shared",
    "cli._signals.Signals",
    "layers._files",
    "ops._kernels",
    "ops._library",
    "planner._group_ways",
    "planner.measure._calibrate",
    "planner.measure._layers",
    "planner.measure._whole_steps",
    "plans._picture",
    "sharding._summary._places",
}


def test_tests_speak_to_what_packages_export():
    inside = set()
    for file in ROOT.glob("tests/**/*.py"):
        for name in imports(file):
            package, _, rest = name.partition(".")
            parts = rest.split(".")
            if package != PACKAGE.name or parts[0] == "_compat":
                continue
            if any(part.startswith("_") for part in parts):
                inside.add(rest)
    assert inside - INSIDE == set()
    assert INSIDE - inside == set(), "no longer taken: strike it out"


def test_contributing_tells_of_every_package():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    told = re.findall(r"^\| `(\w+)/` \|", text, re.M)
    there = {file.parent.name for file in PACKAGE.glob("*/__init__.py")}
    assert set(told) == {"custom_ops", *there}
    assert len(told) == len(set(told))


def defined(file):
    """Names that a module has."""
    yield from (name.rpartition(".")[2] for name in imports(file))
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def used(file):
    """What a program takes from modules: `module.name`."""
    modules = set(imports(file))
    yield from modules
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Attribute) and (
            isinstance(node.value, ast.Name) and node.value.id in modules
        ):
            yield f"{node.value.id}.{node.attr}"


def test_benchmarks_have_what_they_use_of_each_other():
    """They take hours and run seldom: nobody sees what a new name broke."""
    files = [*ROOT.glob("benchmarks/**/*.py"), *ROOT.glob("examples/*.py")]
    names = {}
    for file in files:
        # Of two of a name, which is meant depends on where a program starts.
        names.setdefault(file.stem, set()).update(defined(file))
    missing = [
        f"{file.relative_to(ROOT)}: {name}"
        for file in files
        for name in used(file)
        if (module := name.partition(".")[0]) in names
        and name.partition(".")[2] not in {"", *names[module]}
    ]
    assert not missing, "\n".join(missing)
