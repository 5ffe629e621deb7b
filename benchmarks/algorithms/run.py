"""Makes the tables of the README one after the other, in about an hour."""

import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).parent


def main():
    for program in ("layers.py", "compare.py", "models.py", "curves.py"):
        print(f"\n{program}", flush=True)
        done = subprocess.run([sys.executable, HERE / program])
        if done.returncode:
            sys.exit(done.returncode)


if __name__ == "__main__":
    main()
