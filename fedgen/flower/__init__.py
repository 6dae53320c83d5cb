"""The same recipe on Flower: clients that keep their data on their own machines."""

from typing import TYPE_CHECKING

from fedgen.lazy import load_on_use

if TYPE_CHECKING:
    from fedgen.flower.client.answering import Answering
    from fedgen.flower.client.local_data import LocalDataModule
    from fedgen.flower.client.turn_strategy import TurnStrategy
    from fedgen.flower.server.remote_data import RemoteClients

__all__ = ["Answering", "LocalDataModule", "RemoteClients", "TurnStrategy"]

load_on_use(__name__)
