"""Trees as arrays: worked out by hand, read by name, and never trusted before they are checked."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from predictor.features.columns import COLUMNS
from predictor.graph.ops import TOKENS
from predictor.nn.boosted_trees import LEAF, RATIO_LIMIT, TreeArrays, trees_of

TOKEN_INPUT = len(COLUMNS)


def stored(**changes: torch.Tensor) -> dict[str, torch.Tensor]:
    """Two trees: column 0 at 0.5 (0.1, 0.2), and the token's number at 3 (1, 2); begins with 5."""
    return {
        "trees.feature_S": torch.tensor([0, LEAF, LEAF, TOKEN_INPUT, LEAF, LEAF]),
        "trees.threshold_S": torch.tensor([0.5, 0, 0, 3.0, 0, 0], dtype=torch.float64),
        "trees.left_S": torch.tensor([1, 0, 0, 4, 0, 0]),
        "trees.right_S": torch.tensor([2, 0, 0, 5, 0, 0]),
        "trees.value_S": torch.tensor([0, 0.1, 0.2, 0, 1.0, 2.0], dtype=torch.float64),
        "trees.root_B": torch.tensor([0, 3]),
        "trees.start": torch.tensor([5.0], dtype=torch.float64),
        **{f"trees.{name}": tensor for name, tensor in changes.items()},
    }


def answer(tensors: dict[str, torch.Tensor], x: float, token: int, **names: object) -> float:
    trees = trees_of(tensors, ("nvidia-t4",), **names)  # type: ignore[arg-type]
    row = torch.zeros(1, len(COLUMNS))
    row[0, 0] = x
    none = torch.zeros(1)
    found = trees.log_ratio(row, torch.tensor([token]), torch.zeros(2, 0), none, none)
    assert found.shape == (1, 3)
    assert found[0, 0] == found[0, 1] == found[0, 2]
    return float(found[0, 1])


@pytest.mark.parametrize(
    ("x", "token", "expected"), [(0.5, 3, 6.1), (0.6, 3, 6.2), (0.5, 4, 7.1), (0.6, 4, 7.2)]
)
def test_sums_by_hand(x: float, token: int, expected: float) -> None:
    assert answer(stored(), x, token) == pytest.approx(expected)


def test_an_answer_has_a_limit() -> None:
    assert answer(stored(start=torch.tensor([50.0])), 0.0, 0) == RATIO_LIMIT


def test_columns_and_tokens_of_another_order_are_read_by_name() -> None:
    columns, tokens = list(reversed(COLUMNS)), list(reversed(TOKENS))
    arrays = stored(feature_S=torch.tensor([TOKEN_INPUT - 1, LEAF, LEAF, TOKEN_INPUT, LEAF, LEAF]))
    last = len(TOKENS) - 1  # number 0 of the release
    assert answer(arrays, 0.6, last, columns=columns, tokens=tokens) == pytest.approx(6.2)
    assert answer(arrays, 0.6, 0, columns=columns, tokens=tokens) == pytest.approx(7.2)


def test_many_rows_are_answered_like_one() -> None:
    trees = trees_of(stored(), ()).trees
    x = np.zeros((20_000, len(COLUMNS) + 1), dtype=np.float32)
    x[::2, 0] = 1.0
    found = trees.sums(x)
    assert np.allclose(found[::2], 6.2)
    assert np.allclose(found[1::2], 6.1)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"root_B": torch.tensor([0, 6])}, "root_B leads out"),
        ({"left_S": torch.tensor([0, 0, 0, 4, 0, 0])}, "left_S leads out of the trees or in a"),
        ({"right_S": torch.tensor([9, 0, 0, 5, 0, 0])}, "right_S leads out of the trees"),
        ({"feature_S": torch.tensor([999, -1, -1, 0, -1, -1])}, "feature_S names an input"),
        ({"feature_S": torch.tensor([-2, -1, -1, 0, -1, -1])}, "feature_S names an input"),
        ({"feature_S": torch.zeros(6)}, r"feature_S holds torch.float32"),
        ({"value_S": torch.zeros(5)}, "value_S does not hold a number for every node"),
        ({"value_S": torch.zeros(6, 1)}, "value_S is missing or no list"),
        ({"start": torch.zeros(2)}, "start is not one number"),
    ],
)
def test_damaged_trees_are_refused(changes: dict[str, torch.Tensor], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        trees_of(stored(**changes), ())


def test_a_missing_array_is_refused() -> None:
    tensors = stored()
    del tensors["trees.left_S"]
    with pytest.raises(ValueError, match="left_S is missing"):
        trees_of(tensors, ())


def test_no_tree_answers_the_start() -> None:
    none = np.zeros(0, dtype=np.int32)
    trees = TreeArrays(
        feature_S=none, threshold_S=np.zeros(0), left_S=none, right_S=none, value_S=np.zeros(0),
        root_B=none, start=np.array([0.25]),
    )  # fmt: skip
    assert trees.sums(np.zeros((2, 1), dtype=np.float32)).tolist() == [0.25, 0.25]
