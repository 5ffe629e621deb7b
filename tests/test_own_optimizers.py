"""Optimizers of one's own: what is of all shards, or done once, is so."""

import contextlib
import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import but_slow
from cases import by_turns
from models import largest_difference
from models import train

import tf_convpar as convpar


class Own(keras.optimizers.Optimizer):
    """With scalars: of its own, and one for each variable."""

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self.shared = self.add_variable((), name="shared")
        self.own = [self.add_variable((), name="own") for _ in variables]
        self.slots = [
            self.add_variable_from_reference(v, "slot") for v in variables
        ]

    def scalar(self, variable):
        return self.own[self._get_variable_index(variable)]


class Counts(Own):
    """The example of a fault: a step for each variable."""

    def update_step(self, gradient, variable, rate):
        count = self.scalar(variable)
        self.assign_add(count, 1.0)
        self.assign_sub(variable, rate * gradient / tf.sqrt(count))


class SharedCount(Own):
    """One count, raised by each variable in turn."""

    def update_step(self, gradient, variable, rate):
        self.assign_add(self.shared, 1.0)
        self.assign_sub(variable, rate * gradient / tf.sqrt(self.shared))


class Norms(Own):
    """The running mean of the gradient's norm."""

    def update_step(self, gradient, variable, rate):
        mean = self.scalar(variable)
        self.assign(mean, 0.5 * mean + 0.5 * tf.norm(gradient))
        self.assign_sub(variable, rate * gradient / (mean + 0.1))


class Latest(Own):
    """A scalar that is no op's result on any element."""

    def update_step(self, gradient, variable, rate):
        scale = self.scalar(variable)
        self.assign(scale, 1.0 / (1.0 + scale))
        slot = self.slots[self._get_variable_index(variable)]
        self.assign(slot, 0.9 * slot + gradient)
        self.assign_sub(variable, rate * slot * (1.0 + scale))


class BySize(Own):
    """A number that Python makes of the shape."""

    def update_step(self, gradient, variable, rate):
        rate = rate * 8.0 / math.prod(variable.shape)
        self.assign_sub(variable, rate * gradient)


class ByWidth(Own):
    """An answer that Python makes of the shape."""

    def update_step(self, gradient, variable, rate):
        if variable.shape[-1] > 5:
            rate = rate / 4
        self.assign_sub(variable, rate * gradient)


class Elementwise(Own):
    """With a slot, and nothing that shards could not do alone."""

    def update_step(self, gradient, variable, rate):
        slot = self.slots[self._get_variable_index(variable)]
        self.assign(slot, 0.9 * slot + gradient)
        self.assign_sub(variable, rate * slot)


class InFunction(Own):
    """What is traced for one shard must not run for another."""

    def update_step(self, gradient, variable, rate):
        slot = self.slots[self._get_variable_index(variable)].value
        self.traced(gradient, variable, slot, tf.convert_to_tensor(rate))

    @tf.function
    def traced(self, gradient, variable, slot, rate):
        slot.assign(0.9 * slot + gradient)
        variable.assign_sub(rate * slot)


KINDS = [
    *(Counts, SharedCount, Norms, Latest),
    *(BySize, ByWidth, Elementwise, InFunction),
]


def network(optimizer, strategy=None):
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((16, 16, 1)),
            keras.layers.Conv2D(6, 3, activation="relu", name="c"),
            keras.layers.MaxPooling2D(4),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss)
    if strategy is None:
        return model
    with strategy.scope():
        return convpar.parallelize(model, {"c": (3, 1, 2)}, verbose=False)


def same(model, plain):
    """Weights, and whatever the optimizers have."""
    for ours, theirs in (
        (model.weights, plain.weights),
        (model.optimizer.variables, plain.optimizer.variables),
    ):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), 1e-4, 1e-5)


@pytest.mark.parametrize("kind", but_slow(KINDS, [InFunction, Elementwise]))
def test_fit(kind, strategy, images):
    plain = network(kind(0.05))
    model = network(kind(0.05), strategy)
    expected = train(plain, images, epochs=1)
    losses = train(model, images, epochs=1)
    assert expected[-1] < expected[0]
    assert largest_difference(losses, expected) < 1e-5
    same(model, plain)
    sizes = [shard.shape[-1] for shard in model.layers[0].kernel.shards]
    assert sizes == [3, 1, 2]


def steps(model, images, eager):
    """A loop of one's own."""

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = model.loss(y, model(x, training=True))
        weights = model.trainable_variables
        model.optimizer.apply(tape.gradient(loss, weights), weights)
        return loss

    run = step if eager else tf.function(step)
    x, y = images
    return np.array([run(x[:32], y[:32]) for _ in range(3)])


@pytest.mark.parametrize(
    ("kind", "eager"), by_turns([Counts, ByWidth, InFunction], [True, False])
)
def test_loop_of_ones_own(kind, eager, strategy, images):
    plain = network(kind(0.05))
    model = network(kind(0.05), strategy)
    for one in (plain, model):
        with strategy.scope() if one is model else contextlib.nullcontext():
            one.optimizer.build(one.trainable_variables)
    expected = steps(plain, images, eager)
    losses = steps(model, images, eager)
    assert largest_difference(losses, expected) < 1e-5
    same(model, plain)


class Chosen(Own):
    """Elementwise or not, as it is told."""

    def __init__(self, rate, counts):
        super().__init__(rate)
        self.counts = counts

    def update_step(self, gradient, variable, rate):
        (Counts if self.counts else Elementwise).update_step(
            self, gradient, variable, rate
        )


def test_two_optimizers_of_one_class(strategy, images):
    """Eager programs keep the answer, for the optimizer that it is about."""
    plain = network(Chosen(0.05, False))
    model = network(Chosen(0.05, False), strategy)
    for counts in (False, True):
        for one in (plain, model):
            one.optimizer = Chosen(0.05, counts)
        expected = steps(plain, images, eager=True)
        losses = steps(model, images, eager=True)
        assert largest_difference(losses, expected) < 1e-5
        same(model, plain)


def test_decay_is_elementwise_and_the_update_is_not(strategy, images):
    """Of one variable, in an eager program, one after the other."""

    def lamb():
        return keras.optimizers.Lamb(0.01, weight_decay=0.1)

    plain, model = network(lamb()), network(lamb(), strategy)
    expected = steps(plain, images, eager=True)
    losses = steps(model, images, eager=True)
    assert largest_difference(losses, expected) < 1e-5
    same(model, plain)


def test_what_reads_numbers_in_an_eager_step(strategy, images):
    class Numbers(Own):
        def update_step(self, gradient, variable, rate):
            scale = 1.0 / (1.0 + np.linalg.norm(variable.numpy()))
            self.assign_sub(variable, rate * gradient * scale)

    plain = network(Numbers(0.5))
    model = network(Numbers(0.5), strategy)
    expected = steps(plain, images, eager=True)
    assert expected[-1] < expected[0]
    losses = steps(model, images, eager=True)
    assert largest_difference(losses, expected) < 1e-5
    same(model, plain)
