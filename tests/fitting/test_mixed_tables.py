"""Tables of numbers, text, truth values and dates, with holes."""

import numpy as np
import pandas as pd
import pytest

from support.regressors import Fitted, close, small

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_mixed_table_with_holes_and_unseen_categories(fitted: Fitted) -> None:
    new = fitted.table.copy()
    new["color"] = "violet"
    new.loc[3, ["size", "color", "when"]] = None
    mean, std = fitted.of_table.predict(new, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()
    assert list(fitted.of_table.feature_names_in_) == list(fitted.table.columns)
    assert fitted.of_table.n_features_in_ == 6
    for row in (0, 3, 50):
        close(fitted.of_table.predict(new.iloc[[row]]), mean[[row]], rtol=1e-10)


def test_a_constant_column_has_no_influence(fitted: Fitted) -> None:
    np.testing.assert_array_equal(
        fitted.of_table.predict(fitted.table.assign(same=8)), fitted.of_table.predict(fitted.table)
    )


def test_an_index_of_any_kind_is_ignored(fitted: Fitted) -> None:
    relabelled = fitted.table.set_axis(np.arange(len(fitted.table))[::-1] + 1000, axis=0)
    np.testing.assert_array_equal(fitted.of_table.predict(relabelled), fitted.of_table.predict(fitted.table))
    again = small(epochs=30).fit(relabelled, pd.Series(fitted.y_table, index=relabelled.index))
    np.testing.assert_array_equal(again.predict(fitted.table), fitted.of_table.predict(fitted.table))


def test_lists_and_frames_of_numbers_are_like_arrays(fitted: Fitted) -> None:
    frame = pd.DataFrame(fitted.X, columns=["a", "b", "c"])
    expected = fitted.model.predict(fitted.X)
    np.testing.assert_array_equal(fitted.model.predict(fitted.X.tolist()), expected)
    np.testing.assert_array_equal(small(epochs=30).fit(frame, fitted.y).predict(frame), expected)


def test_names_on_one_side_only_give_one_warning(fitted: Fitted) -> None:
    frame = pd.DataFrame(fitted.X, columns=["a", "b", "c"])
    with pytest.warns(UserWarning, match="fitted without feature names") as seen:
        fitted.model.predict(frame)
    assert len(seen) == 1
