"""Lets a benchmark see, and change, each tensor that goes to another device.

All that travels goes through two functions, `broadcast` and `on_device`. In
each module of the package they are replaced by ones that compare the device
of a tensor with the one that it is sent to.
"""

import sys

import tensorflow as tf

import tf_convpar  # noqa: F401
from tf_convpar.placement import _primitives
from tf_convpar.placement import _send_order

# What a module sends. `_exchange` sends weights too, for `_send_order`.
_KINDS = {
    "placement._exchange": "maps",
    "placement._cutting": "maps",
    "placement._packs": "kernels",
    "placement._send_order": "kernels",
}


class Hook:
    """What is done with what travels. The defaults leave it as it is."""

    def there(self, x, kind):
        """What arrives of a tensor that is sent in the forward pass.

        Args:
            x: The tensor.
            kind: "maps", "kernels", or "rows" for moments, sums and counts.
        """
        return x

    def back(self, dy, kind):
        """What arrives of its gradient.

        Args:
            dy: The gradient.
            kind: As for `there`.
        """
        return dy


def install(hook):
    """Lets a hook see all that travels from now on.

    What has been traced before stays as it is.
    """
    sends_weights = []

    def travelled(x, kind, source, target):
        if "kernels" in sends_weights:
            kind = "kernels"

        def back(dy):
            with tf.device(target):
                return hook.back(dy, kind)

        @tf.custom_gradient
        def run(x):
            return tf.identity(hook.there(x, kind)), back

        with tf.device(source):
            found = run(x)
        with tf.device(target):
            return tf.identity(found)

    def broadcast_of(kind):
        def broadcast(x, devices, owner, wire_dtype=None, after=None):
            copies = original["broadcast"](x, devices, owner, wire_dtype, after)
            return [
                copy
                if _same(device, owner) or not copy.dtype.is_floating
                else travelled(copy, kind, device, device)
                for copy, device in zip(copies, devices, strict=True)
            ]

        return broadcast

    def on_device_of(kind):
        def on_device(fn, device, **how):
            run = original["on_device"](fn, device, **how)

            def hooked(*args):
                return run(
                    *(
                        travelled(x, kind, x.device, device)
                        if _travels(x, device)
                        else x
                        for x in args
                    )
                )

            return hooked

        return on_device

    def everywhere_of_weights(*args, **kwargs):
        sends_weights.append("kernels")
        try:
            return everywhere(*args, **kwargs)
        finally:
            sends_weights.pop()

    everywhere = _send_order.everywhere
    _send_order.everywhere = everywhere_of_weights
    original = {
        "broadcast": _primitives.broadcast,
        "on_device": _primitives.on_device,
    }
    makers = {"broadcast": broadcast_of, "on_device": on_device_of}
    for name, module in list(sys.modules.items()):
        package, _, rest = name.partition(".")
        if package != "tf_convpar" or module is _primitives:
            continue
        for attribute, make in makers.items():
            if vars(module).get(attribute) is original[attribute]:
                setattr(module, attribute, make(_KINDS.get(rest, "rows")))


def _travels(x, device):
    if not tf.is_tensor(x) or not x.dtype.is_floating or not x.device:
        return False
    return not _same(x.device, device)


def _same(a, b):
    a, b = map(tf.DeviceSpec.from_string, (a, b))
    return (a.device_type, a.device_index or 0) == (
        b.device_type,
        b.device_index or 0,
    )
