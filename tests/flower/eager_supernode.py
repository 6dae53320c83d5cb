"""Flower's SuperNode, which looks for messages five times a second and not every three seconds: tests wait less."""

from flwr.supernode import start_client_internal
from flwr.supernode.cli import flower_supernode

from fedgen.flower.client.pinned_apps import looking

if __name__ == "__main__":
    start_client_internal._pull_and_store_message = looking(start_client_internal._pull_and_store_message, 0.2)
    flower_supernode()
