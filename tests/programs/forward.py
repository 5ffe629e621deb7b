"""Run with pairs of ports: passes what comes to the first on to the second.

A line `cut PORT PID` on standard input makes it hold what that process sends to
that port and what it should get from there, as a firewall would that drops
packets. `mend` lets everything pass again. Each line is repeated when done.
"""

import socket
import sys
import threading

import psutil

held = set()
changed = threading.Condition()


def process_at(port):
    """The process that has a connection from this port of its own."""
    for found in psutil.net_connections("tcp"):
        if found.laddr.port == port and found.pid and found.raddr:
            return found.pid
    return None


def pump(source, target, port, pid):
    try:
        while data := source.recv(65536):
            with changed:
                changed.wait_for(lambda: (port, pid) not in held)
            target.sendall(data)
    except OSError:
        pass
    for end in (source, target):
        end.close()


def serve(port, target):
    listener = socket.create_server(("localhost", port), backlog=64)
    while True:
        near, peer = listener.accept()
        pid = process_at(peer[1])
        try:
            far = socket.create_connection(("localhost", target))
        except OSError:
            near.close()
            continue
        for ends in ((near, far), (far, near)):
            threading.Thread(
                target=pump, args=(*ends, port, pid), daemon=True
            ).start()


def main(*pairs):
    for pair in pairs:
        ports = map(int, pair.split(":"))
        threading.Thread(target=serve, args=ports, daemon=True).start()
    print("forwarding", flush=True)
    for line in sys.stdin:
        what, *numbers = line.split()
        with changed:
            if what == "cut":
                held.add(tuple(map(int, numbers)))
            else:
                held.clear()
            changed.notify_all()
        print(line, end="", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
