"""Runs `confirm.py` as a child process, and asks it for times."""

import dataclasses
import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).parent


class Confirm:
    """A child process that times convolutions, one after the other."""

    def __init__(self, threads, rounds=7, budget=1.0):
        self.process = subprocess.Popen(
            [
                sys.executable,
                HERE / "confirm.py",
                f"--threads={threads}",
                f"--rounds={rounds}",
                f"--budget={budget}",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, geometry):
        """The passes of a convolution as a dict; see `confirm.confirm`."""
        line = json.dumps(dataclasses.asdict(geometry))
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        """Ends the process."""
        self.process.stdin.close()
        self.process.wait()
