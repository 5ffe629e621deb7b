"""What Keras does with a model, it does with a split one, to the same end."""

import dataclasses
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import by_turns
from cases import slow
from models import largest_difference
from models import small_cnn
from models import train

import tf_convpar as convpar


def momentum():
    """Where it matters that an optimizer has slots, and not which it is.

    Adam takes twice as long to trace.
    """
    return keras.optimizers.SGD(0.05, momentum=0.9)


@pytest.mark.parametrize(
    ("scope", "eager"), by_turns([False, True], [False, True])
)
def test_fit_with_and_without_scope_and_graph(scope, eager, strategy, images):
    expected = train(small_cnn(False, momentum()), images, epochs=1)
    if scope:
        with strategy.scope():
            model = small_cnn(True, momentum())
    else:
        model = small_cnn(True, momentum())
    model.run_eagerly = eager
    assert largest_difference(train(model, images, epochs=1), expected) < 1e-5
    shards = model.layers[0].kernel.shards
    assert len({shard.device for shard in shards}) == 3


@pytest.mark.parametrize("policy", ["mixed_float16", slow("mixed_bfloat16")])
def test_mixed_precision(policy, strategy, images):
    keras.mixed_precision.set_dtype_policy(policy)
    expected = train(small_cnn(False, "adam"), images)
    with strategy.scope():
        model = small_cnn(True, "adam")
    losses = train(model, images)
    assert model.layers[0].kernel.dtype == "float32"
    # Narrow partial sums: equal to the precision of the policy only.
    assert largest_difference(losses, expected) < 2e-2


def test_steps_per_execution(strategy, images):
    plain = small_cnn(False, "adam")
    train(plain, images)
    with strategy.scope():
        model = small_cnn(True, "adam")
        model.compile(
            keras.optimizers.Adam(), model.loss, steps_per_execution=3
        )
    train(model, images)
    for ours, theirs in zip(
        model.get_weights(), plain.get_weights(), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_evaluate_and_predict(strategy, images):
    x, y = images
    plain = small_cnn(False)
    with strategy.scope():
        model = small_cnn(True)
    np.testing.assert_allclose(
        model.predict(x, verbose=0), plain.predict(x, verbose=0), atol=1e-5
    )
    assert model.evaluate(x, y, verbose=0) == pytest.approx(
        plain.evaluate(x, y, verbose=0), rel=1e-6
    )


def test_custom_loop_with_strategy_run(strategy, images):
    x, y = images
    expected = train(small_cnn(False, "adam"), images, epochs=1)
    with strategy.scope():
        model = small_cnn(True, "adam")
        optimizer = keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)
    data = strategy.experimental_distribute_dataset(data)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model.loss(y, model(x, training=True)))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(
            zip(gradients, model.trainable_variables, strict=True)
        )
        return loss

    @tf.function
    def distributed_step(x, y):
        return strategy.reduce("SUM", strategy.run(step, args=(x, y)), None)

    losses = np.array([float(distributed_step(x, y)) for x, y in data])
    assert largest_difference(losses, expected) < 1e-5


@dataclasses.dataclass
class Trainer:
    """Has no hash, as a dataclass has none."""

    scale: float

    def step(self, x):
        return self.scale * x


def test_a_step_of_an_object_without_a_hash(strategy):
    trainer = Trainer(2.0)

    @tf.function
    def train(x):
        return strategy.run(trainer.step, args=(x,))

    assert float(train(tf.constant(1.5))) == 3.0


def test_batches_are_whole_and_nothing_fetches_them_ahead(strategy):
    """An iterator with threads of its own crashed once it was gone."""
    data = tf.data.Dataset.range(64).batch(32)
    by_function = strategy.distribute_datasets_from_function(
        lambda context: data.shard(
            context.num_input_pipelines, context.input_pipeline_id
        )
    )
    for distributed in (
        strategy.experimental_distribute_dataset(data),
        (by_function),
    ):
        batches = iter(distributed)
        assert isinstance(batches, tf.data.Iterator)
        np.testing.assert_array_equal(next(batches), np.arange(32))
        np.testing.assert_array_equal(next(batches), np.arange(32, 64))


