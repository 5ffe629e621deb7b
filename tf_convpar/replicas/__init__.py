"""Several replicas of a model that learn together: EASGD, Downpour and kin.

```python
model.compile(keras.optimizers.SGD(0.05), loss)
convpar.replicas.SyncEASGD(model).fit(x, y, batch_size=2)
```

Splitting a model makes one step faster; these make many steps at once. A
method is its update rule (`_equations`, and the classes named after papers'
algorithms) on packed vectors (`packed`), over one of three engines: rounds
(`_rounds`), arrivals (`_arrivals`), or many local steps (`local_steps`) and
an exchange by all-reduce (`_outer_rounds`).
"""

from tf_convpar.replicas._diloco import DiLoCo as DiLoCo
from tf_convpar.replicas._downpour import DownpourSGD as DownpourSGD
from tf_convpar.replicas._easgd import AsyncEASGD as AsyncEASGD
from tf_convpar.replicas._easgd import AsyncMEASGD as AsyncMEASGD
from tf_convpar.replicas._easgd import HogwildEASGD as HogwildEASGD
from tf_convpar.replicas._easgd import RoundRobinEASGD as RoundRobinEASGD
from tf_convpar.replicas._easgd import SyncEASGD as SyncEASGD
from tf_convpar.replicas._parallel import ParallelSGD as ParallelSGD
from tf_convpar.replicas._sgd import AsyncMSGD as AsyncMSGD
from tf_convpar.replicas._sgd import AsyncSGD as AsyncSGD
from tf_convpar.replicas._sgd import HogwildSGD as HogwildSGD
from tf_convpar.replicas._sgd import SyncSGD as SyncSGD
