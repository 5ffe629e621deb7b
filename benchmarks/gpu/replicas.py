"""Times SyncSGD on two halves of a card, and on card and CPU, by `fit`.

Beside Keras' `fit` on the card alone, of as many samples a step, from arrays
in the machine's memory as well. Both halves compute on the same card, so that
two of them show what an exchange costs, not what a second card would give.
"""

import statistics
import time

import card
import keras
import models
import numpy as np
import tensorflow as tf

from tf_convpar import replicas

# Where replicas are, None for a model of Keras, and whether XLA may compile.
CASES = {
    "one, XLA": (None, True),
    "two logical, XLA": ("two", True),
    "two logical": ("two", False),
    "one": (None, False),
    "with the CPU, XLA": ("CPU", True),
    "one again, XLA": (None, True),
}
EPOCHS = 4


class Epochs(keras.callbacks.Callback):
    """Seconds of each epoch."""

    def __init__(self):
        super().__init__()
        self.seconds = []

    def on_epoch_begin(self, epoch, logs=None):
        """Looks at the clock."""
        self._begin = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        """Looks at the clock."""
        self.seconds.append(time.perf_counter() - self._begin)


def step_s(name, case, image, batch, steps, given):
    """Seconds of a step, and the samples of each replica."""
    where, xla = CASES[case]
    keras.utils.set_random_seed(1)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(steps * batch, image, image, 3)).astype("float32")
    y = rng.integers(0, 1000, len(x))
    epochs = Epochs()
    if where is None:
        with tf.device(given.device):
            model = models.compiled(models.plain(name, image), xla)
            model.fit(*(x, y, batch, EPOCHS), verbose=0, callbacks=[epochs])
        samples = [batch]
    else:
        model = models.compiled(models.plain(name, image), xla)
        devices = card.places(where, given)
        shares = "auto" if where == "CPU" else None
        method = replicas.SyncSGD(model, devices=devices, shares=shares)
        method.fit(
            *(x, y),
            batch_size=batch // len(devices),
            epochs=EPOCHS,
            callbacks=[epochs],
            verbose=0,
        )
        samples = [replica.batch for replica in method.replicas]
    # The first has what is traced and compiled.
    return statistics.median(epochs.seconds[1:]) / steps, samples


def main():
    given = card.options(__doc__, models=models.MODELS, cases=CASES)
    card.split(given)
    device = card.wanted(given)
    image, batch, steps = (32, 4, 3) if given.small else (224, 64, 20)
    rows = []
    for name in given.models:
        first = None
        for case in given.cases:
            took, samples = step_s(name, case, image, batch, steps, given)
            first = first or took
            row = {"model": name, "devices": case, "ms": 1e3 * took}
            row |= {"of one": took / first, "samples": str(samples)}
            rows.append(card.told(row))
    card.show(given, device, rows)


if __name__ == "__main__":
    main()
