"""Notebooks train on local workers, in a real kernel of Jupyter's."""

import json
import re
import signal
import time

import nbformat
import pytest
from jupyter_client.manager import start_new_kernel
from nbclient import NotebookClient
from processes import ROOT
from processes import environment
from processes import wait_gone

EXAMPLES = ROOT / "examples"

# Where a cell hangs, its stacks say where.
START = """
import faulthandler, os, signal, psutil
import tf_convpar as convpar

faulthandler.register(signal.SIGUSR1, file=open(os.environ["STACKS"], "w"))

workers = convpar.local_workers(1, threads=1)
print(*[p.pid for p in psutil.Process().children()])
"""
TRAIN = """
import keras, numpy as np

strategy = convpar.ConvParallelStrategy()
with strategy.scope():
    model = keras.Sequential([
        keras.Input((8, 8, 3)), keras.layers.Conv2D(8, 3),
        keras.layers.Flatten(), keras.layers.Dense(10),
    ])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(True))
    model = convpar.parallelize(model, "equal")
x, y = np.ones((8, 8, 8, 3), "float32"), np.arange(8)
model.fit(x, y, verbose=0)
print(len(strategy.devices), "devices", "TF_CONFIG" in os.environ)
"""


@pytest.fixture
def kernel(tmp_path):
    """Runs code in a kernel as cells; gives its process, and outputs."""
    stacks = tmp_path / "stacks"
    manager, client = start_new_kernel(env=environment(STACKS=str(stacks)))

    def run(code):
        found = {"stdout": "", "stderr": "", "text": "", "error": ""}

        def keep(message):
            content = message["content"]
            if message["msg_type"] == "stream":
                found[content["name"]] += content["text"]
            elif message["msg_type"] == "execute_result":
                found["text"] += content["data"]["text/plain"]
            elif message["msg_type"] == "error":
                found["error"] += f"{content['ename']}: {content['evalue']}"

        try:
            client.execute_interactive(code, output_hook=keep, timeout=60)
        except TimeoutError:
            manager.signal_kernel(signal.SIGUSR1)
            time.sleep(1)
            pytest.fail(f"{found}\n{stacks.read_text()}")
        return found

    yield manager.provisioner.process, run
    client.stop_channels()
    if manager.is_alive():
        manager.shutdown_kernel(now=True)


@pytest.mark.slow
def test_the_example():
    notebook = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)
    metadata = {"metadata": {"path": EXAMPLES}}
    client = NotebookClient(notebook, timeout=90, resources=metadata)
    client.execute(env=environment())
    outputs = {
        cell.id: "".join(
            output.get("text") or output["data"]["text/plain"]
            for output in cell.outputs
            if output.get("name") != "stderr"
        )
        for cell in notebook.cells
        if cell.cell_type == "code"
    }
    assert re.search(r"worker 1 \(process \d+\)", outputs["workers"])
    for task in ("chief", "worker/replica:0/task:1"):
        assert f"/job:{task}" in outputs["model"]
    assert "\x1b" not in outputs["fit"] and "\b" not in outputs["fit"]
    losses = re.findall(r" loss: ([\d.]+)", outputs["fit"])
    assert float(losses[-1]) < 0.5 * float(losses[0])
    # The plain model has learnt the same.
    (held_out,) = re.findall(r"'loss': ([\d.]+)", outputs["stop"])
    assert outputs["fit"].rstrip().endswith(f"{float(held_out):.4f}")
    assert "2 local workers, stopped" in outputs["stop"]


@pytest.mark.slow  # test_local_workers.py, too.
def test_workers_are_lost_started_again_stopped_and_end_with_the_kernel(kernel):
    process, run = kernel
    (first,) = run(START)["stdout"].split()
    # A cell that is run again changes nothing.
    assert run(START)["stdout"].split() == [first]
    assert run(TRAIN)["stdout"].endswith("\n2 devices True\n")
    # One that hangs would keep the cell from its end.
    lost = run(f"os.kill({first}, signal.SIGKILL)\nmodel.fit(x, y, verbose=0)")
    assert "UnavailableError" in lost["error"]
    assert "[worker 0] ended with signal SIGKILL\n" in lost["stderr"]
    assert "ended with signal" in run("workers")["text"]
    # No new kernel is needed for another worker, and another model.
    (second,) = run(START)["stdout"].split()
    assert second != first
    assert run(TRAIN)["stdout"].endswith("\n2 devices True\n")
    other = run("convpar.local_workers(2)")["error"]
    assert "RuntimeError: Expected the same local workers" in other
    # It goes on alone, even if the worker has been stopped meanwhile.
    left = run(f"os.kill({second}, signal.SIGSTOP)\nworkers.stop()\n" + TRAIN)
    assert left["stdout"].endswith("\n1 devices False\n"), left
    assert run("workers")["text"] == "1 local worker, stopped"
    # However the kernel ends, they end.
    (third,) = run(START)["stdout"].split()
    process.kill()
    process.wait()
    assert not wait_gone([int(third)])


def test_workers_within_a_cluster(monkeypatch):
    from tf_convpar.cluster.own_workers import local_workers

    config = {
        "cluster": {"chief": ["localhost:1"], "worker": ["localhost:2"]},
        "task": {"type": "chief", "index": 0},
    }
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    with pytest.raises(ValueError, match="in no cluster yet.*launch"):
        local_workers(2)
    for count in (0, 1.5):
        with pytest.raises(ValueError, match=f"1 or more. Received: {count}"):
            local_workers(count)
