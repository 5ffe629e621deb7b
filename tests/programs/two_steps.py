"""Two steps of a small network; prints the losses, and where kernels lie."""

import json
import sys

import keras
import numpy as np

import tf_convpar as convpar

strategy = convpar.ConvParallelStrategy()
if "fail" in sys.argv:
    sys.exit("no data")
keras.utils.set_random_seed(1)
with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            convpar.ConvParallel2D(6, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(2),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss)
random = np.random.default_rng(1)
x, y = random.random((8, 8, 8, 1), "float32"), random.integers(0, 2, 8)
losses = [float(model.train_on_batch(x, y)) for _ in range(2)]
kernel = model.layers[0].kernel
# On one device it is a plain variable.
shards = getattr(kernel, "shards", [kernel.value])
devices = [shard.device for shard in shards]
print(json.dumps({"losses": losses, "devices": devices}))
