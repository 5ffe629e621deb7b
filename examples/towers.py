"""Parallel towers, each on a device of its own.

    convpar launch -n 3 examples/towers.py      # or: python examples/towers.py

In wide networks, as Inception's, several towers look at the same images, and a
master layer joins what they found (Szegedy et al., 2014; Khamkar, *Distributed
Environment For Parallel Neural Networks*). A tower whose every layer has all
of its kernels on one device stays there: images go to each tower, and only
what the last layers found comes back.
"""

import digits
import keras

import tf_convpar as convpar

L = keras.layers
SIZES = (3, 5, 7)
strategy = convpar.ConvParallelStrategy()


def tower(x, size):
    """Kernels of one size; names say which tower a layer is of."""
    for i, filters in enumerate((8, 16)):
        x = L.Conv2D(
            filters,
            size,
            padding="same",
            activation="relu",
            name=f"tower{size}_conv{i}",
        )(x)
        x = L.MaxPooling2D(name=f"tower{size}_pool{i}")(x)
    return x


def wide_network():
    inputs = keras.Input((32, 32, 1))
    joined = L.Concatenate(name="join")([tower(inputs, n) for n in SIZES])
    x = L.GlobalMaxPooling2D()(joined)
    return keras.Model(inputs, L.Dense(10, name="master")(x))


def on_one(index):
    """All kernels on one device, of those that there are."""
    count = len(strategy.devices)
    return tuple(int(i == index % count) for i in range(count))


train, test = digits.load()
with strategy.scope():
    keras.utils.set_random_seed(1)
    model = convpar.parallelize(
        wide_network(),
        plan={f"tower{n}_.*": on_one(i) for i, n in enumerate(SIZES)},
    )
    model.compile(
        "adam",
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
model.summary()  # Its end says where each layer is.
model.fit(*train, batch_size=50, epochs=6, validation_data=test, verbose=2)
print(f"bytes of a step: {convpar.step_traffic(model, 50).total / 1e6:.2f} MB")
