"""The faults that `python -m benchmarks.which_embedding` gives to images, and what it says of them."""

import pytest
import torch

from benchmarks.which_embedding import blurred, copied, kept, main, measure, noisy, rises, row
from fedgen.data import Examples
from fedgen.embeddings import load_embedding


def test_a_point_is_blurred_to_its_neighbours_and_an_even_image_stays():
    point = torch.zeros(1, 1, 5, 5, dtype=torch.uint8)
    point[0, 0, 2, 2] = 64
    assert blurred(point)[0, 0, 1:4, 1:4].tolist() == [[1, 6, 1], [6, 36, 6], [1, 6, 1]]  # 64 times 1, 6, 1 over 8
    even = torch.full((2, 3, 4, 6), 200, dtype=torch.uint8)
    assert torch.equal(blurred(even), even)


def test_channels_and_images_are_blurred_on_their_own():
    images = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    images[1, 2] = 255
    assert torch.equal(blurred(images), images)


def test_noise_has_its_deviation_and_is_cut_off_at_black():
    grey = torch.full((1, 1, 100, 100), 128, dtype=torch.uint8)
    levels = noisy(grey, torch.Generator().manual_seed(0)).double()
    assert levels.mean() == pytest.approx(128, abs=0.3)
    assert levels.std() == pytest.approx(8, abs=0.3)
    black = noisy(torch.zeros_like(grey), torch.Generator().manual_seed(0))
    assert (black == 0).double().mean() == pytest.approx(0.525, abs=0.03)  # noise below half a level: Phi(1 / 16)
    assert black.max() < 50
    assert torch.equal(noisy(grey, torch.Generator(), 0), grey)


def test_the_group_nearest_to_a_tenth_is_left_out_then_the_second():
    groups = torch.tensor([0] * 7 + [1] + [4] * 2)  # shares 0.7, 0.1 and 0.2
    assert kept(groups, 0).tolist() == [0, 1, 2, 3, 4, 5, 6, 8, 9]
    assert kept(groups, 1).tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert kept(groups, 2).tolist() == kept(groups, 0).tolist()  # that farthest from it stays


def test_a_fifth_becomes_copies_of_the_first_ten():
    places = copied(60)
    assert places.tolist() == [*range(48), *range(10), 0, 1]


def test_no_fault_is_no_rise_and_a_large_one_is_many_errors():
    draws = torch.Generator().manual_seed(0)
    real, floor = torch.randn(2, 100, 4, generator=draws)
    found = rises(real, floor, {"none": floor, "moved": floor + 2})
    assert found["none"] == 0
    assert found["moved"] > 5


def test_all_faults_are_measured_in_three_draws_and_no_class_is_left_out_of_one():
    images = torch.randint(0, 256, (40, 1, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    labelled = Examples(images, torch.arange(40) % 4, "noise/train", tuple("abcd"))
    found = measure(load_embedding("pixels"), labelled, 1000)
    assert {name: len(values) for name, values in found.items()} == {
        "blur": 3, "noise": 3, "class left out": 3, "copies": 3
    }  # fmt: skip
    alike = Examples(images, torch.zeros(40, dtype=torch.int64), "noise/train", ())
    assert set(measure(load_embedding("pixels"), alike, 10)) == {"blur", "noise", "copies"}


def test_what_every_draw_sees_is_bold():
    found = {"blur": [3.0, 5.0, 4.0], "noise": [2.9, 9.0, 9.0], "copies": [-1.0, 0.0, 1.0]}
    assert row("digits", "pixels", found) == "| digits | pixels | **4.0** | 7.0 |  | 0.0 |"


def test_images_of_a_folder_are_measured(tmp_path, capsys):
    from PIL import Image

    for place in range(8):
        folder = tmp_path / "ab"[place % 2]
        folder.mkdir(exist_ok=True)
        Image.new("L", (4, 4), 30 * place).save(folder / f"{place}.png")
    assert main(["--folder", str(tmp_path), "--channels", "1", "--embeddings", "pixels"]) == 0
    *figures, head, _, last = capsys.readouterr().out.splitlines()
    assert len(figures) == 4
    assert head == "| data | embedding | blur | noise | class left out | copies |"
    assert last.startswith("| own | pixels |")
