"""The GPU of this machine, for tests that need one."""

import pytest
import tensorflow as tf

from tf_convpar import ops


def first():
    """The name of a GPU; without one the test is skipped."""
    found = tf.config.list_logical_devices("GPU")
    if not found:
        pytest.skip("TensorFlow finds no GPU here")
    return found[0].name


def first_with_kernels():
    """The name of a GPU that the compiled op runs on."""
    gpu = first()
    if ops.native_on("ConcatShards", gpu) is False:
        report = ops.build_report()
        pytest.skip(
            f"no kernels for {gpu}: {report.verdict} GPUs: {report.cuda}"
        )
    return gpu
