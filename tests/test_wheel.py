"""The sources' archive builds the package, and the wheel has all of it.

`make wheel` compiles the op as well, and tries the wheel in empty environments.
"""

import ast
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest
from processes import ROOT

# What `pip` and `build` call.
BUILD = "from setuptools import build_meta as b; b.build_{}({!r})"
NEVER = ("_convpar_ops.so", "_build_info.json")


def build(kind, tree, folder, **changes):
    subprocess.run(
        [sys.executable, "-c", BUILD.format(kind, str(folder))],
        cwd=tree,
        env={**os.environ, **changes},
        check=True,
        capture_output=True,
        timeout=120,
    )
    (found,) = folder.iterdir()
    return found


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """The sources' archive of this tree, unpacked elsewhere."""
    folder = tmp_path_factory.mktemp("sources")
    tree = folder / "tree"
    for name in ("custom_ops", "tf_convpar"):
        ignored = shutil.ignore_patterns("__pycache__", *NEVER)
        shutil.copytree(ROOT / name, tree / name, ignore=ignored)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, tree)
    # Of another TensorFlow, maybe.
    for name in NEVER:
        (tree / "tf_convpar/ops" / name).write_text("stale")
    (folder / "archive").mkdir()
    archive = build("sdist", tree, folder / "archive")
    with tarfile.open(archive) as file:
        file.extractall(folder / "unpacked", filter="data")
    (found,) = (folder / "unpacked").iterdir()
    return found


def files(tree, *patterns):
    return {
        str(path.relative_to(tree))
        for pattern in patterns
        for path in tree.glob(pattern)
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_sources_are_whole(unpacked):
    every = ("custom_ops/**/*", "tf_convpar/**/*")
    wanted = files(ROOT, *every, "*.toml", "Makefile", "BUILD", "LICENSE")
    wanted -= {f"tf_convpar/ops/{name}" for name in NEVER}
    assert len(wanted) > 300
    found = files(unpacked, "**/*")
    assert wanted - found == set()
    assert not [name for name in found if name.endswith(NEVER)]
    module = ast.parse((unpacked / "setup.py").read_text())
    (sources,) = (
        ast.literal_eval(statement.value)
        for statement in module.body
        if isinstance(statement, ast.Assign)
        and statement.targets[0].id == "SOURCES"
    )
    assert set(sources) <= found


def test_a_wheel_without_the_op_is_for_any_machine(unpacked, tmp_path):
    wheel = build("wheel", unpacked, tmp_path, TF_CONVPAR_PY_OPS="1")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as file:
        found = {n for n in file.namelist() if ".dist-info/" not in n}
    wanted = files(ROOT, "tf_convpar/**/*.py", "tf_convpar/py.typed")
    assert found == {*wanted, "tf_convpar_cli.py"}
