"""Run as the chief of a cluster: rows that all its devices exchange.

Prints one JSON object: how far rows, and derivatives by them, are from what
TensorFlow alone gives; how many ops exchange them; the bytes of 20 exchanges on
sockets; and what a step says when a worker has died.
"""

import json
import os
import signal
import time

import keras
import numpy as np
import tensorflow as tf

import tf_convpar as convpar
from tf_convpar.machines import BytesReceived
from tf_convpar.placement import on_device
from tf_convpar.placement import row_ports
from tf_convpar.placement import rows_of_all

STEPS, SIZE = 20, 1000
strategy = convpar.ConvParallelStrategy()
devices = strategy.devices
rng = np.random.default_rng(0)


def function_of_all(copies, multiply):
    """A number that depends on each copy of each row in another way."""
    parts = [
        on_device(
            lambda *rows, d=d: tf.add_n(
                [tf.reduce_sum((2 + d + i) * r**3) for i, r in enumerate(rows)]
            ),
            device,
        )(*rows)
        for d, (device, rows) in enumerate(zip(devices, copies, strict=True))
    ]
    with tf.device(devices[0]):
        return multiply * tf.add_n(parts)


def placed(values):
    rows = []
    for device, value in zip(devices, values, strict=True):
        with tf.device(device):
            rows.append(tf.identity(value))
    return rows


def derivatives(values, exchange):
    """The number, its derivatives by the rows, and second derivatives."""
    with tf.GradientTape() as outer:
        outer.watch(values)
        with tf.GradientTape() as tape:
            tape.watch(values)
            total = function_of_all(exchange(placed(values)), 0.5)
        first = tape.gradient(total, values)
        weighted = tf.add_n(
            [tf.reduce_sum((1 + i) * g) for i, g in enumerate(first)]
        )
    return [total, *first, *outer.gradient(weighted, values)]


def alone(rows):
    return [list(rows)] * len(devices)


@tf.function(autograph=False)
def exchanged(values):
    return derivatives(values, lambda rows: rows_of_all(rows, devices))


@tf.function(autograph=False)
def one_exchange(values):
    return function_of_all(rows_of_all(placed(values), devices), 1.0)


@tf.function(autograph=False)
def twice(values):
    """One function that is called twice in a step, and by a tape outside it."""
    return one_exchange(values), one_exchange([2 * v for v in values])


@tf.function
def many(values):
    total = tf.zeros((), values[0].dtype)
    for _ in tf.range(STEPS):
        total += one_exchange(values)
    return total


def difference(found, expected):
    pairs = zip(found, expected, strict=True)
    return max(float(tf.reduce_max(abs(a - b) / abs(b))) for a, b in pairs)


@tf.function(autograph=False)
def one_fails(values):
    rows = placed(values)
    with tf.device(devices[1]):
        wrong = tf.debugging.Assert(tf.reduce_sum(rows[1]) < 0, ["below 0"])
        with tf.control_dependencies([wrong]):
            rows[1] = tf.identity(rows[1])
    return function_of_all(rows_of_all(rows, devices), 1.0)


def error_of(function, *args):
    """The class of the error that a call ends with, and after how long."""
    begin = time.monotonic()
    try:
        function(*args)
    except tf.errors.OpError as error:
        return type(error).__name__, time.monotonic() - begin
    return "", 0.0


found = {}
for dtype in (tf.float32, tf.float64):
    values = [tf.constant(rng.uniform(1, 2, (2, SIZE)), dtype) for _ in devices]
    found[dtype.name] = difference(
        exchanged(values), derivatives(values, alone)
    )


@tf.function(autograph=False)
def weights_exchanged(values):
    """Long rows, each of another length, told in another order than devices."""

    def exchange(rows):
        copies = rows_of_all(rows[::-1], devices, devices[::-1], weights=True)
        return [here[::-1] for here in copies]

    return derivatives(values, exchange)


