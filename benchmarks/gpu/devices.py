"""Times one card alone, as two logical GPUs, and beside the host's CPU.

What `parallelize` plans from measurements must never be slower than the card
alone; equal shares beside a slow CPU are, which is why they are shown.
"""

import os

import card
import keras
import models
import tensorflow as tf

import tf_convpar as convpar

# Where a model is, and its plan.
CASES = {
    "one": ("one", "equal"),
    "two logical, by filters": ("two", "equal"),
    "two logical, by samples": ("two", {".*": "samples"}),
    "two logical, planned": ("two", "auto"),
    "with the CPU, equal": ("CPU", "equal"),
    "with the CPU, planned": ("CPU", "auto"),
    "one again": ("one", "equal"),
}


def split_card(given, mib):
    """Two logical devices of one, before TensorFlow starts any."""
    kind = given.device.partition(":")[0].upper()
    physical = tf.config.list_physical_devices(kind)
    if physical:
        half = None if kind == "CPU" else mib
        tf.config.set_logical_device_configuration(
            physical[0],
            [tf.config.LogicalDeviceConfiguration(memory_limit=half)] * 2,
        )


def places(devices, given):
    """The devices of a case, where the program runs on `given.device`."""
    kind = given.device.rpartition(":")[0]
    others = {
        "one": [],
        "two": [f"{kind}:1"],
        "CPU": ["CPU:1" if kind.upper() == "CPU" else "CPU:0"],
    }
    return [given.device, *others[devices]]


def step_of(name, image, batch, devices, plan):
    """A training step of a model of its own on these devices."""
    keras.utils.set_random_seed(1)
    strategy = convpar.ConvParallelStrategy(devices=devices)
    with strategy.scope():
        model = models.plain(name, image)
        model = convpar.parallelize(model, plan=plan, batch_size=batch)
        models.compiled(model)
    x, y = card.images(strategy.chief_device, batch, (image, image, 3), 1000)
    return lambda: model.train_on_batch(x, y)


def main():
    given = card.options(__doc__, models=models.MODELS, cases=CASES)
    split_card(given, int(os.environ.get("HALF_OF_A_CARD_MIB", "30000")))
    device = card.wanted(given)
    image, batch = (32, 4) if given.small else (224, 64)
    rows = []
    for name in given.models:
        steps = [
            step_of(name, image, batch, places(devices, given), plan)
            for devices, plan in map(CASES.get, given.cases)
        ]
        times, ratios = card.turns(steps, given.repeats)
        rows += [
            card.told(
                {"model": name, "devices": case, "ms": 1e3 * took, "of one": to}
            )
            for case, took, to in zip(given.cases, times, ratios, strict=True)
        ]
    card.show(given, device, rows)


if __name__ == "__main__":
    main()
