"""Run as the chief of a cluster: bytes of a step of chained convolutions.

Takes JSON: kernels, whether the model is parallelized and by which plan, the
wire dtype, the batch, whether it is normalized. Prints one JSON object: bytes
per step between the sockets of its tasks, the theory, and the losses of its
steps beside those of the plain model.
"""

import json
import sys

import keras
import numpy as np

import tf_convpar as convpar
from tf_convpar.machines import BytesReceived
from tf_convpar.placement import row_ports
from tf_convpar.sharding import step_traffic

STEPS = 5
options = json.loads(sys.argv[1])
batch = options.get("batch", 32)
normalized = options.get("normalized", False)
strategy = convpar.ConvParallelStrategy(wire_dtype=options.get("wire"))


def network(conv):
    first, second = options["kernels"]
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            conv(first, 5, activation="relu", name="one"),
            keras.layers.MaxPooling2D(),
            *([keras.layers.BatchNormalization()] * normalized),
            conv(second, 5, activation="relu", name="two"),
            keras.layers.MaxPooling2D(),
            # Has no rule: feature maps are joined.
            *([keras.layers.Permute((1, 2, 3))] if options.get("join") else []),
            keras.layers.Flatten(),
            # Wider than the sums of two devices: feature maps are joined.
            keras.layers.Dense(options.get("units", 10)),
        ]
    )
    model.compile(
        keras.optimizers.SGD(1e-3, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    return model


with strategy.scope():
    if options["region"]:
        model = convpar.parallelize(
            network(keras.layers.Conv2D), options.get("plan", "equal")
        )
    else:
        model = network(convpar.ConvParallel2D)
rng = np.random.default_rng(0)
x = rng.normal(size=(batch, 32, 32, 3)).astype("float32")
y = rng.integers(0, 10, batch)
received = BytesReceived(
    [
        *(task.port for task in strategy.cluster.tasks),
        *row_ports(strategy.devices),
    ]
)
marks, losses = [], []
for _ in range(STEPS):
    losses.append(float(model.train_on_batch(x, y)))
    marks.append(received.total())
theory = step_traffic(model, batch)
with strategy.scope():
    plain = network(keras.layers.Conv2D)
expected = [float(plain.train_on_batch(x, y)) for _ in range(STEPS)]
print(
    json.dumps(
        {
            "measured": float(np.median(np.diff(marks)[1:])),
            "theory": theory.total,
            "links": {f"{a} -> {b}": n for (a, b), n in theory.links.items()},
            "losses": losses,
            "plain": expected,
        }
    )
)
