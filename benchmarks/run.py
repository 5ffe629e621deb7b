"""Runs every benchmark, one after the other: what `make bench` does."""

import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).parent


def main():
    failed = []
    for program in sorted(HERE.glob("*/run.py")):
        print(f"\n{program.parent.name}", flush=True)
        done = subprocess.run([sys.executable, program, *sys.argv[1:]])
        # Some need root. The others run even if these fail.
        if done.returncode:
            failed.append(program.parent.name)
    if failed:
        sys.exit(f"Failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
