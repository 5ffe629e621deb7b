"""`convpar doctor`: real faults of real processes."""

import json
import subprocess

import pytest
from parted import parted_workers
from processes import CONVPAR
from processes import environment
from processes import kill_tree
from processes import read_until
from processes import start

from tf_convpar.cli import _checks
from tf_convpar.cluster.joining import Cluster
from tf_convpar.cluster.local_cluster import reserved_port
from tf_convpar.planner import Link

# The time of day, seven seconds ahead.
AHEAD = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

int clock_gettime(clockid_t id, struct timespec* t) {
  static int (*real)(clockid_t, struct timespec*);
  if (!real) *(void**)&real = dlsym(RTLD_NEXT, "clock_gettime");
  int code = real(id, t);
  if (!code && id == CLOCK_REALTIME) t->tv_sec += 7;
  return code;
}

int gettimeofday(struct timeval* t, void* zone) {
  struct timespec now;
  int code = clock_gettime(CLOCK_REALTIME, &now);
  t->tv_sec = now.tv_sec;
  t->tv_usec = now.tv_nsec / 1000;
  return code;
}
"""


def doctor(*args, **changes):
    """Exit code, and what is said by task or link and check."""
    done = subprocess.run(
        [*CONVPAR, "doctor", "--json", *args],
        env=environment(**changes),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    return done.returncode, {(f["where"], f["check"]): f for f in found}


def wrong(found):
    return {key for key, finding in found.items() if not finding["well"]}


@pytest.mark.slow
def test_one_machine():
    code, found = doctor(
        TF_ENABLE_ONEDNN_OPTS="0",
        TF_NUM_INTRAOP_THREADS="1",
        TF_CONVPAR_PY_OPS="1",
    )
    expected = {("here", "onednn"), ("here", "ops")}
    cores = "on a machine of" in found["here", "threads"]["says"]
    assert wrong(found) == expected | (
        {("here", "threads")} if cores else set()
    )
    assert code == 1
    assert "unset it" in found["here", "onednn"]["says"]
    code, found = doctor(TF_ENABLE_ONEDNN_OPTS="1")
    assert (code, wrong(found)) == (0, set())


def test_a_cluster(tmp_path):
    """A worker with a wrong clock and without oneDNN; one that is not there."""
    (tmp_path / "ahead.c").write_text(AHEAD)
    shim = tmp_path / "ahead.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", shim, tmp_path / "ahead.c", "-ldl"],
        check=True,
    )
    with reserved_port() as a, reserved_port() as b, reserved_port() as c:
        here, there, silent = (f"localhost:{port}" for port in (a, b, c))
        cluster = Cluster({"chief": (here,), "worker": (there, silent)})
        worker = start(
            [*CONVPAR, "worker"],
            TF_CONFIG=cluster.tf_config(cluster.others[0]),
            LD_PRELOAD=str(shim),
            TF_ENABLE_ONEDNN_OPTS="0",
        )
        try:
            read_until(worker, "Ready")
            code, found = doctor(
                "--timeout=2",
                TF_CONFIG=cluster.tf_config(),
                TF_ENABLE_ONEDNN_OPTS="1",
            )
        finally:
            kill_tree(worker)
    assert code == 1
    name = "worker 0"
    assert wrong(found) - {(name, "threads")} == {
        ("worker 1", "answer"),
        (name, "onednn"),
        (name, "clock"),
    }
    assert "7.0" in found[name, "clock"]["says"]
    assert "ahead" in found[name, "clock"]["says"]
    assert "connection refused" in found["worker 1", "answer"]["says"]
    assert found[name, "answer"]["well"] and found[name, "versions"]["well"]
    for link in ("chief 0 CPU:0 -> worker 0 CPU:0", "worker 0 CPU:0 -> chief"):
        (rate,) = (f for (w, c), f in found.items() if w.startswith(link))
        assert "MB/s" in rate["says"]


def test_versions_that_differ(tmp_path, monkeypatch):
    """By the folders beside the TensorFlow that a process has in memory."""
    for site, version in (("here", "2.21.0"), ("there", "2.20.1")):
        folder = tmp_path / site
        (folder / f"tensorflow_cpu-{version}.dist-info").mkdir(parents=True)
        (folder / "keras-3.15.1.dist-info").mkdir()
        (folder / "other-1.0.dist-info").mkdir()
    library = "tensorflow/libtensorflow_framework.so.2"
    monkeypatch.setattr(
        _checks.machines,
        "maps",
        lambda device: (
            "7f00-7f01 r-xp 0 08:01 5 "
            f"{tmp_path}/{'here' if '0' in device else 'there'}/{library}\n"
        ),
    )
    same = _checks._versions("CPU:0", "CPU:0", "worker 0")
    assert same.well
    assert same.says == "keras 3.15.1, tensorflow 2.21.0, as here."
    other = _checks._versions("CPU:1", "CPU:0", "worker 0")
    assert not other.well
    assert "tensorflow 2.20.1, and 2.21.0 on the chief" in other.says
    assert "keras" not in other.says


@pytest.mark.parametrize(
    ("rate", "latency", "well", "words"),
    [
        (118e6, 3e-4, True, "118 MB/s, 0.30 ms"),
        (12e6, 3e-4, False, "look at cable"),
        (118e6, 2e-2, False, "less than 1 ms"),
    ],
)
def test_slow_links(rate, latency, well, words, monkeypatch):
    monkeypatch.setattr(
        "tf_convpar.cli._checks.measure_link",
        lambda a, b, clock: Link(a, b, rate, latency),
    )
    found = _checks.of_link("/device:CPU:0", "/device:CPU:1", None)
    assert found.well == well
    assert words in found.says


@pytest.mark.slow  # test_reach.py, too.
def test_workers_that_do_not_reach_each_other():
    """Both answer the chief: only they can tell."""
    with parted_workers() as local:
        local.part((1, 0))
        code, found = doctor(TF_CONFIG=local.tf_config())
    assert code == 1
    assert ("worker 0, worker 1", "reach") in wrong(found)
    says = found["worker 0, worker 1", "reach"]["says"]
    assert "do not reach each other" in says
