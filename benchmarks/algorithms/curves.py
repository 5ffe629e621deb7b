"""Training curves with direct and with other algorithms, five seeds each.

A small network of 3x3 and 5x5 kernels learns the handwritten digits of
scikit-learn. The difference between algorithms is set beside that between
seeds.
"""

import argparse
import json
import os
import pathlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import matplotlib
import numpy as np
import sklearn.datasets

import tf_convpar as convpar

matplotlib.use("agg")
import matplotlib.pyplot as plt

HERE = pathlib.Path(__file__).parent


def history(algorithm, seed, epochs):
    """Loss and accuracy of each epoch, in training and on images held out."""
    digits = sklearn.datasets.load_digits()
    x = np.repeat(np.repeat(digits.images, 2, 1), 2, 2)[..., None] / 16
    y = digits.target
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input((16, 16, 1)),
            convpar.ConvParallel2D(
                32, 3, padding="same", activation="relu", algorithm=algorithm
            ),
            convpar.ConvParallel2D(
                32, 3, padding="same", activation="relu", algorithm=algorithm
            ),
            keras.layers.MaxPooling2D(),
            convpar.ConvParallel2D(
                64, 5, padding="same", activation="relu", algorithm=algorithm
            ),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        keras.optimizers.SGD(0.02, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    fitted = model.fit(
        x[:1400],
        y[:1400],
        validation_data=(x[1400:], y[1400:]),
        batch_size=50,
        epochs=epochs,
        verbose=0,
    )
    return {key: list(map(float, v)) for key, v in fitted.history.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--picture", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    algorithms = ["direct", "winograd", "fft"]
    runs = {
        name: [history(name, s, options.epochs) for s in range(options.seeds)]
        for name in algorithms
    }
    if options.json:
        options.json.write_text(json.dumps(runs) + "\n")
    for name in algorithms:
        last = [run["val_accuracy"][-1] for run in runs[name]]
        loss = [run["val_loss"][-1] for run in runs[name]]
        print(
            f"{name:9} accuracy {np.mean(last):.4f} +- {np.std(last):.4f}, "
            f"loss {np.mean(loss):.4f} +- {np.std(loss):.4f}"
        )
    for name in algorithms[1:]:
        apart = [
            max(abs(np.subtract(a["loss"], b["loss"])) / a["loss"])
            for a, b in zip(runs[name], runs["direct"], strict=True)
        ]
        print(
            f"{name:9} largest relative difference of a training loss "
            f"from direct's, per seed: {[f'{d:.1e}' for d in apart]}"
        )
    if options.picture:
        _, axes = plt.subplots(figsize=(7, 4), layout="constrained")
        for name, style in zip(algorithms, ("-", "--", ":"), strict=True):
            for i, run in enumerate(runs[name]):
                axes.semilogy(
                    range(1, options.epochs + 1),
                    run["val_loss"],
                    style,
                    color=f"C{i}",
                    label=name if i == 0 else None,
                )
        axes.set(xlabel="epoch", ylabel="loss on images held out")
        axes.set_title("Five seeds (colours), three algorithms (dashes)")
        axes.legend()
        plt.savefig(options.picture, dpi=120)


if __name__ == "__main__":
    main()
