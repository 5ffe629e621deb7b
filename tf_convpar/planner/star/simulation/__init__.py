"""Steps on clusters that are described in words; needs no hardware."""

from tf_convpar.planner.star.simulation._describe import describe as describe
from tf_convpar.planner.star.simulation._networks import network as network
from tf_convpar.planner.star.simulation._sweep import simulate as simulate
from tf_convpar.planner.star.simulation._vary import with_watts as with_watts
