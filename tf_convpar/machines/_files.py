"""Reads files of the machine beside a device, through the device's process."""

from __future__ import annotations

import contextlib
import pathlib


def host_file(device: str | None, path: str) -> str:
    """A text file there, "" if there is none; of this machine for None."""
    if device is None:
        with contextlib.suppress(OSError):
            return pathlib.Path(path).read_text(errors="replace")
        return ""
    # Files of this machine do not need it.
    import tensorflow as tf

    try:
        # This may be called while a graph is traced.
        with tf.init_scope(), tf.device(_host(device)):
            content = tf.io.read_file(path).numpy()
    except tf.errors.OpError:
        return ""
    return str(content.decode(errors="replace"))


def host_files(device: str, pattern: str) -> list[str]:
    """All files there whose names match, in the order of their names."""
    import tensorflow as tf

    try:
        with tf.init_scope(), tf.device(_host(device)):
            names = tf.io.matching_files(pattern).numpy()
    except tf.errors.OpError:
        return []
    return [host_file(device, name.decode()) for name in sorted(names)]


def _host(device: str) -> str:
    """The CPU beside a device."""
    import tensorflow as tf

    spec = tf.DeviceSpec.from_string(device)
    return str(spec.replace(device_type="CPU", device_index=0).to_string())
