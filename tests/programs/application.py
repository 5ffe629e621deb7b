"""Run as the chief of a cluster: a model of keras.applications, there and back.

Arguments: its name, the pixels of its images, a folder, a dtype. Prints one
JSON object: how far the parallel model is from the plain one, and what it is
made of.
"""

import json
import sys
import time

import keras
import numpy as np
import tensorflow as tf

import tf_convpar as convpar
from tf_convpar.layers import ConvParallel
from tf_convpar.placement import ShardedVariable

name, pixels, folder, dtype = sys.argv[1:]
pixels = int(pixels)
begin = time.perf_counter()
strategy = convpar.ConvParallelStrategy()
keras.config.set_floatx(dtype)
keras.config.set_dtype_policy(dtype)
rng = np.random.default_rng(0)
x = rng.normal(size=(4, pixels, pixels, 3)).astype(dtype)
y = rng.integers(0, 10, 4)


def apart(ours, theirs, least=1e-30):
    """The largest difference, relative to the largest number."""
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    return float(np.abs(ours - theirs).max() / max(np.abs(theirs).max(), least))


keras.utils.set_random_seed(1)
with strategy.scope():
    model = getattr(keras.applications, name)(
        weights=None,
        input_shape=(pixels, pixels, 3),
        classes=10,
        classifier_activation=None,
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(1.0), loss, jit_compile=False)
    parallel = convpar.parallelize(model)
found = {"parallelized_s": time.perf_counter() - begin}
merged = convpar.merge(parallel)
found["bit_for_bit"] = all(
    np.array_equal(np.asarray(a), np.asarray(b))
    for a, b in zip(merged.variables, model.variables, strict=True)
)
found["forward"] = apart(parallel(x, training=False), model(x, training=False))
expected = parallel.predict(x, verbose=0)
convpar.export(parallel, folder)
served = tf.saved_model.load(folder)
found["served"] = apart(served.serve(x), expected)
# Dropout draws from seeds that both have; gradients from one step.
begin = time.perf_counter()
before = [np.asarray(v) for v in model.trainable_variables]
ours = float(parallel.train_on_batch(x, y))
found["step_s"] = time.perf_counter() - begin
theirs = float(model.train_on_batch(x, y))
found["loss"] = abs(ours - theirs) / abs(theirs)
found["moving"] = max(
    (
        # Some means are 0 but for rounding, whatever the images.
        apart(a, b, 1e-3)
        for a, b in zip(
            parallel.non_trainable_variables,
            model.non_trainable_variables,
            strict=True,
        )
        if "moving" in b.path
    ),
    default=0.0,
)
steps = [
    (np.asarray(a) - old, np.asarray(b) - old, b.path)
    for a, b, old in zip(
        parallel.trainable_variables,
        model.trainable_variables,
        before,
        strict=True,
    )
]
largest = max(np.abs(theirs).max() for _, theirs, _ in steps)
found["gradients"] = max(
    float(np.abs(ours - theirs).max() / largest) for ours, theirs, _ in steps
)
layers = [layer for layer in parallel.layers if "InputLayer" not in repr(layer)]
found["layers"] = len(layers)
found["on_shards"] = sum(
    (isinstance(layer, ConvParallel) and layer._in_region)
    or getattr(vars(layer).get("call"), "rule", None) is not None
    for layer in layers
)
found["devices"] = len(
    {
        shard.device
        for v in parallel.variables
        if isinstance(v._value, ShardedVariable)
        for shard in v._value.shards
    }
)
print(json.dumps(found))
