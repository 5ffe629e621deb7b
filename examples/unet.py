"""A U-Net finds the pixels of a handwritten digit in a noisy image.

    convpar launch -n 3 examples/unet.py        # or: python examples/unet.py

`convpar.parallelize` makes the parallel model out of an ordinary Keras one,
transposed convolutions, batch normalization and skip connections included.
"""

import digits
import keras
import numpy as np

import tf_convpar as convpar

L = keras.layers
strategy = convpar.ConvParallelStrategy()


def scenes(images, seed):
    """Noisy images with a digit somewhere, and masks of the digit's strokes."""
    rng = np.random.default_rng(seed)
    small = images[:, ::2, ::2]
    x = rng.uniform(0, 0.6, (len(small), 32, 32, 1)).astype("float32")
    y = np.zeros_like(x)
    for i, digit in enumerate(small):
        row, column = rng.integers(0, 16, 2)
        place = np.s_[i, row : row + 16, column : column + 16]
        x[place] = np.maximum(x[place], digit)
        y[place] = digit > 0.5
    return x, y


def block(x, filters):
    for _ in range(2):
        x = L.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        x = L.ReLU()(L.BatchNormalization(momentum=0.9)(x))
    return x


def unet(shape=(32, 32, 1), filters=(8, 16)):
    x = inputs = keras.Input(shape)
    skipped = []
    for n in filters[:-1]:
        x = block(x, n)
        skipped.append(x)
        x = L.MaxPooling2D()(x)
    x = block(x, filters[-1])
    for n, skip in zip(filters[-2::-1], reversed(skipped), strict=True):
        x = L.Conv2DTranspose(n, 2, strides=2)(x)
        x = block(L.Concatenate()([x, skip]), n)
    return keras.Model(inputs, L.Conv2D(1, 1, activation="sigmoid")(x))


(train, _), (test, _) = digits.load()
with strategy.scope():
    keras.utils.set_random_seed(1)
    model = convpar.parallelize(unet())
    model.compile(
        keras.optimizers.Adam(3e-3),
        "binary_crossentropy",
        metrics=[keras.metrics.BinaryIoU([1], name="iou")],
    )
model.summary()
model.fit(
    *scenes(train[:600], 1),
    batch_size=30,
    epochs=3,
    validation_data=scenes(test, 2),
    verbose=2,
)
print(f"overlap: {model.evaluate(*scenes(test, 2), verbose=0)[1]:.3f}")
