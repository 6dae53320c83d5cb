"""Clients' updates on their way to the server: compressed, with what is not sent kept by each client."""

from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import Tensor

from fedgen.federated.aggregators.mean import wide
from fedgen.federated.client_state.exchange import all_finite
from fedgen.federated.client_state.memory import ClientMemory, Unsent
from fedgen.federated.compression.compressors import Compressor
from fedgen.federated.server_model import ServerModel
from fedgen.federated.server_optimizers import as_real, from_real
from fedgen.seeds import generator


class CompressedUpdates:
    """Compression of each client's update, and the update that the server takes in."""

    def __init__(self, compressor: Compressor | None, model: ServerModel, memory: ClientMemory, seed: int) -> None:
        self.compressor, self._model, self._memory, self._seed = compressor, model, memory, seed
        self.payloads: dict[str, dict[str, Tensor]] = {}  # by the parameter's name, the parts of what is sent
        self._pending: dict[int, Unsent] = {}

    def start_round(self) -> None:
        self._pending = {}

    @torch.no_grad()
    def compress(self, client: int, round: int) -> dict[str, Tensor]:
        """Return by name what the server takes in for the parameters of the client whose turn the model holds."""
        compressor = self.compressor
        assert compressor is not None
        draws = generator(self._seed, "compression", round, client)
        before = self._memory.unsent.get(client, Unsent({}, {}))
        after, received = Unsent(dict(before.errors), dict(before.starts)), {}
        self.payloads = {}
        for name, tensor in self._model.trainable.items():
            server = self._wide(name)
            update = as_real(wide(tensor)) - server
            if compressor.error_feedback and name in before.errors:
                update += before.errors[name]
            _require_finite(name, update)
            form = compressor.forms(tuple(update.shape), update.dtype).get(compressor.carried)
            start = before.starts.get(name)
            if form is None or start is None or start.shape != form.shape:  # of another rank, where a run is resumed
                start = None
            self.payloads[name] = payload = compressor.encode(update, draws, start)
            received[name] = self.receive(name, payload)
            if compressor.error_feedback:
                after.errors[name] = update.sub_(as_real(wide(received[name])) - server)
                _require_finite(name, update)
            if form:
                after.starts[name] = payload[compressor.carried].clone()
        if compressor.keeps_clients:
            self._pending[client] = after
        return received

    @torch.no_grad()
    def receive(self, name: str, payload: Mapping[str, Tensor]) -> Tensor:
        """Return a client's parameter as the server takes it in: its own, and the update that was sent."""
        assert self.compressor is not None
        server, like = self._wide(name), self._model.exchange.server[name]
        found = server + self.compressor.decode(payload, tuple(server.shape), server.dtype)
        received = from_real(found, like).to(like.dtype)
        _require_finite(name, received)
        return received

    def receive_all(self, payloads: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Return the parameters of a remote client from the payloads of its message."""
        expected = {} if self.compressor is None else self._model.trainable
        if wrong := payloads.keys() ^ expected.keys():
            raise ValueError(f"{sorted(wrong)[0]} is compressed on one side alone")
        found = {}
        for name, payload in payloads.items():
            server = self._wide(name)
            try:
                assert self.compressor is not None
                self.compressor.check(payload, tuple(server.shape), server.dtype)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
            found[name] = self.receive(name, {part: tensor.to(server.device) for part, tensor in payload.items()})
        return found

    def _wide(self, name: str) -> Tensor:
        """The server's parameter in float32 at least, complex numbers as pairs."""
        return as_real(wide(self._model.exchange.server[name]))

    def end_round(self) -> None:
        """After the server's update: clients of the round keep what they did not send."""
        self._memory.unsent |= self._pending
        self._pending = {}

    @property
    def keeps_clients(self) -> bool:
        """Whether something is kept of each client, which then trains in one process for good."""
        return self.compressor is not None and self.compressor.keeps_clients

    def state_dict(self) -> dict[str, Any]:
        return {"clients": {client: kept._asdict() for client, kept in self._memory.unsent.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        clients, trainable = state["clients"], self._model.trainable
        if clients and not self.keeps_clients:
            kind = "there is no `compression`" if self.compressor is None else f"{type(self.compressor).__name__} does"
            raise MisconfigurationException(
                "the checkpoint holds what clients have not sent of their updates, and here"
                f" {kind}{'' if self.compressor is None else ' not keep it'}; resume with the same `compression`"
            )
        for kept in clients.values():
            for name, error in kept["errors"].items():
                if name not in trainable or error.shape != self._wide(name).shape:
                    raise MisconfigurationException(
                        f"the checkpoint holds what a client has not sent of {name}, of shape {list(error.shape)},"
                        " which the model does not have; resume with the same model"
                    )
        self._memory.unsent = {
            int(client): Unsent(*(self._placed(kept[part]) for part in Unsent._fields))
            for client, kept in clients.items()
        }

    def _placed(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        server = self._model.exchange.server
        return {name: tensor.to(server[name].device, copy=True) for name, tensor in tensors.items() if name in server}


def _require_finite(name: str, tensor: Tensor) -> None:
    if not all_finite([tensor]):
        raise FloatingPointError(f"the compressed update of {name} is too large for {tensor.dtype}")
