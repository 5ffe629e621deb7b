"""Examples of every command's help run, and mistakes are told in a line."""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time

import click
import pytest
from click.testing import CliRunner
from processes import CONVPAR
from processes import environment
from processes import kill_tree
from processes import read_until
from processes import run
from processes import start
from processes import wait_gone

from tf_convpar.cli.main import main
from tf_convpar.cluster.joining import Cluster
from tf_convpar.cluster.local_cluster import local_workers
from tf_convpar.cluster.local_cluster import reserved_port

# Their examples are run beside a training, here and in test_cli_top.py.
OTHERS = ("worker", "trace", "top")
# Their examples need machines and an ssh to them.
REMOTE = "--ssh"
# These take no longer than TensorFlow, which this process has.
CHEAP = ("check-build", "devices", "doctor", "env", "estimate", "simulate")
# And with another batch, or of a whole model, they take as long once more.
SLOW = ("--sweep", "16", "memory", "batch")


def commands(command=main, path=()):
    """Every command by its words, and groups."""
    yield path, command
    if isinstance(command, click.Group):
        for name in command.list_commands(None):
            yield from commands(command.get_command(None, name), (*path, name))


def examples():
    """Each example, as its words."""
    found = []
    for path, command in commands():
        context = click.Context(command, info_name="convpar")
        said = command.get_help(context).replace("\\\n", " ")
        lines = re.findall(r"^ {4}(convpar .*)$", said, re.MULTILINE)
        assert lines, f"no example in the help of {path}"
        found += [shlex.split(line)[1:] for line in lines]
    return found


EXAMPLES = examples()


def are(names, cheap):
    return [
        pytest.param(words, id=" ".join(words))
        for words in EXAMPLES
        if (words[0] in names and not set(SLOW) & set(words)) == cheap
        and REMOTE not in words
        and words[0] not in OTHERS
    ]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """One with what the examples name."""
    (tmp_path / "mypackage").mkdir()
    for name in ("train.py", "mypackage/train.py"):
        (tmp_path / name).write_text("print('trained')")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("words", are(CHEAP, True))
def test_an_example_of_the_help(words, folder):
    done = CliRunner().invoke(main, words)
    assert not isinstance(done.exception, Exception), done.output
    # These two say what they found by their exit code.
    codes = (0, 1) if words[0] in ("check-build", "doctor") else (0,)
    assert done.exit_code in codes, done.output
    assert done.output


@pytest.mark.slow
@pytest.mark.parametrize("words", are(CHEAP, False))
def test_an_example_that_measures_or_trains(words, folder, tmp_path):
    if "calibration.json" in words and words[0] in ("plan", "simulate"):
        run([*CONVPAR, *_calibrated("calibration.json")])
    process = start([*CONVPAR, *words], TF_CONVPAR_CACHE=str(tmp_path))
    try:
        output, _ = process.communicate(timeout=280)
    finally:
        kill_tree(process)
    assert process.returncode == 0, output


def _calibrated(file):
    return shlex.split(
        f"calibrate MobileNetV2 --image 32 --batch 2 --output {file}"
    )


TRAINS = """
import keras
import numpy as np
import tf_convpar as convpar

layers = keras.layers
with convpar.ConvParallelStrategy().scope():
    model = keras.Sequential(
        [keras.Input((8, 8, 3)), layers.Conv2D(6, 3), layers.Flatten()]
    )
    model.compile("sgd", "mse")
    model = convpar.parallelize(model, plan="equal", verbose=False)
x, y = np.zeros((64, 8, 8, 3)), np.zeros((64, 216))
model.fit(x, y, batch_size=4, verbose=0)
print("begun", flush=True)
while True:
    model.fit(x, y, batch_size=4, verbose=0)
"""


@pytest.mark.slow
def test_examples_of_worker_and_trace(folder):
    (worker,) = (words for words in EXAMPLES if words[0] == "worker")
    (trace,) = (words for words in EXAMPLES if words[0] == "trace")
    with reserved_port() as a, reserved_port() as b:
        cluster = Cluster(
            {"chief": [f"localhost:{a}"], "worker": [f"localhost:{b}"]}
        )
        config = cluster.tf_config(cluster.others[0])
        process = start([*CONVPAR, *worker], TF_CONFIG=config)
        try:
            read_until(process, "Ready")
        finally:
            kill_tree(process)
    with local_workers(1) as local:
        config = local.tf_config()
        chief = start([sys.executable, "-c", TRAINS], TF_CONFIG=config)
        try:
            read_until(chief, "begun")
            code, output = run([*CONVPAR, *trace], TF_CONFIG=config)
        finally:
            kill_tree(chief)
    assert code == 0, output
    assert (folder / "here" / "timeline.png").stat().st_size > 1000


