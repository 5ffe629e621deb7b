"""Calibrations as JSON files. `docs/planning-the-star.md` has the schema.

Every field is required, and nothing else is accepted: what is misread here
would become a wrong plan.
"""

from tf_convpar.files import Form
from tf_convpar.planner.star._calibration import StarCalibration

KIND = "star calibration"
_FORM = Form(StarCalibration, KIND, 1, "Calibrate again")

load = _FORM.load
save = _FORM.save
to_json = _FORM.to_json
from_json = _FORM.from_json
