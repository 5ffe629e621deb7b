"""What a plan is: mapping, file, table and picture; plain data.

The planner makes plans. What takes them, from the strategy on, needs nothing
of it: a plan is counts for each layer, whoever made them.
"""

from tf_convpar.plans._file import load as load
from tf_convpar.plans._picture import draw as draw
from tf_convpar.plans._prediction import Prediction as Prediction
from tf_convpar.plans._prediction import Span as Span
from tf_convpar.plans._table import table as table
from tf_convpar.plans._type import Plan as Plan
