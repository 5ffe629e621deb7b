"""The update rules of all methods, on packed vectors.

Symbols are those of You, Buluc and Demmel, *Scaling Deep Learning on GPU and
Knights Landing Clusters* (SC17), section 5: `W^i` the weights of replica `i`,
`Wc` those of the centre, `dW^i` a gradient at `W^i`, `eta` the learning rate,
`rho` the elastic force, `P` the number of replicas. The terms in `dW` are a
Keras optimizer's:

    SGD(eta)        W <- W - eta dW
    SGD(eta, mu)    V <- mu V - eta dW,  W <- W + V          (3), (4), (5)
"""

from __future__ import annotations

from typing import Any


def pulled(stepped: Any, weights: Any, centre: Any, alpha: Any) -> Any:
    """A replica that its centre has pulled: equations (1) and (6).

        W^i <- (W^i - eta dW^i) - eta rho (W^i - Wc)
        W^i <- (W^i + V^i)      - eta rho (W^i - Wc)

    Args:
        stepped: What is in brackets: `W^i` after its optimizer's step.
        weights: `W^i` before it.
        centre: `Wc`.
        alpha: `eta rho`.
    """
    return stepped - alpha * (weights - centre)


def centred(centre: Any, weights: Any, replicas: int, alpha: Any) -> Any:
    """A centre that replicas have pulled: equation (2).

        Wc <- Wc + eta sum_i rho (W^i - Wc)

    Args:
        centre: `Wc`.
        weights: The sum of the replicas' `W^i`, from before their steps.
        replicas: How many are in it.
        alpha: `eta rho`.
    """
    return centre + alpha * (weights - replicas * centre)
