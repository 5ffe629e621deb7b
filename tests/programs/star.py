"""Run as the chief of a cluster: trains a two-layer network, counts bytes.

Takes JSON, a list of options, and prints a list of as many objects: bytes per
step between the sockets of its tasks, the theory, and where kernels and slots
are. One chief for all, since to start one takes longer than to train.
"""

import json
import sys

import keras
import numpy as np

import tf_convpar as convpar
from tf_convpar.machines import BytesReceived
from tf_convpar.sharding import step_traffic

STEPS = 6
rng = np.random.default_rng(0)
x = rng.normal(size=(32 * STEPS, 32, 32, 3)).astype("float32")
y = rng.integers(0, 10, len(x))


class Bytes(keras.callbacks.Callback):
    def __init__(self, received):
        super().__init__()
        self.received = received
        self.marks = []

    def on_train_batch_end(self, batch, logs=None):
        self.marks.append(self.received.total())


def network(options):
    model = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            convpar.ConvParallel2D(50, 5, shards=options["shards"]),
            keras.layers.MaxPooling2D(),
            convpar.ConvParallel2D(
                200,
                5,
                shards=options["shards"],
                kernel_regularizer=options.get("regularizer"),
                kernel_constraint=options.get("constraint"),
            ),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )
    optimizer = keras.optimizers.get(options.get("optimizer", "adam"))
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(True))
    return model


def measured(options):
    keras.mixed_precision.set_dtype_policy(options.get("policy", "float32"))
    strategy = convpar.ConvParallelStrategy(wire_dtype=options.get("wire"))
    with strategy.scope():
        model = network(options)
    received = BytesReceived(task.port for task in strategy.cluster.tasks)
    counter = Bytes(received)
    model.fit(x, y, batch_size=32, epochs=1, verbose=0, callbacks=[counter])
    steps = np.diff(counter.marks)[1:]
    kernel = model.layers[0].kernel
    return {
        "measured": float(np.median(steps)),
        "theory": step_traffic(model, 32).total,
        "kernels": [shard.device for shard in kernel.shards],
        "slots": [
            [shard.device for shard in v.value.shards]
            for v in model.optimizer.variables
            if tuple(v.shape) == tuple(kernel.shape)
        ],
    }


print(json.dumps([measured(options) for options in json.loads(sys.argv[1])]))
