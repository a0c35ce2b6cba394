"""WebDataset's tar shards: the images of a folder in another container, and archives that are not what they seem."""

import io
import json
import os
import pathlib
import pickle
import re
import tarfile
import tempfile
import types
import warnings

import numpy as np
import pytest
import tifffile
from PIL import Image
from suite import over

from contrastive_jax import augment, data
from contrastive_jax.data.records import Unreadable
from contrastive_jax.training import resume

random = np.random.default_rng(0)
SEVEN = {f"{place}/{i:03}": i for i, place in enumerate("aabbbcc")}  # key of a sample -> number


def encoded(form="PNG", height=8, width=8, **options):
    file = io.BytesIO()
    Image.fromarray(random.integers(0, 256, (height, width, 3), np.uint8)).save(file, form, **options)
    return file.getvalue()


def shard(path, members, edit=lambda member: None):
    """Write {name: bytes} as a tar archive; ``edit`` changes a member's header."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            edit(member)
            archive.addfile(member, io.BytesIO(content))
    return path


def load(root, **options):
    return data.load(name="webdataset", dir=str(root), **{"workers": 0} | options)


@pytest.fixture
def two(tmp_path):
    """Seven samples in two shards, and their images in a folder of the same order."""
    exif = Image.Exif()
    exif[0x0112] = 6
    images = {key: encoded("JPEG" if i % 2 else "PNG", 6 + i, 9) for key, i in SEVEN.items()}
    images["b/003"] = encoded("JPEG", 9, 9, exif=exif)
    for part, some in enumerate((list(SEVEN)[:4], list(SEVEN)[4:])):
        members = {}
        for key in some:
            about = {"tags": ["x", "y"][: SEVEN[key] % 3], "clip": f"clip{SEVEN[key] // 2}", "n": SEVEN[key]}
            members[f"{key}.jpg"] = images[key]
            members[f"{key}.cls"] = key[0].encode() + b"\n"
            members[f"{key}.json"] = json.dumps(about).encode()
            members[f"{key}.pyd"] = pickle.dumps(key)  # nothing reads it
        shard(tmp_path / f"shards/part-{part}.tar", members)
    for key, image in images.items():
        (tmp_path / "folder" / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "folder" / f"{key}.jpg").write_bytes(image)
    return tmp_path


@pytest.mark.parametrize("options", [{"size": 6}, {"stream": "on"}], ids=["memory", "stream"])
def test_shards_are_a_folder_in_another_container(two, options):
    of_folder = data.load(name="folder", dir=str(two / "folder"), workers=0, test_fraction=0.4, **options)
    source = load(two / "shards", test_fraction=0.4, **options)
    assert source.classes == of_folder.classes == ("a", "b", "c")
    for split, other in ((source.train, of_folder.train), (source.test, of_folder.test)):
        np.testing.assert_array_equal(split.label, other.label)
        view = augment.make_eval(preset="none", size=6)
        (image, label), (expected, _) = next(split.batches(9, view)), next(other.batches(9, view))
        np.testing.assert_array_equal(image, expected)
        np.testing.assert_array_equal(label, split.label)
        views = augment.make_views(preset="none", size=6)
        drawn = split.drawn(views, np.array([1, 0]), seed=3, epoch=2)
        for name, array in other.drawn(views, np.array([1, 0]), seed=3, epoch=2).items():
            np.testing.assert_array_equal(drawn[name], array)
        assert [path.split(".tar/")[1] for path in split.paths] == other.paths.tolist()


def test_another_process_reads_the_same(two):
    train = load(two / "shards", stream="on").train
    some = [5, 0, 3]
    assert pickle.loads(pickle.dumps(train.records)).read(some) == train.records.read(some)
    assert train[some].records.name(0) == f"the image c/005.jpg of {two}/shards/part-1.tar"


def test_labels_and_groups_of_members(two):
    def train(**options):
        return load(two / "shards", size=6, **options)

    several = train(label_key="json.tags")
    assert several.classes == ("x", "y") and several.train.label.tolist()[:4] == [
        [0, 0],
        [1, 0],
        [1, 1],
        [0, 0],
    ]
    assert train(label_key="json.n").train.label.tolist() == list(range(7))
    assert train(label_key="").train.label.tolist() == [-1] * 7
    assert train(group="json.clip").train.group.tolist() == [0, 0, 2, 2, 4, 4, 6]
    assert train(group="/([abc])/").train.group.tolist() == [0, 0, 2, 2, 2, 5, 5]
    with pytest.raises(
        ValueError, match=r"data.label_key is 'txt', .*a/000.jpg of .*part-0.tar has jpg, cls, json, pyd"
    ):
        train(label_key="txt")
    with pytest.raises(ValueError, match=r"data.label_key is 'json.absent', in which no sample has a label"):
        train(label_key="json.absent")
    with pytest.raises(ValueError, match=r"data.group is 'json.nothing', which forms no group"):
        train(group="json.nothing")
    with pytest.raises(ValueError, match=r"the group of 'a/000.jpg' of .*part-0.tar is \[\]; it must"):
        train(group="json.tags")


@over(
    [
        (b'{"label": "b"}', ["b", "a"]),
        (b'{"labels": ["b", "a"]}', ["b a", "a"]),
        (b'{"label": 0.5, "labels": 7}', ["7", "a"]),
        (b'{"label": null}', ["", "a"]),
        (b'{"label": {"x": 1}}', None),
        (b'{"caption": "b"}', None),
        (b'["label"]', None),
        (b'{"label": ', None),
    ]
)
def test_labels_of_json_are_found_without_cls(described, names):
    with tempfile.TemporaryDirectory() as place:
        later = {"label": "a", "labels": "a"} if names else {}
        members = {
            "0.png": encoded(),
            "0.json": described,
            "1.png": encoded(),
            "1.json": json.dumps(later).encode(),
        }
        shard(pathlib.Path(place) / "a.tar", members)
        source = load(place)
        shard(pathlib.Path(place) / "a.tar", members | {"1.cls": b"c"})
        with_cls = load(place)
    label = source.train.label
    if names is None:
        assert source.classes == () and label.tolist() == [-1, -1]
    else:
        found = [np.flatnonzero(row) for row in label] if label.ndim == 2 else label[:, None]
        texts = [" ".join(source.classes[n] for n in row if n >= 0) for row in found]
        assert texts == [" ".join(sorted(n.split())) for n in names]
    assert with_cls.classes == ("c",) and with_cls.train.label.tolist() == [-1, 0]


def test_where_others_have_several_labels_a_missing_one_is_not_none_of_them(tmp_path):
    def load_with(*labels):
        members = {}
        for i, label in enumerate(labels):
            members |= {f"{i}.png": encoded(), f"{i}.json": json.dumps({"label": label}).encode()}
        shard(tmp_path / "a.tar", members)
        return load(tmp_path)

    assert load_with(["a"], [], ["b", -1]).train.label.tolist() == [[1, 0], [0, 0], [0, 1]]
    for unknown in (None, [None], [-1], -1):
        with pytest.raises(ValueError, match="a.tar/1.png has no label, while others have lists"):
            load_with(["a"], unknown, ["b"])


@pytest.mark.parametrize(
    ("names", "options", "train", "test"),
    [
        ("0.tar sub/1.tar", {}, "0.tar sub/1.tar", ""),
        (
            "set-train-0.tar set-train-1.tar set-val-0.tar",
            {},
            "set-train-0.tar set-train-1.tar",
            "set-val-0.tar",
        ),
        ("test/0.tar train/0.tar val/0.tar", {}, "train/0.tar", "test/0.tar"),
        ("train/0.tar val/0.tar", {"test_split": ""}, "train/0.tar", ""),
        ("a.tar b.tar c.tar", {"train_split": "[ab]*", "test_split": "c.tar"}, "a.tar b.tar", "c.tar"),
        ("a.tar b.tar", {"test_split": "b*"}, "a.tar", "b.tar"),
        ("a.tar test.tar", {"train_split": "*"}, "a.tar test.tar", ""),
        ("train/0.tar train/1.TAR test/0.tar", {"train_split": "train/1*"}, "train/1.TAR", "test/0.tar"),
    ],
)
def test_splits_by_words_and_patterns(names, options, train, test, tmp_path):
    for name in names.split():
        shard(tmp_path / name, {"0.png": encoded(), "0.cls": b"0"})
    source = load(tmp_path, **options)
    assert [path.removesuffix("/0.png") for path in source.train.paths] == train.split()
    found = [] if source.test is None else source.test.paths
    assert [path.removesuffix("/0.png") for path in found] == test.split()


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        ("train-0.tar extra-0.tar", {}, "contains train-0.tar beside extra-0.tar: set it to a pattern"),
        ("a-0.tar val-0.tar", {}, "contains val-0.tar beside a-0.tar"),
        ("test-0.tar", {}, "contains test-0.tar, and no shard with the word train"),
        (
            "a-0.tar",
            {"train_split": "b*"},
            r"data.train_split is 'b\*', which matches no shard of .* a-0.tar",
        ),
        ("a.tar b.tar", {"train_split": "*", "test_split": "b*"}, "b.tar matches both"),
        (
            "a.tar b.tar",
            {"test_split": "b*", "test_fraction": 0.1},
            "data.test_fraction is 0.1, but data.test_split",
        ),
        ("a.tar b.tar.gz", {}, "b.tar.gz, which is compressed"),
        ("a.txt", {}, "it contains no shard"),
    ],
)
def test_splits_that_are_not_clear(names, options, message, tmp_path):
    for name in names.split():
        shard(tmp_path / name, {"0.png": encoded(), "0.cls": b"0"})
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        load(tmp_path, **options)


def test_one_shard_and_messages_of_places(tmp_path):
    assert len(load(shard(tmp_path / "one.tar", {"0.png": encoded()})).train) == 1
    with pytest.raises(ValueError, match="data.dir is ''; it must be the folder of the tar shards"):
        load("")
    with pytest.raises(FileNotFoundError, match="there is no such folder"):
        load(tmp_path / "nowhere")
    shard(tmp_path / "text/a.tar", {"0.txt": b"a"})
    with pytest.warns(RuntimeWarning, match=r"1 samples of .*a.tar such as 0 \(txt\) have no image"):
        with pytest.raises(FileNotFoundError, match="such as a.tar, contain no image"):
            load(tmp_path / "text")
    (tmp_path / "links").mkdir()
    for name in ("a.tar", "b.tar"):
        (tmp_path / "links" / name).symlink_to(tmp_path / "one.tar")
    with pytest.raises(ValueError, match="b.tar and .*a.tar are the same file, through a link"):
        load(tmp_path / "links")
    (tmp_path / "links/b.tar").unlink()
    for name in (".hidden", "linked"):
        (tmp_path / "links" / name).symlink_to(two := tmp_path / "two", target_is_directory=True)
    shard(two / "c.tar", {"0.png": encoded()})
    assert load(tmp_path / "links").train.paths.tolist() == ["a.tar/0.png", "linked/c.tar/0.png"]
    (two / "circle").symlink_to(two, target_is_directory=True)
    with pytest.raises((ValueError, OSError), match="are the same file, through a link|cannot be listed"):
        load(tmp_path / "links")
    shard(tmp_path / "broken/a.tar", {"0.png": encoded()})
    (tmp_path / "broken/more").symlink_to(tmp_path / "not mounted")
    with pytest.raises(FileNotFoundError, match="more is a broken link"):
        load(tmp_path / "broken")


def test_samples_as_people_write_them(tmp_path):
    """./ before names, folders as members, files of the system, upper case, and two images in a sample."""
    members = {
        "./a/0.JPG": encoded("JPEG"),
        "./a/._0.JPG": b"no image",
        "./README": b"",
        "./a/0.seg.png": encoded(),
    }
    shard(tmp_path / "s/a.tar", members)
    with tarfile.open(tmp_path / "s/a.tar", "a") as archive:
        folder = tarfile.TarInfo("a")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
    assert load(tmp_path).train.paths.tolist() == ["s/a.tar/a/0.JPG"]
    assert load(tmp_path, image_key="seg.png").train.paths.tolist() == ["s/a.tar/a/0.seg.png"]
    shard(tmp_path / "s/a.tar", {"0.jpg": encoded("JPEG"), "0.png": encoded()})
    with pytest.raises(ValueError, match=r"the sample '0' of .*a.tar has several images \(jpg, png\)"):
        load(tmp_path)


def test_a_tiff_of_several_channels_lies_in_a_shard(tmp_path):
    file = io.BytesIO()
    array = random.integers(0, 256, (8, 8, 5), np.uint8)
    tifffile.imwrite(file, array, photometric="minisblack", planarconfig="contig")
    shard(tmp_path / "a.tar", {"0.png.txt": b"", "1.tif": file.getvalue()})
    with warnings.catch_warnings(record=True):
        np.testing.assert_array_equal(load(tmp_path).train.image, array[None])


def test_other_pixels_in_a_shard(two):
    """A changed image of the same size is named; a touched shard is the same."""
    path = two / "shards/part-0.tar"
    train = load(two / "shards", stream="on").train
    before = data.contents(train)
    os.utime(path, ns=(0, 0))
    now = data.contents(train, before)
    assert now["rows"] == before["rows"] and now["stamps"] != before["stamps"]
    whole = bytearray(path.read_bytes())
    whole[whole.index(train.records.read([1])[0].image) + 60] ^= 1
    path.write_bytes(whole)
    now = data.contents(train, now)
    run = types.SimpleNamespace(source=types.SimpleNamespace(train=train))
    why = resume._contents(1, {"contents": before}, run, {"contents": now})
    assert re.search(r"other pixels.*: part-0.tar/a/001.jpg\. ", why)


def test_a_shard_that_shrinks_during_the_run_is_not_a_damaged_image(two):
    train = load(two / "shards", stream="on", corrupt="replace").train
    with open(two / "shards/part-1.tar", "r+b") as file:
        file.truncate(600)
    with pytest.raises(OSError, match="shorter than at the start of the run.*part-1.tar"):
        train.records.read([6])


def linked(kind):
    def edit(member):
        if member.name.startswith("1"):
            member.type, member.linkname, member.size = kind, "/etc/passwd", 0

    return edit


def _sample(**more):
    return {"0.png": encoded(), "0.cls": b"0"} | more


def _zeroed(path):
    """Damage the header of the second sample's image, where tarfile would end in silence."""
    whole = bytearray(path.read_bytes())
    at = whole.index(b"1.png")
    whole[at + 148 : at + 156] = b"77777777"  # the checksum
    path.write_bytes(whole)


