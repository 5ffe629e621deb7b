"""Kernels for GPUs, as far as they can be tried without one.

`test_ops_values.py` runs them on this processor, and on a GPU if there is one.
"""

import json
import os
import pathlib
import re
import runpy
import shutil
import subprocess

import cuda_on_host
import gpus
import numpy as np
import pytest
import setuptools
import tensorflow as tf
from click.testing import CliRunner

from tf_convpar import ops
from tf_convpar import placement
from tf_convpar._compat import op_library
from tf_convpar.cli.main import main
from tf_convpar.ops import _kernels

ROOT = pathlib.Path(__file__).parent.parent
NVCC = shutil.which("nvcc") or shutil.which(
    "nvcc", path=f"{os.environ.get('CUDA_HOME', '')}/bin:/usr/local/cuda/bin"
)
has_nvcc = pytest.mark.skipif(NVCC is None, reason="nvcc is not installed")
has_compiler = pytest.mark.skipif(
    not shutil.which(cuda_on_host.COMPILER), reason="no C++ compiler"
)
WORDS = ("half", "bfloat16", "float", "double")


def built_for_gpus():
    ops.load()
    return "GPU" in ops.device_types("ConcatShards")


@has_nvcc
def test_nvcc_makes_a_kernel_of_each_dtype_and_direction(tmp_path):
    """PTX says which kernels there are, and how they read and write."""
    subprocess.run(
        [
            *(NVCC, "-std=c++17", "-O3", "-arch=compute_90", "-ptx"),
            *(f"-I{ROOT}", "-o", tmp_path / "launch.ptx"),
            ROOT / "custom_ops/cuda/launch.cu",
        ],
        check=True,
        timeout=120,
    )
    kernels = {}
    for text in (tmp_path / "launch.ptx").read_text().split(".entry ")[1:]:
        kernels[re.search(r"DirectionE(\d)E\w+?EEvNS", text)[0]] = text
    assert len(kernels) == 2 * len(WORDS)
    for name, text in kernels.items():
        # Nothing is kept outside of registers, not the table of shards either.
        assert ".local" not in text, name
        for side in ("ld", "st"):
            assert re.search(
                rf"{side}\.global\.(v4\.[buf]32|v2\.[buf]64)", text
            ), (name, side)


@has_compiler
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("skip", [0, 1, 2, 4, 8])
def test_vectors_are_as_wide_as_alignment_allows(skip, rows):
    """A vector that is not aligned would end this process."""
    rng = np.random.default_rng(skip)
    for dtype in (np.float16, np.float64):
        for widths in ([8, 16, 40], [8, 4, 4], [6, 2, 8], [7, 8, 1]):
            each = [
                rng.normal(size=skip + rows * width).astype(dtype)[skip:]
                for width in widths
            ]
            shards = [
                piece.reshape(rows, width)
                for piece, width in zip(each, widths, strict=True)
            ]
            total = sum(widths)
            whole = np.zeros(skip + rows * total, np.float32)[skip:]
            whole = whole.reshape(rows, total)
            assert cuda_on_host.move(cuda_on_host.JOIN, whole, shards, 1) == 1
            expected = np.concatenate(shards, 1).astype(np.float32)
            np.testing.assert_array_equal(whole, expected)


@has_compiler
@pytest.mark.parametrize(
    ("count", "launches"), [(1, 1), (64, 1), (65, 2), (130, 3)]
)
def test_one_launch_moves_up_to_64_shards(count, launches):
    widths = [1 + i % 5 for i in range(count)]
    shards = [
        np.full((3, width), i, np.float32) for i, width in enumerate(widths)
    ]
    whole = np.zeros((3, sum(widths)), np.float32)
    move = cuda_on_host.move
    assert move(cuda_on_host.JOIN, whole, shards, -1) == launches
    np.testing.assert_array_equal(whole, np.concatenate(shards, -1))
    cut = [np.empty_like(shard) for shard in shards]
    assert move(cuda_on_host.CUT, whole, cut, -1) == launches
    for one, other in zip(cut, shards, strict=True):
        np.testing.assert_array_equal(one, other)


