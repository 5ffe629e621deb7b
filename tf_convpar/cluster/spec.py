"""A cluster: its tasks, their addresses, and which of them this process is."""

import dataclasses
import ipaddress
import json
import os
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import Literal
from typing import overload

from tf_convpar.cluster import slurm

JOBS = ("chief", "worker")

_EXAMPLE = (
    "A right one, for the chief and two workers: "
    'TF_CONFIG=\'{"cluster": {"chief": ["a:2222"], '
    '"worker": ["b:2222", "c:2222"]}, '
    '"task": {"type": "chief", "index": 0}}\'. Every task gets the same '
    '"cluster" and its own "task".'
)

_REFUSED = {
    "ps": "kernels and optimizer slots stay on the workers, so there is "
    "nothing for a parameter server to do",
    "evaluator": "evaluation runs on the chief, over all workers",
    "master": "that is the old name of 'chief'",
    "localhost": "a cluster of one machine needs no cluster at all",
}

_LOOPBACK = ("localhost", "localhost.localdomain", "ip6-localhost")


@dataclasses.dataclass(frozen=True)
class Task:
    """One process of a cluster.

    ```python
    Task("worker", 1, "b:2222").name  # "/job:worker/task:1"
    ```

    Attributes:
        job: `"chief"` or `"worker"`.
        index: number within the job, from 0.
        address: `host:port`, as the other tasks reach it.
    """

    job: str
    index: int
    address: str

    @property
    def name(self) -> str:
        """The task in TensorFlow's device names: `"/job:worker/task:1"`."""
        return f"/job:{self.job}/task:{self.index}"

    @property
    def host(self) -> str:
        """The host of `address`, without brackets."""
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The port of `address`."""
        return int(self.address.rpartition(":")[2])

    def __str__(self) -> str:
        return f"{self.name} at {self.address}"


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The tasks of a cluster, and which of them this process is.

    ```python
    cluster = Cluster({"chief": ("a:2222",), "worker": ("b:2222",)})
    cluster.is_chief   # True
    cluster.others     # (Task("worker", 0, "b:2222"),)
    ```

    Without a `"chief"` job, worker 0 is the chief, as it is for
    `tf.distribute.MultiWorkerMirroredStrategy`.

    Args:
        spec: the addresses of each job, `{"worker": ("host:port", ...)}`;
            jobs are `"chief"` (one task at most) and `"worker"`.
        job: this process's job; the chief's by default.
        index: this process's number within its job.
        one_program: whether every task runs the chief's program, as srun does
            it. In a worker's process the strategy then serves.

    Raises:
        ValueError: where the spec is not a cluster this package can use, or
            this process's task is not in it.
    """

    spec: Mapping[str, tuple[str, ...]]
    job: str | None = None
    index: int = 0
    one_program: bool = False

    def __post_init__(self) -> None:
        spec = _checked_spec(self.spec)
        # A frozen dataclass can only be completed this way.
        object.__setattr__(self, "spec", spec)
        if self.job is None:
            object.__setattr__(self, "job", next(iter(spec)))
        object.__setattr__(
            self, "index", _checked_index(spec, self.job, self.index)
        )

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Every task: the chief first, then the workers in order."""
        return tuple(
            Task(job, index, address)
            for job, addresses in self.spec.items()
            for index, address in enumerate(addresses)
        )

    @property
    def chief(self) -> Task:
        """The task that runs the user's program."""
        return self.tasks[0]

    @property
    def task(self) -> Task:
        """This process's own task."""
        return next(
            t for t in self.tasks if (t.job, t.index) == (self.job, self.index)
        )

    @property
    def others(self) -> tuple[Task, ...]:
        """Every task but this process's own."""
        return tuple(t for t in self.tasks if t != self.task)

    @property
    def is_chief(self) -> bool:
        """Whether this process is the chief."""
        return self.task == self.chief

    def tf_config(self, task: Task | None = None) -> str:
        """Returns the TF_CONFIG of a task, this process's own by default."""
        task = self.task if task is None else task
        return json.dumps(
            {
                "cluster": {job: list(at) for job, at in self.spec.items()},
                "task": {"type": task.job, "index": task.index},
            }
        )


