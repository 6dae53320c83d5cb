"""One client that sends what it should not costs the others nothing: it is left out by name, and the run goes on."""

import io
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord

from fedgen.deploy.apps import run_server
from fedgen.deploy.messages import VERSION, Answer, pack
from fedgen.deploy.payload import to_bytes
from fedgen.deploy.secure_strategy import SecureStrategy
from tests.deploy.loopback import Loopback
from tests.deploy.runs import app_of, read, recipe
from tests.deploy.scripted import Scripted, honest


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


def raw(**parts):
    """The bytes of an answer with other fields, such as `to_bytes` never writes."""
    file, whole = io.BytesIO(), {"version": VERSION, "examples": 16, "iterations": 3, "told": [], "metrics": {}}
    torch.save({**whole, "failure": "", **parts}, file)
    return file.getvalue()


def deflated(content):
    """The archive with its parts compressed."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    return file.getvalue()


def circle():
    found = []
    found.append(found)
    return found


SQUARE = ("exp_avg_sq", torch.tensor(-1.0))
DEEP = b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 65535
FAULTS = {
    "text for a metric": (saying(metrics={"loss": "x"}), "metrics of the answer is {'loss': 'x'}, which no answer has"),
    "a list for metrics": (saying(metrics=[1]), "metrics of the answer is [1]"),
    "no metrics": (saying(metrics=None), "metrics of the answer is None"),
    "half a surrogate": (saying(metrics={"\ud800": 1.0}), "metrics of the answer"),
    "a metric of many digits": (saying(metrics={"loss": 10**5000}), "the answer cannot be read"),
    "a metric of a terminal": (saying(metrics={"\x1b[2J": 1.0}), "under names of 1 to 200 printable characters"),
    "a metric without a name": (saying(metrics={"": 1.0}), "under names of 1 to 200 printable characters"),
    "a thousand metrics and one": (
        saying(metrics=dict.fromkeys(map(str, range(1001)), 1.0)),
        "its steps logged 1001 values, of which 1000 are taken",
    ),
    "a failure of a terminal": (saying(failure="\x1b[2Jgone\x07" + "x" * 10**6), r"MessageError: \x1b[2Jgone\x07xxx"),
    "iterations beyond a count": (saying(iterations=2**70), f"iterations of the answer is {2**70}"),
    "iterations and a half": (saying(iterations=1.5), "iterations of the answer is 1.5"),
    "no iterations": (saying(iterations=True), "iterations of the answer is True"),
    "negative examples": (saying(examples=-3), "examples of the answer is -3"),
    "a number for a failure": (saying(failure=3), "failure of the answer is 3"),
    "nothing told": (saying(told=None), "told of the answer is None"),
    "told in circles": (packed(raw(told=circle())), "the answer cannot be read"),
    "told too little": (saying(told=[]), "what it tells beside its weights cannot be read"),
    "an archive for an array": (holding(b"PK\x03\x04"), "no fedgen message"),
    "no bytes for an array": (holding(b""), "no fedgen message"),
    "a huge array": (holding(header((2**44,))), "has 0 bytes, not 70368744177664"),
    "an array of objects": (holding(header((1,)).replace(b"<f4", b"|O8")), "no fedgen message"),
    "a deep header": (holding(DEEP), "has a damaged header"),
    "bytes that are no message": (packed(b"PK"), "the answer cannot be read"),
    "no bytes": (packed(b""), "the answer cannot be read"),
    "a list of parts": (packed(to_bytes([1])), "it has no named parts"),
    "an unknown part": (packed(to_bytes({"version": VERSION, "colour": 3})), "unexpected keyword argument 'colour'"),
    "another version": (packed(to_bytes({"version": True})), "of version True"),
    "more numbers than there are": (
        packed(raw(told=[torch.zeros(1).expand(2**44)])),
        "its tensors are of more numbers than there are",
    ),
    "a compressed part": (packed(deflated(raw())), "is compressed"),
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


CUTS = {"text": "x", "a list": [1], "more than all": 7.0, "none": None, "not a number": float("nan"), "a count": 1}


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS.keys())
def test_a_share_that_was_cut_off_is_one(cut):
    strategy, server = SecureStrategy(), {"a": torch.zeros(2)}
    strategy.range = 1.0
    _, answer = pack(Answer(examples=3, iterations=3))
    opened = strategy._opened("a", to_bytes({"answer": answer, "cut": 0.0}), [np.zeros(2)], server)
    assert torch.equal(opened.weights["a"], server["a"])
    said = strategy._opened("a", to_bytes({"answer": answer, "cut": cut}), [np.zeros(2)], server)
    assert "of its update was cut off, and a share lies in [0, 1]" in said


@pytest.mark.parametrize(
    "rest", [b"", b"PK", to_bytes([1]), to_bytes({"cut": 0.0}), to_bytes({"answer": 3, "cut": 0.0})]
)
def test_what_is_told_beside_a_masked_sum_may_be_anything(rest):
    assert isinstance(SecureStrategy()._opened("a", rest, [], {}), str)
