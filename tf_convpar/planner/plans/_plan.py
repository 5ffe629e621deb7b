"""Plans: how many kernels each device gets, and what comes of it.

`Plan` itself is in `_plan_type`, what makes one in `_plan_make`, its file in
`_plan_file`, table and picture in `_plan_table` and `_plan_picture`.
"""

from tf_convpar.planner.plans._plan_file import load as load
from tf_convpar.planner.plans._plan_file import save as save
from tf_convpar.planner.plans._plan_file import to_json as to_json
from tf_convpar.planner.plans._plan_make import plan as plan
from tf_convpar.planner.plans._plan_make import plan_of as plan_of
from tf_convpar.planner.plans._plan_picture import draw as draw
from tf_convpar.planner.plans._plan_table import table as table
from tf_convpar.planner.plans._plan_type import Plan as Plan
from tf_convpar.planner.plans._plan_type import fingerprint as fingerprint
