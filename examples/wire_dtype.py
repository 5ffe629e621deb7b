"""Half the bytes on the wire: what does it cost in accuracy?

    convpar launch -n 3 examples/wire_dtype.py --seeds 5

Trains the same network from the same seeds, with feature maps that travel in
float32 and in bfloat16. Sums of gradients stay in float32.
"""

import argparse

import digits
import keras
import numpy as np

import tf_convpar as convpar

L = keras.layers
parser = argparse.ArgumentParser()
parser.add_argument("--seeds", type=int, default=5)
parser.add_argument("--epochs", type=int, default=4)
options = parser.parse_args()
strategy = convpar.ConvParallelStrategy()
train, test = digits.load()


def accuracy(wire_dtype, seed):
    keras.utils.clear_session()
    keras.utils.set_random_seed(seed)
    with strategy.scope():
        model = convpar.parallelize(
            keras.Sequential(
                [
                    keras.Input((32, 32, 1)),
                    L.Conv2D(16, 5, activation="relu"),
                    L.MaxPooling2D(),
                    L.Conv2D(32, 5, activation="relu"),
                    L.MaxPooling2D(),
                    L.Flatten(),
                    L.Dense(10),
                ]
            ),
            wire_dtype=wire_dtype,
        )
        model.compile(
            "adam",
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    model.fit(*train, batch_size=50, epochs=options.epochs, verbose=0)
    moved = convpar.step_traffic(model, 50).total
    return model.evaluate(*test, verbose=0)[1], moved


for wire_dtype in ("float32", "bfloat16"):
    found = [accuracy(wire_dtype, seed) for seed in range(options.seeds)]
    values = np.array([value for value, _ in found])
    print(
        f"{wire_dtype}: accuracy {values.mean():.4f} +- {values.std():.4f}, "
        f"{found[0][1] / 1e6:.2f} MB a step"
    )
