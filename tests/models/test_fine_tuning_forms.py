from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fedgen.losses import DistributedLoss, FastFIDLoss, MMD2Loss, OneMessageLoss
from fedgen.losses.distributed.distributed import Traffic
from fedgen.models.fine_tuning.fine_tuning_forms import TrafficAccount, check_strategy, loss_of_form


@pytest.mark.parametrize(("form", "kind"), [("exact", DistributedLoss), ("message", OneMessageLoss)])
def test_a_form_asks_clients_by_a_loss_of_its_own(form, kind):
    assert type(loss_of_form(MMD2Loss(), form)) is kind
    given = kind(MMD2Loss())
    assert loss_of_form(given, form) is given


def test_locally_the_loss_is_each_clients_own_and_the_one_given_stays():
    given = FastFIDLoss(aggregate="avg")
    assert (loss_of_form(given, "local").aggregate, given.aggregate) == ("own", "avg")
    with pytest.raises(ValueError, match="form='local' does not go with a DistributedLoss"):
        loss_of_form(DistributedLoss(MMD2Loss()), "local")


@pytest.mark.parametrize(("form", "federated", "remedy"), [("local", False, "FedAvgStrategy"), ("exact", True, "auto")])
def test_a_form_names_the_strategy_that_it_needs(form, federated, remedy):
    with pytest.raises(ValueError, match=f"{remedy}.*, got Mine"):
        check_strategy(form, federated, "Mine")
    check_strategy(form, not federated, "Mine")


def test_turns_count_by_what_travels_and_a_failed_one_by_what_was_sent_to_it():
    counters = {"steps": torch.zeros(2, dtype=torch.int64)}
    exchange = SimpleNamespace(num_bytes=100, num_bytes_down=130, counters=counters, held={})
    account = TrafficAccount()
    account.add_turn(exchange, None, completed=True)
    account.add_turn(exchange, 900, completed=True)
    account.add_turn(exchange, None, completed=False)
    assert account.total([]) == Traffic(down=3 * (130 + 16), up=100 + 900, questions=0)


def test_what_losses_asked_is_added_and_told_once():
    asking = DistributedLoss(MMD2Loss())
    account = TrafficAccount(Traffic(10, 20, 1))  # of a checkpoint
    total = account.total([asking, nn.Flatten()])
    assert account.tell(total) == (Traffic(0, 0, 0), False)
    exchange = SimpleNamespace(num_bytes=5, num_bytes_down=5, counters={}, held={})
    account.add_turn(exchange, None, completed=True)
    since, is_first = account.tell(account.total([asking]))
    assert (since, is_first) == (Traffic(5, 5, 0), False)
    assert TrafficAccount().tell(Traffic(7, 0, 0)) == (Traffic(7, 0, 0), True)
