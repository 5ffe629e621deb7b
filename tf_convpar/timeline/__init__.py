"""Timelines of steps: the operations of every task of a cluster, as spans."""

from tf_convpar.timeline._chrome import to_chrome as to_chrome
from tf_convpar.timeline._course import CHANGES as CHANGES
from tf_convpar.timeline._course import COPIES as COPIES
from tf_convpar.timeline._course import Counted as Counted
from tf_convpar.timeline._course import Course as Course
from tf_convpar.timeline._course import Event as Event
from tf_convpar.timeline._course import Steps as Steps
from tf_convpar.timeline._course import note as note
from tf_convpar.timeline._course import noted as noted
from tf_convpar.timeline._draw import draw as draw
from tf_convpar.timeline._kinds import KINDS as KINDS
from tf_convpar.timeline._kinds import STEP as STEP
from tf_convpar.timeline._kinds import kind_of as kind_of
from tf_convpar.timeline._messages import Space as Space
from tf_convpar.timeline._profiler import record as record
from tf_convpar.timeline._rows import rows_of as rows_of
from tf_convpar.timeline._spans import Recording as Recording
from tf_convpar.timeline._spans import Span as Span
from tf_convpar.timeline._spans import from_traces as from_traces
from tf_convpar.timeline._spans import last_steps as last_steps
from tf_convpar.timeline._write import write as write
