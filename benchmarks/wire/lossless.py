"""What lossless coding would save of what travels in a step of a split model.

    python benchmarks/wire/lossless.py

A model learns for some steps, is split over two devices of this process, and
makes one more step, in which all that goes from one device to the other is
kept. Then it is coded.
"""

import argparse
import collections
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import coders
import data
import hooks
import keras
import numpy as np
import tensorflow as tf

import tf_convpar as convpar

# Bytes a second of links.
LINKS = {"100 Mbit/s": 12.5e6, "1 Gbit/s": 125e6}
# Without batch normalization, filters die at a higher rate.
RATES = {"VGG16": 3e-5}
KINDS = {
    "maps": "feature maps",
    "maps back": "their gradients",
    "kernels": "kernels",
    "kernels back": "their gradients",
    "rows": "rows",
}


class Recorder(hooks.Hook):
    """Keeps what travels, by kind."""

    def __init__(self):
        self.found = collections.defaultdict(list)

    def there(self, x, kind):
        """Keeps what is sent."""
        self.found[kind].append(x.numpy())
        return x

    def back(self, dy, kind):
        """Keeps what returns."""
        back = "rows" if kind == "rows" else f"{kind} back"
        self.found[back].append(dy.numpy())
        return dy


def learned(name, image, batch, steps):
    """A model of Keras' that has learnt for some steps, and its images."""
    keras.utils.set_random_seed(0)
    model = getattr(keras.applications, name)(
        weights=None, input_shape=(image, image, 3)
    )
    images, labels = data.crops((steps + 1) * batch, image, 0)
    images = images * 2 - 1
    model.compile(
        keras.optimizers.Adam(RATES.get(name, 1e-3)),
        "sparse_categorical_crossentropy",
        jit_compile=False,
    )
    losses = []
    for i in range(0, steps * batch, batch):
        model.reset_metrics()
        losses.append(
            model.train_on_batch(images[i : i + batch], labels[i : i + batch])
        )
    print(
        f"\n{name}: loss {losses[0]:.2f}, {np.mean(losses[-5:]):.2f} in the "
        f"last 5 of {steps} steps",
        flush=True,
    )
    return model, images[-batch:], labels[-batch:]


def recorded(recorder, model, split, images, labels):
    """What travels in a step, by kind."""
    strategy = convpar.ConvParallelStrategy(devices=["CPU:0", "CPU:1"])
    plan = {".*": {"split": split, "shards": (1, 1)}}
    if split not in ("filters", "samples"):
        # A rate: as it would be planned for two devices with such a link.
        plan = convpar.simulate(
            model, "2xcpu:75GFLOPS", link=split, batch_size=len(images)
        )
        print(f"\n{split}: {plan.reason}")
        # Without the devices, which are others here.
        plan = dict(plan)
    with strategy.scope():
        parallel = convpar.parallelize(model, plan)
        parallel.compile(
            keras.optimizers.SGD(0.02, momentum=0.9),
            "sparse_categorical_crossentropy",
            jit_compile=False,
            run_eagerly=True,
        )
    recorder.found.clear()
    parallel.train_on_batch(images, labels)
    found = dict(recorder.found)
    seen = sum(x.nbytes for each in found.values() for x in each)
    theory = convpar.step_traffic(parallel, len(images)).total
    print(
        f"{split}: {seen / 1e6:.1f} MB in a step, by theory {theory / 1e6:.1f}",
        flush=True,
    )
    return found


def described(tensors):
    """Part of zeros, and bits of each byte, each tensor by itself."""
    bytes_ = sum(x.nbytes for x in tensors)
    zeros = sum(np.count_nonzero(x == 0) * x.itemsize for x in tensors)
    bits = sum(
        x.nbytes * np.array([coders.entropy(p) for p in coders.planes(x)])
        for x in tensors
    )
    return bytes_, zeros / bytes_, bits / bytes_


def coded(coder, tensors):
    """Bytes, and seconds of coding and of decoding, the lesser of two."""
    bytes_ = there = back = 0.0
    for x in tensors:
        times = []
        for _ in range(2):
            start = time.perf_counter()
            found = coder.encode(x)
            middle = time.perf_counter()
            again = coder.decode(found)
            times.append((middle - start, time.perf_counter() - middle))
        if not np.array_equal(again, x):
            raise ValueError(f"{coder.name} has lost something.")
        # What is not made smaller is sent as it is, which a byte says.
        bytes_ += min(coder.nbytes(found), x.nbytes) + 1
        there += min(t for t, _ in times)
        back += min(t for _, t in times)
    return bytes_, there, back


def report(found, dtype):
    """Prints what there is of each kind, and what coders make of it."""
    found = {
        kind: [
            # Rows are not narrowed.
            coders.words(x if kind == "rows" else tf.cast(x, dtype).numpy())
            for x in each
        ]
        for kind, each in found.items()
    }
    print(f"\nIn {dtype}:\n")
    print("| what | MB | zeros | bits of the exponent, of the other bytes |")
    print("|---|---|---|---|")
    for kind, name in KINDS.items():
        if kind in found:
            bytes_, zeros, bits = described(found[kind])
            print(
                f"| {name} | {bytes_ / 1e6:.1f} | {zeros:.0%} | {bits[0]:.1f}, "
                + ", ".join(f"{b:.1f}" for b in bits[1:])
                + " |"
            )
    kinds = [kind for kind in KINDS if kind in found and kind != "rows"]
    total = sum(x.nbytes for each in found.values() for x in each)
    names = [KINDS[kind] for kind in kinds]
    heads = [*names, "of all", "coding, decoding, MB/s", *LINKS]
    print("\n| coder, saved |", " | ".join(heads), "|")
    print("|---" * (len(heads) + 1) + "|")
    for coder in coders.all_coders():
        cells, saved, there, back = [], 0.0, 0.0, 0.0
        for kind in kinds:
            of = sum(x.nbytes for x in found[kind])
            bytes_, *times = coded(coder, found[kind])
            cells.append(f"{1 - bytes_ / of:.1%}")
            saved += of - bytes_
            there += times[0]
            back += times[1]
        gains = []
        for rate in LINKS.values():
            # Either device sends half of it, and receives the other.
            gains.append(
                f"{saved / 2 / rate * 1e3:.0f} of {total / 2 / rate * 1e3:.0f} "
                f"ms, for {(there + back) / 2 * 1e3:.0f}"
            )
        speeds = f"{total / 1e6 / there:.0f}, {total / 1e6 / back:.0f}"
        cells = [coder.name, *cells, f"{saved / total:.1%}", speeds, *gains]
        print("|", " | ".join(cells), "|", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--models", nargs="*", default=["MobileNetV2", "ResNet50"]
    )
    parser.add_argument("--image", type=int, default=112)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument(
        "--splits",
        nargs="*",
        default=["filters", "samples"],
        help="filters, samples, or a rate such as 1Gbit to plan for",
    )
    options = parser.parse_args()
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * 2,
    )
    recorder = Recorder()
    hooks.install(recorder)
    for name in options.models:
        model, images, labels = learned(
            name, options.image, options.batch, options.steps
        )
        for split in options.splits:
            found = recorded(recorder, model, split, images, labels)
            for dtype in ("float32", "bfloat16"):
                if found:
                    report(found, dtype)


if __name__ == "__main__":
    main()
