"""Names of devices, and facts about machines: cores, cards, sockets."""

from tf_convpar.machines._byte_counter import byte_counter as byte_counter
from tf_convpar.machines._card import Card as Card
from tf_convpar.machines._card import card_of as card_of
from tf_convpar.machines._cores import can_pin as can_pin
from tf_convpar.machines._cores import pin as pin
from tf_convpar.machines._cores import usable_cores as usable_cores
from tf_convpar.machines._machine import cores as cores
from tf_convpar.machines._machine import environment as environment
from tf_convpar.machines._machine import identity as identity
from tf_convpar.machines._machine import instructions as instructions
from tf_convpar.machines._machine import maps as maps
from tf_convpar.machines._machine import memory_bytes as memory_bytes
from tf_convpar.machines._machine import model as model
from tf_convpar.machines._machine import network_bytes as network_bytes
from tf_convpar.machines._machine import processor as processor
from tf_convpar.machines._machine import processor_s as processor_s
from tf_convpar.machines._machine import sharing_cores as sharing_cores
from tf_convpar.machines._machine import threads as threads
from tf_convpar.machines._names import cpu_of as cpu_of
from tf_convpar.machines._names import host_of as host_of
from tf_convpar.machines._names import index_of as index_of
from tf_convpar.machines._names import kind_of as kind_of
from tf_convpar.machines._names import short as short
from tf_convpar.machines._names import task_of as task_of
from tf_convpar.machines._neighbours import busy_neighbours as busy_neighbours
from tf_convpar.machines._sockets import BytesReceived as BytesReceived
