"""How fast the demo's devices are, which share this machine's cores."""

from __future__ import annotations


def speeds(devices: int, cores: int) -> tuple[float, ...]:
    """The part of a core that each device has for its kernels.

    ```python
    speeds(devices=3, cores=2)  # (0.25, 1.0, 0.5)
    ```

    The first device is the chief. It also runs the rest of the network and all
    the sending, which for this network take it about half of its time.

    Args:
        devices: Number of devices, each of which is a process.
        cores: Number of cores, to which devices are bound in turn.
    """
    sharing = [
        len(range(index % cores, devices, cores)) for index in range(devices)
    ]
    own, *others = (1 / count for count in sharing)
    return (own / 2, *others)
