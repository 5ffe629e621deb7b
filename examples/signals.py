"""One-dimensional convolutions predict the potential of a nerve cell.

    convpar launch -n 3 examples/signals.py     # or: python examples/signals.py

The recording of a membrane's potential is among matplotlib's sample data.
Causal convolutions look at the past alone.
"""

import keras
import matplotlib.cbook
import numpy as np

import tf_convpar as convpar

WINDOW = 64
strategy = convpar.ConvParallelStrategy()


def windows(signal):
    """Pieces of the recording, and the next value after each of their steps."""
    pieces = np.lib.stride_tricks.sliding_window_view(signal, WINDOW + 1)
    return pieces[:, :-1, None], pieces[:, 1:, None]


with matplotlib.cbook.get_sample_data("membrane.dat") as file:
    signal = np.frombuffer(file.read(), "float32")
signal = (signal - signal.mean()) / signal.std()
cut = len(signal) * 4 // 5

with strategy.scope():
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((WINDOW, 1)),
            convpar.ConvParallel1D(32, 9, padding="causal", activation="relu"),
            convpar.ConvParallel1D(32, 9, padding="causal", activation="relu"),
            convpar.ConvParallel1D(1, 1),
        ]
    )
    model.compile(keras.optimizers.Adam(3e-3), "mse")
x, y = windows(signal[:cut])
model.fit(x, y, batch_size=64, epochs=3, verbose=2)
x, y = windows(signal[cut:])
error = model.evaluate(x, y, verbose=0)
still = np.mean((y - x) ** 2)
print(f"mean squared error: {error:.5f}; of no change: {still:.5f}")
