"""Runs all benchmarks of GPUs, each in a process of its own."""

import pathlib
import subprocess
import sys

import card

PROGRAMS = ("moves", "one_shard", "models", "devices", "replicas")


def main():
    card.wanted(card.options(__doc__))
    failed = []
    for name in PROGRAMS:
        print(f"\n{name}", flush=True)
        program = pathlib.Path(__file__).with_name(f"{name}.py")
        if subprocess.run([sys.executable, program, *sys.argv[1:]]).returncode:
            failed.append(name)
    if failed:
        sys.exit(f"Failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