@has_compiler
@pytest.mark.parametrize(
    ("rows", "size"),
    [
        *((7, size) for size in (1, 2047, 2048, 2049, 8191, 8192, 8193)),
        # Bands of 2^16 - 1 numbers at most: of one row, of four, of 13,107.
        (3, 30000),
        (7, 5000),
        (40000, 1),
    ],
)
def test_rows_longer_and_shorter_than_a_block(rows, size):
    """A block moves 2048 vectors, here of up to four numbers each."""
    shards = [
        np.random.default_rng(i).normal(size=(rows, n)).astype(np.float32)
        for i, n in enumerate((size, 1, 2 * size + 1))
    ]
    whole = np.concatenate(shards, 1)
    cut = [np.empty_like(shard) for shard in shards]
    cuda_on_host.move(cuda_on_host.CUT, whole, cut, 1)
    for one, other in zip(cut, shards, strict=True):
        np.testing.assert_array_equal(one, other)
    joined = np.empty_like(whole)
    cuda_on_host.move(cuda_on_host.JOIN, joined, shards, 1)
    np.testing.assert_array_equal(joined, whole)


def setup(monkeypatch, **environment):
    """The namespace of setup.py, which builds nothing."""
    monkeypatch.setattr(setuptools, "setup", lambda **kwargs: None)
    monkeypatch.chdir(ROOT)
    for name in ("TF_CONVPAR_CUDA", "TF_CONVPAR_CUDA_ARCHITECTURES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return runpy.run_path("setup.py")


@has_nvcc
def test_setup_finds_nvcc_and_what_to_compile_for(monkeypatch):
    found = setup(monkeypatch)["find_nvcc"]()
    assert found.version in subprocess.check_output(
        [NVCC, "--version"], text=True
    )
    assert "90" in found.architectures
    assert str(found).endswith(f"PTX {found.architectures[-1]}")
    chosen = setup(monkeypatch, TF_CONVPAR_CUDA_ARCHITECTURES="80;90")
    assert chosen["find_nvcc"]().architectures == ("80", "90")
    off = setup(monkeypatch, TF_CONVPAR_CUDA="0")
    assert off["find_nvcc"]() is None


@has_nvcc
def test_an_unknown_architecture_is_named(monkeypatch):
    known = setup(monkeypatch, TF_CONVPAR_CUDA_ARCHITECTURES="90 77")
    with pytest.raises(SystemExit, match=r"to be of .*90.*Received: 77"):
        known["find_nvcc"]()


def test_nvcc_that_is_asked_for_and_missing(monkeypatch, tmp_path):
    asked = setup(monkeypatch, TF_CONVPAR_CUDA="1", PATH=str(tmp_path))
    monkeypatch.setattr(pathlib.Path, "is_file", lambda path: False)
    with pytest.raises(SystemExit, match="Expected nvcc in .*Received none"):
        asked["find_nvcc"]()
    monkeypatch.setenv("TF_CONVPAR_CUDA", "maybe")
    with pytest.raises(SystemExit, match="0, 1 or auto. Received: maybe"):
        asked["find_nvcc"]()
    monkeypatch.setenv("TF_CONVPAR_CUDA", "auto")
    assert asked["find_nvcc"]() is None


def test_kernels_are_there_if_the_record_says_so():
    report = ops.build_report()
    if not report.in_use:
        pytest.skip(report.verdict)
    assert report.cuda
    assert built_for_gpus() == report.cuda.startswith("nvcc")
    for op in ("ConcatShards", "SplitShards"):
        assert "CPU" in ops.device_types(op)
    assert ops.device_types("ScaleChannels") == {"CPU"}


def test_the_library_needs_no_cuda_at_run_time():
    report = ops.build_report()
    if not report.exists:
        pytest.skip(report.verdict)
    needed = subprocess.check_output(
        ["readelf", "--dynamic", report.library], text=True
    )
    assert "libstdc++" in needed
    assert "cuda" not in needed.replace("_cuda", "")


def test_a_cpu_has_every_op_and_a_gpu_that_is_not_there_none():
    assert ops.native_on("ConcatShards", "/device:CPU:1") is None
    assert ops.native_on("ScaleChannels", "/job:worker/task:3/CPU:0") is None
    if not tf.config.list_logical_devices("GPU"):
        assert ops.native_on("ConcatShards", "/device:GPU:0") is False
    assert ops.native_on("ScaleChannels", "/device:GPU:0") is False


def test_a_device_is_tried_before_it_is_used():
    if not ops.load():
        pytest.skip(ops.build_report().verdict)
    assert ops.joins_on("/device:CPU:2")
    assert not ops.joins_on("/device:GPU:9")

    @tf.function
    def traced(x):
        _kernels._joins_on.cache_clear()
        return x + float(ops.joins_on("/device:CPU:3"))

    assert float(traced(tf.constant(1.0))) == 2


def test_a_task_that_does_not_answer_is_asked_again(monkeypatch):
    if not ops.load():
        pytest.skip(ops.build_report().verdict)
    module, calls = ops.module, []

    def restarting():
        calls.append(1)
        if len(calls) == 1:
            raise tf.errors.UnavailableError(None, None, "Connection refused")
        return module()

    monkeypatch.setattr("tf_convpar.ops._library.module", restarting)
    _kernels._joins_on.cache_clear()
    found = [ops.joins_on("/device:CPU:1") for _ in range(3)]
    assert found == [False, True, True] and len(calls) == 2


@pytest.mark.parametrize("works", [True, False])
def test_ops_of_a_gpu_in_a_graph(monkeypatch, works):
    """Placed without a card: a graph is built for any device."""
    if not built_for_gpus():
        pytest.skip(f"built without kernels for GPUs: {op_library.RECORD}")
    monkeypatch.setattr(
        "tf_convpar.ops._kernels.joins_on", lambda device: works
    )
    gpu = "/job:localhost/replica:0/task:0/device:GPU:0"
    layout = placement.Layout(gpu, (gpu, gpu), (3, 1))
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, (2, 3, 4))
        y = placement.concat_shards(placement.in_shards(x, layout).shards, gpu)
        tf.gradients(y, x)
    ours = {"TfConvpar>ConcatShards", "TfConvpar>SplitShards"}
    theirs = {"ConcatV2", "SplitV"}
    kinds = {op.type for op in graph.get_operations() if op.device == gpu}
    assert kinds & (ours | theirs) == (ours if works else theirs)


def test_a_gpu_computes_what_a_cpu_computes():
    gpu = gpus.first_with_kernels()
    value = tf.random.normal((8, 14, 14, 500), seed=1)
    with tf.device(gpu):
        parts = ops.split_shards(
            value, [300, 200], dtypes=["float32", "bfloat16"], native=True
        )
        joined = ops.concat_shards(parts, native=True)
    assert "GPU" in joined.device
    rounded = tf.cast(tf.cast(value[..., 300:], tf.bfloat16), tf.float32)
    expected = tf.concat([value[..., :300], rounded], -1)
    np.testing.assert_array_equal(joined, expected)


@pytest.mark.parametrize("command", ["check-build", "env"])
def test_commands_tell_of_kernels_for_gpus(command):
    report = ops.build_report()
    if not report.exists:
        pytest.skip(report.verdict)
    told = CliRunner().invoke(main, [command, "--json"]).stdout
    names = {"check-build": "cuda", "env": "kernels for gpus"}
    assert report.cuda
    assert json.loads(told)[names[command]] == report.cuda
