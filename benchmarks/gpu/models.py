"""Times training steps of whole models that are parallelized on one card.

Beside Keras' own model, which is timed twice: no difference below that of two
equal models means anything. With `--xla` also beside the model as Keras
compiles it on a card where it is left the choice.
"""

import card
import keras
import tensorflow as tf

import tf_convpar as convpar

MODELS = ("ResNet50", "VGG16")
ALGORITHMS = {"parallelized": "direct", "auto": "auto"}


def compiled(model, xla=False):
    model.compile(
        keras.optimizers.SGD(0.01, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=xla,
    )
    return model


def plain(name, image):
    return getattr(keras.applications, name)(
        weights=None,
        input_shape=(image, image, 3),
        classifier_activation=None,
    )


def made(name, image, how, device):
    """A model as it is trained; `Keras` ones know nothing of this package."""
    keras.utils.set_random_seed(1)
    if how.startswith("Keras"):
        with tf.device(device):
            return compiled(plain(name, image), xla="XLA" in how)
    with convpar.ConvParallelStrategy(devices=[device]).scope():
        model = plain(name, image)
        return compiled(
            convpar.parallelize(
                model, plan="equal", algorithm=ALGORITHMS[how], verbose=False
            )
        )


def row(name, policy, image, batch, device, given):
    keras.mixed_precision.set_dtype_policy(policy)
    ways = ["Keras", *ALGORITHMS, "Keras again"]
    ways += ["Keras, XLA"] if given.xla else []
    models = [made(name, image, how, device) for how in ways]
    x, y = card.images(device, batch, (image, image, 3), 1000)

    def step(model):
        return lambda: model.train_on_batch(x, y)

    times, ratios = card.turns(list(map(step, models)), given.repeats)
    keras.mixed_precision.set_dtype_policy("float32")
    return {
        "model": name,
        "policy": policy,
        "Keras, ms": 1e3 * times[0],
        **dict(zip(ways[1:], ratios[1:], strict=True)),
    }


def main():
    given = card.options(__doc__, xla="time Keras' model compiled by XLA too")
    device = card.wanted(given)
    image, batch = (32, 2) if given.small else (224, 64)
    rows = [
        card.told(row(name, policy, image, batch, device, given))
        for name in (MODELS[1:] if given.small else MODELS)
        for policy in ("float32", "mixed_bfloat16")
    ]
    card.show(given, device, rows)


if __name__ == "__main__":
    main()
