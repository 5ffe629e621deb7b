"""Programs in processes that have imported TensorFlow already.

To import it takes seven seconds, and tests start dozens of programs. A server
imports it once, and each program is a copy of that process: a `forkserver` of
`multiprocessing`. What a program does on its way in, such as what `convpar`
imports, is tested with processes of their own.
"""

import atexit
import json
import multiprocessing
import os
import runpy
import subprocess
import sys
import threading
from multiprocessing import forkserver
from multiprocessing import resource_tracker

import psutil

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["tf_convpar.cli", "tf_convpar", "keras"])


def run(command, env, timeout=90):
    """Runs a program to its end, as `subprocess.run` does.

    Args:
        command: Arguments of Python: `-m` and a module, `-c` and a program, or
            a file; then those of the program.
        env: The environment.
        timeout: Seconds, after which it and its children are killed.
    """
    (out, to_out), (err, to_err) = _SERVER.Pipe(False), _SERVER.Pipe(False)
    process = _SERVER.Process(
        target=_become,
        args=(list(map(str, command)), env, os.getcwd(), to_out, to_err),
    )
    process.start()
    to_out.close()
    to_err.close()
    said = {}
    readers = [
        threading.Thread(target=_read, args=(said, *pair), daemon=True)
        for pair in (("out", out), ("err", err))
    ]
    for reader in readers:
        reader.start()
    process.join(timeout)
    if process.exitcode is None:
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
        process.kill()
        process.join()
    for reader in readers:
        reader.join()
    return subprocess.CompletedProcess(
        command, process.exitcode, said["out"], said["err"]
    )


def found(command, env, timeout=240):
    """The JSON that a program printed last."""
    done = run(command, env, timeout)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def stop():
    """Ends the server, as the tests of `multiprocessing` itself do."""
    forkserver._forkserver._stop()
    resource_tracker._resource_tracker._stop()


def _read(said, name, connection):
    with os.fdopen(os.dup(connection.fileno()), errors="replace") as file:
        said[name] = file.read()
    connection.close()


def _become(command, env, folder, out, err):
    """Turns the process into one that runs the program."""
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(out.fileno(), 1)
    os.dup2(err.fileno(), 2)
    paths = env.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [path for path in paths if path]
    try:
        _run(command)
    finally:
        # As the interpreter would.
        atexit._run_exitfuncs()
        sys.stdout.flush()


def _run(command):
    what, *rest = command
    if what == "-m":
        sys.argv = rest
        sys.path.insert(0, os.getcwd())
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif what == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.path.insert(0, os.getcwd())
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = command
        sys.path.insert(0, os.path.dirname(what))
        runpy.run_path(what, run_name="__main__")
