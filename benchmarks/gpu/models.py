"""Times training steps of whole models that are parallelized on one card.

Beside Keras' own model, which is timed twice: no difference below that of two
equal models means anything. `auto` is expected to change nothing on a card.
"""

import card
import keras

import tf_convpar as convpar

MODELS = ("ResNet50", "VGG16")


def compiled(model):
    model.compile(
        keras.optimizers.SGD(0.01, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    return model


def plain(name, image):
    return getattr(keras.applications, name)(
        weights=None,
        input_shape=(image, image, 3),
        classifier_activation=None,
    )


def made(name, image, how):
    keras.utils.set_random_seed(1)
    model = plain(name, image)
    if how is None:
        return compiled(model)
    parallel = convpar.parallelize(model, plan="equal", algorithm=how)
    return compiled(parallel)


def row(name, policy, image, batch, device, repeats):
    keras.mixed_precision.set_dtype_policy(policy)
    with convpar.ConvParallelStrategy(devices=[device]).scope():
        models = [
            made(name, image, how) for how in (None, "direct", "auto", None)
        ]
    x, y = card.images(device, batch, (image, image, 3), 1000)

    def step(model):
        return lambda: model.train_on_batch(x, y)

    (plain, *_), (_, direct, auto, noise) = card.turns(
        list(map(step, models)), repeats
    )
    keras.mixed_precision.set_dtype_policy("float32")
    return {
        "model": name,
        "policy": policy,
        "Keras, ms": 1e3 * plain,
        "parallelized": direct,
        "auto": auto,
        "Keras again": noise,
    }


def main():
    given = card.options(__doc__)
    device = card.wanted(given)
    image, batch = (32, 2) if given.small else (224, 64)
    rows = [
        row(name, policy, image, batch, device, given.repeats)
        for name in (MODELS[1:] if given.small else MODELS)
        for policy in ("float32", "mixed_bfloat16")
    ]
    card.show(given, device, rows)


if __name__ == "__main__":
    main()
