"""Generated images above a row of real ones, each under a heading."""

import torch

from fedgen.callbacks.federated_evaluation import sample_picture
from fedgen.evaluation.splits import Split
from fedgen.images import HEADING


def images(count, level, side=32, channels=1):
    return torch.full((count, channels, side, side), level, dtype=torch.uint8)


def test_real_images_are_a_row_of_their_own_below_the_generated_ones():
    picture = sample_picture(images(64, 40), images(64, 200))
    assert picture.shape == (1, 2 * HEADING + 9 * 34, 8 * 34)  # eight rows of eight, and one of real images
    generated, real = picture[0, HEADING : HEADING + 8 * 34], picture[0, 2 * HEADING + 8 * 34 :]
    assert set(generated.unique().tolist()) == {40, 255}
    assert set(real.unique().tolist()) == {200, 255}
    assert picture[0, :HEADING].min() < 100  # a heading is written
    assert picture[0, HEADING + 8 * 34 : 2 * HEADING + 8 * 34].min() < 100


def test_small_images_are_enlarged_and_few_make_room_for_the_heading():
    picture = sample_picture(images(4, 40, side=8, channels=3), images(4, 200, side=8, channels=3))
    assert picture.shape[:2] == (3, 2 * HEADING + 3 * 34)
    assert picture.shape[2] > 2 * 34


def test_where_real_images_are_elsewhere_there_is_no_row_of_them():
    assert sample_picture(images(4, 40), None).shape[1] == HEADING + 2 * 34


def test_real_images_are_the_clients_in_turn():
    levels = torch.tensor([0, 1, 2, 10, 11, 20, 21], dtype=torch.uint8).view(7, 1, 1, 1)
    split = Split("train", levels, (3, 2, 2), "levels")
    assert split.in_turn(5).flatten().tolist() == [0, 10, 20, 1, 11]
    assert split.in_turn(100).flatten().tolist() == [0, 10, 20, 1, 11, 21, 2]
    assert split.in_turn(2).flatten().tolist() == [0, 10]
    four = Split("train", torch.arange(8, dtype=torch.uint8).view(8, 1, 1, 1), (2, 2, 2, 2), "levels")
    assert four.in_turn(2).flatten().tolist() == [0, 4]  # of many clients some, from first to last