@overload
def resolve(
    cluster_resolver: Any = None, *, required: Literal[True]
) -> Cluster: ...


@overload
def resolve(
    cluster_resolver: Any = None, *, required: bool = False
) -> Cluster | None: ...


def resolve(
    cluster_resolver: Any = None, *, required: bool = False
) -> Cluster | None:
    """Reads the cluster this process is part of.

    ```python
    resolve()                                    # TF_CONFIG, or Slurm's step
    resolve(SimpleClusterResolver(cluster_spec))  # from any resolver
    ```

    Args:
        cluster_resolver: any `tf.distribute.cluster_resolver` object; `None`
            reads TF_CONFIG or, if that is not set, the step of Slurm that this
            process is part of. A resolver that names no task speaks for the
            chief. A TF_CONFIG must name its task, since every machine has one.
        required: whether finding no cluster is an error.

    Returns:
        The cluster, or `None` when there is none: TF_CONFIG unset or empty
        and no step of several tasks, or the resolver's cluster spec empty.

    Raises:
        ValueError: where what was found is not a cluster this package can
            use. The message shows what it should look like.
    """
    if cluster_resolver is None:
        cluster = _from_tf_config(os.environ.get("TF_CONFIG", ""))
        cluster = cluster or _from_slurm()
        source = "the environment variable TF_CONFIG"
    else:
        cluster = _from_resolver(cluster_resolver)
        source = f"the cluster resolver {cluster_resolver!r}"
    if cluster is None and required:
        raise ValueError(
            f"Expected {source} to describe a cluster. Received none. "
            f"{_EXAMPLE}"
        )
    return cluster


def _from_resolver(resolver: Any) -> Cluster | None:
    spec = resolver.cluster_spec()
    spec = spec.as_dict() if hasattr(spec, "as_dict") else spec
    if not spec:
        return None
    return Cluster(spec, resolver.task_type or None, resolver.task_id or 0)


def _from_slurm() -> Cluster | None:
    step = slurm.step(os.environ)
    if step is None:
        return None
    chief, *workers = step.addresses
    job, index = ("worker", step.index - 1) if step.index else ("chief", 0)
    spec = {"chief": (chief,), "worker": tuple(workers)}
    return Cluster(spec, job, index, one_program=True)


def _from_tf_config(text: str) -> Cluster | None:
    if not text.strip():
        return None
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"Expected TF_CONFIG to be JSON. Received: {text!r} ({error}). "
            f"{_EXAMPLE}"
        ) from None
    for value, name, keys in (
        (config, "", ("cluster", "task")),
        (isinstance(config, dict) and config.get("task"), "task", ("type",)),
    ):
        missing = not isinstance(value, dict) or [
            key for key in keys if key not in value
        ]
        if missing:
            where = f'"{name}" in TF_CONFIG' if name else "TF_CONFIG"
            wanted = " and ".join(f'"{key}"' for key in keys)
            raise ValueError(
                f"Expected {where} to be an object with {wanted}. "
                f"Received: {text}. {_EXAMPLE}"
            )
    task = config["task"]
    return Cluster(config["cluster"], task["type"], task.get("index", 0))


def _checked_spec(spec: Any) -> dict[str, tuple[str, ...]]:
    """Returns the spec with its jobs in order, chief first."""
    if not isinstance(spec, Mapping) or not spec:
        raise ValueError(
            "Expected a cluster to map jobs to lists of addresses. "
            f"Received: {spec!r}. {_EXAMPLE}"
        )
    for job in spec:
        if job not in JOBS:
            reason = f" ({_REFUSED[job]})" if job in _REFUSED else ""
            raise ValueError(
                'Expected the jobs of a cluster to be "chief" and "worker". '
                f"Received job {job!r}{reason}. {_EXAMPLE}"
            )
    checked = {
        job: _checked_addresses(job, spec[job]) for job in JOBS if job in spec
    }
    if len(checked.get("chief", "1")) != 1:
        raise ValueError(
            'Expected one task in job "chief". '
            f"Received {len(checked['chief'])}: {list(checked['chief'])}. "
            f"{_EXAMPLE}"
        )
    addresses = [a for job in checked.values() for a in job]
    twice = sorted({a for a in addresses if addresses.count(a) > 1})
    if twice:
        raise ValueError(
            "Expected every task of a cluster to have an address of its own. "
            f"Received {', '.join(twice)} more than once in {checked}."
        )
    _check_reachable(addresses)
    return checked


