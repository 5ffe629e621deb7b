"""The Keras models of the benchmark, their data, and how they are compiled.

`VGG16` and the like are those of `keras.applications`, without weights;
`unet` is a U-Net as in `examples/unet.py`; `50:500` is two layers with so
many kernels, as in `benchmarks/planner`.
"""


def build(name, pixels, classes):
    """An untrained model that gives logits."""
    import keras

    if name == "unet":
        return unet(pixels, classes)
    if ":" in name:
        return two_layers(pixels, classes, *map(int, name.split(":")))
    maker = getattr(keras.applications, name, None)
    if not callable(maker):
        raise ValueError(
            "Expected the name of a model of keras.applications, 'unet', or "
            "the kernels of two layers such as '50:500'. Received: "
            f"model={name!r}."
        )
    return maker(
        weights=None,
        input_shape=(pixels, pixels, 3),
        classes=classes,
        classifier_activation=None,
    )


def two_layers(pixels, classes, first, second):
    import keras

    return keras.Sequential(
        [
            keras.Input((pixels, pixels, 3)),
            keras.layers.Conv2D(first, 5, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(second, 5, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(classes),
        ]
    )


def unet(pixels, classes, filters=(32, 64, 128)):
    import keras

    layers = keras.layers

    def block(x, n):
        for _ in range(2):
            x = layers.Conv2D(n, 3, padding="same", use_bias=False)(x)
            x = layers.ReLU()(layers.BatchNormalization()(x))
        return x

    x = inputs = keras.Input((pixels, pixels, 3))
    skipped = []
    for n in filters[:-1]:
        x = block(x, n)
        skipped.append(x)
        x = layers.MaxPooling2D()(x)
    x = block(x, filters[-1])
    for n, skip in zip(filters[-2::-1], reversed(skipped), strict=True):
        x = layers.Conv2DTranspose(n, 2, strides=2)(x)
        x = block(layers.Concatenate()([x, skip]), n)
    return keras.Model(inputs, layers.Conv2D(classes, 1)(x))


def optimizer():
    import keras

    return keras.optimizers.SGD(0.01, momentum=0.9)


def compiled(model):
    """Compiles a model with the optimizer and loss that all systems have."""
    import keras

    model.compile(
        optimizer(),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        # On these processors XLA's convolutions are slower than oneDNN's.
        jit_compile=False,
    )
    return model


def trainer(model, x, y):
    """A function that makes a training step as `fit` does; returns its loss."""
    import tensorflow as tf

    data = iter(tf.data.Dataset.from_tensors((x, y)).repeat())
    model.make_train_function()

    def step():
        # Keras gives the mean loss since metrics were reset.
        model.reset_metrics()
        logs = model.train_function(data)
        values = [float(value) for value in tf.nest.flatten(logs)]
        return values[0]

    return step
