"""Memory of a training step, by its graph and by TensorFlow's allocator."""

from tf_convpar.papers.estimate.memory._allocator import (
    measured_memory as measured_memory,
)
from tf_convpar.papers.estimate.memory._allocator import (
    measured_step_s as measured_step_s,
)
from tf_convpar.papers.estimate.memory._plot import draw as draw
from tf_convpar.papers.estimate.memory._step import OTHER as OTHER
from tf_convpar.papers.estimate.memory._step import Step as Step
from tf_convpar.papers.estimate.memory._step import check_batch as check_batch
