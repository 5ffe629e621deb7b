"""Reads files of the machine beside a device, through the device's process."""

from __future__ import annotations

import contextlib
import pathlib
import posixpath

from tf_convpar.machines._names import host_of


def host_file(device: str | None, path: str) -> str:
    """Text of a file beside a device, or of this machine; "" if missing."""
    if device is None:
        with contextlib.suppress(OSError):
            return pathlib.Path(path).read_text(errors="replace")
        return ""
    return "".join(host_files(device, posixpath.normpath(path)))


def host_files(device: str, pattern: str) -> list[str]:
    """Texts of the files beside a device whose names match, by name.

    They are looked for first: both processes would log a file that is not
    there as an error.
    """
    # Files of this machine do not need it.
    import tensorflow as tf

    try:
        # This may be called while a graph is traced.
        with tf.init_scope(), tf.device(host_of(device)):
            names = tf.io.matching_files(pattern).numpy()
            contents = [tf.io.read_file(name).numpy() for name in sorted(names)]
    except tf.errors.OpError:
        return []
    return [content.decode(errors="replace") for content in contents]
