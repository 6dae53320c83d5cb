"""Doublings that make an image's side of a small base."""


def count_doublings(image_size: int) -> int:
    """Count how often 4x4 or more must double to reach the size: 3 for 32 (from 4), 2 for 28 (from 7), 4 for 64 (from
    4).

    Raises:
        ValueError: if the size is below 8 or not a multiple of 4.
    """
    if image_size < 8 or image_size % 4:
        raise ValueError(f"image_size must be a multiple of 4 from 8 (8, 16, 28, 32, 64, ...), got {image_size}")
    doublings = 0
    while image_size % 2 == 0 and image_size >= 8:
        image_size //= 2
        doublings += 1
    return doublings
