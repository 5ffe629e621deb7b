"""Times MultiWorkerMirroredStrategy: each node has a copy of the model.

It has a training loop of its own, as `fit` does not run under this strategy
with Keras 3. Samples are shared out equally, whatever the nodes' speed.
"""

import argparse
import json
import math
import os
import sys

import models
import steps


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    steps.add_arguments(parser)
    options = parser.parse_args()
    config = json.loads(os.environ["TF_CONFIG"])
    replicas, index = len(config["cluster"]["worker"]), config["task"]["index"]
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import keras
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    # Tasks of this package have as many. With one, nothing would be sent or
    # received while a convolution runs.
    tf.config.threading.set_inter_op_parallelism_threads(4)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        keras.utils.set_random_seed(1)
        model = models.build(options.model, options.pixels, options.classes)
        optimizer = models.optimizer()
        optimizer.build(model.trainable_variables)
    own = steps.part(options.batch, replicas, index)
    x, y = (tf.constant(values[own]) for values in steps.data(options))

    def replica(x, y):
        with tf.GradientTape() as tape:
            losses = keras.losses.sparse_categorical_crossentropy(
                y, model(x, training=True), from_logits=True
            )
            # The gradients of replicas are added. So each loss is its part of
            # the mean of all samples, even if replicas have unequal numbers.
            pixels = tf.size(y, tf.float32) / len(y)
            loss = tf.reduce_sum(losses) / (options.batch * pixels)
        weights = model.trainable_variables
        optimizer.apply(tape.gradient(loss, weights), weights)
        return loss

    @tf.function
    def train():
        loss = strategy.run(replica, args=(x, y))
        return strategy.reduce("SUM", loss, axis=None)

    row = steps.measure(lambda: float(train()), options)
    sizes = [math.prod(weight.shape) for weight in model.trainable_weights]
    theory = steps.all_reduce_mb(sum(sizes), replicas)
    row |= {"received_theory_mb": theory, "sent_theory_mb": theory}
    if index == 0:
        steps.report(row)


if __name__ == "__main__":
    sys.exit(main())
