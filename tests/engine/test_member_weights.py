"""Rows with weights for each member: to it, rows of weight 0 do not exist."""

from dataclasses import replace

import pytest
import torch

from deepbasis.engine.batches import Resident, Rows
from deepbasis.engine.training import train
from deepbasis.errors import CheckpointMismatchError, InputError


def own(rows: Rows, members: int) -> Rows:
    """Every member has weights of its own, and lacks another part of the rows; the parts differ in size."""
    kept = torch.arange(len(rows)) % (members + 1)
    weight = 0.5 + torch.rand(members, len(rows), generator=torch.Generator().manual_seed(3), dtype=rows.x.dtype)
    lacking = torch.stack([(kept == k) | (kept == members) & (k == 0) for k in range(members)])
    return replace(rows, weight=torch.where(lacking, 0.0, weight))


def of(rows: Rows, member: int) -> Rows:
    weight = rows.weight[member]
    return Rows(rows.x[weight > 0], rows.y[weight > 0], weight[weight > 0])


@pytest.mark.parametrize(
    ("method", "changes"),
    [("dbk-silu", {"batch_size": 10_000}), ("sv-rbf", {"objective": "mml"}), ("dnn", {"batch_size": 10_000})],
)
@pytest.mark.parametrize("wave_size", [None, 2])
def test_members_with_rows_of_their_own_equal_members_that_are_given_these_rows_alone(lab, method, changes, wave_size):
    members, settings = lab.members(3), lab.settings(method, epochs=10, **changes)
    data, validation = own(lab.data, 3), own(lab.validation, 3)
    together = train(lab.build(method), members, data, validation, settings, wave_size=wave_size)
    for k, outcome in enumerate(together):
        alone = train(lab.build(method), [members[k]], of(data, k), of(validation, k), settings)[0]
        assert lab.difference(outcome, alone) <= 1e-9


def test_batches_hold_rows_that_a_member_has_and_all_of_them_once_before_any_twice():
    rows = own(Rows(torch.arange(50.0)[:, None], torch.arange(50.0)), 3)
    source = Resident(rows, [1, 2, 3], 16)
    counts = (rows.weight > 0).sum(1)
    assert source.rows == int(counts.max()) > int(counts.min())
    for epoch in range(3):
        source.start_epoch(epoch)
        seen: list[list[float]] = [[], [], []]
        while source.advance():
            x, y, weight, _ = source.take()
            for k in range(3):
                present = torch.ones_like(y[k], dtype=torch.bool) if weight is None else weight[k] > 0
                seen[k] += y[k][present].tolist()
                assert torch.equal(x[k, :, 0], y[k])
        for k, found in enumerate(seen):
            mine = rows.y[rows.weight[k] > 0].tolist()
            assert sorted(found[: len(mine)]) == mine
            assert len(found) == source.rows


def test_mini_batches_train_on_a_members_own_rows_alone(lab):
    """What the others have may be anything."""
    data, members, settings = own(lab.data, 2), lab.members(2), lab.settings(epochs=5, batch_size=16)
    other = replace(data, y=torch.where(data.weight[0] > 0, data.y, 1e6))
    first = train(lab.build(), members, data, lab.validation, settings)
    again = train(lab.build(), members, other, lab.validation, settings)
    assert lab.difference(first[0], again[0]) == 0.0
    assert lab.difference(first[1], again[1]) > 1.0


def test_members_of_a_wave_that_is_resumed_have_their_weights_again(lab, tmp_path):
    data, members = own(lab.data, 4), lab.members(4)
    settings = lab.settings(epochs=4)
    whole = train(lab.build(), members, data, lab.validation, settings, wave_size=2)
    resumed = train(lab.build(), members, data, lab.validation, settings, wave_size=2, checkpoint=tmp_path / "run")
    assert max(lab.difference(one, other) for one, other in zip(whole, resumed, strict=True)) == 0.0
    other = replace(data, weight=data.weight.flip(0))
    with pytest.raises(CheckpointMismatchError, match="training data"):
        train(lab.build(), members, other, lab.validation, settings, wave_size=2, checkpoint=tmp_path / "run")


def test_weights_of_members_that_cannot_be_are_refused(lab):
    weight = torch.ones(2, len(lab.data), dtype=lab.data.x.dtype)
    with pytest.raises(InputError, match="zero everywhere"):
        replace(lab.data, weight=weight * torch.tensor([[0.0], [1.0]], dtype=weight.dtype))
    with pytest.raises(InputError, match="weight"):
        replace(lab.data, weight=weight[:, 1:])
    with pytest.raises(InputError, match="bootstrap"):
        train(
            lab.build(), lab.members(2), replace(lab.data, weight=weight), lab.validation, lab.settings(bootstrap=True)
        )
