"""A masked round that is done again has the same clients in its sum: the difference of two sums is an update."""

import json
import shutil

import pytest
import torch

from fedgen.flower.app.app_sides import run_server
from fedgen.flower.app.apps import client_app
from fedgen.flower.secure_aggregation.secure_strategy import SUMMED, MaskedRoundError, MaskedRounds
from tests.flower.loopback import Loopback, Node
from tests.flower.runs import HIDDEN, app_of, read, recipe, write_images


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("clients"), {"a": 12, "b": 25, "c": 16})


class Masked:
    """A masked federation of three clients, which starts again from any round's checkpoint with any of them."""

    def __init__(self, images, folder):
        self.images, self.folder, self.output = images, folder, folder / "run"

    def run(self, names="abc", rounds=2):
        """Trains up to so many rounds; the last checkpoint, of which a copy is kept."""
        self.path = app_of(recipe(rounds, client_weights="uniform"), self.folder / f"app-{rounds}", 3)
        run = {"clients": len(names), "output": str(self.output), "wait": 0.5, **HIDDEN}
        nodes = {}
        for number, name in enumerate("abc", 10):
            if name in names:
                own = {"data-path": str(self.images / name), "state-path": str(self.folder / name)}
                nodes[number] = Node(client_app(self.path), own, run)
        run_server(self.path, Loopback(nodes), run)
        shutil.copy(self.output / "last.ckpt", self.folder / f"{rounds}.ckpt")
        return read(self.output)

    def go_back(self):
        """Puts the first round's checkpoint in the last one's place."""
        shutil.copy(self.folder / "1.ckpt", self.output / "last.ckpt")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:c did not come within:UserWarning", "ignore:.*left out:UserWarning")
@pytest.mark.filterwarnings("ignore:nothing came from any:UserWarning")
def test_a_client_that_leaves_before_a_round_is_done_again_ends_the_run_by_name(images, tmp_path):
    """Else the difference of the two checkpoints of that round would be its update."""
    masked = Masked(images, tmp_path)
    before = masked.run(rounds=1)
    whole = masked.run()
    masked.go_back()
    assert json.loads((masked.output / SUMMED).read_text()) == {"0": list("abc"), "1": list("abc")}
    with pytest.raises(MaskedRoundError, match="summed"):
        masked.run("ab")
    # a server that forgets who was summed gets no sum of others: each client has kept it, and helps unmask no other
    (masked.output / SUMMED).unlink()
    with pytest.raises(RuntimeError, match="summed"):
        masked.run("ab")
    assert all(torch.equal(read(masked.output)["state_dict"][n], t) for n, t in before["state_dict"].items())
    again = masked.run()  # with all of them it goes on
    step = 2 * 0.5 / 2**22
    for name, tensor in whole["state_dict"].items():
        torch.testing.assert_close(again["state_dict"][name], tensor, rtol=0, atol=6 * step)


@pytest.mark.parametrize("content", [[1], {"0": "a"}, {"0": [3]}], ids=str)
def test_a_damaged_record_of_who_was_summed_is_refused(content, tmp_path):
    (tmp_path / SUMMED).write_text(json.dumps(content))
    with pytest.raises(ValueError, match="nobody"):
        MaskedRounds(tmp_path)
