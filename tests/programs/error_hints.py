"""Run as the chief of a cluster, after variables that must not be there.

Prints one JSON object: the errors that the program of a new user meets.
"""

import json
import os
import sys

import keras
import numpy as np
import tensorflow as tf

generator = tf.random.Generator.from_seed(1)
dropout = keras.layers.Dropout(0.5)

import tf_convpar as convpar  # noqa: E402
from tf_convpar.cluster.local_cluster import local_workers  # noqa: E402

X, Y = np.zeros((4, 8, 8, 3), "float32"), np.zeros((4, 2), "float32")


def network(*more):
    layers = keras.layers
    return keras.Sequential(
        [keras.Input((8, 8, 3)), layers.Conv2D(6, 3), *more, layers.Flatten()]
        + [layers.Dense(2)]
    )


def error_of(function):
    """The error of a call, its class first."""
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "none"


found = {}
with local_workers(1) as local:
    os.environ["TF_CONFIG"] = local.tf_config()
    strategy = convpar.ConvParallelStrategy()

    def parallel(*more):
        with strategy.scope():
            model = network(*more)
            model.compile("sgd", "mse")
            return convpar.parallelize(model, plan="equal", verbose=False)

    model = parallel()
    model.fit(X, Y, verbose=0)
    found["generator"] = error_of(lambda: generator.normal((2,)))
    found["dropout"] = error_of(lambda: parallel(dropout).fit(X, Y, verbose=0))
    local.kill()
    found["lost"] = error_of(lambda: model.fit(X, Y, verbose=0))
    print(json.dumps(found))
    sys.stdout.flush()
    # The workers' variables cannot be deleted.
    local.kill()
    os._exit(0)
