"""The Bazel build makes a library that loads and computes."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import pytest

ROOT = pathlib.Path(__file__).parent.parent
NVCC = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
DEBIAN_RULES = pathlib.Path("/usr/share/bazel/rules")

USE = """
import sys
import tensorflow as tf

ops = tf.load_op_library(sys.argv[1])
shards = [tf.ones((2, 1), tf.bfloat16), tf.zeros((2, 2))]
joined = ops.tf_convpar_concat_shards(shards, U=tf.float32)
cut = ops.tf_convpar_split_shards(joined, sizes=[2, 1], U=[tf.half] * 2)
print(joined.numpy().tolist(), cut[0].numpy().tolist())
"""


@pytest.mark.skipif(not shutil.which("bazel"), reason="bazel is not installed")
@pytest.mark.skipif(
    not DEBIAN_RULES.is_dir(),
    reason="without Debian's bazel-rules-java, bazel-rules-proto and "
    "bazel-platforms Bazel would need a network",
)
def test_bazel_builds_a_library_that_works():
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        # In batch mode no server stays behind.
        build = subprocess.run(
            [
                ROOT / "custom_ops/bazel/build.sh",
                "--batch",
                f"--output_user_root={folder}",
            ],
            env={**os.environ, "TF_CONVPAR_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            check=False,
        )
        assert build.returncode == 0, build.stderr[-3000:]
        pattern = "*/execroot/tf_convpar/bazel-out/*/bin/_convpar_ops.so"
        (library,) = pathlib.Path(folder).glob(pattern)
        kernels = b"MoveKernel" in library.read_bytes()
        assert kernels == (NVCC is not None)
        answer = subprocess.run(
            [sys.executable, "-c", USE, library],
            capture_output=True,
            text=True,
            check=False,
        )
    assert answer.stdout == (
        "[[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]] [[1.0, 0.0], [1.0, 0.0]]\n"
    ), answer.stderr[-3000:]
