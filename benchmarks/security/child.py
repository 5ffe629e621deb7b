"""The chief's program: trains, and times tensors on their way.

Without a TF_CONFIG it trains plain Keras in this process alone. Otherwise its
argument is a file that it waits for in between, while others look whether they
can reach the tasks. Prints one line of JSON.
"""

import json
import os
import pathlib
import statistics
import sys
import time

import keras
import numpy as np
import tensorflow as tf

# Split unevenly, and with tanh: ReLU would let the last bit of a sum decide now
# and then which way a gradient goes.
SHARDS = ((4, 7, 5), (9, 10, 5))
STEPS, BATCH, TIMES, MB = 20, 32, 5, 16


def model(convolution):
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            *(convolution(shards) for shards in SHARDS),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(10),
        ]
    )


def plain(shards):
    return keras.layers.Conv2D(sum(shards), 5, activation="tanh")


def trained(network):
    """Losses of all steps, and seconds of one in the middle."""
    losses, ends = [], []

    class Note(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            losses.append(float(logs["loss"]))
            ends.append(time.perf_counter())
            # So that they are losses of steps, and not means of all so far.
            self.model.reset_metrics()

    rng = np.random.default_rng(1)
    x = rng.normal(size=(STEPS * BATCH, 16, 16, 3)).astype("float32")
    y = (x.mean((1, 2, 3)) * 200 + 5).clip(0, 9).astype("int32")
    loss = keras.losses.SparseCategoricalCrossentropy(True)
    network.compile(keras.optimizers.SGD(0.5), loss)
    network.fit(
        x, y, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[Note()]
    )
    return losses, statistics.median(np.diff(ends)[3:])


def rate(start, end):
    """MB a second of a tensor that travels between two devices."""
    with tf.device(start):
        value = tf.Variable(tf.zeros(MB * 10**6 // 4))

    @tf.function
    def travel():
        with tf.device(start):
            sent = value + 1.0
        with tf.device(end):
            return tf.reduce_max(sent)

    took = []
    for _ in range(TIMES + 2):
        begin = time.perf_counter()
        travel().numpy()
        took.append(time.perf_counter() - begin)
    return MB / statistics.median(took[2:])


def main():
    if not os.environ.get("TF_CONFIG"):
        losses, step_s = trained(model(plain))
        return {"losses": losses, "step_s": step_s}
    import tf_convpar as convpar

    strategy = convpar.ConvParallelStrategy()

    def split(shards):
        layer = convpar.ConvParallel2D
        return layer(sum(shards), 5, activation="tanh", shards=shards)

    with strategy.scope():
        network = model(split)
    losses, step_s = trained(network)
    print("trained", flush=True)
    while not pathlib.Path(sys.argv[1]).exists():
        time.sleep(0.1)
    chief, *others = (d.device for d in network.layers[0].kernel.shards)
    return {
        "losses": losses,
        "step_s": step_s,
        "devices": [chief, *others],
        "to_worker": rate(chief, others[0]),
        "between_workers": rate(others[0], others[1]),
    }


if __name__ == "__main__":
    print(json.dumps(main()))
    sys.stdout.flush()
