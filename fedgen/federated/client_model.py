"""A module as one client sees it, between rounds."""

from collections.abc import Iterator
from contextlib import contextmanager

from fedgen.federated.client_state.exchange import copy_tensors
from fedgen.federated.round import Round


@contextmanager
def in_place(round: Round, client: int) -> Iterator[None]:
    """Make a round's module what a client sees; what the block makes of it is put back."""
    exchange = round.exchange
    exchange.snapshot()
    round.model.switches.start_turn()
    with round.outside.seen_by(client):
        round.memory.load_personal(client, exchange)
        own, live = round.algorithm.own_models.get(client, {}), exchange.live
        copy_tensors([live[name] for name in own if name in live], [own[name] for name in own if name in live])
        try:
            yield
        finally:
            exchange.restore_forms()
            exchange.load_server()
            round.model.switches.restore()
