"""Models of other people's packages, small, with random weights.

A function for each, named by its package and what it makes. It imports the
package, and returns a model, or a model, its input and its targets: a model
that is compiled where these are given, else with None.
"""

from zoo import _fields  # noqa: F401
from zoo import _hub  # noqa: F401
from zoo import _unets  # noqa: F401
from zoo import _vision  # noqa: F401
from zoo._entry import COUNT as COUNT
from zoo._entry import MODELS as MODELS
from zoo._entry import images as images
