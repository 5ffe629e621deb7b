"""The GPU of this machine, for tests that need one.

With `TF_CONVPAR_TEST_GPUS=CPU:0,CPU:1` CPUs stand for two logical GPUs: that
tries the tests themselves, where there is no card.
"""

import os

import pytest
import tensorflow as tf

from tf_convpar import ops

STAND_INS = os.environ.get("TF_CONVPAR_TEST_GPUS", "")


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


@pytest.fixture(params=["gpu and cpu", "two gpus"])
def devices(request):
    if STAND_INS:
        one, other = STAND_INS.split(",")
    else:
        first()
        one, other = "GPU:0", "GPU:1"
    return [one, "CPU:2" if "cpu" in request.param else other]


@pytest.fixture
def full_float32():
    """No TensorFloat-32, to which a card's matrix units round float32."""
    asked = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    yield
    tf.config.experimental.enable_tensor_float_32_execution(asked)
