"""How fast the demo's devices are that share this machine's cores."""

from __future__ import annotations


def speeds(devices: int, cores: int) -> tuple[float, ...]:
    """What part of a core each device has for its kernels.

    ```python
    speeds(devices=3, cores=2)  # (0.25, 1.0, 0.5)
    ```

    The first device is the chief: it runs the rest of the network besides,
    and all the sending, which at the size of this network takes it about as
    long as half of its kernels would.
    """
    sharing = [
        len(range(index % cores, devices, cores)) for index in range(devices)
    ]
    own, *others = (1 / count for count in sharing)
    return (own / 2, *others)
