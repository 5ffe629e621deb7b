"""Plans as plain data: counts for each layer, as mapping, file and picture.

The planner makes plans; what takes them, from the strategy on, does not need
the planner.
"""

from tf_convpar.plans._by_layer import ByLayer as ByLayer
from tf_convpar.plans._even_shares import apportioned as apportioned
from tf_convpar.plans._even_shares import even_shares as even_shares
from tf_convpar.plans._even_shares import evened as evened
from tf_convpar.plans._even_shares import sizes_to_time as sizes_to_time
from tf_convpar.plans._file import load as load
from tf_convpar.plans._form import FILTERS as FILTERS
from tf_convpar.plans._form import SAMPLES as SAMPLES
from tf_convpar.plans._form import over_memory as over_memory
from tf_convpar.plans._picture import draw as draw
from tf_convpar.plans._prediction import BACKWARD as BACKWARD
from tf_convpar.plans._prediction import FORWARD as FORWARD
from tf_convpar.plans._prediction import PredictedSpan as PredictedSpan
from tf_convpar.plans._prediction import Prediction as Prediction
from tf_convpar.plans._prediction import busiest as busiest
from tf_convpar.plans._shares import check_shares as check_shares
from tf_convpar.plans._shares import whole_shares as whole_shares
from tf_convpar.plans._table import table as table
from tf_convpar.plans._type import CHIEF as CHIEF
from tf_convpar.plans._type import Plan as Plan
