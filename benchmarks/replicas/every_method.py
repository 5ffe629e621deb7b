"""Accuracy of every method of replicas after a short training on digits.

    convpar launch -n 3 benchmarks/replicas/every_method.py

One convolution, 1500 of scikit-learn's digits, 15 epochs of batches of 32 of
each replica; with measured and with equal shares, three seeds of each. The
accuracy is that on the digits that were learned from.
"""

import argparse
import statistics

import keras
from sklearn.datasets import load_digits

import tf_convpar as convpar

METHODS = (
    *("SyncSGD", "ParallelSGD", "SyncEASGD", "RoundRobinEASGD", "AsyncSGD"),
    *("AsyncMSGD", "HogwildSGD", "AsyncEASGD", "AsyncMEASGD"),
    *("HogwildEASGD", "DownpourSGD", "DiLoCo"),
)
# Of those that have a momentum of their own.
LOW_RATE = dict.fromkeys(("AsyncMSGD", "AsyncMEASGD"), 0.01)
SEEDS = (1, 2, 3)


def network(seed, rate):
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        keras.optimizers.SGD(rate),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", nargs="+", default=METHODS)
    options = parser.parse_args()
    strategy = convpar.ConvParallelStrategy()
    digits = load_digits()
    x = digits.images[:1500, ..., None].astype("float32") / 16
    y = digits.target[:1500]
    for name in options.methods:
        for shares in ("auto", [1.0] * len(strategy.devices)):
            found, batches = [], []
            for seed in SEEDS:
                model = network(seed, LOW_RATE.get(name, 0.05))
                method = getattr(convpar.replicas, name)(model, shares=shares)
                method.fit(x, y, batch_size=32, epochs=15, verbose=0)
                found.append(method.evaluate(x, y, verbose=0)[1])
                batches.append([r.batch for r in method.replicas])
            print(
                f"{name}, {'measured' if shares == 'auto' else 'equal'}: "
                f"{statistics.median(found):.4f} "
                f"({min(found):.4f} to {max(found):.4f}), samples {batches}",
                flush=True,
            )


if __name__ == "__main__":
    main()
