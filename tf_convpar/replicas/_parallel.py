"""Parallel SGD, after Zinkevich, Weimer, Li and Smola (2010)."""

from __future__ import annotations

from tf_convpar.replicas._engines import Synchronous
from tf_convpar.replicas._rounds import AloneRounds


class ParallelSGD(Synchronous):
    """Replicas learn from their own shards, and are averaged at the end.

    ```python
    ParallelSGD(model).fit(x, y, batch_size=64, epochs=3)
    ```

    `W^i <- W^i - eta dW^i` without any exchange; `Wc = (1/k) sum_i W^i`,
    which is also what is validated after each epoch. Replicas go on from
    their own weights.
    """

    def _rounds(self) -> AloneRounds:
        self._alone = AloneRounds(self.replicas, self._there(), self.chief)
        return self._alone

    def _finish(self, last: bool) -> None:
        self._alone.average()
