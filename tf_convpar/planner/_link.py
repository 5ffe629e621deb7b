"""What a link between two devices was measured to do."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Link:
    """One direction between two devices.

    ```python
    Link("/device:CPU:0", "/device:CPU:1", bytes_per_s=1.25e9, latency_s=1e-4)
    ```

    Attributes:
        source: The name of the device that sends.
        target: Of the one that receives.
        bytes_per_s: Of a large tensor.
        latency_s: Of a small one.
    """

    source: str
    target: str
    bytes_per_s: float
    latency_s: float