sizes = 300_000, 200_000, 1
unequal = [tf.constant(rng.uniform(1, 2, n)) for n in sizes]
found["weights"] = difference(
    weights_exchanged(unequal), derivatives(unequal, alone)
)
# The row of the second has no numbers: it sends none, and is sent no gradient.
unequal[1] = tf.zeros([0], tf.float64)
none_of_one, expected = weights_exchanged(unequal), derivatives(unequal, alone)
found["none of one"] = difference(
    *([x for x in all_ if tf.size(x)] for all_ in (none_of_one, expected))
)
graph = exchanged.get_concrete_function(values).graph
kinds = [op.type.rpartition(">")[2] for op in graph.get_operations()]
found["ops"] = [kinds.count(kind) for kind in ("ExchangeRows", "SumRows")]
whole = function_of_all(alone(values), 1.0)
doubled = function_of_all(alone([2 * v for v in values]), 1.0)
found["twice"] = difference(twice(values), [whole, doubled])
with tf.GradientTape() as tape:
    tape.watch(values)
    both = tf.add_n(twice(values))
expected = derivatives(values, alone)[1 : 1 + len(devices)]
found["outside"] = difference(
    tape.gradient(both, values), [2 * (1 + 8) * g for g in expected]
)
found["failed"] = error_of(one_fails, values)
# It goes on where others have waited for a row that never came.
found["many"] = difference([many(values)], [STEPS * whole])
ports = [task.port for task in strategy.cluster.tasks]
ports_of_rows = row_ports(devices)
by_grpc, by_rows = BytesReceived(ports), BytesReceived(ports_of_rows)
before = by_grpc.total(), by_rows.total()
many(values)
found["bytes"] = [by_grpc.total() - before[0], by_rows.total() - before[1]]
found["row"] = 2 * SIZE * 8


def network():
    keras.utils.set_random_seed(1)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            # Nobody needs gradients by its images. Whose gamma counts needs
            # what all devices have for it.
            layers.BatchNormalization(),
            layers.Conv2D(4, 3),
            layers.BatchNormalization(),
            # One device has its only filter.
            layers.Conv2D(1, 1),
            layers.Conv2D(4, 3),
            layers.GlobalAveragePooling2D(),
            layers.Dense(2),
        ]
    )
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
    return model


with strategy.scope():
    parallel = convpar.parallelize(network(), plan={".*": "samples"})
x, y = rng.normal(size=(7, 8, 8, 3)), rng.normal(size=(7, 2))
found["losses"], found["plain"] = (
    [float(model.train_on_batch(x, y)) for _ in range(3)]
    for model in (parallel, network())
)


def gradients(model):
    """Of a function that is differentiated from outside, weight by weight."""
    model.set_weights(learned)
    compute = tf.function(lambda x: model(x, training=True), autograph=False)
    gradients = []
    for weight in model.trainable_weights:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(compute(x) ** 2)
        gradients.append(tf.convert_to_tensor(tape.gradient(loss, weight)))
    return gradients


# One weight at a time is asked for, and one device has no samples.
learned = parallel.get_weights()
of_plain = gradients(network())
largest = max(float(tf.reduce_max(abs(g))) for g in of_plain)
found["gradients"] = []
for shares in ((1, 1, 1), (3, 0, 2), (0, 1, 1)):
    plan = {".*": {"split": "samples", "shards": shares}}
    with strategy.scope():
        model = convpar.parallelize(network(), plan=plan)
    found["gradients"].append(
        max(
            float(tf.reduce_max(abs(a - b))) / largest
            for a, b in zip(gradients(model), of_plain, strict=True)
        )
    )
# The last worker ends while the others wait for its row.
with tf.device(devices[-1]):
    (pid,) = tf.io.read_file("/proc/self/stat").numpy().split()[:1]
os.kill(int(pid), signal.SIGKILL)
found["lost"] = error_of(many, values)
print(json.dumps(found), flush=True)
os._exit(0)
