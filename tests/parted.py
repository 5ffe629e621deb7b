"""Two workers of this machine that can be cut off from each other.

Others reach each worker by a port of `programs/forward.py`, which knows whose
process is at the other end. No privileges are needed, unlike for a firewall.
"""

import contextlib
import dataclasses
import subprocess
import sys
import time
from pathlib import Path

from processes import environment

from tf_convpar.cluster.local_cluster import reserved_port
from tf_convpar.cluster.local_cluster import wait_ready
from tf_convpar.cluster.process import Process
from tf_convpar.cluster.spec import Cluster

FORWARD = Path(__file__).parent / "programs/forward.py"


@dataclasses.dataclass
class Parted:
    """Two workers, as their chief sees them.

    Attributes:
        cluster: The cluster, with the ports by which workers are reached.
        workers: Their processes.
    """

    cluster: Cluster
    workers: list[Process]
    forwarder: Process

    def tf_config(self):
        return self.cluster.tf_config()

    def part(self, *directions):
        """Who does not reach whom: `(1, 0)` is 1, who wants 0's tensors."""
        for source, target in directions or ((0, 1), (1, 0)):
            port = self.cluster.others[target].port
            self._tell(f"cut {port} {self.workers[source].pid}")

    def mend(self):
        self._tell("mend")

    def end_connections(self):
        """They reach one another again, by new connections."""
        self._tell("break")

    def _tell(self, line):
        count = self.forwarder.output.splitlines().count(line)
        self.forwarder.write(line + "\n")
        until = time.monotonic() + 10
        while self.forwarder.output.splitlines().count(line) == count:
            assert time.monotonic() < until, self.forwarder.output
            time.sleep(0.01)


@contextlib.contextmanager
def parted_workers():
    """Yields them, and ends them."""
    with contextlib.ExitStack() as stack:
        chief, *ports = (stack.enter_context(reserved_port()) for _ in range(5))
        own, seen = ports[:2], ports[2:]

        def cluster(*workers):
            return Cluster(
                {
                    "chief": (f"localhost:{chief}",),
                    "worker": tuple(f"localhost:{port}" for port in workers),
                }
            )

        forwarder = stack.enter_context(
            Process(
                [
                    *(sys.executable, FORWARD),
                    *(f"{a}:{b}" for a, b in zip(seen, own, strict=True)),
                ],
                env=environment(),
                stdin=subprocess.PIPE,
            )
        )
        workers = []
        for index in range(2):
            # Its own port is one that it can listen on.
            mine = list(seen)
            mine[index] = own[index]
            spec = cluster(*mine)
            config = spec.tf_config(spec.others[index])
            command = [sys.executable, "-m", "tf_convpar", "worker"]
            workers.append(
                stack.enter_context(
                    Process(
                        [*command, "--threads=1"],
                        env=environment(TF_CONFIG=config),
                    )
                )
            )
        wait_ready(workers, timeout_s=60.0)
        yield Parted(cluster(*seen), workers, forwarder)
