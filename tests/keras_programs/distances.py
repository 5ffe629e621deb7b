"""Networks that learn from other networks, and from distances."""

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from keras_programs._data import coloured_digits
from keras_programs._data import digits
from keras_programs._kit import program

layers = keras.layers


class Distiller(keras.Model):
    def __init__(self, student, teacher):
        super().__init__()
        self.teacher = teacher
        self.student = student

    def compile(
        self,
        optimizer,
        metrics,
        student_loss_fn,
        distillation_loss_fn,
        alpha=0.1,
        temperature=3,
    ):
        super().compile(optimizer=optimizer, metrics=metrics)
        self.student_loss_fn = student_loss_fn
        self.distillation_loss_fn = distillation_loss_fn
        self.alpha = alpha
        self.temperature = temperature

    def compute_loss(
        self,
        x=None,
        y=None,
        y_pred=None,
        sample_weight=None,
        allow_empty=False,
    ):
        teacher_pred = self.teacher(x, training=False)
        student_loss = self.student_loss_fn(y, y_pred)
        distillation_loss = self.distillation_loss_fn(
            ops.softmax(teacher_pred / self.temperature, axis=1),
            ops.softmax(y_pred / self.temperature, axis=1),
        ) * (self.temperature**2)
        return self.alpha * student_loss + (1 - self.alpha) * distillation_loss

    def call(self, x):
        return self.student(x)


def classifier(kit, filters, name):
    return keras.Sequential(
        [
            keras.Input((16, 16, 1)),
            kit.Conv2D(filters, 3, strides=2, padding="same"),
            layers.LeakyReLU(negative_slope=0.2),
            layers.MaxPooling2D(2, strides=1, padding="same"),
            kit.Conv2D(2 * filters, 3, strides=2, padding="same"),
            layers.Flatten(),
            layers.Dense(10),
        ],
        name=name,
    )


@program()
def distillation(kit):
    images, labels = digits(128)
    train, held_out = (images[:96], labels[:96]), (images[96:], labels[96:])

    teacher = kit.parallelize(classifier(kit, 16, "teacher"))
    teacher.compile(
        optimizer=keras.optimizers.Adam(0.005),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy()],
    )
    taught = teacher.fit(*train, epochs=2, verbose=0).history
    taught_score = teacher.evaluate(*held_out, verbose=0)

    student = kit.parallelize(classifier(kit, 6, "student"))
    distiller = Distiller(student=student, teacher=teacher)
    distiller.compile(
        optimizer=keras.optimizers.Adam(0.005),
        metrics=[keras.metrics.SparseCategoricalAccuracy()],
        student_loss_fn=keras.losses.SparseCategoricalCrossentropy(
            from_logits=True
        ),
        distillation_loss_fn=keras.losses.KLDivergence(),
        alpha=0.1,
        temperature=10,
    )
    history = distiller.fit(*train, epochs=3, verbose=0).history
    return {
        "losses": history["loss"],
        "predictions": [
            taught["loss"],
            taught_score,
            distiller.evaluate(*held_out, verbose=0),
            student.predict(held_out[0], verbose=0),
        ],
    }


class SiameseModel(keras.Model):
    """Three calls of one network, in a `call` and a step of its own."""

    def __init__(self, embedding, margin=0.5):
        super().__init__()
        self.embedding = embedding
        self.margin = margin
        self.loss_tracker = keras.metrics.Mean(name="loss")

    def call(self, inputs):
        anchor, positive, negative = inputs
        a = self.embedding(anchor)
        p = self.embedding(positive)
        n = self.embedding(negative)
        ap_distance = ops.sum(ops.square(a - p), -1)
        an_distance = ops.sum(ops.square(a - n), -1)
        return ap_distance, an_distance

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self._triplet_loss(data)
        gradients = tape.gradient(loss, self.embedding.trainable_weights)
        self.optimizer.apply_gradients(
            zip(gradients, self.embedding.trainable_weights, strict=True)
        )
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}

    def test_step(self, data):
        self.loss_tracker.update_state(self._triplet_loss(data))
        return {"loss": self.loss_tracker.result()}

    def _triplet_loss(self, data):
        ap_distance, an_distance = self(data)
        return ops.mean(
            ops.maximum(ap_distance - an_distance + self.margin, 0.0)
        )

    @property
    def metrics(self):
        return [self.loss_tracker]


