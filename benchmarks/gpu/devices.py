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
    given = card.options(__doc__)
    split_card(given, int(os.environ.get("HALF_OF_A_CARD_MIB", "30000")))
    device = card.wanted(given)
    other = f"{given.device.rpartition(':')[0]}:1"
    host = "CPU:1" if given.device.upper().startswith("CPU") else "CPU:0"
    image, batch = (32, 4) if given.small else (224, 64)
    name = "VGG16" if given.small else "ResNet50"
    cases = {
        "one": ([given.device], "equal"),
        "two logical, equal": ([given.device, other], "equal"),
        "two logical, planned": ([given.device, other], "auto"),
        "with the CPU, equal": ([given.device, host], "equal"),
        "with the CPU, planned": ([given.device, host], "auto"),
        "one again": ([given.device], "equal"),
    }
    steps = [step_of(name, image, batch, *case) for case in cases.values()]
    times, ratios = card.turns(steps, given.repeats)
    rows = [
        {"model": name, "devices": label, "ms": 1e3 * took, "of one": ratio}
        for label, took, ratio in zip(cases, times, ratios, strict=True)
    ]
    card.show(given, device, rows)


if __name__ == "__main__":
    main()
