"""When the compiled library is loaded, and what is said where it is not."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import warnings

import pytest
import tensorflow as tf

from tf_convpar import ops
from tf_convpar._compat import op_library
from tf_convpar.ops import _library

needs_library = pytest.mark.skipif(
    os.environ.get("TF_CONVPAR_PY_OPS") == "1", reason="the twin was asked for"
)


@pytest.fixture
def fresh(monkeypatch):
    """As a process that has not tried to load the library."""
    monkeypatch.delenv("TF_CONVPAR_PY_OPS", raising=False)
    _library._attempt.cache_clear()
    _library._warn_once.cache_clear()
    yield
    _library._attempt.cache_clear()
    _library._warn_once.cache_clear()


def warnings_of_use():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert not ops.load()
        for _ in range(2):
            joined = ops.concat_shards([tf.ones((1, 2)), tf.zeros((1, 1))])
            assert joined.numpy().tolist() == [[1, 1, 0]]
        assert not ops.build_report().in_use
    return [str(each.message) for each in caught]


@needs_library
def test_this_tree_has_a_library_that_matches():
    report = ops.build_report()
    assert report.exists, report.verdict
    assert report.in_use, report.verdict
    assert report.built_tensorflow == report.running_tensorflow
    assert report.built_cxx11_abi == report.running_cxx11_abi
    assert report.compiler
    assert "in use" in report.verdict
    assert json.loads(json.dumps(dataclasses.asdict(report)))


@needs_library
def test_import_loads_nothing_and_an_unknown_instruction_set_is_refused(
    tmp_path,
):
    """From a folder of its own. One process: its imports take longest."""
    for name in ("_convpar_ops.so", "_build_info.json"):
        shutil.copy(op_library.DIRECTORY / name, tmp_path)
    code = """
import sys

from tf_convpar import ops
from tf_convpar.algorithms import instruction_set

def mapped():
    maps = open("/proc/self/maps").read()
    assert maps.count("_convpar_ops.so") == maps.count(sys.argv[1])
    return sys.argv[1] in maps

print(mapped(), ops.load(), mapped())
instruction_set()
"""
    answer = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "_convpar_ops.so"],
        env={
            **os.environ,
            "TF_CONVPAR_WIDEST_ISA": "avx9",
            "TF_CONVPAR_OPS_FOLDER": str(tmp_path),
        },
        capture_output=True,
        text=True,
    )
    assert answer.stdout == "False True True\n", answer.stderr
    assert answer.returncode == 1
    assert "Expected the environment variable" in answer.stderr
    assert "Received: avx9" in answer.stderr


def test_missing_library_warns_once_and_the_twin_serves(
    fresh, monkeypatch, tmp_path
):
    monkeypatch.setattr(op_library, "DIRECTORY", tmp_path)
    messages = warnings_of_use()
    assert len(messages) == 1
    assert str(tmp_path / "_convpar_ops.so") in messages[0]
    assert "pip install" in messages[0]
    report = ops.build_report()
    assert not report.exists
    assert report.verdict == messages[0]
    with pytest.raises(RuntimeError, match="Expected the compiled ops"):
        ops.concat_shards([tf.ones((1, 2))], native=True)


@pytest.mark.parametrize(
    ("built", "told"),
    [
        ({"tensorflow": "2.20.1"}, "TensorFlow 2.20.1 and CXX11 ABI flag"),
        ({"cxx11_abi": 0}, f"TensorFlow {tf.__version__} and CXX11 ABI flag 0"),
    ],
)
def test_mismatch_names_both_and_the_remedy(
    fresh, monkeypatch, tmp_path, built, told
):
    abi = int(tf.sysconfig.CXX11_ABI_FLAG)
    record = {"tensorflow": tf.__version__, "cxx11_abi": abi, **built}
    (tmp_path / "_build_info.json").write_text(json.dumps(record))
    (tmp_path / "_convpar_ops.so").write_bytes(b"must not be opened")
    monkeypatch.setattr(op_library, "DIRECTORY", tmp_path)
    (message,) = warnings_of_use()
    assert f"was built with {told}" in message
    running = f"runs TensorFlow {tf.__version__} and CXX11 ABI flag {abi}"
    assert running in message
    wanted = record["tensorflow"]
    assert f"`pip install tensorflow=={wanted}`" in message
    assert "make clean setup" in message
    assert "pip install --force-reinstall --no-deps" in message


@pytest.mark.parametrize("record", [None, "{", "[]", "{}"])
def test_library_without_a_readable_record(
    fresh, monkeypatch, tmp_path, record
):
    (tmp_path / "_convpar_ops.so").write_bytes(b"must not be opened")
    if record is not None:
        (tmp_path / "_build_info.json").write_text(record)
    monkeypatch.setattr(op_library, "DIRECTORY", tmp_path)
    (message,) = warnings_of_use()
    assert "an unknown TensorFlow" in message


def test_library_that_does_not_load(fresh, monkeypatch, tmp_path):
    record = {
        "tensorflow": tf.__version__,
        "cxx11_abi": int(tf.sysconfig.CXX11_ABI_FLAG),
    }
    (tmp_path / "_build_info.json").write_text(json.dumps(record))
    (tmp_path / "_convpar_ops.so").write_bytes(b"no library")
    monkeypatch.setattr(op_library, "DIRECTORY", tmp_path)
    (message,) = warnings_of_use()
    assert "does not load" in message


def test_environment_variable_chooses_the_twin_silently(fresh, monkeypatch):
    monkeypatch.setenv("TF_CONVPAR_PY_OPS", "1")
    assert warnings_of_use() == []
    assert "TF_CONVPAR_PY_OPS=1" in ops.build_report().verdict
