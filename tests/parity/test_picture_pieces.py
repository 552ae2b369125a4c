"""Pieces of pictures are transformers', and so is what stands for them in texts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from processors import LFM2_VISION, in_grid, pieces, tiles, whole
from towers import GEMMA4_PIXELS, IMAGE, SIZE, picture
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

from edgespec import bundle
from edgespec.errors import InputError
from edgespec.runtime.vision import cut_picture, looked_at, normalized, picture_text, rows_of

SPLITTING = bundle.Vision(
    SIZE, 2 * SIZE, True, (0.5, 0.4, 0.3), (0.5, 0.25, 0.2), 1, "graph", "data", IMAGE, 4
)


@pytest.mark.parametrize(
    "size", [(64, 64), (200, 90), (31, 77), (5, 400), (1000, 1), (32, 32), (3, 3), (65, 33)]
)
@pytest.mark.parametrize("split", [True, False])
def test_pieces_are_those_of_transformers(size, split):
    vision = replace(SPLITTING, split=split)
    given = picture(*size)
    expected, rows, columns = pieces(given, do_image_splitting=split)
    seen = cut_picture(given, vision)
    found = np.concatenate([normalized(each, vision) for each in seen.pieces])
    np.testing.assert_allclose(found, expected, atol=1e-5)
    text = get_image_prompt_string(
        rows, columns, vision.rows, "<fake_token_around_image>", "<image>", "<global-img>"
    )
    assert picture_text(seen, vision, lambda _: "<image>") == text


@pytest.mark.parametrize("size", [(64, 64), (200, 90), (31, 77), (3, 3)])
def test_whole_pictures_are_those_of_transformers(size):
    vision = replace(SPLITTING, longest=0, split=False, around=(336, 337), resample=2)
    expected = whole([picture(*size)])
    seen = cut_picture(picture(*size), vision)
    np.testing.assert_allclose(normalized(seen.pieces[0], vision), expected, atol=1e-5)
    text = picture_text(seen, vision, {IMAGE: "i", 336: "(", 337: ")"}.__getitem__)
    assert text == "\n\n(iiii)\n\n"


@pytest.mark.parametrize(
    "size",
    [(64, 64), (84, 120), (200, 90), (31, 77), (5, 400), (3000, 1), (1, 3000), (1, 1), (850, 12)],
)
@pytest.mark.parametrize("normalizes", [False, True])
def test_pictures_that_keep_their_proportions_are_those_of_transformers(size, normalizes):
    colours = [0.5, 0.4, 0.3], [0.5, 0.25, 0.2]
    own = {"image_mean": colours[0], "image_std": colours[1], "do_normalize": normalizes}
    found = Gemma4ImageProcessorPil(**GEMMA4_PIXELS, **own)([[picture(*size)]])
    pixels, places, [count] = found.values()
    vision = bundle.Vision(
        12,
        0,
        False,
        *(colours if normalizes else ((0.0,) * 3, (1.0,) * 3)),
        3,
        "graph",
        "data",
        IMAGE,
        70,
        (336, 337),
        patch=4,
    )
    seen = cut_picture(picture(*size), vision)
    assert vision.fewest <= rows_of(seen, vision) == count <= 70
    inputs = looked_at(seen.pieces[0], vision)
    order = np.lexsort(inputs[bundle.PLACES].T)
    np.testing.assert_array_equal(inputs[bundle.PLACES][order], places[0][: 9 * count])
    np.testing.assert_allclose(inputs[bundle.PIXELS][order], pixels[0][: 9 * count], atol=1e-5)
    squares = inputs[bundle.PLACES].reshape(count, 9, 2) // 3
    np.testing.assert_array_equal(squares, np.broadcast_to(squares[:, :1], squares.shape))
    text = picture_text(seen, vision, {IMAGE: "i", 336: "(", 337: ")"}.__getitem__)
    assert text == f"({'i' * count})"


@pytest.mark.parametrize(
    "size", [(64, 64), (200, 90), (31, 77), (2, 399), (300, 2), (3, 3), (65, 33), (52, 40)]
)
def test_pictures_of_any_size_are_those_of_transformers(size):
    vision = replace(SPLITTING, size=10, grid=bundle.PixelGrid(400, 3000, (3, 3), 2), resample=3)
    found = in_grid([[picture(*size)]])
    [[_, lines, columns]] = np.array(found["image_grid_thw"])
    squares = np.array(found["pixel_values"]).reshape(lines // 2, columns // 2, 2, 2, 3, 2, 5, 5)
    expected = squares[..., 0, :, :].transpose(4, 0, 2, 5, 1, 3, 6).reshape(3, 5 * lines, -1)
    seen = cut_picture(picture(*size), vision)
    np.testing.assert_allclose(normalized(seen.pieces[0], vision)[0], expected, atol=1e-5)
    assert seen.grid == (lines // 2, columns // 2)
    assert picture_text(seen, vision, lambda _: "i") == "i" * (lines * columns // 4)


@pytest.mark.parametrize(
    "size", [(64, 64), (200, 90), (31, 77), (5, 400), (60, 20), (41, 19), (20, 20), (3, 3)]
)
def test_squares_by_proportions_are_those_of_transformers(size):
    cut = bundle.PictureTiles(20, 1, 4, 0.0, "(", ")", "", "")
    vision = replace(SPLITTING, size=20, tiles=cut, resample=3)
    expected, [count] = tiles([picture(*size)])
    seen = cut_picture(picture(*size), vision)
    found = np.concatenate([normalized(each, vision) for each in seen.pieces])
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert rows_of(seen, vision) == 4 * count
    assert picture_text(seen, vision, lambda _: "i") == f"({'iiii' * count})"


@pytest.mark.parametrize(
    ("size", "squares", "whole"),
    [
        ((64, 64), (2, 2), (3, 3)),
        ((200, 90), (1, 2), (2, 5)),
        ((100, 33), (1, 3), (1, 6)),
        ((49, 49), (2, 2), (3, 3)),
        ((31, 77), (0, 0), (5, 2)),
        ((60, 20), (0, 0), (2, 6)),
        ((40, 32), (0, 0), (3, 4)),
        ((3, 3), (0, 0), (2, 2)),
    ],
)
def test_small_pictures_are_not_cut_into_squares(size, squares, whole):
    """What transformers' functions gave, whose module needs torchvision."""
    seen = cut_picture(picture(*size), LFM2_VISION)
    assert seen.grid == squares
    *parts, last = seen.pieces
    assert [each.shape for each in parts] == [(20, 20, 3)] * (squares[0] * squares[1])
    assert last.shape == (whole[0] * 10, whole[1] * 10, 3)
    marks = [f"{row}iiii" for row in range(1, squares[0] + 1) for _ in range(1, squares[1] + 1)]
    text = "".join(marks) + "w" * bool(parts) + "i" * (whole[0] * whole[1])
    found = picture_text(seen, LFM2_VISION, lambda _: "i")
    assert found == f"<|image_start|>{text}<|image_end|>"


def test_a_picture_that_is_all_but_a_line_is_refused():
    vision = replace(SPLITTING, grid=bundle.PixelGrid(400, 3000, (3, 3), 2))
    with pytest.raises(InputError, match="300 x 1 pixels: give one whose sides differ by a"):
        cut_picture(picture(300, 1), vision)
