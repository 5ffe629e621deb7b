"""Training on a cluster of Ray: one worker on each node, this is the chief.

On one of the nodes of a cluster that runs (`ray start`, KubeRay, ...):

    python examples/clusters/ray_workers.py --workers 2

Ray has no part in the training itself. It finds places for the workers, starts
them there, and ends them with this program. This package, and Ray, must be
installed on every node; Ray can do that with a runtime environment.
"""

import argparse
import contextlib
import gc
import json
import os
import socket
import subprocess
import sys
import threading
import time

import keras
import numpy as np
import ray

import tf_convpar as convpar


class Place:
    """An actor, for as long as which `convpar worker` runs on its node."""

    def address(self):
        """An address of this node, at a port that nobody has."""
        with socket.socket() as free:
            free.bind(("", 0))
            port = free.getsockname()[1]
        return f"{ray.util.get_node_ip_address()}:{port}"

    def start(self, tf_config):
        """Starts the worker. It ends when its heartbeats do."""
        process = subprocess.Popen(
            [sys.executable, "-m", "tf_convpar", "worker", "--heartbeats"],
            env={**os.environ, "TF_CONFIG": tf_config},
            stdin=subprocess.PIPE,
        )

        def beat():
            with contextlib.suppress(OSError):
                while process.poll() is None:
                    process.stdin.write(b"\n")
                    process.stdin.flush()
                    time.sleep(1)

        threading.Thread(target=beat, daemon=True).start()


@contextlib.contextmanager
def ray_workers(count, **options):
    """Runs workers on nodes of Ray; sets TF_CONFIG for this process.

    Args:
        count: Number of workers.
        options: What each of them needs, such as `num_cpus=4, num_gpus=1`.
    """
    place = ray.remote(Place).options(scheduling_strategy="SPREAD", **options)
    places = [place.remote() for _ in range(count)]
    cluster = {
        "chief": [Place().address()],
        "worker": ray.get([each.address.remote() for each in places]),
    }

    def config(job, index):
        return json.dumps(
            {"cluster": cluster, "task": {"type": job, "index": index}}
        )

    starts = [
        each.start.remote(config("worker", index))
        for index, each in enumerate(places)
    ]
    ray.get(starts)
    os.environ["TF_CONFIG"] = config("chief", 0)
    try:
        yield
    finally:
        # TensorFlow would complain of functions that it cannot remove there.
        keras.utils.clear_session()
        gc.collect()
        for each in places:
            ray.kill(each)


def main():
    strategy = convpar.ConvParallelStrategy()
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((32, 32, 3)),
                keras.layers.Conv2D(32, 3, activation="relu"),
                keras.layers.MaxPooling2D(),
                keras.layers.Conv2D(64, 3, activation="relu"),
                keras.layers.MaxPooling2D(7),
                keras.layers.Flatten(),
                keras.layers.Dense(4),
            ]
        )
        # Equal parts, so that something is to be seen. The default measures,
        # and leaves whole what would not get faster.
        model = convpar.parallelize(model, plan="equal")
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss)
    # Which quarter of the image is bright?
    random = np.random.default_rng(1)
    y = random.integers(0, 4, 256)
    x = random.random((256, 32, 32, 3), "float32")
    for image, quarter in zip(x, y, strict=True):
        top, left = 16 * (quarter // 2), 16 * (quarter % 2)
        image[top : top + 16, left : left + 16] += 1
    model.fit(x, y, batch_size=32, epochs=2, verbose=2)
    print("devices:", *strategy.devices)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    ray.init(address=os.environ.get("RAY_ADDRESS"))
    with ray_workers(arguments.workers):
        main()
