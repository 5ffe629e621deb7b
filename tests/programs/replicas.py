"""Run as the chief of a cluster: replicas on its workers, bytes counted.

Prints one JSON object: for each method the bytes that all sockets received
for each step, those of a packed vector, and the devices of weights and data.
"""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import keras
import numpy as np
import tensorflow as tf

import tf_convpar as convpar
from tf_convpar import planner
from tf_convpar import replicas
from tf_convpar.machines import BytesReceived

strategy = convpar.ConvParallelStrategy()  # Before any variable.
workers = [name for name in strategy.devices if "worker" in name]
# The second replica is the chief's.
group = [workers, strategy.chief_device]

rng = np.random.default_rng(0)
x = rng.normal(size=(256, 8, 8, 3)).astype("float32")
y = rng.integers(0, 4, 256)
STEPS = 12
EPOCHS = 3


def network():
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            keras.layers.Conv2D(32, 3, activation="relu", name="conv2d"),
            keras.layers.Flatten(),
            keras.layers.Dense(400, activation="relu"),
            keras.layers.Dense(4),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01), loss)
    return model


class Count(keras.callbacks.Callback):
    """Bytes of the last epoch, and after each of its steps.

    Connections of an earlier `fit` may end while later ones begin, and what a
    connection received is unknown once it has ended: who counts begins late.
    """

    def on_epoch_begin(self, epoch, logs=None):
        self.counts = epoch == EPOCHS - 1
        self.arrived = len(getattr(method, "arrivals", ()))
        self.totals = []
        if self.counts:
            ports = [task.port for task in strategy.cluster.tasks]
            self.received = BytesReceived(ports)
            self.start = self.received.total()

    def on_train_batch_end(self, batch, logs=None):
        if self.counts:
            self.totals.append(self.received.total())

    def on_epoch_end(self, epoch, logs=None):
        # Before `fit` ends, and with it the connections of those it asks.
        if self.counts:
            self.all = self.received.total() - self.start


def processes(context):
    """Who makes it: each image is the number of that process."""
    number = tf.strings.split(tf.io.read_file("/proc/self/stat"), " ")[0]
    value = tf.strings.to_number(number)
    batch = tf.fill([8, 8, 8, 3], value), tf.zeros([8], tf.int32)
    return tf.data.Dataset.from_tensors(batch).repeat(STEPS)


found = {}
if "local" in sys.argv:
    sys.argv.remove("local")
    method = replicas.SyncSGD(network(), devices=workers, shares=[1, 1])
    history = method.fit(processes, verbose=0)
    numbers = []
    for replica in method.replicas:
        with tf.device(replica.device):
            numbers.append(int(next(replica.data)[0][0, 0, 0, 0]))
    found["local"] = {
        "chief": os.getpid(),
        "numbers": numbers,
        "steps": int(method.model.optimizer.iterations),
        "batches": [replica.batch for replica in method.replicas],
    }
for name in sys.argv[1:]:
    kind, _, variant = name.partition(":")
    options = {"variant": int(variant)} if variant.isdigit() else {}
    if kind == "DiLoCo":
        options = {"every": 3, "wire": variant}
    if kind == "DownpourSGD":
        # Steps from push to push; it fetches every second time.
        options = {"n_push": int(variant), "n_fetch": 2 * int(variant)}
    grouped = variant == "group"
    if grouped:
        options["plan"] = {"conv2d": (1, 2)}
    model = network()
    method = getattr(replicas, kind)(
        model,
        devices=group if grouped else workers,
        shares=[1, 1],
        **options,
    )
    count = Count()
    history = method.fit(
        x,
        y,
        batch_size=16,
        epochs=EPOCHS,
        steps_per_epoch=STEPS,
        callbacks=[count],
        verbose=0,
    )
    if hasattr(method, "arrivals"):
        # Others are under way when one arrives: all of the last epoch.
        total = count.all
        steps = len(method.arrivals) - count.arrived
    else:
        total = count.totals[-1] - count.totals[0]
        steps = len(count.totals) - 1
    found[name] = {
        "bytes": total / steps,
        "vector": 4 * model.count_params(),
        "weights": [r.weights.value.device for r in method.replicas],
        "data": [r.data._iterator_resource.device for r in method.replicas],
        "losses": history.history["loss"],
    }
    if kind in ("SyncSGD", "DiLoCo"):
        cluster = planner.described(model, "2xcpu:1GFLOPS")
        (way,) = planner.compare(model, cluster, ways=[kind], **options)
        found[name]["predicted"] = way.received_bytes
    if kind == "DiLoCo":
        # A call is a round of three steps.
        found[name]["expected"] = sum(method.round_bytes())
    if grouped:
        split = method.replicas[0].model
        shards = [
            shard
            for variable in split.trainable_variables
            for shard in getattr(variable.value, "shards", ())
        ]
        away = [s for s in shards if s.device != method.replicas[0].device]
        found[name] |= {
            "shards": sorted({shard.device for shard in shards}),
            "away": 4 * sum(int(np.prod(shard.shape)) for shard in away),
            "maps": convpar.step_traffic(split, 16).total,
        }
print(json.dumps(found))
