"""Run as the chief of a cluster: trains, waits for a line, trains again."""

import sys

import keras
import numpy as np
import tensorflow as tf

import tf_convpar as convpar

with convpar.ConvParallelStrategy().scope():
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            convpar.ConvParallel2D(6, 3),
            keras.layers.GlobalAveragePooling2D(),
        ]
    )
    model.compile("sgd", "mse")
x, y = np.ones([8, 8, 8, 1], "float32"), np.ones([8, 6], "float32")
model.fit(x, y, verbose=0)
print("trained", flush=True)
sys.stdin.readline()
try:
    model.fit(x, y, verbose=0)
except tf.errors.UnavailableError as error:
    print("unavailable:", "/job:worker" in str(error), flush=True)
