"""Devices by name: their peak rates and power, as published."""

from __future__ import annotations

import dataclasses

GPU = "gpu"
CPU = "cpu"

# Part of its peak that a device achieves on convolutions. These numbers are
# estimates: dense products reach about as much with the vendors' own libraries.
# A rate that a description gives after the colon is taken as it is.
EFFICIENCY = {GPU: 0.6, CPU: 0.8}


@dataclasses.dataclass(frozen=True)
class Preset:
    """A device that can be bought.

    Attributes:
        kind: `"gpu"` or `"cpu"`.
        peak_flops: Published peak in float32 operations per second, without
            tensor cores. A multiplication and an addition are two operations.
        watts: Published power in watts: the thermal design power of a card or
            processor, the power mode of a module.
        source: Where both numbers come from.
    """

    kind: str
    peak_flops: float
    watts: float
    source: str


def _cpu(
    cores: int, ghz: float, per_cycle: int, watts: float, name: str
) -> Preset:
    """A processor at its base clock, all cores, widest vectors.

    Vendors publish cores, clock and vector units; the peak is their product.
    Two units of 8 floats, with two operations each, make 32 operations in a
    cycle.
    """
    return Preset(
        CPU,
        cores * ghz * 1e9 * per_cycle,
        watts,
        f"{name}, data sheet: {cores} cores x {ghz} GHz (base) x {per_cycle} "
        f"operations a cycle; TDP",
    )


def _gpu(cores: int, ghz: float, watts: float, name: str) -> Preset:
    """A GPU at its boost clock; each core makes two operations in a cycle."""
    return Preset(
        GPU,
        cores * ghz * 1e9 * 2,
        watts,
        f"{name}, data sheet: {cores} cores x {ghz} GHz x 2; power",
    )


# Qualcomm's Adreno GPUs are missing: their maker publishes neither rate nor
# power. Describe them by what you know: "4xadreno:350GFLOPS@5W".
PRESETS = {
    # Mobile modules. NVIDIA publishes their rates at half precision, which is
    # twice as fast, and at clocks that no power mode allows. Here clock and
    # power are those of one mode (nvpmodel).
    "jetson-tx1": _gpu(256, 0.998, 10, "NVIDIA Jetson TX1 module"),
    "jetson-tx2": _gpu(256, 1.12, 15, "NVIDIA Jetson TX2 module, Max-P"),
    "jetson-tx2-maxq": _gpu(256, 0.854, 7.5, "NVIDIA Jetson TX2 module, Max-Q"),
    "jetson-nano": _gpu(128, 0.9216, 10, "NVIDIA Jetson Nano module"),
    "jetson-xavier": _gpu(512, 0.9, 30, "NVIDIA Jetson AGX Xavier, 30 W"),
    # Cards.
    "gtx-1080": _gpu(2560, 1.733, 180, "NVIDIA GeForce GTX 1080"),
    "gtx-1080-ti": _gpu(3584, 1.582, 250, "NVIDIA GeForce GTX 1080 Ti"),
    "rtx-3090": _gpu(10496, 1.695, 350, "NVIDIA GeForce RTX 3090"),
    "v100": _gpu(5120, 1.53, 300, "NVIDIA Tesla V100 SXM2"),
    "a100": _gpu(6912, 1.41, 400, "NVIDIA A100 SXM4"),
    # Processors: AVX2 makes 32 operations a cycle, AVX-512 twice as many.
    "i7-6700k": _cpu(4, 4.0, 32, 91, "Intel Core i7-6700K"),
    "xeon-e5-2680-v3": _cpu(12, 2.5, 32, 120, "Intel Xeon E5-2680 v3"),
    "xeon-8280": _cpu(28, 2.7, 64, 205, "Intel Xeon Platinum 8280"),
    "epyc-7742": _cpu(64, 2.25, 32, 225, "AMD EPYC 7742"),
}
