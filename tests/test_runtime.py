"""A worker has TensorFlow's runtime, and not its Python."""

import collections
import json
import socket
import sys

import pytest
import tensorflow as tf
from processes import run

from tf_convpar import ops
from tf_convpar._compat.runtime import Runtime
from tf_convpar.cluster.local_cluster import reserved_port

PROGRAM = """
import json, sys
import tf_convpar_cli  # as `convpar worker`, which needs no Keras
from tf_convpar._compat.runtime import Runtime
from tf_convpar.cluster.spec import Task
from tf_convpar.cluster.status import ask

runtime, port = Runtime(), sys.argv[1]
loaded = runtime.load_ops()
address = f"localhost:{port}"
try:
    runtime.server({"worker": [address]}, job_name="worker", task_index=0)
    (answer,) = ask([Task("worker", 0, address)], timeout_s=30.0).values()
    found = [device.type for device in answer]
except runtime.Error as error:
    found = error.message
print(json.dumps([loaded, found, sorted(sys.modules)]))
"""
KERNELS = """
import json, sys
import tf_convpar_cli
from tf_convpar._compat.runtime import Runtime
if sys.argv[1] == "imported":
    import tensorflow
session = Runtime()._session
from tensorflow.core.framework.kernel_def_pb2 import KernelList
kernels = KernelList.FromString(
    session.TF_GetBuffer(session.TF_GetAllRegisteredKernels())
).kernel
print(json.dumps(sorted(str(kernel) for kernel in kernels)))
"""


def served(port=None, **environment):
    if port is None:
        with reserved_port() as port:
            return served(port, **environment)
    code, output = run(
        [sys.executable, "-c", PROGRAM, str(port)], **environment
    )
    assert code == 0, output
    return json.loads(output.splitlines()[-1])


def test_a_process_that_serves_imports_no_python_of_tensorflow():
    loaded, devices, modules = served()
    assert loaded == ops.load()
    assert "CPU" in devices
    assert "keras" not in modules
    assert len(modules) < len(sys.modules) / 3


def test_it_has_all_kernels():
    alone, imported = (
        collections.Counter(
            json.loads(
                run([sys.executable, "-c", KERNELS, how])[1].splitlines()[-1]
            )
        )
        for how in ("alone", "imported")
    )
    assert not imported - alone
    assert not alone - imported
    assert alone.total() > 1000


def test_plugins_are_loaded_by_the_whole_package(tmp_path):
    _, devices, modules = served(TF_PLUGGABLE_DEVICE_LIBRARY_PATH=str(tmp_path))
    assert "CPU" in devices
    assert "keras" in modules


def test_a_port_that_is_taken_is_an_error_that_can_be_caught():
    with socket.create_server(("", 0)) as taken:
        _, message, _ = served(taken.getsockname()[1])
    assert "Could not start gRPC server" in message


def test_who_has_imported_tensorflow_keeps_it():
    assert Runtime().Error is tf.errors.OpError
    assert sys.modules["tensorflow"] is tf


@pytest.mark.parametrize("asked", ["0", "1"])
def test_the_twin_may_be_asked_for(monkeypatch, asked):
    monkeypatch.setenv("TF_CONVPAR_PY_OPS", asked)
    assert Runtime().load_ops() == (asked == "0" and ops.build_report().exists)
