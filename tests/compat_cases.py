"""What tests of Keras' and TensorFlow's private names share."""

import inspect

from tf_convpar._compat._private import version


def missing(name, reason):
    library = name.partition(".")[0]
    called = {"keras": "Keras", "tensorflow": "TensorFlow"}[library]
    return (
        f"{name} is missing in {called} {version(library)}: needed for "
        f"{reason}."
    )


def parameters(function):
    given = inspect.signature(function).parameters.values()
    return [p.kind for p in given if p.kind is not p.VAR_KEYWORD]
