"""A recipe on a real SuperLink and SuperNodes: TLS, authenticated nodes, each client's folder its own."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from fedgen.evaluation import read_records
from tests.flower.federation import EAGER, Federation, wait_for
from tests.flower.runs import app_of, read, recipe, same_weights, scores_of, simulate, write_images

SCORES = {"every_n_rounds": 10, "num_images": 60, "embeddings": ["pixels"]}
ADAM = {"class_path": "fedgen.federated.FedAdam", "init_args": {"lr": 0.01}}
VARIANT = {"cohort_size": 2, "personal": ["critic.*"], "optimizer_state": "keep", "server_optimizer": ADAM}


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("clients"), {"a": 12, "b": 25, "c": 16})


@pytest.fixture(scope="module")
def federation(images, tmp_path_factory):
    folder = tmp_path_factory.mktemp("federation")
    with Federation(folder, {name: images / name for name in "abc"}, dict.fromkeys("abc", EAGER)) as running:
        yield running


def app(rounds, folder, evaluation=None, **strategy):
    """The folder of a recipe's app."""
    return app_of(recipe(rounds, evaluation, **strategy), folder, 3).parent.parent


@pytest.mark.slow
def test_a_deployed_recipe_is_its_simulation_and_goes_on(federation, images, tmp_path):
    straight = simulate(recipe(2, SCORES, **VARIANT), images, tmp_path / "simulated")
    output, workers = str(tmp_path / "run"), {name: federation.log(name).count("a worker answers") for name in "abc"}
    federation.run(app(1, tmp_path / "one", SCORES, **VARIANT), output=output)
    said = federation.run(app(2, tmp_path / "two", SCORES, **VARIANT), output=output)
    assert "3 clients: a, b, c" in said, said[-3000:]
    assert "after round 0 (1 done)" in " ".join(said.split())
    for name, before in workers.items():  # one process for all messages of a run
        assert federation.log(name).count("a worker answers") == before + 2
    # a and c trained in the first round, a and b in the second: the server's moments went on from other clients' round
    assert read(tmp_path / "run")["fedavg"]["iterations"] == {0: 6, 1: 3, 2: 3}
    same_weights(straight, read(tmp_path / "run"))
    found = [
        {(r.split, r.name): r.value for r in read_records(tmp_path / run / "scores.jsonl") if r.round == 1}
        for run in ("simulated", "run")
    ]
    assert found[0].keys() == found[1].keys()
    for (split, name), value in found[0].items():
        assert found[1][split, name] == pytest.approx(value, rel=1e-2 if name == "kid_all" else 1e-4), (split, name)


@pytest.mark.slow
def test_weights_and_what_clients_say_of_images_are_summed_under_masks(federation, images, tmp_path):
    """A step of the weights is 2^-22 of the range 0.5, for each of three clients."""
    told = {"secure-aggregation": True, "update-range": 0.5}
    scores = {**SCORES, "every_n_rounds": 1, "scores": ["fid"]}
    said = federation.run(app(1, tmp_path / "app", scores), output=str(tmp_path / "run"), **told)
    found = read(tmp_path / "run")
    assert found["fedavg"]["left_out"] == [], said[-3000:]
    simulated = simulate(recipe(1, scores), images, tmp_path / "simulated")
    same_weights(simulated, found, atol=6 * 2 * 0.5 / 2**22, interval=3)
    values, expected = (scores_of(tmp_path / run) for run in ("run", "simulated"))
    assert {name for _, name in values} == {"fid_avg", "fid_all"}
    assert values == pytest.approx({key: expected[key] for key in values}, rel=1e-3)


@pytest.mark.slow
def test_a_node_that_vanishes_in_a_round_is_left_out_and_may_come_back(federation, tmp_path):
    output = tmp_path / "run"
    before = federation.log("b").count("Receiving: train message")
    options = {"output": str(output), "round-deadline": 40.0}
    with ThreadPoolExecutor() as pool:
        run = pool.submit(federation.run, app(2, tmp_path / "app"), timeout=600, **options)
        wait_for(lambda: run.done() or federation.log("b").count("Receiving: train message") > before)
        federation.kill("b")
        wait_for(lambda: run.done() or (output / "last.ckpt").exists())
        federation.start_node("b", *EAGER)
        run.result(timeout=600)
    left_out = read(output)["fedavg"]["left_out"]
    assert {one["name"] for one in left_out} == {"b"}
    assert left_out[0]["round"] == 0
    assert read(output)["epoch"] == 1
    assert read(output)["fedavg"]["iterations"][0] == 2 * 3


@pytest.mark.slow
def test_a_node_whose_key_is_not_registered_is_refused(federation, images):
    federation.clients["stranger"] = images / "a"
    try:
        federation.make_key("stranger")
        federation.start_node("stranger")
        wait_for(lambda: "stranger" not in federation.processes or federation.processes["stranger"].poll() is not None)
        assert federation.processes["stranger"].returncode != 0
    finally:
        federation.kill("stranger")
        del federation.clients["stranger"]


@pytest.mark.slow
def test_a_node_that_says_only_which_client_it_is_takes_no_folder_from_the_run(tmp_path):
    """By the keys that Flower's simulation sets, on a real SuperNode: the server names a folder on the node's disk."""
    images = write_images(tmp_path / "clients", {"a": 12, "b": 25})
    with Federation(tmp_path, {"a": {"partition-id": 0, "num-partitions": 2, "name": None}}) as running:
        told = {"clients": 1, "wait": 40, "output": str(tmp_path / "run"), "simulation-data": str(images)}
        said = " ".join(running.run(app(1, tmp_path / "app"), **told).split())
    assert "this node's config does not say where its data lie" in said, said[-900:]
    assert not (tmp_path / "run" / "last.ckpt").exists()
    assert not list(images.glob(".*"))  # what a client keeps between turns
