"""Run in a mount namespace of its own, in an empty folder: exports onto disks.

Prints one JSON object: for each case what came of the export, the files that
were there before and are there now, and what is beside them.
"""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import tensorflow as tf
from replica_cases import network

import tf_convpar as convpar


def files(folder):
    return {
        str(path.relative_to(folder)): hashlib.md5(
            path.read_bytes()
        ).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def disk(folder, size="4m"):
    folder.mkdir()
    disk = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder]
    subprocess.run(list(map(str, disk)), check=True)


def main():
    here, x = Path.cwd(), np.ones((2, 8, 8, 1), "float32")
    strategy = convpar.ConvParallelStrategy(devices=["CPU:0"])
    with strategy.scope():
        model = convpar.parallelize(network(), "equal")
    found = {}

    def export(name, target, others=()):
        weights = [0.9 * w for w in model.get_weights()]
        model.set_weights(weights)
        before, came = files(target), "exported"
        try:
            convpar.export(model, target)
            served = tf.saved_model.load(str(target))
            np.testing.assert_allclose(
                served.serve(x), model.predict(x, verbose=0), 1e-4, 1e-5
            )
        except OSError as error:
            came = f"{type(error).__name__}: {error}"
        now = files(target)
        beside = sorted(
            path.name
            for folder in (target, target.parent)
            for path in folder.iterdir()
            if path.name not in others
        )
        found[name] = [came, now == before, sorted(now), beside]

    disk(here / "disk")
    (here / "disk/lost+found").mkdir()
    export("empty", here / "disk")
    export("mounted", here / "disk")
    (here / "link").symlink_to("disk")
    export("linked", here / "link")
    (here / "disk/within").mkdir()
    export("within", here / "disk/within")
    # A disk within an earlier export, from which nothing can be moved.
    inner = here / "inner"
    convpar.export(model, inner)
    variables = inner / "variables"
    kept = {path.name: path.read_bytes() for path in variables.iterdir()}
    for path in variables.iterdir():
        path.unlink()
    variables.rmdir()
    disk(variables)
    for name, content in kept.items():
        (variables / name).write_bytes(content)
    export("inner", inner)
    # Full: from nothing left to as much as an export takes.
    disk(here / "small", "400k")
    convpar.export(model, here / "small/served")
    size = sum(
        path.stat().st_size for path in (here / "small/served").rglob("*")
    )
    for part in (0.0, 0.3, 0.6, 0.9):
        left = os.statvfs(here / "small")
        free = left.f_bavail * left.f_frsize - int(part * size)
        (here / "small/fill").write_bytes(bytes(max(0, free)))
        export(f"full {part}", here / "small/served", ["fill", "served"])
        (here / "small/fill").unlink()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
