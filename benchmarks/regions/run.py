"""Times training steps on two processes, whose feature maps return or stay.

    python benchmarks/regions/run.py

Three models take turns, step by step: plain Keras on one core, layers whose
feature maps return to the chief, and a parallelized model, whose feature maps
stay where they are. Each process has a core of its own.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1] / "planner"))


def chief(networks, seconds):
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import chief
    import keras
    import tensorflow as tf

    import tf_convpar as convpar

    tf.config.threading.set_intra_op_parallelism_threads(1)
    strategy = convpar.ConvParallelStrategy()
    print("| network | one core | maps return | maps stay |")
    print("|---|---|---|---|")
    for name in networks:
        kernels = tuple(map(int, name.split(":")))
        star = chief.build(kernels, strategy)
        plain = convpar.merge(star)
        with strategy.scope():
            region = convpar.parallelize(plain)
        plain = keras.models.clone_model(plain)
        plain.compile(
            keras.optimizers.SGD(0.01, momentum=0.9),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            jit_compile=False,
        )
        models = {"plain": plain, "star": star, "region": region}
        times = chief.measure(models, 64, seconds, 5)
        alone = statistics.median(times["plain"])
        cells = []
        for values in times.values():
            median = statistics.median(values)
            low, _, high = statistics.quantiles(values, n=4)
            cells.append(
                f"{median * 1e3:.0f} ms ({alone / median:.2f}; quartiles "
                f"{(high - low) / median:.0%} apart)"
            )
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--networks", nargs="*", default=["50:500", "150:800", "300:1000"]
    )
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--chief", action="store_true", help="internal")
    options = parser.parse_args()
    if options.chief:
        return chief(options.networks, options.seconds)
    from tf_convpar.cluster.local_cluster import local_workers

    first, second, *_ = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {second})  # The worker inherits it.
    with local_workers(1, threads=1) as local:
        os.sched_setaffinity(0, {first})
        command = [sys.executable, HERE, "--chief", *sys.argv[1:]]
        return subprocess.run(command, env=local.env(), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
