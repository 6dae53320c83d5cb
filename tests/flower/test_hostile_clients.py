"""One client that sends what it should not costs the others nothing: it is left out by name, and the run goes on."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord
from safetensors.torch import save

from fedgen.federated.compression import TopK
from fedgen.flower.app.app_sides import run_server
from fedgen.flower.secure_aggregation.secure_strategy import SecureStrategy
from fedgen.flower.wire.messages import VERSION, Answer, pack
from fedgen.flower.wire.serialization import to_bytes
from tests.flower.connected import connection_to
from tests.flower.loopback import Loopback
from tests.flower.runs import app_of, read, recipe
from tests.flower.scripted import Scripted, honest


def run(folder, nodes, rounds=1, config=(), **strategy):
    """Trains over scripted nodes; the last checkpoint."""
    path = app_of(recipe(rounds, **strategy), folder / "app", len(nodes))
    config = {"clients": len(nodes), "output": str(folder / "run"), "wait": 1.0, **dict(config)}
    run_server(path, Loopback(dict(enumerate(nodes, 10))), config)
    return read(folder / "run")


def saying(**changes):
    """An answer with other fields."""
    return {"answer": lambda task: replace(honest(task), **changes)}


def holding(data):
    """A reply whose first array is of these bytes."""

    def spoil(reply):
        arrays = reply.content.array_records["weights"]
        first, *others = arrays
        array = Array("float32", arrays[first].shape, arrays[first].stype, data)
        reply.content["weights"] = ArrayRecord({first: array, **{name: arrays[name] for name in others}})
        return reply

    return {"spoil": spoil}


def filled(value):
    """A reply whose weights are all of this value."""

    def spoil(reply):
        arrays = reply.content.array_records["weights"]
        made = {name: torch.full(array.shape, value) for name, array in arrays.items()}
        reply.content["weights"] = ArrayRecord(made)
        return reply

    return {"spoil": spoil}


def packed(rest):
    """A reply with other bytes beside its weights."""

    def spoil(reply):
        reply.content["fedgen"] = ConfigRecord({"rest": rest, "dtypes": []})
        return reply

    return {"spoil": spoil}


def states(place, tensor, weight=16.0):
    """An answer whose first optimizer's averaged state is this tensor alone."""

    def answer(task):
        key, total = (place, tensor[0]), torch.tensor(weight, dtype=torch.float64)
        told = [{key: tensor[1]}, {key: total}, (task.client, [], {}), *honest(task).told[3:]]
        return replace(honest(task), told=told)

    return {"answer": answer}


def beside(*rest):
    return {"answer": lambda task: replace(honest(task), told=[{}, {}, (task.client, *rest), *honest(task).told[3:]])}


def header(shape):
    text = str({"descr": "<f4", "fortran_order": False, "shape": shape}).encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def raw(text, **tensors):
    """The bytes of an answer whose JSON says this of what it tells, such as `to_bytes` never writes."""
    parts = {"version": VERSION, "examples": 16, "iterations": 3, "told": None}
    fields = ",".join(f'["{name}",{value if value is not None else text}]' for name, value in parts.items())
    return save(tensors, metadata={"fedgen": f'{{"dict":[{fields}]}}'})