def _negative(member):
    if member.name == "1.png":
        member.pax_headers = {"size": "-5120"}


HOSTILE = {
    "parent": (
        _sample(**{"../1.png": b""}),
        None,
        r"'../1.png' of .*a.tar has a path that leaves the archive",
    ),
    "inside": (_sample(**{"x/../../1.png": b""}), None, r"'x/../../1.png' of .*a.tar has a path that leaves"),
    "absolute": (_sample(**{"/1.png": b""}), None, r"'/1.png' of .*a.tar has a path that leaves the archive"),
    "symlink": (
        _sample(**{"1.png": b""}),
        linked(tarfile.SYMTYPE),
        r"'1.png' of .*a.tar is a link, not a file",
    ),
    "hard link": (
        _sample(**{"1.png": b""}),
        linked(tarfile.LNKTYPE),
        r"'1.png' of .*a.tar is a link, not a file",
    ),
    "pipe": (
        _sample(**{"1.png": b""}),
        linked(tarfile.FIFOTYPE),
        r"'1.png' of .*a.tar is a named pipe, not a file",
    ),
    "device": (
        _sample(**{"1.png": b""}),
        linked(tarfile.CHRTYPE),
        r"'1.png' of .*a.tar is a device, not a file",
    ),
    "negative": (_sample(**{"1.png": b"x" * 600, "2.png": b""}), _negative, r"a.tar"),
    "twice": (_sample(**{"./0.png": b""}), None, r"'0.png' occurs twice in .*a.tar"),
    "deep": (
        _sample(**{"0.json": b"[" * 100_000}),
        None,
        r"'0.json' of .*a.tar is not intact JSON: .*too deeply",
    ),
    "list": (_sample(**{"0.json": b"[]"}), None, r"'0.json' of .*a.tar must be a JSON object"),
    "long": (_sample(**{"0.json": b" " * 1_100_000}), None, r"'0.json' of .*a.tar has 1,100,000 bytes"),
    "number": (_sample(**{"0.json": b'{"k": 0.5}'}), None, r"'0.png' of .*a.tar: the label is 0.5"),
    "no image": ({"0.png": b"nothing"}, None, r"cannot read the image 0.png of .*a.tar: "),
    "cut image": ({"0.png": encoded()[:60]}, None, r"cannot read the image 0.png of .*a.tar: "),
    "empty image": ({"0.png": b""}, None, r"cannot read the image 0.png of .*a.tar: "),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_archives_that_somebody_sends(case, tmp_path):
    members, edit, message = HOSTILE[case]
    shard(tmp_path / "a.tar", members, edit or (lambda member: None))
    with pytest.raises((ValueError, Unreadable), match=message) as caught:
        load(tmp_path, label_key="json.k" if "0.json" in members else "auto")
    assert len(str(caught.value)) < 400 and "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar"]


