"""Times training steps of whole models that are parallelized on one card.

Beside Keras' own model, which is timed twice: no difference below that of two
equal models means anything. XLA is what Keras chooses on a card. Times are
parts of those of the first of the ways.
"""

import card
import keras
import tensorflow as tf

import tf_convpar as convpar

MODELS = ("ResNet50", "VGG16")
POLICIES = ("float32", "mixed_bfloat16")
# The algorithm, or None for a model of Keras, and whether XLA may compile it.
WAYS = {
    f"{name}{xla and ', XLA'}": (algorithm, bool(xla))
    for xla in ("", "XLA")
    for name, algorithm in {
        "Keras": None,
        "parallelized": "direct",
        "auto": "auto",
        "Keras again": None,
    }.items()
}


def compiled(model, xla=False):
    model.compile(
        keras.optimizers.SGD(0.01, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile="auto" if xla else False,
    )
    if xla and tf.config.list_physical_devices("GPU") and not model.jit_compile:
        raise AssertionError("Expected a model for XLA. Received one for none.")
    return model


def plain(name, image):
    return getattr(keras.applications, name)(
        weights=None,
        input_shape=(image, image, 3),
        classifier_activation=None,
    )


def made(name, image, way, device):
    """A model as it is trained; those of Keras know nothing of this package."""
    algorithm, xla = WAYS[way]
    keras.utils.set_random_seed(1)
    if algorithm is None:
        with tf.device(device):
            return compiled(plain(name, image), xla)
    with convpar.ConvParallelStrategy(devices=[device]).scope():
        model = convpar.parallelize(
            plain(name, image), plan="equal", algorithm=algorithm, verbose=False
        )
        return compiled(model, xla)


def row(name, policy, image, batch, device, given):
    keras.mixed_precision.set_dtype_policy(policy)
    models = [made(name, image, way, device) for way in given.ways]
    x, y = card.images(device, batch, (image, image, 3), 1000)

    def step(model):
        return lambda: model.train_on_batch(x, y)

    times, ratios = card.turns(list(map(step, models)), given.repeats)
    keras.mixed_precision.set_dtype_policy("float32")
    return {
        "model": name,
        "policy": policy,
        f"{given.ways[0]}, ms": 1e3 * times[0],
        **dict(zip(given.ways[1:], ratios[1:], strict=True)),
    }


def main():
    given = card.options(__doc__, models=MODELS, policies=POLICIES, ways=WAYS)
    device = card.wanted(given)
    image, batch = (32, 2) if given.small else (224, 64)
    rows = [
        card.told(row(name, policy, image, batch, device, given))
        for name in given.models
        for policy in given.policies
    ]
    card.show(given, device, rows)


if __name__ == "__main__":
    main()
