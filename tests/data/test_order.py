"""The one rule of order, before any device is involved."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contrastive_jax.data import permutation, rows, stream

sizes = st.integers(1, 60)


def test_permutation_is_fixed_for_all_time():
    """Literal values: a different order would silently make every published run another run."""
    assert permutation(0, 0, 8).tolist() == [0, 2, 1, 5, 4, 3, 6, 7]
    assert permutation(0, 1, 8).tolist() == [5, 3, 7, 2, 4, 1, 0, 6]
    assert permutation(2**64 - 1, 0, 8).dtype == np.int32


def test_permutation_sorts_the_raw_philox_bits():
    bits = np.random.Philox(key=[7, 3]).random_raw(100)
    assert (np.diff(bits[permutation(7, 3, 100)].astype(float)) > 0).all()


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_outside_64_bits_is_refused(seed):
    with pytest.raises(ValueError, match="data.seed"):
        permutation(seed, 0, 4)


@settings(deadline=None)
@given(n=sizes, batch=sizes, seed=st.integers(0, 2**64 - 1), epochs=st.integers(1, 4))
def test_every_example_once_an_epoch_for_any_batch_size(n, batch, seed, epochs):
    steps = -(-n * epochs // batch)
    parts = [rows(seed, n, step * batch, batch) for step in range(steps)]
    index, epoch = (np.concatenate(part) for part in zip(*parts, strict=True))
    assert index.dtype == epoch.dtype == np.int32
    for e in range(epochs):
        assert sorted(index[epoch == e].tolist()) == list(range(n))
    assert (np.diff(epoch) >= 0).all()


@settings(deadline=None)
@given(n=sizes, first=st.integers(0, 500), count=st.integers(0, 200), cut=st.integers(0, 200))
def test_rows_do_not_depend_on_how_the_stream_is_cut(n, first, count, cut):
    cut = min(cut, count)
    whole = rows(1, n, first, count)
    left, right = rows(1, n, first, cut), rows(1, n, first + cut, count - cut)
    for w, a, b in zip(whole, left, right, strict=True):
        np.testing.assert_array_equal(w, np.concatenate([a, b]))


def test_positions_beyond_32_bits():
    n, first = 10, 10 * 2**31 - 10  # the last epoch that int32 can number
    index, epoch = rows(0, n, first, n)
    assert (epoch == 2**31 - 1).all()
    np.testing.assert_array_equal(index, permutation(0, 2**31 - 1, n))


@settings(deadline=None)
@given(n=sizes, seed=st.integers(0, 2**64 - 1), positions=st.lists(st.integers(0, 2**40), max_size=20))
def test_streamed_examples_have_the_order_of_resident_ones(n, seed, positions):
    """In any order and any number, as parts of a batch ask for them."""
    found = stream.Endless(seed, n).at(np.array(positions, np.int64) % (5 * n))
    whole = rows(seed, n, 0, 5 * n)
    for ours, theirs in zip(found, whole, strict=True):
        np.testing.assert_array_equal(ours, theirs[np.array(positions, np.int64) % (5 * n)])
        assert ours.dtype == np.int32
