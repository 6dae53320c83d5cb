"""Lightning's words mean to a module in a client's turn what they mean in an ordinary fit of that turn's batches."""

from typing import Any

import lightning as L
import pytest
from torch.utils.data import DataLoader

from fedgen.clients.turn import Turn
from fedgen.federated import FedAvgStrategy
from tests.foreign.cases import images, make_trainer
from tests.foreign.clocks import Entry, Witness
from tests.foreign.merging import same
from tests.foreign.reference import fit_by_turns

INTERVAL, ROUNDS = 4, 3


def made(notes: list[Entry], manual: bool = False) -> Witness:
    """The module with the weights that all fits start from."""
    L.seed_everything(1, verbose=False)
    return Witness(notes, manual)


def iterations(notes: list[Entry]) -> list[Entry]:
    """What was noted of iterations."""
    return [entry for entry in notes if entry[0] != "configure"]


class Rounds(L.LightningDataModule):
    """One client's batches of a round as an epoch: what an ordinary fit over all rounds would train on."""

    def train_dataloader(self) -> Any:
        data, round = images(), self.trainer.current_epoch
        client = data.clients[0]
        turn = Turn(client.data, client.train, data.batch_size, 0, 0, client.name, round)
        return DataLoader(list(turn.batches(INTERVAL)), batch_size=None, collate_fn=lambda batch: batch)


@pytest.mark.parametrize("manual", [False, True], ids=["automatic", "manual"])
def test_the_references_short_fits_go_on_as_one_long_fit_does(manual: bool) -> None:
    short: list[Entry] = []
    fit_by_turns(lambda: made(short, manual), images(), INTERVAL, ROUNDS)
    long: list[Entry] = []
    make_trainer("auto", ROUNDS, reload_dataloaders_every_n_epochs=1).fit(made(long, manual), Rounds())
    turn, entries = 3 * INTERVAL, iterations(short)
    first = [entry for number, entry in enumerate(entries) if number // turn % 3 == 0]  # the first of three clients
    assert first == iterations(long)
    assert first[-1][1]["step"] == INTERVAL * ROUNDS * (2 if manual else 1)


@pytest.mark.parametrize("manual", [False, True], ids=["automatic", "manual"])
def test_a_module_sees_what_it_sees_in_ordinary_fits(manual: bool) -> None:
    expected: list[Entry] = []
    fit_by_turns(lambda: made(expected, manual), images(), INTERVAL, ROUNDS)
    found: list[Entry] = []
    make_trainer(FedAvgStrategy(INTERVAL, seed=0), ROUNDS).fit(made(found, manual), images())
    for number, (one, other) in enumerate(zip(iterations(found), iterations(expected), strict=True)):
        assert one == other, f"entry {number}"
    assert found[0] == ("configure", {"steps": INTERVAL * ROUNDS})


def test_after_training_the_trainer_counts_as_one_client_does() -> None:
    trainer = make_trainer(FedAvgStrategy(INTERVAL, seed=0), ROUNDS)
    trainer.fit(made([]), images())
    assert trainer.global_step == INTERVAL * ROUNDS
    assert same([g["lr"] for o in trainer.optimizers for g in o.param_groups], [0.1 / (1 + INTERVAL * ROUNDS)])