def test_a_label_of_minus_one_is_none(tmp_path):
    shard(tmp_path / "a.tar", {f"{n}.{end}": what for n in range(4) for end, what in
                               {"png": encoded(), "cls": str((n % 3) - 1).encode()}.items()})  # fmt: skip
    source = load(tmp_path)
    assert source.classes == ("0", "1") and source.train.label.tolist() == [-1, 0, 1, -1]


def test_a_label_that_is_no_text(tmp_path):
    shard(tmp_path / "a.tar", {"0.png": encoded(), "0.pyd": pickle.dumps(np.zeros(3))})
    with pytest.raises(ValueError, match=r"'0.pyd' of .*a.tar is not a text in UTF-8"):
        load(tmp_path, label_key="pyd")


def test_archives_that_are_cut_off(tmp_path):
    """Wherever a shard is cut, and at a damaged header, its later images are not lost in silence."""
    path = shard(tmp_path / "a.tar", {f"{i}.png": encoded() for i in range(3)})
    whole = path.read_bytes()
    end = len(whole.rstrip(b"\0")) // 512 * 512 + 512
    for length in sorted({*range(0, end + 1, 512), *range(100, end, 700)}):
        path.write_bytes(whole[:length])
        with pytest.raises(
            ValueError, match=r"a.tar (is cut off|is not an intact|has)|of .*a.tar is cut off"
        ):
            load(tmp_path)
    path.write_bytes(whole)
    _zeroed(path)
    with pytest.raises(ValueError, match=r"a.tar is cut off or damaged at byte [\d,]+: it has no end mark"):
        load(tmp_path)
    path.write_bytes(whole + whole)
    with pytest.raises(ValueError, match=r"a.tar has data after its end mark"):
        load(tmp_path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ValueError, match=r"a.tar is a named pipe, not a tar archive"):
        load(tmp_path)
