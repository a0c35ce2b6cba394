"""``data.name=arrays``: what a file holds is what a run sees; a file that is wrong is one sentence."""

import pickle

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file
from suite import over

from contrastive_jax import data
from contrastive_jax.data import array_files

X = np.random.default_rng(0).normal(size=(20, 3, 2)).astype(np.float32)
Y = np.arange(20) % 2


@pytest.fixture
def write(tmp_path):
    def written(name="a.npz", **arrays):
        file = tmp_path / name
        if name.endswith(".npz"):
            np.savez(file, **arrays)
        elif name.endswith(".npy"):
            np.save(file, arrays["x"])
        else:
            save_file(arrays, file)
        return str(file)

    return written


def read(file, **options):
    return data.arrays(file=str(file), **options)


@pytest.mark.parametrize("name", ["a.npz", "a.npy", "a.safetensors"])
def test_a_file_of_each_kind_gives_its_arrays(write, name):
    labels = {} if name == "a.npy" else {"y": Y}
    source = read(write(name, x=X, **labels))
    np.testing.assert_array_equal(source.train.image, X)
    assert source.train.example == ((3, 2), "float32") and source.test is None
    assert source.train.label.tolist() == (Y.tolist() if labels else [-1] * 20)
    assert source.classes == (("0", "1") if labels else ())
    assert isinstance(source.train.image, np.memmap) == (name == "a.npy")


def test_an_npy_file_takes_its_labels_from_files_beside_it(write, tmp_path):
    file = write("a.npy", x=X)
    np.save(tmp_path / "y.npy", Y)
    source = read(file, label_key="y.npy", group_key="y.npy")
    assert source.train.label.tolist() == Y.tolist() == source.train.group.tolist()


@over(
    [
        (np.float64, "float32"),
        (np.float16, "float32"),
        (jnp.bfloat16, "float32"),
        (np.int64, "int32"),
        (np.uint16, "int32"),
        (bool, "int32"),
        (np.uint8, "uint8"),
    ]
)
def test_types_become_those_of_the_device(dtype, stored):
    array = np.arange(12).reshape(4, 3).astype(dtype)
    found = data.from_arrays(array).train
    assert found.example == ((3,), stored)
    np.testing.assert_array_equal(found.image, array.astype(stored))


def test_test_arrays_texts_and_several_labels(write):
    texts = np.array(["b", "a"])[Y]
    source = read(write(x=X[:12], y=texts[:12], x_test=X[12:], y_test=texts[12:]))
    assert source.classes == ("a", "b") and source.test.label.tolist() == (1 - Y[12:]).tolist()
    np.testing.assert_array_equal(source.test.image, X[12:])
    several = read(write("b.npz", x=X, labels=np.eye(2, dtype=int)[Y]), label_key="labels")
    assert several.train.label_shape == (2,) and several.classes == ("0", "1")


def test_an_empty_text_is_no_label_and_a_group_of_its_own(write):
    texts, clip = np.array(["b", "", "a", ""] * 5), np.array(["", "", "v", "v"] * 5)
    train = read(write(x=X, y=texts, clip=clip), group_key="clip").train
    assert train.label.tolist()[:4] == [1, -1, 0, -1] and len(train.labelled_rows) == 10
    assert len(set(train.group)) == 11 and len(set(train.group[clip == "v"])) == 1


