"""Programs that look inside a network: its layers' outputs and gradients."""

import keras
import numpy as np
import tensorflow as tf

from keras_programs._data import coloured_digits
from keras_programs._kit import program

layers = keras.layers


def network(kit):
    """Two regions, and names to ask for."""
    inputs = keras.Input((16, 16, 3))
    x = kit.Conv2D(8, 3, padding="same", activation="relu", name="one")(inputs)
    x = layers.MaxPooling2D(name="pool")(x)
    x = kit.Conv2D(12, 3, padding="same", name="two")(x)
    x = layers.BatchNormalization(name="normal")(x)
    x = layers.Activation("relu", name="relu")(x)
    x = kit.Conv2D(12, 3, activation="relu", name="last_conv")(x)
    x = layers.GlobalAveragePooling2D(name="average")(x)
    outputs = layers.Dense(10, name="scores")(x)
    return keras.Model(inputs, outputs)


def train(model, images, labels):
    model.compile(
        keras.optimizers.Adam(0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model.fit(images, labels, epochs=2, verbose=0).history["loss"]


def make_gradcam_heatmap(images, grad_model, pred_index=None):
    with tf.GradientTape() as tape:
        last_conv_layer_output, preds = grad_model(images)
        if pred_index is None:
            pred_index = tf.argmax(preds[0])
        class_channel = preds[:, pred_index]
    grads = tape.gradient(class_channel, last_conv_layer_output)
    pooled_grads = tf.reduce_mean(grads, axis=(0, 1, 2))
    last_conv_layer_output = last_conv_layer_output[0]
    heatmap = last_conv_layer_output @ pooled_grads[..., tf.newaxis]
    heatmap = tf.squeeze(heatmap)
    heatmap = tf.maximum(heatmap, 0) / tf.math.reduce_max(tf.abs(heatmap))
    return heatmap.numpy()


@program(quick=True)
def grad_cam(kit):
    """Which pixels speak for a class: a gradient by a feature map."""
    images, labels = coloured_digits(96, 16)
    inputs = keras.Input((16, 16, 3))
    x = kit.Conv2D(8, 3, padding="same", activation="relu")(inputs)
    x = layers.MaxPooling2D(name="pool")(x)
    x = kit.Conv2D(12, 3, activation="relu", name="last_conv")(x)
    x = layers.GlobalAveragePooling2D()(x)
    model = kit.parallelize(keras.Model(inputs, layers.Dense(10)(x)))
    losses = train(model, images, labels)
    heatmaps = []
    for name, pred_index in (("last_conv", None), ("pool", 3)):
        grad_model = keras.Model(
            model.inputs, [model.get_layer(name).output, model.output]
        )
        heatmaps.append(
            make_gradcam_heatmap(images[:1], grad_model, pred_index)
        )
    return {"losses": losses, "predictions": heatmaps}


@program()
def feature_maps(kit):
    """Feature maps as arrays, and layers called one by one."""
    images, labels = coloured_digits(96, 16)
    model = kit.parallelize(network(kit))
    losses = train(model, images, labels)

    convolutions = [
        layer for layer in model.layers if isinstance(layer, layers.Conv2D)
    ]
    extractor = keras.Model(
        inputs=model.input, outputs=[c.output for c in convolutions]
    )
    called = extractor(images[:4])
    predicted = extractor.predict(images[:4], verbose=0)
    first = called[0]
    pieces = [first[0], first[0, ..., 1], first[:, ::2, 3:5]]
    pieces.append(float(len(first)))
    pieces.append(tf.reduce_mean(called[1], axis=(1, 2)).numpy())
    pieces.append(np.asarray([row.numpy().sum() for row in called[2]]))

    # One layer after the other.
    x = tf.convert_to_tensor(images[:4])
    for layer in model.layers[1:]:
        x = layer(x)
        pieces.append(x.numpy())
    np.testing.assert_allclose(x.numpy(), model(images[:4]).numpy())

    # The image that a filter likes best.
    half = keras.Model(model.input, model.get_layer("two").output)
    image = tf.Variable(images[:1])
    for _ in range(3):
        with tf.GradientTape() as tape:
            tape.watch(image)
            loss = tf.reduce_mean(half(image)[:, 2:-2, 2:-2, 5])
        grads = tape.gradient(loss, image)
        image.assign_add(10.0 * tf.math.l2_normalize(grads))
    return {
        "losses": losses,
        "predictions": [
            [np.asarray(piece) for piece in pieces],
            predicted,
            image.numpy(),
        ],
    }


@program()
def style_transfer(kit):
    """The image is the variable; the network stays as it is."""
    images, _ = coloured_digits(2, 32)
    content, style = (tf.constant(image[None]) for image in images)
    model = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            kit.Conv2D(8, 3, activation="relu", name="block1_conv1"),
            kit.Conv2D(8, 3, activation="relu", name="block1_conv2"),
            layers.AveragePooling2D(2, name="block1_pool"),
            kit.Conv2D(12, 3, activation="relu", name="block2_conv1"),
            layers.AveragePooling2D(2, name="block2_pool"),
            kit.Conv2D(12, 3, activation="relu", name="block3_conv1"),
        ]
    )
    model = kit.parallelize(model)
    outputs_dict = {layer.name: layer.output for layer in model.layers}
    feature_extractor = keras.Model(inputs=model.inputs, outputs=outputs_dict)

    def gram_matrix(x):
        x = tf.transpose(x, (2, 0, 1))
        features = tf.reshape(x, (tf.shape(x)[0], -1))
        return tf.matmul(features, tf.transpose(features))

    def style_loss(style, combination):
        size = 32 * 32
        distance = gram_matrix(style) - gram_matrix(combination)
        return tf.reduce_sum(tf.square(distance)) / (4.0 * 9 * size**2)

    def total_variation_loss(x):
        a = tf.square(x[:, :-1, :-1, :] - x[:, 1:, :-1, :])
        b = tf.square(x[:, :-1, :-1, :] - x[:, :-1, 1:, :])
        return tf.reduce_sum(tf.pow(a + b, 1.25))

    def compute_loss(combination_image):
        input_tensor = tf.concat([content, style, combination_image], axis=0)
        features = feature_extractor(input_tensor)
        layer_features = features["block3_conv1"]
        loss = tf.reduce_sum(tf.square(layer_features[2] - layer_features[0]))
        names = ("block1_conv1", "block1_conv2", "block2_conv1")
        for layer_name in names:
            layer_features = features[layer_name]
            loss += style_loss(layer_features[1], layer_features[2])
        return loss + 1e-3 * total_variation_loss(combination_image)

    @tf.function
    def compute_loss_and_grads(combination_image):
        with tf.GradientTape() as tape:
            loss = compute_loss(combination_image)
        return loss, tape.gradient(loss, combination_image)

    optimizer = keras.optimizers.SGD(
        keras.optimizers.schedules.ExponentialDecay(
            initial_learning_rate=0.1, decay_steps=5, decay_rate=0.96
        )
    )
    combination_image = tf.Variable(content * 0.5 + 0.25)
    losses = []
    for _ in range(6):
        loss, grads = compute_loss_and_grads(combination_image)
        optimizer.apply_gradients([(grads, combination_image)])
        losses.append(float(loss))

    # And all of it in one function, with another optimizer.
    image = tf.Variable(content)
    adam = keras.optimizers.Adam(0.02)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = compute_loss(image)
        adam.apply_gradients([(tape.gradient(loss, image), image)])
        image.assign(tf.clip_by_value(image, 0.0, 1.0))
        return loss

    adam.build([image])
    fast = [float(step()) for _ in range(4)]
    return {
        "losses": losses,
        "predictions": [fast, combination_image.numpy(), image.numpy()],
    }
