"""Effects of the levels of categories that have many of them."""

import json

import numpy as np
import pytest

from deepbasis.errors import FileFormatError
from deepbasis.tables.columns import Column
from deepbasis.tables.effects import in_training, responses
from deepbasis.tables.preprocessing import Preprocessor

HASHES = np.arange(1_000)


def column(codes: np.ndarray, levels: int) -> Column:
    return Column("column 'shop'", "categorical", codes, tuple(f"shop {k:03d}" for k in range(levels)))


def fitted(codes: np.ndarray, levels: int, y: np.ndarray, weight: np.ndarray | None = None, parts: int = 5):
    columns = [column(codes, levels)]
    plain = Preprocessor.fit(["shop"], columns, weight)
    part = np.arange(len(codes)) % parts
    found, others = in_training(plain, columns, responses(y, weight), weight, part)
    return found, others, columns, part


def test_effects_are_those_of_a_balanced_random_effects_model() -> None:
    rng = np.random.default_rng(0)
    levels, n = 50, 12
    codes = np.repeat(np.arange(levels), n)
    y = rng.normal(size=levels)[codes] + 0.8 * rng.normal(size=len(codes))
    found, _, columns, _ = fitted(codes, levels, y)
    scores = responses(y, None)[:, 0]
    assert found.feature_names_out[-2:] == ["shop (effect)", "shop (known)"]
    assert found.flags == tuple(range(33))
    # The textbook: mean squares within and between levels, and the shrunken means.
    by_level = scores.reshape(levels, n)
    within = by_level.var(1, ddof=1).mean()
    between = by_level.mean(1).var(ddof=1) - within / n
    shrunken = n / (n + within / between)
    effect = shrunken * (by_level.mean(1) - scores.mean()) / np.sqrt(between)
    x = found.encoded(columns)
    np.testing.assert_allclose(x[:, -2], effect[codes], rtol=1e-10)
    np.testing.assert_allclose(x[:, -1], shrunken, rtol=1e-10)


def test_no_row_knows_its_own_target_and_new_levels_have_nothing() -> None:
    rng = np.random.default_rng(1)
    levels = 200
    codes, y = rng.integers(0, levels, 1_000), rng.normal(size=1_000)
    y += 0.3 * rng.normal(size=levels)[codes]
    found, others, columns, part = fitted(codes, levels, y)
    seen = others.crossed(columns, part, found.encoded(columns))
    # By hand, the sums of the rows of the same level in other parts: effect = s / (n + k) / s_b, known = n / (n + k).
    scores = responses(y, None)[:, 0] - responses(y, None).mean()
    found_by_hand = []
    for row in range(0, 1_000, 50):
        same = (codes == codes[row]) & (part != part[row])
        n, s = same.sum(), scores[same].sum()
        k = n / seen[row, -1] - n
        found_by_hand.append((k, s / (n + k) / seen[row, -2]))
    np.testing.assert_allclose(found_by_hand, np.tile(found_by_hand[0], (20, 1)), rtol=1e-9)
    new = [Column("column 'shop'", "categorical", np.array([0, -1]), ("never",))]
    np.testing.assert_array_equal(found.encoded(new)[0, -2:], 0.0)
    hidden = others.hidden(columns, HASHES, seen.copy())
    unknown = others.hides(HASHES)
    assert 20 < unknown.sum() < 65  # one in 25
    np.testing.assert_array_equal(hidden[unknown], np.tile(found.encoded(new)[0], (unknown.sum(), 1)))
    np.testing.assert_array_equal(hidden[~unknown], seen[~unknown])


