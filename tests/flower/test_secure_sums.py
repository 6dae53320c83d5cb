"""Sums of messages under secure aggregation: exact, of all clients or of none, and cut off at public bounds."""

import numpy as np
import pytest
import torch
from flwr.app import Message as FlowerMessage
from flwr.clientapp import ClientApp

from fedgen.flower.secure_aggregation.agreement import MOST
from fedgen.flower.secure_aggregation.secure_mean import Masked, masked, read_instructions, secure_mean, write_summand
from fedgen.flower.secure_aggregation.secure_sums import fixed_point, masked_messages, read_sums
from fedgen.flower.wire.answer_forms import RANGES, Ranges, largest
from fedgen.flower.wire.serialization import from_bytes, to_bytes
from fedgen.statistics import Message, MessageError, add
from tests.flower.loopback import Loopback, Node, Odd, empty

BOUNDS = [{"count": 100.0, "sum": 1e3, "outer": 1e-3}, {"count": 100.0, "score": 2.0}]
RUN = {"secure-aggregation": True}


def messages(client):
    """Two messages; of the second client an entry of outer lies beyond its bound."""
    draws = torch.Generator().manual_seed(client)
    total = torch.rand(3, generator=draws, dtype=torch.float64) * 2000 - 1000
    outer = torch.rand(6, generator=draws, dtype=torch.float64) * 1e-3
    outer[2] = 5e-3 if client == 1 else -1e-3
    count = torch.tensor(10.0 + client)
    first = Message("sums", {"count": count, "sum": total, "outer": outer}, {"split": "train"})
    return [first, Message("fid", {"count": count, "score": torch.tensor(-1.5 * client / 2)})]


def app(answer):
    made = ClientApp(mods=[masked])

    @made.train()
    def train(message, context):
        read_instructions(message)
        return FlowerMessage(write_summand(answer()), reply_to=message)

    return made


def grid_of(answers):
    return Loopback({10 + k: Node(app(answer), {}, RUN) for k, answer in enumerate(answers)})


def ask(grid):
    sent = {node: Masked([np.zeros(1)], b"", 1) for node in grid.nodes}
    return read_sums(secure_mean(grid, sent, 0, 1.0, threshold=1.0), len(grid.nodes), BOUNDS)


def test_sums_are_exact_to_the_last_bit_of_whole_numbers():
    grid = grid_of([lambda k=k: masked_messages(messages(k), BOUNDS, 3) for k in range(3)])
    found = ask(grid)
    expected = [add(*parts) for parts in zip(*(messages(k) for k in range(3)))]
    for one, total, bounds in zip(found.sums, expected, BOUNDS):
        assert one.total.kind == total.kind
        assert one.total.meta == total.meta
        bits = fixed_point(bounds, 3).bits
        for name, tensor in total.tensors.items():
            wanted = tensor.clone()
            if name == "outer":
                wanted[2] = 1e-3 - 2e-3  # cut off at the bound
            error = (one.total.tensors[name] - wanted).abs().max()
            assert error <= 3 * 2.0 ** -(bits[name] + 1) + 1e-15 * wanted.abs().max()
    assert bits["score"] > 55
    assert found.sums[0].cut == {"outer": pytest.approx(1 / 18)}
    assert found.sums[1].cut == {}


def test_without_a_client_nothing_is_unmasked_and_it_is_named():
    def full():
        raise MemoryError("full")

    answers = [lambda k=k: masked_messages(messages(k), BOUNDS, 4) for k in range(3)]
    found = ask(grid_of([*answers, full]))
    assert found.sums is None
    assert list(found.failures) == [13]
    assert "full" in found.failures[13]


def test_one_client_is_not_asked():
    grid = grid_of([lambda: pytest.fail("asked")])
    assert ask(grid).sums is None


@pytest.mark.parametrize(("clients", "odd"), [(3, [11]), (2, [10, 11])])
def test_messages_of_other_forms_are_refused_naming_the_odd_one(clients, odd):
    """Of two clients nobody knows which of them is right."""
    other = [Message("sums", {**messages(1)[0].tensors}, {"split": "report"}), messages(1)[1]]
    said = [messages(0), other, messages(2)][:clients]
    found = ask(grid_of([lambda one=one: masked_messages(one, BOUNDS, clients) for one in said]))
    assert found.sums is None
    assert list(found.failures) == odd
    assert all("different forms from the others'" in why for why in found.failures.values())