SQUARE = ("exp_avg_sq", torch.tensor(-1.0))
DEEP = b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 65535
FAULTS = {
    "text for a metric": (
        saying(metrics={"loss": "x"}),
        "metrics of the answer is {'loss': 'x'}, where one is 'x', which is no float",
    ),
    "a list for metrics": (saying(metrics=[1]), "metrics of the answer is [1]"),
    "no metrics": (saying(metrics=None), "metrics of the answer is None"),
    "half a surrogate": (packed(raw('["\\ud800"]')), "surrogates not allowed"),
    "a number of many digits": (packed(raw("1" * 5000)), "the answer cannot be read"),
    "a metric of a terminal": (saying(metrics={"\x1b[2J": 1.0}), "is not of 1 to 200 printable characters"),
    "a metric without a name": (saying(metrics={"": 1.0}), "is not of 1 to 200 printable characters"),
    "a thousand metrics and one": (
        saying(metrics=dict.fromkeys(map(str, range(1001)), 1.0)),
        "has 1001 parts, not 0 to 1000",
    ),
    "a failure of a terminal": (saying(failure="\x1b[2Jgone\x07" + "x" * 10**6), r"MessageError: \x1b[2Jgone\x07xxx"),
    "iterations beyond a count": (saying(iterations=-(2**63)), f"iterations of the answer is {-(2**63)}"),
    "a number of 71 bits": (packed(raw(str(2**70))), "a whole number of 71 bits"),
    "iterations and a half": (saying(iterations=1.5), "iterations of the answer is 1.5"),
    "no iterations": (saying(iterations=True), "iterations of the answer is True"),
    "steps beyond a count": (saying(steps=2**63 - 1), f"with {2**63 - 1} steps"),
    "weights of no norm": (filled(3.4e38), "so large that its norm is infinite"),
    "negative examples": (saying(examples=-3), "examples of the answer is -3"),
    "a number for a failure": (saying(failure=3), "failure of the answer is 3"),
    "nothing told": (saying(told=None), "told of the answer is None"),
    "told without end": (packed(raw("[" * 10**5 + "]" * 10**5)), "the answer cannot be read"),
    "told too deep": (packed(raw("[" * 70 + "]" * 70)), "nested more than 64 deep"),
    "told too much": (packed(raw(str([0] * (2**20 + 1)))), "more than 1048576 parts"),
    "told too little": (saying(told=[]), "what it tells beside its weights cannot be read"),
    "an archive for an array": (holding(b"PK\x03\x04"), "no fedgen message"),
    "no bytes for an array": (holding(b""), "no fedgen message"),
    "a huge array": (holding(header((2**44,))), "has 0 bytes, not 70368744177664"),
    "an array of objects": (holding(header((1,)).replace(b"<f4", b"|O8")), "no fedgen message"),
    "a deep header": (holding(DEEP), "has a damaged header"),
    "bytes that are no message": (packed(b"KP"), "the answer cannot be read"),
    "no bytes": (packed(b""), "the answer cannot be read"),
    "a list of parts": (packed(to_bytes([1])), "it has no named parts"),
    "an unknown part": (packed(to_bytes({"version": VERSION, "colour": 3})), "unexpected keyword argument 'colour'"),
    "another version": (packed(to_bytes({"version": True})), "of version True"),
    "a tensor twice": (packed(raw('[{"tensor":0},{"tensor":0}]', **{"0": torch.ones(2)})), "not told one by one"),
    "a tensor that is not there": (packed(raw('[{"tensor":0}]')), "not told one by one"),
    "a tensor that nothing uses": (packed(raw("[]", **{"0": torch.ones(2)})), "it has 1 tensors and uses 0"),
    "tensors of NaN": (packed(to_bytes({"version": VERSION, "told": [torch.tensor(math.nan)]})), "NaN or infinity"),
    "a type that there is not": (packed(raw('{"code":[]}')), "a value of type 'code'"),
    "a message of an earlier release": (packed(b"PK\3\4"), "of version 2 or before, this fedgen speaks 5"),
    "negative second moments": (states(0, SQUARE), "its optimizer state 'exp_avg_sq' is negative"),
    "a state of another weight": (states(0, ("exp_avg", torch.ones(())), 1e9), "weighs 1e+09 and should weigh 16"),
    "a state of no parameter": (states(99, ("exp_avg", torch.ones(2))), "a parameter that the model has not"),
    "a state of another shape": (
        states(0, ("exp_avg", torch.ones(2))),
        "'exp_avg' is torch.float32 [2], of a parameter",
    ),
    "a state of another type": (states(0, ("step", torch.tensor(1.0).double())), "'step' is torch.float64 []"),
    "a state of text": (beside([], {(0, "exp_avg"): "x"}), "neither tensors nor numbers"),
    "a state of NaN": (beside([], {(0, "exp_avg"): float("nan")}), "neither tensors nor numbers"),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:client .* is left out of round 0:UserWarning")
def test_a_round_goes_on_without_clients_whose_answers_are_bad(tmp_path):
    """All at once: each is named with its own reason, and what is written can be read again."""
    nodes = [Scripted("an honest one"), *(Scripted(name, **how) for name, (how, _) in FAULTS.items())]
    found = run(tmp_path, nodes, optimizer_state="average")
    left_out = {one["name"]: one["reason"] for one in found["fedavg"]["left_out"]}
    assert left_out.keys() == FAULTS.keys()
    for name, (_, reason) in FAULTS.items():
        assert reason in left_out[name], name
        assert left_out[name].isprintable(), name
    assert all(t.isfinite().all() for t in found["state_dict"].values() if t.is_floating_point())
    again = run(tmp_path, [Scripted(node.hello.name) for node in nodes], rounds=2, optimizer_state="average")
    assert again["epoch"] == 1
    assert len(again["fedavg"]["left_out"]) == len(FAULTS)


FAIR = {"class_path": "fedgen.federated.QFedAvg", "init_args": {"q": 1.0, "lr": 0.1}}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:client .* is left out of round 0:UserWarning")
def test_losses_that_no_client_has_are_left_out(tmp_path):
    losses = {"none": None, "NaN": math.nan, "infinity": math.inf, "below 0": -1.0, "a text": "x"}
    nodes = [Scripted("an honest one", **saying(loss=2.0))]
    nodes += [Scripted(name, **saying(loss=loss)) for name, loss in losses.items()]
    found = run(tmp_path, nodes, aggregator=FAIR)
    left_out = {one["name"]: one["reason"] for one in found["fedavg"]["left_out"]}
    assert left_out.keys() == losses.keys()
    assert "needs each client's loss" in left_out["none"]
    assert "loss of the answer is 'x'" in left_out["a text"]
    assert all("finite and not negative" in left_out[name] for name in ("NaN", "infinity", "below 0"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:client 'b' ended its turn with other settings of its optimizers:UserWarning")
def test_no_client_sets_the_learning_rate_of_others(tmp_path):
    """What clients say of settings is not heard; that theirs moved is said once."""
    asked = []

    def answer(task):
        asked.append(task.local["settings"])
        settings = [[[{"lr": 1e6}], [{"lr": float("nan")}]], [], None]
        return replace(honest(task), told=[(10**9, settings)], moved=True)

    # a metric may be NaN where weights are sound
    others = [Scripted("a"), Scripted("c", **saying(metrics={"loss": float("nan")}))]
    found = run(tmp_path, [*others, Scripted("b", answer=answer)], rounds=3)
    assert found["fedavg"]["left_out"] == []
    assert len(asked) == 3
    assert asked[0] == asked[1] == asked[2]
    rates = [group["lr"] for state in found["optimizer_states"] for group in state["param_groups"]]
    assert rates == [group["lr"] for groups in asked[0][0] for group in groups]


FIRST = "generator.body.0.weight"
VARIATES = {  # made of a parameter
    "of another shape": lambda parameter: {FIRST: torch.ones(1)},
    "of another type": lambda parameter: {FIRST: parameter.double()},
    "of no tensor": lambda parameter: {"colour": torch.ones(1)},
    "of text": lambda parameter: {FIRST: "x"},
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:client .* is left out of round 0:UserWarning")
def test_control_variates_that_the_model_has_not_are_left_out(tmp_path):
    def of(make):
        return lambda task: replace(honest(task, 0), told=[make(task.weights[FIRST])])

    nodes = [Scripted(name, answer=of(make)) for name, make in VARIATES.items()]
    scaffold = {"class_path": "fedgen.federated.Scaffold"}
    found = run(
        tmp_path,
        [Scripted("an honest one", answer=of(lambda parameter: {FIRST: parameter})), *nodes],
        client_algorithm=scaffold,
    )
    assert {one["name"] for one in found["fedavg"]["left_out"]} == VARIATES.keys()
    assert found["fedavg"]["algorithm"]["server"].keys() == {FIRST}


CUTS = {"text": "x", "a list": [1], "more than all": 7.0, "none": None, "not a number": float("nan"), "a flag": True}


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS.keys())
def test_a_share_that_was_cut_off_is_one(cut):
    strategy, server = SecureStrategy(connection_to(update_range=1.0)), {"a": torch.zeros(2)}
    _, answer = pack(Answer(examples=3, iterations=3))
    opened = strategy._opened("a", to_bytes({"answer": answer, "cut": 0.0}), [np.zeros(2)], server)
    assert torch.equal(opened.weights["a"], server["a"])
    said = strategy._opened("a", to_bytes({"answer": answer, "cut": cut}), [np.zeros(2)], server)
    assert "what it tells beside its update has cut, which is" in said


@pytest.mark.parametrize(
    "rest", [b"", b"PK", to_bytes([1]), to_bytes({"cut": 0.0}), to_bytes({"answer": 3, "cut": 0.0})]
)
def test_what_is_told_beside_a_masked_sum_may_be_anything(rest):
    assert isinstance(SecureStrategy(connection_to())._opened("a", rest, [], {}), str)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:client .* is left out of round:UserWarning")
def test_no_client_ends_a_run_by_weights_whose_sums_are_infinite(tmp_path):
    """Each is a number; means and momentum of them were none, and no client took the next round's weights."""
    nodes = [Scripted("a"), Scripted("b", **filled(3.4e38))]
    found = run(tmp_path, nodes, rounds=4, server_optimizer="FedAvgM")
    assert {one["name"] for one in found["fedavg"]["left_out"]} == {"b"}
    assert all(t.isfinite().all() for t in found["state_dict"].values() if t.is_floating_point())


def compressed(change):
    """An answer of top-k updates of 0 with other parts of the first parameter's."""

    def answer(task):
        found = honest(task)
        trained = {name for name in found.weights if "running" not in name and "num_batches" not in name}
        sent = {
            name: TopK().encode(torch.zeros_like(found.weights[name]), torch.Generator()) for name in sorted(trained)
        }
        rest = {name: tensor for name, tensor in found.weights.items() if name not in trained}
        sent[FIRST] = change(sent[FIRST])
        return replace(found, weights=rest, compressed=sent)

    return {"answer": answer}


def put(part, place, value):
    """A change of one number of a part."""

    def change(payload):
        payload[part][place] = value
        return payload

    return change


COMPRESSED = {
    "a place beyond the tensor": (compressed(put("places", -1, 2**30)), "places lie from 0 to 1073741824"),
    "a negative place": (compressed(put("places", 0, -1)), "places lie from -1"),
    "a place twice": (compressed(lambda sent: {**sent, "places": sent["places"] * 0}), "places do not rise"),
    "k too large": (
        compressed(lambda sent: {name: t.repeat(9) for name, t in sent.items()}),
        "places is torch.int32 [",
    ),
    "places of another type": (compressed(lambda sent: {**sent, "places": sent["places"].long()}), "torch.int64"),
    "NaN": (compressed(put("values", 0, math.nan)), "NaN"),
    "a value of no norm": (compressed(put("values", slice(None), 3.4e38)), "norm is infinite"),
    "text for values": (compressed(lambda sent: {**sent, "values": "x"}), "compressed of the answer"),
    "no payload": (compressed(lambda sent: {}), "it has the parts [], and TopK sends"),
    "nothing compressed": ({}, "is compressed on one side alone"),
    "an unknown parameter": (saying(compressed={"colour": {}}), "is compressed on one side alone"),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:client .* is left out of round 0:UserWarning")
def test_compressed_updates_that_no_client_sends_are_left_out(tmp_path):
    nodes = [Scripted(name, **how) for name, (how, _) in COMPRESSED.items()]
    rule = {"class_path": "fedgen.federated.compression.TopK"}
    honest_one = Scripted("an honest one", **compressed(lambda sent: sent))
    found = run(tmp_path, [honest_one, *nodes], compression=rule)
    left_out = {one["name"]: one["reason"] for one in found["fedavg"]["left_out"]}
    assert left_out.keys() == COMPRESSED.keys()
    for name, (_, reason) in COMPRESSED.items():
        assert reason in left_out[name], name


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:client .* is left out of round 0:UserWarning")
def test_compressed_updates_are_left_out_where_the_recipe_has_none(tmp_path):
    found = run(tmp_path, [Scripted("an honest one"), Scripted("b", **compressed(lambda sent: sent))])
    assert [one["name"] for one in found["fedavg"]["left_out"]] == ["b"]
