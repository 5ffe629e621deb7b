"""Clusters that nobody has, in the star of paper 1.

`describe` makes a calibration from words; `simulate` predicts the steps of
many like it, which `planner.star` plans; `draw` shows them.
"""

from tf_convpar.papers.star_simulation._describe import (
    convolutions_s as convolutions_s,
)
from tf_convpar.papers.star_simulation._describe import describe as describe
from tf_convpar.papers.star_simulation._plot import draw as draw
from tf_convpar.papers.star_simulation._rows import amdahl as amdahl
from tf_convpar.papers.star_simulation._simulate import SWEEPS as SWEEPS
from tf_convpar.papers.star_simulation._simulate import VALUES as VALUES
from tf_convpar.papers.star_simulation._simulate import simulate as simulate
from tf_convpar.papers.star_simulation._vary import with_batch as with_batch
from tf_convpar.papers.star_simulation._vary import with_kernels as with_kernels
from tf_convpar.papers.star_simulation._vary import with_spread as with_spread
from tf_convpar.papers.star_simulation._vary import with_watts as with_watts
