"""A mistake in a module ends its training with the mistake in words, said once."""

import traceback
import warnings

import pytest

from fedgen.federated import FedAvgStrategy
from tests.federated.modules import Automatic, Manual, make_data, make_trainer

SIZES = (12, 20, 8)


def helper(batch):
    raise ValueError(f"no such luck with {len(batch)} tensors")


class Broken(Automatic):
    def training_step(self, batch, batch_idx):
        return helper(batch)


class BrokenManual(Manual):
    def training_step(self, batch, batch_idx):
        return helper(batch)


def lose(module, data=None):
    """The error of a round that loses every client, and the warnings before it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(Exception, match="left") as found:
            make_trainer(FedAvgStrategy(2, seed=0), 1).fit(module, data or make_data())
    return found.value, [str(one.message) for one in caught if "left out" in str(one.message)]


@pytest.mark.parametrize("kind", [Broken, BrokenManual])
def test_clients_that_fail_alike_raise_the_error_itself_with_its_line_and_one_warning(kind):
    error, told = lose(kind())
    message = "ValueError: no such luck with 2 tensors"
    assert type(error) is ValueError
    assert error.__cause__ is None
    (note,) = error.__notes__
    assert note.startswith(f"every client of round 0 was left out, all 3 alike: {message} ({__file__}, line ")
    assert note.endswith("in helper)")
    shown = "".join(traceback.format_exception(error))
    assert shown.count("Traceback") == shown.count("in helper\n") == 1
    assert told == [f"client 'client 0' is left out of round 0: {message}"]


def test_clients_that_fail_each_in_its_way_are_all_warned_of():
    class Varied(Automatic):
        def training_step(self, batch, batch_idx):
            raise ValueError(f"first value {batch[0][0, 0]:.6f}")

    error, told = lose(Varied())
    assert type(error) is RuntimeError
    assert "for 3 different reasons; that of client 'client 0': ValueError: first value" in str(error)
    assert len(told) == 3


@pytest.mark.parametrize("sound", [1, 2])
def test_clients_that_fail_alike_are_all_warned_of_where_another_trains(sound):
    """A batch is all that a client has, so its length tells whose it is."""

    class Partly(Automatic):
        def training_step(self, batch, batch_idx):
            if len(batch[0]) == SIZES[sound]:
                return super().training_step(batch, batch_idx)
            raise ValueError("no such luck")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = make_trainer(FedAvgStrategy(1, seed=0), 1)
        trainer.fit(Partly(), make_data(SIZES, batch_size=64))
    names = [str(one.message).split("'")[1] for one in caught if "is left out" in str(one.message)]
    assert names == [f"client {k}" for k in range(3) if k != sound]
    assert [entry["client"] for entry in trainer.strategy.left_out] == [k for k in range(3) if k != sound]


def test_a_batch_norm_of_clients_with_one_image_says_why():
    error, told = lose(Automatic(), make_data((1, 1, 1)))
    assert "Expected more than 1 value per channel when training" in str(error)
    assert "Expected more than 1 value per channel when training" in told[0]
    assert len(told) == 1


def test_a_single_client_is_not_called_all_alike():
    error, _ = lose(Broken(), make_data((12,)))
    assert "left out: ValueError" in error.__notes__[0]