@pytest.mark.parametrize("count", [1, 8, 300])
def test_of_many_columns_one_at_most_is_hidden_in_a_row_and_half_of_the_rows_are_whole(count: int) -> None:
    columns = [column(np.arange(2_000) % 5, 5) for _ in range(count)]
    names = [f"c{k}" for k in range(count)]
    nothing = np.zeros(2_000, dtype=np.int64)
    found, training = in_training(Preprocessor.fit(names, columns), columns, np.ones((2_000, 1)), None, nothing)
    hashes = np.arange(2_000)
    out = training.hidden(columns, hashes, found.encoded(columns)).reshape(2_000, count, 5)
    gone = (out == 0.0).all(2)
    assert gone.sum(1).max() == 1
    np.testing.assert_array_equal(gone.any(1), training.hides(hashes))
    assert abs(gone.mean() - 1.0 / max(25, 2 * count)) < 0.01
    assert gone.any(1).mean() < 0.55


def test_of_pure_noise_the_effects_of_other_parts_say_nothing() -> None:
    rng = np.random.default_rng(2)
    codes, y = rng.integers(0, 300, 3_000), rng.normal(size=3_000)
    found, others, columns, part = fitted(codes, 300, y)
    assert found.encodings[0].effects
    own = found.encoded(columns)[:, -2]
    honest = others.crossed(columns, part, found.encoded(columns))[:, -2]
    assert np.corrcoef(own, y)[0, 1] > 0.2
    assert abs(np.corrcoef(honest, y)[0, 1]) < 0.06


def test_levels_that_do_not_differ_or_have_one_row_each_have_no_effects() -> None:
    rng = np.random.default_rng(3)
    singles, *_ = fitted(np.arange(100), 100, rng.normal(size=100))
    assert singles.encodings[0].effects == ()
    few, *_ = fitted(np.arange(300) % 30, 30, rng.normal(size=300))
    assert few.encodings[0].effects == ()


def test_a_weight_counts_as_so_many_rows() -> None:
    rng = np.random.default_rng(4)
    codes, y = rng.integers(0, 60, 400), rng.normal(size=400)
    y += rng.normal(size=60)[codes]
    weight = rng.integers(1, 4, 400)
    part = np.arange(400) % 5
    heavy, *_ = fitted(codes, 60, y, weight.astype(float))
    times = np.repeat(np.arange(400), weight)
    columns = [column(codes[times], 60)]
    plain = Preprocessor.fit(["shop"], columns)
    repeated, _ = in_training(plain, columns, responses(y[times], None), None, part[times])
    assert heavy.encodings[0].levels == repeated.encodings[0].levels
    np.testing.assert_allclose(heavy.encodings[0].table, repeated.encodings[0].table, rtol=1e-9)


def test_of_classes_there_is_one_for_each_and_of_two_one() -> None:
    y = np.array([0, 1, 2, 2, 1, 2.0])
    np.testing.assert_array_equal(responses(y, None, 3), np.eye(3)[y.astype(int)])
    np.testing.assert_array_equal(responses(y[:2], None, 2), [[0.0], [1.0]])
    assert responses(np.arange(60.0) % 20, None, 20).shape == (60, 10)
    rates = responses(np.array([1.0, 2.0, 9.0]), None, exposure=np.array([1.0, 4.0, 3.0]))
    assert np.argsort(rates[:, 0]).tolist() == [1, 0, 2]


def test_they_are_saved_and_nonsense_is_refused() -> None:
    rng = np.random.default_rng(5)
    codes = rng.integers(0, 50, 500)
    found, _, columns, _ = fitted(codes, 50, rng.normal(size=50)[codes] + rng.normal(size=500))
    state = json.loads(json.dumps(found.state()))
    again = Preprocessor.from_state(state)
    assert again == found
    np.testing.assert_array_equal(again.encoded(columns), found.encoded(columns))
    for change in (
        {"effects": [[0.0]]},
        {"effects": state["columns"][0]["effects"][:1]},
        {"levels": []},
        {"levels": ["a"] * 50},
        {"effects": [[float("nan")] * 50] * 2},
        {"other": False},
        {"effects": 3},
    ):
        with pytest.raises(FileFormatError):
            Preprocessor.from_state({**state, "columns": [{**state["columns"][0], **change}]})
