"""The C++ op that joins and cuts shards, and its pure-TensorFlow twin.

Importing this package loads nothing: the compiled library is loaded at the
first call, or by `load()`.
"""

from ._library import BuildReport as BuildReport
from ._library import build_report as build_report
from ._library import load as load
from ._shards import concat_shards as concat_shards
from ._shards import split_shards as split_shards