def test_a_share_is_held_out_by_seed_and_by_group(write):
    file = write(x=X, y=Y, clip=np.arange(20) // 4)
    one, other = (read(file, test_fraction=0.4, split_seed=seed) for seed in (0, 1))
    assert len(one.test) == 8 and np.bincount(one.test.label).tolist() == [4, 4]
    assert not np.array_equal(one.test.image, other.test.image)
    np.testing.assert_array_equal(one.test.image, read(file, test_fraction=0.4).test.image)
    grouped = read(file, test_fraction=0.4, group_key="clip")
    assert len(grouped.test) == 8 and not set(grouped.test.group) & set(grouped.train.group)
    held = read(file, validation=0.25)
    assert (len(held.train), len(held.test)) == (14, 6)  # 2.5 of each class, rounded


class Evil:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was executed",))


def with_value(value, dtype=np.float64):
    x = np.zeros((20, 3), dtype)
    x[17, 1] = value
    return x


@pytest.mark.parametrize(
    "arrays, options, says",
    [
        ({"x": with_value(np.nan)}, {}, "contain nan in row 17"),
        ({"x": with_value(-np.inf)}, {}, "contain -inf in row 17"),
        ({"x": with_value(1e300)}, {}, "contain 1e.300 in row 17; .* fit float32"),
        ({"x": with_value(2**40, np.int64)}, {}, f"contain {2**40} in row 17; .* fit int32"),
        ({"x": X, "x_test": with_value(np.nan)}, {}, "the test examples of .* contain nan"),
        ({"x": X[:0]}, {}, "must be .n, ...., not empty"),
        ({"x": X[:0], "y": Y[:0]}, {}, "must be .n, ...., not empty"),
        ({"x": X, "y": np.full((20, 2), "a")}, {}, r"are texts \[20, 2\]; they must be one text a row"),
        ({"x": X[:, 0, 0]}, {}, "have shape .20.; they must be .n, ....,"),
        ({"x": X.astype(complex)}, {}, "are complex128; they must be whole numbers or floats"),
        ({"x": np.full((4, 2), "a")}, {}, "they must be whole numbers or floats"),
        ({"x": np.array([[Evil()]])}, {}, "contains Python objects"),
        ({"x": X, "y": np.array([Evil()] * 20)}, {}, "contains Python objects"),
        ({"x": X, "y": Y[:19]}, {}, "data.label_key is an array .19. of .*; it must have 20 rows"),
        ({"x": X, "y": np.int64(3)}, {}, "data.label_key is an array .. of"),
        ({"x": X, "y": Y / 2}, {}, "labels of .* are float64"),
        ({"x": X, "g": Y[:3]}, {"group_key": "g"}, "data.group_key is an array .3."),
        ({"x": X}, {"key": "xs"}, "data.key is 'xs'; .* has no such array. .*'x'"),
        ({"x": X}, {"label_key": "y"}, "data.label_key is 'y'; .* has no such array"),
        ({"x": X, "x_test": X[:, :2]}, {}, "data.test_key contains examples float32 .2, 2."),
        ({"x": X, "x_test": X}, {"test_fraction": 0.1}, "data.test_fraction is 0.1, but .* has test examples"),
        ({"x": X}, {"test_fraction": 0.001}, "data.test_fraction is 0.001; with 20 examples it leaves a split empty"),
        ({"x": X}, {"memory_limit": 1e-9}, "data.memory_limit is 1e-09; the array 'x' of .* takes"),
        ({"x": X, "x_test": X}, {"memory_limit": 6e-7}, "data.memory_limit is 6e-07; the examples of .* take"),
        ({"x": X, "y": Y, "x_test": X, "y_test": np.full(20, "a")}, {}, "labels of .* have two types"),
        ({"x": X, "y": np.full(20, -2)}, {}, "labels .n. must be whole numbers from -1"),
        ({"x": X, "g": Y / 2}, {"group_key": "g"}, "data.group_key is an array of float64"),
        ({"x": X}, {"test_pair_key": "t"}, "data.test_pair_key is 't', but data.pair_key is ''"),
        ({"x": X}, {"test_group_key": "g"}, "data.test_group_key is 'g', but data.group_key is ''"),
        ({"x": X, "t": X}, {"pair_key": "t", "test_pair_key": "u"}, "is 'u', but .* has no test examples"),
        ({"x": X, "t": X, "t_test": X}, {"pair_key": "t"}, "has t_test, but no x_test"),
        ({}, {}, "which contains no array"),
    ],
)  # fmt: skip
def test_a_wrong_array_is_a_sentence(write, arrays, options, says):
    with pytest.raises(ValueError, match=says) as error:
        read(write(**arrays), **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["a.npz", "a.npy", "a.safetensors"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_truncated_file_is_a_sentence(write, tmp_path, name, share):
    whole = open(write(name, x=X), "rb").read()
    (tmp_path / name).write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ValueError, match=f"{name} (cannot be read|contains Python)") as error:
        read(tmp_path / name)
    assert "\n" not in str(error.value)


def test_an_array_above_the_limit_is_not_read(write, monkeypatch):
    monkeypatch.setattr(array_files, "_array", lambda *_: pytest.fail("read"))
    for name in ("a.npz", "a.safetensors"):
        with pytest.raises(ValueError, match=r"data.memory_limit is 1e-09; the array 'x' .* takes 0.0 GiB"):
            read(write(name, x=X), memory_limit=1e-9)


@pytest.mark.parametrize("name", ["a.npz", "a.npy", "a.safetensors"])
def test_a_pickle_is_not_executed(tmp_path, name):
    (tmp_path / name).write_bytes(pickle.dumps(Evil()))
    with pytest.raises(ValueError, match=f"{name} "):
        read(tmp_path / name)


def test_no_file_and_another_ending():
    with pytest.raises(ValueError, match="data.file is ''; it must be"):
        data.arrays()
    with pytest.raises(ValueError, match="data.file is 'a.csv'; it must end in"):
        read("a.csv")
    with pytest.raises(FileNotFoundError, match="data.file is 'nowhere.npz'; there is no such file"):
        read("nowhere.npz")
