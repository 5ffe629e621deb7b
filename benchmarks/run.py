"""Runs every benchmark, one after the other: what `make bench` does."""

import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).parent


def main():
    for program in sorted(HERE.glob("*/run.py")):
        print(f"\n{program.parent.name}", flush=True)
        done = subprocess.run([sys.executable, program, *sys.argv[1:]])
        if done.returncode:
            sys.exit(done.returncode)


if __name__ == "__main__":
    main()
