"""What a device's machine says of itself, wherever it is."""

from tf_convpar.machines._machine import identity as identity
from tf_convpar.machines._machine import instructions as instructions
from tf_convpar.machines._machine import memory_bytes as memory_bytes
from tf_convpar.machines._machine import processor as processor
from tf_convpar.machines._machine import sharing_cores as sharing_cores