MISTAKES = [
    ("", ["--verison"], "Did you mean '--version'?"),
    ("", ["lunch"], "No such command 'lunch'"),
    ("algorithms", [], "Missing argument 'MODEL'"),
    ("algorithms", ["VGG61"], "Is it VGG"),
    ("algorithms", ["VGG16", "--passes=back"], "Expected some of forward"),
    ("calibrate", ["half.keras"], "file of model.save()"),
    ("calibrate", ["VGG16", "--bacth=4"], "Did you mean '--batch'?"),
    ("calibrate", ["VGG16", "--output=no/c.json"], "mkdir -p no"),
    ("calibrate", ["--method=star", "VGG16", "--output=no/c"], "mkdir -p no"),
    ("check-build", ["now"], "unexpected extra argument"),
    ("demo", ["--steps=1"], "1 is not in the range x>=8"),
    ("devices", ["--timeout=0"], "0.0 is not in the range"),
    ("doctor", ["--timeout=x"], "'x' is not a valid float"),
    ("env", ["--jsn"], "Did you mean '--json'?"),
    ("top", ["--onc"], "'--once'?"),
    ("estimate memory", ["half.keras"], "file of model.save()"),
    ("estimate memory", ["VGG16", "--png=no/x.png"], "mkdir -p no"),
    ("estimate batch", ["VGG16", "--memory=8XB"], "Received: 8XB"),
    ("estimate devices", [], "Expected --overhead with"),
    ("estimate servers", ["--workers=1"], "Missing option"),
    ("launch", ["-n", "2"], "Missing argument 'PROGRAM'"),
    ("launch", ["-n", "2", "away.py"], "away.py, which is not there"),
    ("launch", ["--hosts=a,b:1", "train.py"], "Received: 'a'"),
    ("launch", ["--hosts=a:70000,b:1", "train.py"], "70000"),
    ("plan", ["away.json"], "'away.json' does not exist"),
    ("plan", ["half.json"], "Expected"),
    ("simulate", ["--devices=2xcpu:1GFLOPS"], "Received no --model"),
    ("simulate", ["--model=VGG16", "--devices=2cpu"], "Expected"),
    ("simulate", ["--method=star"], "Received neither"),
    ("simulate", ["--method=star", "half.json"], "Expected"),
    ("trace", ["--output=x"], "Expected TF_CONFIG"),
    ("worker", ["--threads=0"], "0 is not in the range x>=1"),
    ("worker", [], "Expected the environment variable TF_CONFIG"),
]
BY_TF_CONFIG = ("calibrate VGG16", "devices", "doctor", "trace", "worker")


def check_told(code, said):
    assert code == 2, said
    assert said.startswith("Error: "), said
    assert said.count("\n") == 1 and said.endswith("\n"), said


def mistake(words, **changes):
    """Exit code and output; `worker` sets handlers for its whole process."""
    if words[:1] == ["worker"]:
        return run([*CONVPAR, *words], **changes)
    done = CliRunner().invoke(main, words, env=changes)
    assert not isinstance(done.exception, Exception), done.exception
    return done.exit_code, done.output


@pytest.mark.parametrize(
    ("path", "args", "cure"), MISTAKES, ids=lambda value: str(value)
)
def test_a_mistake_is_told_in_a_line(path, args, cure, folder):
    (folder / "half.keras").write_bytes(b"PK")
    (folder / "half.json").write_text('{"kind": "calibration", ')
    code, said = mistake([*path.split(), *args])
    check_told(code, said)
    assert cure in said


def test_every_command_has_a_mistake_here():
    told = {tuple(path.split()) for path, _, _ in MISTAKES}
    leaves = {p for p, c in commands() if not isinstance(c, click.Group)}
    assert leaves <= told


@pytest.mark.parametrize("command", BY_TF_CONFIG)
@pytest.mark.parametrize(
    "config",
    ["{", '{"cluster": {"chief": ["a:99999"]}, "task": {"type": "chief"}}'],
)
def test_a_wrong_tf_config(command, config):
    code, said = mistake(command.split(), TF_CONFIG=config)
    check_told(code, said)
    assert "TF_CONFIG" in said or "99999" in said


def test_a_port_that_is_taken():
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        cluster = Cluster({"chief": ["a:1"], "worker": [f"localhost:{port}"]})
        config = cluster.tf_config(cluster.others[0])
        code, said = mistake(["worker"], TF_CONFIG=config)
    check_told(code, said)
    assert "or choose another port" in said


def test_ctrl_c_leaves_no_file_and_no_process(tmp_path):
    """While it measures, which is done by a thread of its own."""
    words = shlex.split("calibrate ResNet50 --image 64 --batch 8 --output")
    process = subprocess.Popen(
        [*CONVPAR, *words, tmp_path / "calibration.json"],
        env=environment(TF_CONVPAR_CACHE=str(tmp_path / "cache")),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        for line in process.stderr:
            if line.startswith("Measuring"):
                break
        time.sleep(1.0)
        os.killpg(process.pid, signal.SIGINT)
        begin = time.monotonic()
        said = process.stderr.read()
        assert process.wait(30) == 130, said
        assert time.monotonic() - begin < 15
    finally:
        kill_tree(process)
    assert said.endswith("Stopped.\n") and "Traceback" not in said
    assert not wait_gone([process.pid])
    assert not (tmp_path / "calibration.json").exists()
    assert not list((tmp_path / "cache").rglob("*.json"))
