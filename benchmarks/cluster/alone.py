"""Times plain Keras on one node: the baseline of every speed-up."""

import argparse
import os
import sys

import models
import steps


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    steps.add_arguments(parser)
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import keras
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    keras.utils.set_random_seed(1)
    model = models.build(options.model, options.pixels, options.classes)
    step = models.trainer(models.compiled(model), *steps.data(options))
    steps.report(steps.measure(step, options))


if __name__ == "__main__":
    sys.exit(main())
