"""Keras programs as people write them, to be run plain and parallel.

Each is a function of a `Kit`, which gives it `parallelize` and the classes of
convolutions; all else is plain Keras. `tests/programs/keras_programs.py` runs
them, `tests/test_keras_programs.py` says what must come of it.
"""

from keras_programs import classification
from keras_programs import distances
from keras_programs import gans
from keras_programs import generative
from keras_programs import images
from keras_programs import inputs
from keras_programs import inside
from keras_programs import loops
from keras_programs import sequences
from keras_programs import training
from keras_programs import transfer
from keras_programs import transformer
from keras_programs._kit import PROGRAMS

__all__ = ["PROGRAMS"]
_THEMES = (
    *(classification, distances, gans, generative, images, inputs),
    *(inside, loops, sequences, training, transfer, transformer),
)
