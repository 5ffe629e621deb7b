"""Run as the chief of a cluster: a model of keras.applications, there and back.

Arguments: its name, the pixels of its images, a folder, a dtype, and how it is
split: by "filters", or "mixed", the first half of its convolutions by samples,
in unlike shares. Prints one JSON object: how far the parallel model is from
the plain one, how far that is from itself when its images are changed in their
last bit, bytes per step beside theory, and what it is made of.
"""

import json
import sys
import time

import keras
import numpy as np
import tensorflow as tf

import tf_convpar as convpar
from tf_convpar import sharding
from tf_convpar.layers import ConvParallel
from tf_convpar.machines import BytesReceived
from tf_convpar.placement import ShardedVariable
from tf_convpar.placement import row_ports
from tf_convpar.sharding import OnSamples
from tf_convpar.sharding import step_traffic

name, pixels, folder, dtype, split = sys.argv[1:]
pixels = int(pixels)
begin = time.perf_counter()
strategy = convpar.ConvParallelStrategy()
keras.config.set_floatx(dtype)
keras.config.set_dtype_policy(dtype)
rng = np.random.default_rng(0)
x = rng.normal(size=(4, pixels, pixels, 3)).astype(dtype)
y = rng.integers(0, 10, 4)


def plan(model):
    """How each convolution is split."""
    if split == "filters":
        return "equal"
    names = [
        layer.name for layer in model.layers if sharding.may_be_split(layer)
    ]
    half = len(names) // 2
    samples = {"split": "samples", "shards": (2, 1, 1)}
    return {n: samples for n in names[:half]} | {
        n: (3, 2, 1) for n in names[half:]
    }


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
    parallel = convpar.parallelize(model, plan(model))
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


def step(model, images):
    """Loss, moving statistics and steps of the weights, all put back."""
    stored = [np.asarray(v) for v in model.variables]
    # With a learning rate of 1 a step is the gradient.
    loss = float(model.train_on_batch(images, y))
    moving = [
        np.asarray(v)
        for v in model.non_trainable_variables
        if "moving" in v.path
    ]
    moved = {id(v): np.asarray(v) for v in model.trainable_variables}
    steps = [
        moved[id(v)] - old
        for v, old in zip(model.variables, stored, strict=True)
        if id(v) in moved
    ]
    # Dropout's seeds too: every step draws the same masks.
    for variable, old in zip(model.variables, stored, strict=True):
        variable.assign(old)
    return loss, moving, steps


def differences(ours, theirs):
    """Of two steps, relative."""
    (loss, moving, steps), (their_loss, their_moving, their_steps) = (
        ours,
        theirs,
    )
    largest = max(np.abs(value).max() for value in their_steps)
    return {
        "loss": abs(loss - their_loss) / abs(their_loss),
        # Some means are 0 but for rounding, whatever the images.
        "moving": max(
            (
                apart(a, b, 1e-3)
                for a, b in zip(moving, their_moving, strict=True)
            ),
            default=0.0,
        ),
        "gradients": max(
            float(np.abs(a - b).max() / largest)
            for a, b in zip(steps, their_steps, strict=True)
        ),
    }


begin = time.perf_counter()
ours = step(parallel, x)
found["step_s"] = time.perf_counter() - begin
received = BytesReceived(
    [
        *(task.port for task in strategy.cluster.tasks),
        *row_ports(strategy.devices),
    ]
)
marks = [received.total()]
for _ in range(4):
    parallel.train_on_batch(x, y)
    marks.append(received.total())
found["measured"] = float(np.median(np.diff(marks)[1:]))
found["theory"] = step_traffic(parallel, len(x)).total
for ours_, theirs_ in zip(parallel.variables, model.variables, strict=True):
    ours_.assign(np.asarray(theirs_))
theirs = step(model, x)
found |= differences(ours, theirs)
found["rounding"] = differences(step(model, np.nextafter(x, 9)), theirs)
layers = [layer for layer in parallel.layers if "InputLayer" not in repr(layer)]
found["layers"] = len(layers)
found["on_shards"] = sum(
    (isinstance(layer, ConvParallel) and layer._in_region)
    or getattr(vars(layer).get("call"), "rule", None) is not None
    for layer in layers
)
found["by_samples"] = sum(
    isinstance(vars(layer).get("call"), OnSamples) for layer in layers
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
