"""Times one card alone, as two logical GPUs, and beside the host's CPU.

What `parallelize` plans from measurements must never be slower than the card
alone; equal shares beside a slow CPU are, which is why they are shown.
"""

import card
import keras
import models

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
    card.split(given)
    device = card.wanted(given)
    image, batch = (32, 4) if given.small else (224, 64)
    rows = []
    for name in given.models:
        steps = [
            step_of(name, image, batch, card.places(devices, given), plan)
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
