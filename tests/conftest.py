"""Four logical CPUs in this process; worker processes where a test asks."""

import gc
import os

# Before TensorFlow is imported.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Tests may run on a cluster, and are none.
os.environ.pop("TF_CONFIG", None)
os.environ.pop("SLURM_STEP_NODELIST", None)

import forks
import keras
import numpy as np
import psutil
import pytest
import tensorflow as tf
from gpus import devices  # noqa: F401
from gpus import full_float32  # noqa: F401
from seconds import pytest_runtest_logreport  # noqa: F401
from seconds import pytest_runtest_setup  # noqa: F401
from seconds import pytest_sessionfinish  # noqa: F401
from seconds import pytest_terminal_summary  # noqa: F401

import tf_convpar as convpar
from tf_convpar.cluster.local_cluster import local_workers

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration()] * 4,
)
# Two GPUs of one card. Several processes of tests share it.
for card in tf.config.list_physical_devices("GPU")[:1]:
    tf.config.set_logical_device_configuration(
        card, [tf.config.LogicalDeviceConfiguration(memory_limit=2048)] * 2
    )


def pytest_collection_finish():
    """What is imported by now is no garbage: not to be gone through again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def strategy():
    return convpar.ConvParallelStrategy(devices=["CPU:0", "CPU:1", "CPU:2"])


@pytest.fixture(scope="module", autouse=True)
def no_garbage():
    """Of other modules. To look for it before each test takes half the time."""
    gc.collect()


@pytest.fixture(autouse=True)
def fresh_names():
    """Layer names, and so variable names, do not depend on other tests."""
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(1)
    yield
    keras.mixed_precision.set_dtype_policy("float32")


@pytest.fixture
def float64(fresh_names):
    """Layers made in the test compute in float64, inputs and all."""
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx("float32")


@pytest.fixture
def little_time(monkeypatch):
    """For what is done with calibrations, whatever their times are."""
    monkeypatch.setattr("tf_convpar.planner.measure._layers._MOST_RUNS", 2)
    monkeypatch.setattr("tf_convpar.planner.measure.clock._TRIES", 1)
    monkeypatch.setattr("tf_convpar.planner.measure.clock._MOST", 5)
    monkeypatch.setattr("tf_convpar.planner.measure.links._TRAVEL_S", 0.005)


@pytest.fixture(scope="session", autouse=True)
def no_process_left():
    yield
    forks.stop()
    left = psutil.Process().children(recursive=True)
    assert not left, f"tests left processes behind: {left}"


@pytest.fixture(scope="session")
def cluster(no_process_left):
    """Two workers, for one chief after another."""
    with local_workers(2) as local:
        yield local


@pytest.fixture(scope="session")
def images():
    """Real images: 192 handwritten digits at 16x16, with their labels."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = digits.images[:192, :, :, None].astype("float32") / 16
    return np.asarray(tf.image.resize(pixels, (16, 16))), digits.target[:192]


@pytest.fixture
def program(tmp_path):
    """A function that writes a program to a file, and returns its path."""

    def write(text, name="program.py"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write
