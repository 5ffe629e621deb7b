"""Callbacks for Keras' `fit`: training that outlives machines.

```python
with strategy.scope():
    model = convpar.parallelize(model)
    model.compile("sgd", loss)
model.fit(x, y, callbacks=[convpar.callbacks.Elastic(every="30s")])
```

A step that fails for a lost worker is made again on the others (`_elastic`),
from a copy of the model on the chief (`snapshot`). `_rebalance` moves shares
between devices as their speeds (`speeds`) change. `_timeline` draws who
computes and who waits; `_monitor` says it while they do.
"""

from tf_convpar.callbacks._elastic import Elastic as Elastic
from tf_convpar.callbacks._monitor import Monitor as Monitor
from tf_convpar.callbacks._rebalance import Rebalance as Rebalance
from tf_convpar.callbacks._timeline import Timeline as Timeline

__all__ = ["Elastic", "Monitor", "Rebalance", "Timeline"]
