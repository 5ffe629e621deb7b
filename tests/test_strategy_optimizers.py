"""Every optimizer trains a split model as it trains a whole one."""

import keras
import numpy as np
import pytest
from models import conv
from models import largest_difference
from models import small_cnn
from models import train

import tf_convpar as convpar
from tf_convpar.placement import ShardedVariable

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.05),
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "nesterov": lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(),
    "amsgrad": lambda: keras.optimizers.Adam(amsgrad=True),
    "adamw": lambda: keras.optimizers.AdamW(weight_decay=0.01),
    "adamax": lambda: keras.optimizers.Adamax(),
    "adagrad": lambda: keras.optimizers.Adagrad(0.05),
    "adadelta": lambda: keras.optimizers.Adadelta(0.1),
    "rmsprop": lambda: keras.optimizers.RMSprop(),
    "centered": lambda: keras.optimizers.RMSprop(momentum=0.5, centered=True),
    "nadam": lambda: keras.optimizers.Nadam(),
    "ftrl": lambda: keras.optimizers.Ftrl(0.05),
    "lion": lambda: keras.optimizers.Lion(1e-4),
    "lamb": lambda: keras.optimizers.Lamb(),
    "adafactor": lambda: keras.optimizers.Adafactor(),
    "muon": lambda: keras.optimizers.Muon(),
    "clipnorm": lambda: keras.optimizers.SGD(0.05, clipnorm=0.05),
    "global_clipnorm": lambda: keras.optimizers.Adam(global_clipnorm=0.1),
    "clipvalue": lambda: keras.optimizers.SGD(0.05, clipvalue=0.01),
    "ema": lambda: keras.optimizers.Adam(
        use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3
    ),
    "accumulation": lambda: keras.optimizers.Adam(
        gradient_accumulation_steps=3
    ),
    "loss_scale": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.05, momentum=0.9)
    ),
    "schedule": lambda: keras.optimizers.Adam(
        keras.optimizers.schedules.ExponentialDecay(0.01, 4, 0.5)
    ),
    "decay, schedule and ema": lambda: keras.optimizers.AdamW(
        keras.optimizers.schedules.ExponentialDecay(0.01, 4, 0.5),
        weight_decay=0.01,
        use_ema=True,
        ema_momentum=0.5,
        ema_overwrite_frequency=3,
    ),
}
if keras.__version__ < "3.13":
    del OPTIMIZERS["muon"]  # There it does not train a plain model either.
if hasattr(keras.optimizers, "ScheduleFreeAdamW"):
    OPTIMIZERS["schedule_free"] = lambda: keras.optimizers.ScheduleFreeAdamW()
if hasattr(keras.optimizers, "MultiOptimizer"):
    ADAM, SGD = keras.optimizers.Adam, keras.optimizers.SGD
    OPTIMIZERS["multi"] = lambda: keras.optimizers.MultiOptimizer(
        lambda variable: ADAM() if "kernel" in variable.path else SGD(0.01)
    )

# Made of what the others are: numbers of one element, and slots of its shape.
ALIKE = (
    "sgd nesterov amsgrad adamax adagrad adadelta rmsprop centered nadam ftrl "
    "clipvalue adam adamw ema schedule lamb accumulation clipnorm"
).split()


def one_convolution(parallel, optimizer):
    """What optimizers do is traced for each variable: here are few."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((16, 16, 1)),
            conv(parallel, 10, 3, (5, 2, 3), activation="relu"),
            keras.layers.MaxPooling2D(4),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss)
    return model


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in ALIKE else name
        for name in OPTIMIZERS
    ],
)
def test_every_optimizer_gives_the_losses_of_one_device(name, strategy, images):
    make = OPTIMIZERS[name]
    plain = one_convolution(False, make())
    with strategy.scope():
        model = one_convolution(True, make())
    if name == "schedule_free":
        # Keras builds it wrongly inside a traced step: build first.
        for each in (plain, model):
            each.optimizer.build(each.trainable_variables)
    expected = train(plain, images)
    losses = train(model, images)
    assert expected[:6].mean() > expected[-6:].mean()  # It does train.
    assert largest_difference(losses, expected) < 1e-5
    for ours, theirs in zip(
        model.get_weights(), plain.get_weights(), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, atol=2e-4, rtol=1e-3)


def test_all_keras_optimizers_are_among_those_tested():
    tested = {type(make()).__name__ for make in OPTIMIZERS.values()}
    abstract = {"Optimizer"}
    if keras.__version__ < "3.13":
        abstract.add("Muon")
    offered = {
        name
        for name, value in vars(keras.optimizers).items()
        if isinstance(value, type)
        and issubclass(value, keras.optimizers.Optimizer)
    }
    assert offered - abstract <= tested


@pytest.fixture(scope="module")
def weights():
    """Those of one model, for every optimizer."""
    strategy = convpar.ConvParallelStrategy(devices=["CPU:0", "CPU:1", "CPU:2"])
    with strategy.scope():
        model = small_cnn(True)
    return strategy, model.trainable_variables


@pytest.mark.parametrize("name", sorted(set(OPTIMIZERS) - {"loss_scale"}))
def test_slots_are_beside_their_shards(name, weights):
    strategy, variables = weights
    with strategy.scope():
        optimizer = OPTIMIZERS[name]()
        optimizer.build(variables)
    kernel = variables[0]
    devices = [shard.device for shard in kernel.shards]
    assert len(set(devices)) == 3
    slots = [
        v.value
        for v in optimizer.variables
        if tuple(v.shape) == tuple(kernel.shape)
    ]
    for slot in slots:
        assert isinstance(slot, ShardedVariable)
        assert [shard.device for shard in slot.shards] == devices
