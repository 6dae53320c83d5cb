"""The same recipe on Flower: clients that keep their data on their own machines."""

from typing import TYPE_CHECKING

from fedgen.lazy import load_on_use

if TYPE_CHECKING:
    from fedgen.deploy.answering import Answering
    from fedgen.deploy.own_data import OwnData
    from fedgen.deploy.remote_data import RemoteClients
    from fedgen.deploy.turn_strategy import TurnStrategy

__all__ = ["Answering", "OwnData", "RemoteClients", "TurnStrategy"]

load_on_use(__name__)
