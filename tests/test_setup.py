"""setup.py compiles the sources of the op side by side."""

import pathlib
import runpy
import shutil

import pytest
import setuptools
from setuptools._distutils.ccompiler import new_compiler
from setuptools._distutils.errors import CompileError
from setuptools._distutils.sysconfig import customize_compiler

ROOT = pathlib.Path(__file__).parents[1]
# Compiles once there are two of it, for which it waits ten seconds.
BESIDE_ANOTHER = """#!/bin/sh
touch "{folder}/begun.$$"
for _ in $(seq 100); do
  [ $(ls "{folder}" | grep -c begun) -ge 2 ] && exec {compiler} "$@"
  sleep 0.1
done
exit 1
"""


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """Compiles sources, given as text, by two compilers at once."""
    monkeypatch.setattr(setuptools, "setup", lambda **kwargs: None)
    monkeypatch.chdir(ROOT)
    side_by_side = runpy.run_path("setup.py")["side_by_side"]
    real = shutil.which("g++") or shutil.which("clang++")
    script = tmp_path / "compiler"
    script.write_text(BESIDE_ANOTHER.format(folder=tmp_path, compiler=real))
    script.chmod(0o755)
    compiler = new_compiler()
    customize_compiler(compiler)
    compiler.set_executables(
        compiler_so=str(script), compiler_so_cxx=str(script)
    )
    monkeypatch.chdir(tmp_path)

    def compile_sources(*sources):
        for i, source in enumerate(sources):
            pathlib.Path(f"source_{i}.cc").write_text(source)
        names = [f"source_{i}.cc" for i in range(len(sources))]
        return side_by_side(compiler.compile, 2)(names, output_dir="objects")

    return compile_sources


def test_two_compilers_at_once(compiled):
    objects = compiled("int one;", "int two;", "int three;")
    assert objects == [f"objects/source_{i}.o" for i in range(3)]
    assert all(pathlib.Path(name).stat().st_size for name in objects)


def test_what_a_compiler_refuses_ends_it(compiled):
    with pytest.raises(CompileError):
        compiled("int one;", "int two")
