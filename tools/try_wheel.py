"""Installs a wheel in empty environments without a compiler, and trains.

    python tools/try_wheel.py dist/*.whl python3.10 python3.11

For each Python: a new environment, the wheel and whatever it requires from the
package index, nothing else in PATH; then `convpar check-build`, and two steps
of a network on two processes beside the same on one. Environments are deleted.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

PROGRAM = pathlib.Path(__file__).parents[1] / "tests/programs/two_steps.py"
TAGS = re.compile(r"-py3-none-manylinux_\w+\.whl$")
FLAGS = """
import json, platform, tensorflow as tf
print(json.dumps({
    "python": platform.python_version(),
    "tensorflow": tf.__version__,
    "flags": [f for f in tf.sysconfig.get_compile_flags() if f[:2] != "-I"]
    + [f for f in tf.sysconfig.get_link_flags() if f[:2] != "-L"],
}))
"""


def main() -> None:
    """Tries the wheel with each Python, and says what was found."""
    wheel, *pythons = sys.argv[1:] or [""]
    if not TAGS.search(wheel) or not pythons:
        sys.exit(
            "Expected a wheel for all Pythons and many Linuxes, and Pythons to "
            f"try it with. Received: {sys.argv[1:]}"
        )
    flags = set()
    for python in pythons:
        with tempfile.TemporaryDirectory(prefix="convpar-wheel-") as folder:
            found = attempt(pathlib.Path(wheel).resolve(), python, folder)
        flags.add(tuple(found.pop("flags")))
        print(json.dumps(found), flush=True)
    print(f"TensorFlow's flags: {' or '.join(map(' '.join, flags))}")
    if len(flags) != 1:
        sys.exit(
            "Expected the same flags for each Python: one wheel serves "
            "all of them."
        )


def attempt(wheel: pathlib.Path, python: str, folder: str) -> dict:
    """Installs it for a Python, and tries it."""
    place = pathlib.Path(folder)
    begin = time.monotonic()
    subprocess.run([python, "-m", "venv", place / "env"], check=True)
    binaries = place / "env/bin"
    pip = [binaries / "pip", "install", "--quiet", "--only-binary=:all:"]
    subprocess.run([*pip, wheel], check=True)
    installed = time.monotonic()
    env = {
        k: v
        for k, v in os.environ.items()
        if k not in ("PYTHONPATH", "TF_CONFIG", "TF_CONVPAR_PY_OPS")
    }
    env |= {"PATH": str(binaries), "TF_CPP_MIN_LOG_LEVEL": "2"}
    for compiler in ("c++", "cc", "clang", "g++", "gcc"):
        if shutil.which(compiler, path=env["PATH"]):
            sys.exit(f"Expected no compiler. Received: {compiler}")

    def run(*command: str | pathlib.Path) -> dict:
        done = subprocess.run(
            [binaries / command[0], *command[1:]],
            cwd=folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        text = done.stdout[done.stdout.find("{") : done.stdout.rfind("}") + 1]
        if done.returncode or not text:
            sys.exit(f"{command} ended with {done.returncode}:\n{done.stdout}")
        return json.loads(text)

    report = run("convpar", "check-build", "--json")
    if not report["library"].startswith(str(place.resolve())):
        sys.exit(f"Expected the wheel's library. Received: {report}")
    alone = run("python", PROGRAM)
    spread = run("convpar", "launch", "-n", "2", str(PROGRAM))
    if len({*spread["devices"]}) != 2 or any(
        abs(a - b) > 1e-5 * abs(a)
        for a, b in zip(alone["losses"], spread["losses"], strict=True)
    ):
        sys.exit(
            "Expected two devices, and the losses of one. Received: "
            f"{spread}; one device gives {alone}"
        )
    return {
        **run("python", "-c", FLAGS),
        "wheel": wheel.name,
        "losses": spread["losses"],
        "install_s": round(installed - begin),
        "tried_s": round(time.monotonic() - installed),
    }


if __name__ == "__main__":
    main()
