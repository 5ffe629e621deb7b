"""`convpar launch` without restarts, when a worker ends: some programs go on.

One says when it makes steps that outlive workers; here some do so by hand, for
tests that take seconds, and one trains with `Elastic`.
"""

import os
import re
import signal
import sys

import pytest
from processes import CONVPAR
from processes import kill_tree
from processes import read_until
from processes import run
from processes import start
from processes import wait_gone
from test_cli_launch import _worker_of
from test_cli_launch import descendants
from test_cli_launch import hosts as hosts
from test_cli_launch import ssh as ssh

from tf_convpar.files import CACHE_FOLDER

# Seconds that a step is waited for, so that it takes seconds here.
STEP_S = 3.0
LAUNCH = [
    *(sys.executable, "-c"),
    "from tf_convpar.cli import _program_liveness\n"
    f"_program_liveness._STEP_S, _program_liveness._LOOK_S = {STEP_S}, 0.5\n"
    "from tf_convpar_cli import main\n"
    "main()",
    "launch",
]

# Makes steps for so many seconds, stands still for so many, and ends with a
# code.
STEPS = """
import os, signal, sys, time
from tf_convpar import files

def stop(number, frame):
    print("got", signal.Signals(number).name)
    sys.exit(40 + number)

signal.signal(signal.SIGTERM, stop)
steps_s, still_s, code = map(float, sys.argv[1:])
begin = time.monotonic()
files.note_step(os.environ["CONVPAR_LAUNCH"])
print("begun", flush=True)
while time.monotonic() < begin + steps_s:
    time.sleep(0.1)
    files.note_step(os.environ["CONVPAR_LAUNCH"])
time.sleep(still_s)
print("done", flush=True)
sys.exit(int(code))
"""

# Kills a worker in its second epoch.
TRAINS = """
import os, signal
import keras, numpy as np, psutil
import tf_convpar as convpar
from tf_convpar import files

said, say = [], files.note_step
files.note_step = lambda launch: (said.append(1), say(launch))
strategy = convpar.ConvParallelStrategy()
with strategy.scope():
    model = keras.Sequential([
        keras.Input((8, 8, 3)), keras.layers.Conv2D(8, 3),
        keras.layers.Flatten(), keras.layers.Dense(2),
    ])
    model.compile("sgd", "mse")
    model = convpar.parallelize(model, "equal")

def kill(epoch, logs):
    if epoch == 1:
        every = psutil.Process(os.getppid()).children(recursive=True)
        os.kill([p.pid for p in every if "worker" in p.cmdline()][0], 9)

x, y = np.ones((32, 8, 8, 3), "float32"), np.ones((32, 2), "float32")
found = model.fit(x, y, batch_size=8, epochs=4, verbose=0, callbacks=[
    *([convpar.callbacks.Elastic()] if ELASTIC else []),
    keras.callbacks.LambdaCallback(on_epoch_begin=kill),
])
print("losses", len(found.history["loss"]), len(strategy.devices))
print("said", len(said), flush=True)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """Where programs say that they make steps; nobody can write the cache."""
    monkeypatch.setenv(CACHE_FOLDER, "/proc/tf_convpar")
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def launched(line, **changes):
    """Exit code and output, of a launch whose worker is killed."""
    launcher = start(line, **changes)
    try:
        early = read_until(launcher, "[chief] begun")
        pids = descendants(launcher)
        os.kill(_worker_of(launcher), signal.SIGKILL)
        output, _ = launcher.communicate(timeout=60)
        assert not wait_gone(pids)
        return launcher.returncode, early + output
    finally:
        kill_tree(launcher)


LEFT = "worker 0 ended with signal SIGKILL; the program may go on without it"


@pytest.mark.slow
def test_a_program_that_makes_steps_is_left_alone(program, temporary):
    code, output = launched([*LAUNCH, "-n", "2", program(STEPS), "5", "0", "0"])
    assert code == 0, output
    assert LEFT in output
    assert "The program makes steps without worker 0." in output
    assert output.count("without") == 2
    assert "[chief] done" in output
    assert "stopping everything" not in output
    assert not list(temporary.glob("*/*.steps"))


@pytest.mark.slow
def test_one_that_makes_none_any_more_is_ended(program):
    line = [*LAUNCH, "-n", "2", program(STEPS), "0", "60", "0"]
    code, output = launched(line)
    assert code == 1, output
    assert LEFT in output
    assert f"has made no step for {STEP_S:g} s without worker 0" in output
    assert "[chief] got SIGTERM" in output


@pytest.mark.slow
def test_one_that_made_steps_and_ends_has_its_own_code(program):
    line = [*LAUNCH, "-n", "2", program(STEPS), "1", "0.5", "5"]
    code, output = launched(line)
    assert code == 5, output
    assert LEFT in output
    assert "stopping everything" not in output


@pytest.mark.slow
def test_over_ssh_it_is_asked_for_there(program, ssh, hosts, tmp_path):
    changes, log = ssh
    line = [
        *(*LAUNCH, "--hosts", hosts, "--ssh", "--python", sys.executable),
        *("--cwd", tmp_path, program(STEPS), "6", "0", "0"),
    ]
    code, output = launched(line, **changes)
    assert code == 0, output
    assert "worker 0 ended with " in output
    assert "The program makes steps without worker 0." in output
    assert "-T -o BatchMode=yes localhost" in log.read_text()
    code, output = launched([*line[:-3], "0", "60", "0"], **changes)
    assert code == 1, output
    assert "has made no step for" in output


@pytest.mark.slow
def test_over_ssh_one_that_says_nothing_is_ended(program, ssh, hosts):
    changes, _ = ssh
    silent = "import signal; print('begun', flush=True); signal.pause()"
    line = [
        *(*LAUNCH, "--hosts", hosts, "--ssh", "--python", sys.executable),
        program(silent),
    ]
    code, output = launched(line, **changes)
    assert code == 1, output
    assert "before the program did; stopping everything" in output


@pytest.mark.slow
@pytest.mark.parametrize("elastic", [True, False])
def test_a_training_goes_on_with_elastic_alone(elastic, program):
    script = program(TRAINS.replace("ELASTIC", str(elastic)))
    code, output = run([*CONVPAR, "launch", "-n", "3", script])
    ended = re.search(r"worker \d ended with signal SIGKILL(.*)", output)
    assert ended, output
    if elastic:
        assert code == 0, output
        assert "the program may go on without it" in ended[1]
        assert "[chief] losses 4 2" in output
        # 16 steps, and before these that it can; and those that were made
        # again, one by one, as they may take longer than it is waited for.
        (said,) = re.findall(r"\[chief\] said (\d+)", output)
        assert int(said) >= 17 + 3
    else:
        assert code == 1, output
        assert "stopping everything" in ended[1]
        assert "losses" not in output
