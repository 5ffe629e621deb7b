"""The kernels for GPUs, run on this processor: no card is needed.

`cuda_on_host.cc` calls the templates that nvcc makes kernels of. The compiler's
checks of undefined behaviour end the process at a vector that is not aligned.
"""

import ctypes
import functools
import math
import os
import pathlib
import shutil
import subprocess
import tempfile

import numpy as np
import tensorflow as tf

ROOT = pathlib.Path(__file__).parent.parent
COMPILER = os.environ.get("CXX", "g++")
DTYPES = [tf.float16, tf.bfloat16, tf.float32, tf.float64]
JOIN, CUT = 0, 1


@functools.cache
def library():
    """The templates, compiled; None without a compiler."""
    if not shutil.which(COMPILER):
        return None
    with tempfile.TemporaryDirectory() as folder:
        target = pathlib.Path(folder, "cuda_on_host.so")
        subprocess.run(
            [
                *(COMPILER, "-std=c++17", "-O1", "-Wall", "-Werror"),
                *("-fsanitize=undefined", "-fno-sanitize-recover"),
                *("-shared", "-fPIC", f"-I{ROOT}"),
                *("-o", target, ROOT / "tests/cuda_on_host.cc"),
            ],
            check=True,
        )
        return ctypes.CDLL(str(target))


def move(direction, whole, shards, axis):
    """Runs a kernel on arrays; returns the number of launches."""
    axis %= whole.ndim
    inner = math.prod(whole.shape[axis + 1 :])

    def number(array):
        return DTYPES.index(tf.as_dtype(array.dtype))

    n = len(shards)
    return library().Move(
        direction,
        ctypes.c_void_p(whole.ctypes.data),
        number(whole),
        ctypes.c_int64(math.prod(whole.shape[:axis])),
        n,
        (ctypes.c_void_p * n)(*(s.ctypes.data for s in shards)),
        (ctypes.c_int64 * n)(*(s.shape[axis] * inner for s in shards)),
        (ctypes.c_int * n)(*map(number, shards)),
    )


def concat(shards, axis, dtype):
    """As `_native.concat`."""
    arrays = [np.ascontiguousarray(shard) for shard in shards]
    shape = list(arrays[0].shape)
    shape[axis] = sum(array.shape[axis] for array in arrays)
    whole = np.zeros(shape, dtype.as_numpy_dtype)
    move(JOIN, whole, arrays, axis)
    return tf.constant(whole)


def split(value, sizes, axis, dtypes):
    """As `_native.split`."""
    shards = []
    for size, dtype in zip(sizes, dtypes, strict=True):
        shape = list(value.shape)
        shape[axis] = size
        shards.append(np.zeros(shape, dtype.as_numpy_dtype))
    move(CUT, np.ascontiguousarray(value), shards, axis)
    return [tf.constant(shard) for shard in shards]


def instead_of_ops(monkeypatch):
    """Lets `native=True` run these kernels."""
    monkeypatch.setattr("tf_convpar.ops._native.concat", concat)
    monkeypatch.setattr("tf_convpar.ops._native.split", split)
