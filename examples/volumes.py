"""Three-dimensional convolutions tell which way a digit moves.

    convpar launch -n 3 examples/volumes.py     # or: python examples/volumes.py

A volume is eight images in a row of a handwritten digit that moves to one of
four sides.
"""

import digits
import keras
import numpy as np

import tf_convpar as convpar

L = keras.layers
STEPS = 8
strategy = convpar.ConvParallelStrategy()


def volumes(images, seed):
    """Volumes, `(count, steps, 16, 16, 1)`, and the number of each side."""
    rng = np.random.default_rng(seed)
    side = rng.integers(0, 4, len(images))
    moves = np.array([(0, 1), (0, -1), (1, 0), (-1, 0)])[side]
    frames = [
        [np.roll(image, step * move, (0, 1)) for step in range(STEPS)]
        for image, move in zip(images[:, ::2, ::2], moves, strict=True)
    ]
    return np.array(frames), side


with strategy.scope():
    keras.utils.set_random_seed(1)
    model = convpar.parallelize(
        keras.Sequential(
            [
                keras.Input((STEPS, 16, 16, 1)),
                L.Conv3D(8, 3, activation="relu"),
                L.MaxPooling3D((1, 2, 2)),
                L.Conv3D(16, 3, activation="relu"),
                L.GlobalMaxPooling3D(),
                L.Dense(4),
            ]
        )
    )
    model.compile(
        keras.optimizers.Adam(1e-2),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
(train, _), (test, _) = digits.load()
model.fit(
    *volumes(train[:600], 1),
    batch_size=50,
    epochs=4,
    validation_data=volumes(test[:150], 2),
    verbose=2,
)