def test_callbacks_backup_and_restore(strategy, images, tmp_path):
    expected = train(small_cnn(False, momentum()), images, epochs=4)

    class Interrupt(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                raise KeyboardInterrupt

    def fit(callbacks):
        with strategy.scope():
            model = small_cnn(True, momentum())
        x, y = images
        history = model.fit(
            x,
            y,
            batch_size=32,
            epochs=4,
            shuffle=False,
            verbose=0,
            callbacks=[
                keras.callbacks.BackupAndRestore(str(tmp_path / "backup")),
                keras.callbacks.TerminateOnNaN(),
                keras.callbacks.CSVLogger(str(tmp_path / "log.csv")),
                keras.callbacks.ModelCheckpoint(
                    str(tmp_path / "best.weights.h5"), save_weights_only=True
                ),
                *callbacks,
            ],
        )
        return history.history["loss"]

    with pytest.raises(KeyboardInterrupt):
        fit([Interrupt()])
    losses = fit([])
    assert (tmp_path / "best.weights.h5").exists()
    assert len(losses) == 2  # The two that the interruption left.
    per_epoch = expected.reshape(4, -1).mean(axis=1)
    assert losses[0] == pytest.approx(per_epoch[2], rel=1e-5)
    assert losses[-1] == pytest.approx(per_epoch[3], rel=1e-5)


def test_subclassed_model_built_lazily_inside_fit(strategy, images):
    def build(parallel):
        keras.utils.set_random_seed(3)

        class Net(keras.Model):
            def __init__(self):
                super().__init__()
                kwargs = {"shards": (3, 2, 1)} if parallel else {}
                layer = (
                    convpar.ConvParallel2D if parallel else keras.layers.Conv2D
                )
                self.conv = layer(12, 3, **kwargs)
                self.pool = keras.layers.GlobalAveragePooling2D()
                self.head = keras.layers.Dense(10)

            def call(self, x):
                return self.head(self.pool(self.conv(x)))

        model = Net()
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(True))
        return model

    expected = train(build(False), images, epochs=1)
    with strategy.scope():
        model = build(True)
    losses = train(model, images, epochs=1)
    assert largest_difference(losses, expected) < 1e-5
    assert [s.device[-5:] for s in model.conv.kernel.shards] == [
        "CPU:0",
        "CPU:1",
        "CPU:2",
    ]


def test_functional_model_with_shared_layer(strategy, images):
    def build(parallel):
        keras.utils.set_random_seed(5)
        kwargs = {"shards": (1, 1, 2)} if parallel else {}
        layer = convpar.ConvParallel2D if parallel else keras.layers.Conv2D
        shared = layer(8, 3, padding="same", **kwargs)
        inputs = keras.Input((16, 16, 1))
        wide = keras.layers.Conv2D(8, 1)(inputs)
        outputs = shared(keras.layers.ReLU()(shared(wide)))
        outputs = keras.layers.Dense(10)(keras.layers.Flatten()(outputs))
        model = keras.Model(inputs, outputs)
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(True))
        return model

    expected = train(build(False), images, epochs=1)
    with strategy.scope():
        model = build(True)
    losses = train(model, images, epochs=1)
    assert largest_difference(losses, expected) < 1e-5


@pytest.mark.slow
def test_regularizers_and_constraints(strategy, images):
    kwargs = {
        "kernel_regularizer": keras.regularizers.L1L2(1e-3, 1e-2),
        "bias_regularizer": "l2",
        "kernel_constraint": keras.constraints.MaxNorm(0.5, axis=[0, 1, 2]),
        "bias_constraint": "non_neg",
    }
    expected = train(small_cnn(False, momentum(), **kwargs), images)
    with strategy.scope():
        model = small_cnn(True, momentum(), **kwargs)
    assert largest_difference(train(model, images), expected) < 1e-5


class Halved:
    def kernel(self, w):
        return w / 2

    def bias(self, w, by):
        return tf.reduce_sum(w * by)


def test_constraints_and_regularizers_of_every_kind_of_function(
    strategy, images
):
    kwargs = {
        "kernel_constraint": Halved().kernel,
        "kernel_regularizer": functools.partial(Halved().bias, by=0.1),
        "bias_constraint": lambda w: w / 2,
    }
    expected = train(small_cnn(False, momentum(), **kwargs), images, epochs=1)
    with strategy.scope():
        model = small_cnn(True, momentum(), **kwargs)
    losses = train(model, images, epochs=1)
    assert largest_difference(losses, expected) < 1e-5


def test_constraint_and_regularizer_that_mix_kernels(strategy, images):
    kwargs = {
        "kernel_regularizer": keras.regularizers.L2(1e-2),
        # Over the filters themselves: no shard can do this alone.
        "kernel_constraint": keras.constraints.UnitNorm(axis=[2, 3]),
    }
    expected = train(small_cnn(False, momentum(), **kwargs), images)
    with strategy.scope():
        model = small_cnn(True, momentum(), **kwargs)
    assert largest_difference(train(model, images), expected) < 1e-5


def test_merged_gradients_of_a_loop_of_the_users_own(strategy, images):
    """TensorFlow's clipping merges them; the optimizer cuts them again."""
    x, y = images[0][:32], images[1][:32]
    results = []
    for parallel in (False, True):
        with strategy.scope():
            model = small_cnn(parallel)
            optimizer = keras.optimizers.Adam(0.01)
            optimizer.build(model.trainable_variables)

        @tf.function
        def step(model=model, optimizer=optimizer):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model.loss(y, model(x)))
            gradients = tape.gradient(loss, model.trainable_variables)
            gradients, norm = tf.clip_by_global_norm(gradients, 0.1)
            optimizer.apply_gradients(
                zip(gradients, model.trainable_variables, strict=True)
            )
            return norm

        norms = [
            float(strategy.reduce("SUM", strategy.run(step), None))
            for _ in range(3)
        ]
        results.append([norms, *model.get_weights()])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)
