"""What a training step takes, before it is run: paper 2's guidelines.

These are the memory of a step (`memory`), the largest and the best mini-batch
(`_batch`), and the numbers of replicas and parameter servers (`_devices`),
after Zou et al. (2017). `convpar estimate` shows them.
"""

from tf_convpar.papers.estimate._batch import BATCHES as BATCHES
from tf_convpar.papers.estimate._batch import Option as Option
from tf_convpar.papers.estimate._batch import best_batch as best_batch
from tf_convpar.papers.estimate._batch import (
    choose_algorithms as choose_algorithms,
)
from tf_convpar.papers.estimate._batch import largest_batch as largest_batch
from tf_convpar.papers.estimate._batch_table import batch_table as batch_table
from tf_convpar.papers.estimate._devices import devices_for as devices_for
from tf_convpar.papers.estimate._devices import efficiency as efficiency
from tf_convpar.papers.estimate._devices import overhead_for as overhead_for
from tf_convpar.papers.estimate._devices import (
    parameter_servers as parameter_servers,
)
from tf_convpar.papers.estimate._devices import speedup as speedup