def triplets(images, labels, count):
    rng = np.random.default_rng(8)
    by_label = [np.flatnonzero(labels == n) for n in range(10)]
    picked = []
    for _ in range(count):
        same, other = rng.choice(10, 2, replace=False)
        anchor, positive = rng.choice(by_label[same], 2, replace=False)
        picked.append((anchor, positive, rng.choice(by_label[other])))
    return tuple(images[list(column)] for column in zip(*picked, strict=True))


@program()
def siamese_triplets(kit):
    images, labels = coloured_digits(128, 16)
    dataset = tf.data.Dataset.from_tensor_slices(triplets(images, labels, 72))
    train = dataset.take(56).shuffle(64, seed=3).batch(16).prefetch(8)
    held_out = dataset.skip(56).batch(16)

    embedding = keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            kit.Conv2D(8, 3, activation="relu", name="first"),
            layers.MaxPooling2D(),
            kit.Conv2D(12, 3, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(16, activation="relu"),
            layers.BatchNormalization(),
            layers.Dense(8),
        ],
        name="embedding",
    )
    embedding = kit.parallelize(embedding)
    siamese = SiameseModel(embedding)
    siamese.compile(optimizer=keras.optimizers.Adam(0.005))
    history = siamese.fit(
        train, epochs=3, validation_data=held_out, verbose=0
    ).history

    anchor, positive, negative = next(iter(held_out))
    similarity = keras.metrics.CosineSimilarity()
    similar = similarity(embedding(anchor), embedding(positive))
    similarity.reset_state()
    unlike = similarity(embedding(anchor), embedding(negative))
    return {
        "losses": history["loss"],
        "predictions": [
            history["val_loss"],
            float(similar),
            float(unlike),
            embedding(anchor).numpy(),
        ],
    }


class AnchorPositivePairs(keras.utils.PyDataset):
    def __init__(self, images, labels, num_batches):
        super().__init__()
        self.images = images
        self.by_label = [np.flatnonzero(labels == n) for n in range(10)]
        self.batches = num_batches

    def __len__(self):
        return self.batches

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        pairs = np.stack(
            [rng.choice(found, 2, replace=False) for found in self.by_label]
        )
        return np.stack([self.images[pairs[:, 0]], self.images[pairs[:, 1]]])


class EmbeddingModel(keras.Model):
    """A functional model with a step of its own."""

    def train_step(self, data):
        if isinstance(data, tuple):
            data = data[0]
        anchors, positives = data[0], data[1]
        with tf.GradientTape() as tape:
            anchor_embeddings = self(anchors, training=True)
            positive_embeddings = self(positives, training=True)
            similarities = ops.einsum(
                "ae,pe->ap", anchor_embeddings, positive_embeddings
            )
            similarities /= 0.2  # The temperature.
            sparse_labels = ops.arange(10)
            loss = self.compute_loss(y=sparse_labels, y_pred=similarities)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(sparse_labels, similarities)
        return {m.name: m.result() for m in self.metrics}


@program()
def metric_learning(kit):
    images, labels = coloured_digits(128, 16)
    inputs = keras.Input((16, 16, 3))
    x = kit.Conv2D(8, 3, strides=2, activation="relu")(inputs)
    x = kit.Conv2D(12, 3, strides=2, activation="relu")(x)
    x = layers.GlobalAveragePooling2D()(x)
    embeddings = layers.Dense(8, activation=None)(x)
    embeddings = layers.UnitNormalization()(embeddings)
    model = kit.parallelize(EmbeddingModel(inputs, embeddings))

    model.compile(
        optimizer=keras.optimizers.Adam(learning_rate=0.01),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    history = model.fit(
        AnchorPositivePairs(images, labels, num_batches=5),
        epochs=3,
        verbose=0,
    ).history
    found = model.predict(images[:32], verbose=0)
    gram = np.einsum("ae,be->ab", found, found)
    return {"losses": history["loss"], "predictions": [found, gram]}
