"""Run as the chief of a cluster: a model that is planned by itself.

Prints the line of the plan, and then one JSON object: that line, what a split
says that a step moves, by theory what the model made moves, what the sockets of
the tasks received, and losses beside those of the plain model.
"""

import json

import keras
import numpy as np

import tf_convpar as convpar
from tf_convpar import planner
from tf_convpar.machines import BytesReceived
from tf_convpar.placement import row_ports
from tf_convpar.planner.measure import _layers
from tf_convpar.planner.measure import clock
from tf_convpar.sharding import step_traffic

STEPS, BATCH = 4, 16
L = keras.layers
# Whatever is planned is compared, not how well.
_layers._MOST_RUNS = 2
clock._TRIES, clock._MOST = 1, 5
strategy = convpar.ConvParallelStrategy()


def network():
    keras.utils.set_random_seed(1)
    x = keras.Input((32, 32, 3))
    y = L.Conv2D(64, 3, padding="same")(x)
    y = L.ReLU()(L.BatchNormalization()(y))
    y = L.MaxPooling2D()(L.Conv2D(128, 3, padding="same")(y))
    y = L.Conv2D(256, 3, padding="same", activation="relu")(y)
    y = L.GlobalAveragePooling2D()(y)
    model = keras.Model(x, L.Dense(10)(y), name="network")
    model.compile(
        keras.optimizers.SGD(1e-2),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    return model


with strategy.scope():
    plain = network()
    model = convpar.parallelize(plain, batch_size=BATCH)
    line = strategy.planner().plan_now(model).reason
    # From the cache, and split whether that pays here or not.
    plan = planner.plan(plain, planner.calibrate(plain, strategy, BATCH))
    model = convpar.parallelize(plain, plan, verbose=False)
rng = np.random.default_rng(0)
x = rng.normal(size=(BATCH, 32, 32, 3)).astype("float32")
y = rng.integers(0, 10, BATCH)
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
print(
    json.dumps(
        {
            "line": line,
            "planned": sum(plan.prediction.sent_bytes.values()),
            "theory": step_traffic(model, BATCH).total,
            "measured": float(np.median(np.diff(marks))),
            "losses": losses,
            "plain": [float(plain.train_on_batch(x, y)) for _ in range(STEPS)],
        }
    )
)