def test_a_tensor_without_a_bound_is_refused():
    with pytest.raises(MessageError, match="largest"):
        masked_messages(messages(0), [BOUNDS[0], {"count": 1.0}], 2)


def test_more_clients_than_32_bits_hold_are_refused():
    assert MOST == 1023
    with pytest.raises(ValueError, match="most"):
        secure_mean(grid_of([]), dict.fromkeys(range(1024), ([], b"", 1)), 0, None)


# ---- ranges ----


def test_ranges_follow_from_generated_images_or_are_given():
    features = torch.tensor([[3.0, 0.0], [0.0, -4.0]])
    chosen = Ranges.of_run({"range.fid": 7.0, "range.kid": 0.0, "wait": 1.0}).for_features(features)
    assert chosen.keys() == RANGES.keys()
    assert (chosen["mean"], chosen["second-moment"]) == (128.0, 128.0**2)
    assert chosen["fid"] == 7.0
    assert chosen["kid"] == 4 * (1 + 128**2 / 2) ** 3
    assert largest("sums", False, chosen, 10) == {"count": 10.0, "sum": 1280.0, "outer": 10 * 128.0**2}
    assert largest("kid", True, chosen, 10) == {"count": 10.0, "score": 40.0, "within": 10.0}
    assert largest("fid", False, chosen, 10) == {"count": 10.0, "score": 70.0}


@pytest.mark.parametrize(("config", "said"), [({"range.mena": 1.0}, "range.mena"), ({"range.fid": -1.0}, "positive")])
def test_unknown_and_negative_ranges_are_refused(config, said):
    with pytest.raises(ValueError, match=said):
        Ranges.of_run(config)


@pytest.mark.parametrize("stage", range(4))
def test_nothing_is_unmasked_where_a_client_wrecks_the_protocol_and_it_is_named(stage):
    grid = grid_of([lambda k=k: masked_messages(messages(k), BOUNDS, 3) for k in range(3)])
    grid.nodes[12] = Odd(grid.nodes[12].app, {}, RUN, lambda message, _: empty(message), {stage})
    found = ask(grid)
    assert (found.sums, list(found.failures)) == (None, [12])
    assert "of secure aggregation is unusable: " in found.failures[12]


def with_rest(rest):
    """Three clients, the third with other bytes in the open."""
    good = [lambda k=k: masked_messages(messages(k), BOUNDS, 3) for k in range(2)]
    return grid_of([*good, lambda: masked_messages(messages(2), BOUNDS, 3)._replace(rest=rest)])


@pytest.mark.parametrize("rest", [b"", b"PK"])
def test_a_form_of_sums_that_cannot_be_read_is_its_clients_fault(rest):
    found = ask(with_rest(rest))
    assert (found.sums, list(found.failures)) == (None, [12])
    assert "the form of the sums cannot be read" in found.failures[12]


def test_a_form_of_sums_that_differs_is_its_clients_fault():
    found = ask(with_rest(to_bytes({"a": 1})))
    assert (found.sums, list(found.failures)) == (None, [12])


SHAPE = torch.tensor([3, 4])  # which is neither the same as a number nor another
FORMS = {
    "a tensor for a size": lambda form: form[0]["shapes"].update(sum=[SHAPE]),
    "a tensor for a remark": lambda form: form[0]["meta"].update(bits=SHAPE),
    "text for shapes": lambda form: form[0].update(shapes="x"),
    "more parts": lambda form: form[0].update(more=1),
    "fewer parts": lambda form: form[0].pop("meta"),
    "a number": lambda form: form.append(3),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_form_of_sums_that_is_none_is_its_clients_fault(name):
    form = from_bytes(masked_messages(messages(2), BOUNDS, 3).rest, "a form")
    FORMS[name](form)
    found = ask(with_rest(to_bytes(form)))
    assert (found.sums, list(found.failures)) == (None, [12])
    assert "the form of the sums is [" in found.failures[12]
