"""Memory of a training step, by TensorFlow's allocator."""

import json
import sys

import keras
import pytest
from processes import kill_tree
from processes import start

layers = keras.layers


def by_the_allocator(model, batch, optimizer, image=None, **changes):
    """An estimate, and what the allocator says in a process of its own."""
    command = [sys.executable, "-m", "tf_convpar_cli", "estimate", "memory"]
    command += [model, f"--batch={batch}", f"--optimizer={optimizer}"]
    command += ["--measure", "--json"]
    if image is not None:
        command.append(f"--image={image}")
    process = start(
        command, TF_ENABLE_ONEDNN_OPTS="1", TF_CPP_MIN_LOG_LEVEL="2", **changes
    )
    try:
        output, _ = process.communicate(timeout=280)
    finally:
        kill_tree(process)
    assert process.returncode == 0, output
    report, _ = json.JSONDecoder().raw_decode(output[output.index("{\n") :])
    (found,) = report["batches"]
    return found


def ratios(*args, **kwargs):
    """Of estimates, of what it is asked for and of what it hands out."""
    found = by_the_allocator(*args, **kwargs)
    return tuple(
        found[which] / found["measured"][which]
        for which in ("asked_bytes", "peak_bytes")
    )


WITHIN = 0.15
PROCESSES = 3


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "optimizer"), [(32, "sgd"), (64, "adam")])
def test_a_small_network_by_the_allocator(batch, optimizer, tmp_path):
    small = keras.Sequential(
        [
            layers.Input((64, 64, 3)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.Conv2D(48, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(96, 3, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(10),
        ]
    )
    small.save(tmp_path / "small.keras")
    # One operation after the other, as the estimate has it, and still some
    # processes take up to 28 % more in every step: in the order that they run
    # in, what two operations of the normalization's gradient share is not
    # written over. Most agree to 2 %; the luck of one is not what is tested.
    for _ in range(PROCESSES):
        asked, handed_out = ratios(
            str(tmp_path / "small.keras"),
            batch,
            optimizer,
            TF_NUM_INTEROP_THREADS="1",
        )
        assert 0.75 < asked <= 1 + WITHIN
        # Few large tensors: the luck of a few pieces decides.
        if abs(asked - 1) <= WITHIN and abs(handed_out - 1) <= 0.3:
            return
    pytest.fail(f"Estimate / measured: {asked:.2f} in {PROCESSES} processes.")


@pytest.mark.slow
def test_a_real_network_by_the_allocator():
    # With as many threads as there are cores, as users train.
    asked, handed_out = ratios("MobileNetV2", 16, "sgd", image=112)
    assert asked == pytest.approx(1, abs=0.05)
    assert handed_out == pytest.approx(1, abs=WITHIN)


# VGG16's largest kernel, which an update copies in some runs and not in others:
# where the gradient that still reads it runs late, and not where it runs early.
SOMETIMES = {"VGG16": 4 * 4608 * 4096}


@pytest.mark.slow
@pytest.mark.parametrize("batch", [16, 32])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("model", ["ResNet50", "MobileNetV2", "VGG16"])
def test_real_networks_by_the_allocator(model, batch, optimizer):
    found = by_the_allocator(model, batch, optimizer, image=112)
    for which in ("asked_bytes", "peak_bytes"):
        estimate, measured = found[which], found["measured"][which]
        # For the table in docs/estimating.md: `pytest -rP -m slow`.
        mib = [f"{size / 2**20:.0f}" for size in (measured, estimate)]
        off = f"{estimate / measured - 1:+.1%}"
        print(model, optimizer, batch, which, *mib, off)
        assert estimate >= (1 - WITHIN) * measured
        above = estimate - SOMETIMES.get(model, 0)
        assert above <= (1 + WITHIN) * measured
