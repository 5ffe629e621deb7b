"""Calibrations as JSON files. `docs/plan-files.md` has the schema."""

from tf_convpar.files import Form
from tf_convpar.planner._calibration import Calibration

_FORM = Form(Calibration, "calibration", 4, "Measure again")

load = _FORM.load
save = _FORM.save
to_json = _FORM.to_json