def _check_reachable(addresses: Sequence[str]) -> None:
    """Raises ValueError for an address that means each machine itself.

    Args:
        addresses: Addresses of all tasks, the chief's first.
    """
    own = [a for a in addresses if is_loopback(a) or _is_unspecified(a)]
    away = [a for a in addresses if a not in own]
    hosts = {address.rpartition(":")[0] for address in away}
    # Beside one host there may be one machine, if the chief has its name.
    if away and (addresses[0] in own or (own and len(hosts) > 1)):
        task = "the chief" if addresses[0] in own else "a worker"
        raise ValueError(
            f"Expected an address of {task} that the other machines can "
            f"reach. Received {own[0]}, which on {away[-1]} means that "
            "machine itself. Use the machine's name or address."
        )


def is_loopback(address: str) -> bool:
    """Whether `host:port` means the machine itself on every machine."""
    host = address.rpartition(":")[0].strip("[]").lower()
    number = _ip_address(host)
    if number is not None:
        return number.is_loopback
    # `127.1` is short for 127.0.0.1.
    short = host.startswith("127.") and host.replace(".", "").isdigit()
    return short or host in _LOOPBACK


def _is_unspecified(address: str) -> bool:
    """Whether `host:port` is all addresses of a machine: `0.0.0.0`, `::`."""
    number = _ip_address(address.rpartition(":")[0].strip("[]"))
    return number is not None and number.is_unspecified


def _ip_address(
    host: str,
) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The number of a host that is given by it; None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _checked_addresses(job: str, addresses: Any) -> tuple[str, ...]:
    if not isinstance(addresses, (list, tuple)) or not addresses:
        raise ValueError(
            f"Expected job {job!r} to be a list of at least one address. "
            f"Received: {addresses!r}. {_EXAMPLE}"
        )
    for address in addresses:
        host, _, port = str(address).rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        if (
            not isinstance(address, str)
            or not host
            or not host.isprintable()
            or any(c.isspace() or c in "/@" for c in host)
            or host.startswith("-")  # To ssh, it would be an option.
            or (":" in host and not bracketed)
            or not _can_be_looked_for(host)
            or not (port.isascii() and port.isdigit())
            or not 0 < int(port) < 65536
        ):
            raise ValueError(
                f"Expected every address of job {job!r} as host:port, with a "
                "port from 1 to 65535, no scheme ([host]:port for IPv6), and 1 "
                "to 63 bytes between the dots of a name. "
                f"Received: {address!r}. {_EXAMPLE}"
            )
    return tuple(addresses)


def _can_be_looked_for(host: str) -> bool:
    """Whether the system can look up a host of this name."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def _checked_index(
    spec: Mapping[str, tuple[str, ...]], job: Any, index: Any
) -> int:
    if not isinstance(job, str) or job not in spec:
        raise ValueError(
            f"Expected the task's type to be one of this cluster's jobs, "
            f"{list(spec)}. Received: {job!r}. {_EXAMPLE}"
        )
    # TensorFlow's own resolver takes digits in quotes; so do launchers.
    number = int(index) if isinstance(index, str) and index.isdigit() else index
    if (
        not isinstance(number, int)
        or isinstance(number, bool)
        or not 0 <= number < len(spec[job])
    ):
        raise ValueError(
            f"Expected the task's index to be from 0 to {len(spec[job]) - 1}, "
            f"as job {job!r} has {len(spec[job])} task(s). "
            f"Received: {index!r}. {_EXAMPLE}"
        )
    return number
