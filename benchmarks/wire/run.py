"""What lossless coding would save, and what int8 would do to accuracy.

python benchmarks/wire/run.py
"""

import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent


def main():
    with tempfile.TemporaryDirectory() as folder:
        found = str(pathlib.Path(folder) / "found.jsonl")
        for command in (
            ["lossless.py"],
            ["lossless.py", "--models", "VGG16", "--splits", "100Mbit"],
            ["learn.py", "--output", found],
            ["same.py", found],
        ):
            program, *arguments = command
            subprocess.run(
                [sys.executable, HERE / program, *arguments], check=True
            )


if __name__ == "__main__":
    main()
