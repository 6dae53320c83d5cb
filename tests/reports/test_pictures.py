"""Pictures as data URIs within a page's room."""

import torch

from fedgen.images import save_png
from fedgen.reports.contents import Pictures, fitting


def test_samples_come_by_round_and_what_is_no_picture_is_named(tmp_path):
    for name in ("round=00010.png", "round=00002.png", "before.png"):
        save_png(tmp_path / "samples" / name, torch.zeros(1, 4, 4, dtype=torch.uint8))
    (tmp_path / "samples" / "round=00011.png").write_bytes(b"<svg onload=alert(1)>")
    (tmp_path / "samples" / "x.png").write_bytes(b"")
    found, remarks = Pictures().samples(tmp_path)
    assert [one.name for one in found] == ["before training", "round 2", "round 10"]
    assert all(one.uri.startswith("data:image/png;base64,iVBOR") for one in found)
    assert remarks == ["round=00011.png is not a PNG that can be shown"]


def test_large_samples_are_compressed_and_then_thinned_to_the_last(tmp_path):
    draws = torch.Generator().manual_seed(0)
    for round in range(6):
        noise = torch.randint(0, 256, (3, 64, 64), dtype=torch.uint8, generator=draws)
        save_png(tmp_path / "samples" / f"round={round:05d}.png", noise)
    found, remarks = Pictures(most=20_000).samples(tmp_path)
    assert sum(len(one.uri) for one in found) <= 20_000
    assert found[-1].round == 5
    assert 1 < len(found) < 6
    assert all(one.uri.startswith("data:image/jpeg;base64,") for one in found)
    assert remarks[0].startswith("samples are compressed")
    assert remarks[1].startswith(f"samples of {len(found)} of 6 rounds")


def test_pictures_are_kept_where_they_are_compressed_alone(tmp_path):
    """A run that trains writes its page again and again, of more and more pictures: memory must not grow by them."""
    noise = torch.randint(0, 256, (3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    save_png(tmp_path / "samples" / "round=00000.png", noise)
    for pictures, are_kept in ((Pictures(), False), (Pictures(most=12_000), True)):
        first, again = (pictures.samples(tmp_path)[0][0].uri for _ in range(2))
        assert first.startswith(f"data:image/{'jpeg' if are_kept else 'png'};base64,")
        assert first == again
        assert (first is again) == are_kept


def test_what_fits_is_evenly_spaced():
    assert fitting([10] * 6, 60) == [0, 1, 2, 3, 4, 5]
    assert fitting([10] * 6, 30) == [1, 3, 5]
    assert fitting([10], 5) == []
