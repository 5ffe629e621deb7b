"""Models for other processes: plain, merged, without devices."""

from tf_convpar.export._saved_model import export as export
