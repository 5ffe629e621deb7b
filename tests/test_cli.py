"""`convpar`, and its commands that only print."""

import json
import re
import socket
import sys

import pytest
from click.testing import CliRunner
from processes import CONVPAR
from processes import run

import tf_convpar
from tf_convpar.cli.main import main
from tf_convpar.cluster.joining import Cluster
from tf_convpar.ops import _library

COMMANDS = [
    "algorithms",
    "calibrate",
    "check-build",
    "devices",
    "env",
    "estimate",
    "launch",
    "plan",
    "simulate",
    "worker",
]


def run_json(*args, **changes):
    """Runs `convpar`; returns exit code and what its stdout says."""
    # As a module: any other program imports TensorFlow with the package.
    alone = ["bash", "-c", 'exec "$@" 2>/dev/null', "-"]
    code, output = run([*alone, *CONVPAR, *args], **changes)
    return code, json.loads(output)


def run_here(*args, **changes):
    """Runs `convpar` in this process, which has TensorFlow already."""
    return CliRunner().invoke(main, args, env=changes)


def test_help_does_not_wait_for_tensorflow():
    code, output = run([sys.executable, "-X", "importtime", *CONVPAR[1:]])
    assert "tf_convpar.cli" in output
    assert not re.search(r"\| +(tensorflow|keras|grpc)$", output, re.MULTILINE)
    code, output = run([*CONVPAR, "--help"])
    assert code == 0
    for command in COMMANDS:
        assert f"\n  {command} " in output


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command(command):
    code, output = run([*CONVPAR, command, "-h"])
    assert code == 0
    assert output.startswith(f"Usage: convpar {command}")


def test_version():
    _, output = run([*CONVPAR, "--version"])
    assert output == f"convpar, version {tf_convpar.__version__}\n"


def test_unknown_command():
    code, output = run([*CONVPAR, "lunch"])
    assert code == 2
    assert "No such command 'lunch'" in output


def test_check_build():
    result = run_here("check-build", "--json")
    report = json.loads(result.stdout)
    assert result.exit_code == (0 if report["in_use"] else 1)
    assert report["running_tensorflow"] in report["verdict"]


@pytest.fixture
def not_yet_loaded():
    """As if no operation had been needed before."""
    _library._attempt.cache_clear()
    yield
    _library._attempt.cache_clear()


def test_check_build_without_the_op(not_yet_loaded):
    result = run_here("check-build", TF_CONVPAR_PY_OPS="1")
    assert result.exit_code == 1
    assert "in use:                False" in result.output
    assert result.output.splitlines()[-1].startswith("TF_CONVPAR_PY_OPS=1")


def test_env():
    result = run_here(
        "env",
        "--json",
        TF_CONFIG=Cluster({"chief": ["secret:1"]}).tf_config(),
        TF_TOKEN_registry="secret",
        TF_NUM_INTEROP_THREADS="3",
        http_proxy="http://me:secret@proxy",
    )
    assert result.exit_code == 0
    facts = json.loads(result.stdout)
    assert facts["tf_convpar"] == tf_convpar.__version__
    assert facts["tensorflow"].startswith("2.")
    assert facts["TF_CONFIG"] == "1 chief; this is /job:chief/task:0"
    assert facts["TF_NUM_INTEROP_THREADS"] == "3"
    assert "secret" not in str(facts)


def test_devices_of_a_cluster_that_is_not_there():
    with socket.socket() as closed, socket.create_server(("", 0)) as silent:
        closed.bind(("", 0))
        spec = {
            "chief": [f"localhost:{closed.getsockname()[1]}"],
            "worker": [f"localhost:{silent.getsockname()[1]}"],
        }
        result = run_here(
            "devices",
            "--json",
            "--timeout=1",
            TF_CONFIG=Cluster(spec).tf_config(),
        )
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["here"][0]["name"] == "CPU:0"
    assert found["here"][0]["memory_bytes"] > 2**28
    chief, worker = found["cluster"]
    assert (chief["task"], chief["reached"]) == ("/job:chief/task:0", False)
    assert "connection refused" in chief["problem"]
    assert "does not answer" in worker["problem"]


def test_devices_as_a_table():
    result = run_here("devices")
    assert result.exit_code == 0
    assert "This machine" in result.output
    assert "CPU:0" in result.output


def test_devices_with_a_bad_tf_config():
    code, output = run([*CONVPAR, "devices"], TF_CONFIG="{")
    assert code == 2
    assert output.startswith("Error: Expected TF_CONFIG to be JSON")
