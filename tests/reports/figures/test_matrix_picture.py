"""The cross-client matrix as a picture."""

import pytest
import torch
from matplotlib.image import imread

from fedgen.evaluation import ClientMatrix
from fedgen.reports.figures import curves
from fedgen.reports.figures.curves import draw_matrices


def make(count, score="fid", split="train", higher=False, name="client"):
    values = torch.rand(count, count, generator=torch.Generator().manual_seed(0)).double() + 1 - torch.eye(count) * 0.9
    names = tuple(f"{name} {number}" for number in range(count))
    told = f"digits/{split}, {count} clients", names, names, values, values / 20
    return ClientMatrix(score, split, "pixels", *told, higher, 100, 3)


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are saved."""
    figures = []
    save = curves.save_picture
    monkeypatch.setattr(curves, "save_picture", lambda figure, path: figures.append(figure) or save(figure, path))
    return figures


@pytest.mark.slow
def test_each_score_and_split_has_a_panel_with_its_values(tmp_path, drawn):
    matrices = [make(3, score, split) for split in ("train", "report") for score in ("fid", "kid")]
    path = draw_matrices(matrices, tmp_path / "matrix.png")
    assert imread(path).shape[0] > 600
    panels = [axes for axes in drawn[0].axes if axes.images]
    assert len(panels) == 4
    assert (panels[0].images[0].get_array() == matrices[0].values.numpy()).all()
    outlined = {(round(patch.get_y() + 0.5), round(patch.get_x() + 0.5)) for patch in panels[0].patches}
    assert outlined == {(0, 0), (1, 1), (2, 2)}
    assert len(panels[0].texts) == 9
    first = panels[0].texts[0].get_text().partition("\n")[0]
    assert float(first) == pytest.approx(float(matrices[0].values[0, 0]), abs=0.05)
    assert [label.get_text() for label in panels[0].get_yticklabels()] == ["client 0", "client 1", "client 2"]


@pytest.mark.slow
def test_of_many_clients_cells_have_no_numbers_and_axes_no_names(tmp_path, drawn):
    draw_matrices([make(50)], tmp_path / "matrix.png")
    (panel,) = [axes for axes in drawn[0].axes if axes.images]
    assert len(panel.texts) == 0
    assert panel.get_xticklabels() == []


def test_names_and_directions_are_drawn_as_they_stand(tmp_path, drawn):
    draw_matrices([make(2, "recall", higher=True, name="$a_b$")], tmp_path / "matrix.png")
    bar = drawn[0].axes[-1]
    assert bar.get_ylabel() == "Recall (higher is better)"
    with pytest.raises(ValueError, match="matrix"):
        draw_matrices([], tmp_path / "none.png")
