"""The C++ sources: all are built, and each header stands alone."""

import ast
import os
import pathlib
import re
import shutil
import subprocess

import pytest
import tensorflow as tf

ROOT = pathlib.Path(__file__).parent.parent
FOLDER = ROOT / "custom_ops"
COMPILER = os.environ.get("CXX", "g++")


def files(*patterns):
    found = {path for each in patterns for path in FOLDER.glob(each)}
    return sorted(str(path.relative_to(FOLDER)) for path in found)


# TensorFlow's own headers take a compiler seconds to read.
@pytest.mark.slow
@pytest.mark.skipif(not shutil.which(COMPILER), reason="no compiler")
@pytest.mark.parametrize("header", files("**/*.h"))
def test_a_header_includes_what_it_uses(header):
    flags = [
        flag.replace("-I", "-isystem", 1)
        for flag in tf.sysconfig.get_compile_flags()
    ]
    done = subprocess.run(
        [
            COMPILER,
            "-fsyntax-only",
            *flags,
            f"-I{ROOT}",
            *("-x", "c++"),
            FOLDER / header,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_setup_compiles_every_source():
    module = ast.parse((ROOT / "setup.py").read_text())
    sources = [
        source
        for statement in module.body
        if isinstance(statement, ast.Assign)
        and statement.targets[0].id in ("SOURCES", "CUDA_SOURCES")
        for source in ast.literal_eval(statement.value)
    ]
    assert sorted(sources) == [
        f"custom_ops/{name}" for name in files("**/*.cc", "**/*.cu")
    ]


def test_bazel_has_every_file():
    build = (FOLDER / "BUILD").read_text()
    patterns = re.findall(r'"(\w+/\*\.(?:cc|cu|h))"', build)
    assert files(*patterns) == files("**/*.cc", "**/*.cu", "**/*.h")
