"""What training keeps for its page, and the page at its end."""

import pytest
import torch
from torchvision.io import read_image

from fedgen.callbacks import FederatedEvaluation
from fedgen.callbacks.federated_evaluation import keep
from fedgen.evaluation.splits import Split
from fedgen.reports.contents import read_kept
from tests.callbacks.modules import evaluation, fit
from tests.federated.modules import make_data


def test_clients_their_labels_and_some_of_their_images_are_kept(tmp_path):
    images = torch.arange(25, dtype=torch.uint8).view(25, 1, 1, 1).expand(25, 1, 8, 8).contiguous()
    names = tuple(f"c{k}" for k in range(12))
    split = Split("train", images, (2,) * 11 + (3,), "toy", client_names=names)
    data = make_data(held_out=0.25)
    keep(tmp_path, data, [split])
    found = read_kept(tmp_path)
    assert [one["name"] for one in found.clients] == [client.name for client in data.clients]
    assert [one["train"] for one in found.clients] == [len(client.train) for client in data.clients]
    assert set(found.versions) == {"fedgen", "python", "torch", "lightning", "numpy"}
    assert found.real == ["c0", "c1", "c2", "c4", "c5", "c6", "c7", "c9", "c10", "c11"]  # ten of twelve, both ends
    picture = read_image(str(tmp_path / "real.png"))
    assert picture.shape == (1, 10 * 34, 10 * 34)  # rows and columns of 8 pixels, enlarged to 32, with a margin
    assert picture[0, 5, [5, 39, 73]].tolist() == [0, 1, 255]  # two images of the first client, then white
    assert picture[0, 9 * 34 + 5, [5, 39, 73]].tolist() == [22, 23, 24]


def test_of_clients_elsewhere_and_of_points_no_picture_is_kept(tmp_path):
    keep(tmp_path, object(), ())
    assert read_kept(tmp_path).clients == []
    points = Split("train", torch.zeros(4, 3), (2, 2), "toy")
    keep(tmp_path, object(), [points])
    assert read_kept(tmp_path).real == []
    assert not (tmp_path / "real.png").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("blank_curves")
def test_a_run_in_python_leaves_a_page_and_says_where(tmp_path, capsys):
    fit(tmp_path, 2, [evaluation(report=True, page=True)])
    page = (tmp_path / "report.html").read_text()
    assert "Both prefer round 1" in page or "Round 1, the only one scored" in page
    assert 'id="live"' not in page
    assert f"report: {tmp_path / 'report.html'}" in capsys.readouterr().out.replace("\n", "")
    assert (tmp_path / "federation.json").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("blank_curves")
@pytest.mark.parametrize(("options", "left"), [({"page": False}, False), ({"report": False}, True)])
def test_the_page_can_be_turned_off_and_silent_runs_have_one(tmp_path, capsys, options, left):
    fit(tmp_path, 2, [evaluation(**{"report": True, "page": True, **options})])
    assert (tmp_path / "report.html").exists() == (tmp_path / "federation.json").exists() == left
    assert "report.html" not in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("blank_curves")
def test_an_evaluation_rewrites_the_page_while_training_goes_on(tmp_path):
    written = []

    class Watched(FederatedEvaluation):
        def on_train_epoch_start(self, trainer, pl_module):
            written.append((tmp_path / "report.html").exists())

    fit(tmp_path, 3, [Watched(every_n_rounds=1, embeddings=["identity"], num_images=40)])
    assert written == [False, True, True]
