"""A seed decides everything: an argument, or else numpy's."""

from typing import Any

import numpy as np
import pytest
import torch

from support.regressors import Fitted, Floats, easy, small

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("random_state", [None, 0])
def test_torchs_global_state_is_left_as_it_was_and_numpys_unless_it_is_asked(random_state: int | None) -> None:
    X, y = easy(40)
    before_torch, before_numpy = torch.get_rng_state(), np.random.get_state()  # noqa: NPY002
    model = small(random_state=random_state, method="dbk-rbf").fit(X, y)
    model.sample_y(X, 3, random_state=random_state)
    model.sample_functions(3, random_state=random_state)(X)
    assert torch.equal(torch.get_rng_state(), before_torch)
    after = np.random.get_state()  # noqa: NPY002
    same = after[2:] == before_numpy[2:] and np.array_equal(after[1], before_numpy[1])
    assert same == (random_state == 0)


def test_without_a_random_state_numpys_seed_holds(fitted: Fitted) -> None:
    """As in scikit-learn."""

    def drawn(seed: int) -> tuple[Floats, ...]:
        np.random.seed(seed)  # noqa: NPY002
        model = small(random_state=None).fit(fitted.X, fitted.y)
        return model.predict(fitted.X), model.sample_y(fitted.X), model.sample_functions()(fitted.X)

    for one, again, other in zip(drawn(0), drawn(0), drawn(1), strict=True):
        np.testing.assert_array_equal(one, again)
        assert not np.allclose(one, other)


def test_a_seed_decides_everything(fitted: Fitted) -> None:
    def predicted(random_state: Any, **changes: Any) -> Floats:
        return small(random_state=random_state, **changes).fit(fitted.X, fitted.y).predict(fitted.X)

    batches = {"batch_size": 32}
    np.testing.assert_array_equal(predicted(3, **batches), predicted(np.int64(3), **batches))
    np.testing.assert_array_equal(
        predicted(np.random.RandomState(3)),
        predicted(np.random.RandomState(3)),
    )
    assert not np.allclose(predicted(3), predicted(4))
    assert not np.allclose(predicted(None), predicted(None))


def test_a_random_state_moves_on_and_its_members_differ(fitted: Fitted) -> None:
    state = np.random.RandomState(3)
    one, two = (small(random_state=state).fit(fitted.X, fitted.y) for _ in range(2))
    assert not np.allclose(one.predict(fitted.X), two.predict(fitted.X))
    means = one.predict_dist(fitted.X, as_tensor=True).means
    assert not torch.allclose(means[0], means[1])
