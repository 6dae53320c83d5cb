"""Flower's SuperNode, which looks for messages five times a second and not every three seconds: tests wait less.

It promises to be heard every 12 seconds in place of 30, after two of which a SuperLink lets a node that was killed come
back.
"""

from flwr.supercore import heartbeat
from flwr.supernode import fleet_http_connection, start_client_internal
from flwr.supernode.cli import flower_supernode

from fedgen.flower.client.pinned_apps import looking

if __name__ == "__main__":
    heartbeat.HEARTBEAT_DEFAULT_INTERVAL = fleet_http_connection.HEARTBEAT_DEFAULT_INTERVAL = 12
    start_client_internal._pull_and_store_message = looking(start_client_internal._pull_and_store_message, 0.2)
    flower_supernode()
