"""Files that list the images of a folder: labels, several labels, groups, and what can be wrong with them."""

import json

import numpy as np
import pytest
from PIL import Image

from contrastive_jax import data

PATHS = ["a/0.png", "a/1.png", "b/0.png", "loose.png"]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A folder whose images say which they are."""
    root = tmp_path_factory.mktemp("images")
    for i, path in enumerate(PATHS):
        (root / path).parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((4, 4), i, np.uint8)).save(root / path)
    return root


def load(images, text, ending="csv", tmp_path=None, **options):
    file = (tmp_path or images.parent) / f"listing-{images.name}.{ending}"
    file.write_text(text if isinstance(text, str) else json.dumps(text), encoding="utf-8")
    return data.load(name="folder", dir=str(images), labels=str(file), **options)


def lines(*rows):
    return "\n".join(rows) + "\n"


ONE = {"a/0.png": "cat", "a/1.png": "dog", "b/0.png": "cat", "loose.png": None}
AS_ROWS = [{"file": path, "label": label} for path, label in ONE.items()]


@pytest.mark.parametrize(
    "text, ending",
    [
        (lines("path,label", *(f"{p},{label or ''}" for p, label in ONE.items())), "csv"),
        (lines("label\tpath", *(f"{label or ''}\t./{p}" for p, label in ONE.items())), "tsv"),
        ("\ufeff" + lines("path , label", *(f'"{p}", {label or ""} ' for p, label in ONE.items())), "csv"),
        (ONE, "json"),
        ({path: {"label": label} for path, label in ONE.items()}, "json"),
        (AS_ROWS, "json"),
        (lines(*map(json.dumps, AS_ROWS)), "jsonl"),
    ],
    ids=["csv", "tsv", "excel", "object", "objects", "list", "jsonl"],
)
def test_one_label_an_image(images, text, ending):
    source = load(images, text, ending)
    assert source.classes == ("cat", "dog") and source.train.label.tolist() == [0, 1, 0, -1]
    assert source.train.label.dtype == np.int32
    assert source.train.image[:, 0, 0, 0].tolist() == [0, 1, 2, 3]


def test_columns_by_name_and_the_file_by_its_name_in_the_folder(images):
    rows = [f"{p};{i}" for i, p in enumerate(PATHS)]
    text = lines("where,what,age", *(row.replace(";", ",") + ",5" for row in rows))
    source = load(images, text, path_key="where", label_key="what")
    assert source.classes == ("0", "1", "2", "3") and source.train.label.tolist() == [0, 1, 2, 3]
    (images / "inside.csv").write_text(text)
    options = {"name": "folder", "dir": str(images), "labels": "inside.csv", "path_key": "where"}
    assert data.load(**options, label_key="age").classes == ("5",)
    assert data.load(**options, label_key="").train.label.tolist() == [-1] * 4


def test_numbers_are_sorted_as_numbers(images):
    assert load(images, dict(zip(PATHS, [10, 9, 100, 9], strict=True)), "json").classes == ("9", "10", "100")


SEVERAL = [["sea", "dog"], [], ["cat"], ["dog", "dog"]]


@pytest.mark.parametrize(
    "text, ending, options",
    [
        (dict(zip(PATHS, SEVERAL, strict=True)), "json", {}),
        (
            lines("path,label", *(f"{p},{' | '.join(x)}" for p, x in zip(PATHS, SEVERAL, strict=True))),
            "csv",
            {"label_separator": "|"},
        ),
    ],
    ids=["json", "csv"],
)
def test_several_labels_an_image(images, text, ending, options):
    source = load(images, text, ending, **options)
    assert source.classes == ("cat", "dog", "sea")
    label = source.train.label
    assert label.dtype == np.uint8 and label.tolist() == [[0, 1, 1], [0, 0, 0], [1, 0, 0], [0, 1, 0]]
    assert source.train[1:3].label.tolist() == [[0, 0, 0], [1, 0, 0]] and source.train.labelled
    source = load(images, text, ending, **options, test_fraction=0.25)
    assert len(source.test) == 1 and source.test.label.shape == (1, 3)


def test_labels_of_both_splits_in_one_file(tmp_path):
    for path in ("train/0.png", "train/1.png", "val/0.png"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        Image.new("L", (4, 4)).save(tmp_path / path)
    rows = {"train/0.png": "x", "train/1.png": "y", "val/0.png": "y"}
    source = load(tmp_path, rows, "json")
    assert source.train.label.tolist() == [0, 1] and source.test.label.tolist() == [1]
    assert load(tmp_path, rows, "json", test_split="").test is None  # rows of images left out are no error
    with pytest.raises(ValueError, match="classes without training images: z"):
        load(tmp_path, rows | {"val/0.png": "z"}, "json")


@pytest.mark.parametrize(
    "text, ending, message",
    [
        (lines("path,label", "a/0.png,x", "b/0.png,x"), "csv", "has no row for a/1.png and 1 more"),
        (ONE | {"c.png": "x"}, "json", "lists c.png, which does not exist in"),
        (
            lines("path,label", "a/0.png,x", "./a/0.png,x"),
            "csv",
            "a/0.png occurs twice: line 2 and line 3",
        ),
        ('{"a/0.png": "x", "a/0.png": "y"}', "json", "a/0.png occurs twice"),
        ('{"path": "a/0.png", "label": "x", "label": "y"}', "jsonl", "label occurs twice"),
        (
            {"a/0.png": {"path": "a/1.png", "label": "x"}},
            "json",
            "the entry 'a/0.png' contains another path, 'a/1.png'",
        ),
        (
            lines("path,class", "a/0.png,x"),
            "csv",
            r"line 2 has no 'label' \(data.label_key\); it has path, class",
        ),
        (lines("where,label", "a/0.png,x"), "csv", r"no 'path' \(data.path_key\); it has where, label"),
        (lines("path,label", "a/0.png"), "csv", "line 2 does not have 2 cells like the header"),
        (lines("path,label", "a/0.png,x,y"), "csv", "line 2 does not have 2 cells"),
        (lines("path,label", "../0.png,x"), "csv", "line 2: ../0.png is outside data.dir"),
        (lines("path,label", "/0.png,x"), "csv", "/0.png is outside data.dir"),
        (lines("path,label", ",x"), "csv", "line 2: '' is not a path"),
        (lines("path,label"), "csv", "it has no rows"),
        (lines("path,label, label", "a/0.png,x,y"), "csv", "its header contains 'label' twice"),
        ({"a/0.png": 1.5}, "json", "'a/0.png': the label is 1.5; it must be a name or a whole number"),
        ({"a/0.png": [1, 0, 0, 1]}, "json", r"the labels are \[1, 0, 0, 1\], which is a multi-hot list"),
        ({"a/0.png": ["x", None]}, "json", "the label is None; it must be a name"),
        (lines("path,label", "a/0.png,-1"), "csv", "line 2: the label is -1, which means no label in other"),
        (
            dict.fromkeys(PATHS, ["x"]) | {"b/0.png": None},
            "json",
            "b/0.png has no label, while others have lists",
        ),
        (["a/0.png"], "json", "entry 0 is 'a/0.png'; it must be an object"),
        ("3", "json", "it must be a list or an object"),
        ("{", "json", "data.labels is .*json; Expecting"),
        ("path label", "txt", "must end in .csv, .tsv, .json or .jsonl"),
        (dict.fromkeys(PATHS, []), "json", "has no label for any image"),
    ],
)
def test_what_can_be_wrong(images, text, ending, message):
    with pytest.raises(ValueError, match=message):
        load(images, text, ending)


def test_options_that_do_not_apply(images):
    with pytest.raises(FileNotFoundError, match="data.labels is nowhere.csv; there is no such file"):
        data.load(name="folder", dir=str(images), labels="nowhere.csv")
    with pytest.raises(
        ValueError,
        match="path_key, data.label_key and data.label_separator describe the file data.labels",
    ):
        data.load(name="folder", dir=str(images), label_separator=";")
    with pytest.raises(ValueError, match="describe the file data.labels"):
        data.load(name="folder", dir=str(images), label_key="species")
    with pytest.raises(ValueError, match="data.label_separator is '|'; it must be ''"):
        load(images, ONE, "json", label_separator="|")
    with pytest.raises(ValueError, match="data.labels is not an option of digits"):
        data.load(name="digits", labels="x.csv")
    assert data.load(name="folder", dir=str(images), label_key="").train.label.tolist() == [-1] * 4
    rows = lines("path,label", *(f"{path},sea|dog" for path in PATHS))
    unlabelled = load(images, rows, label_key="", label_separator="|")
    assert unlabelled.train.label.tolist() == [-1] * 4


ROWS = lines("path,label", "a/0.png,Käfer", "a/1.png,ant", "b/0.png,ant", "loose.png,")


def written(images, content, ending="csv", **options):
    file = images.parent / f"bytes-{images.name}.{ending}"
    file.write_bytes(content)
    return data.load(name="folder", dir=str(images), labels=str(file), **options)


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_tables_as_programs_write_them(images, encoding, separator, ends):
    text = ROWS.replace(",", separator).replace("\n", ends)
    for begins in ("", f"sep={separator}\n"):
        source = written(images, (begins + text).encode(encoding))
        assert source.classes == ("Käfer", "ant") and source.train.label.tolist() == [0, 1, 1, -1]


@pytest.mark.parametrize(
    "change",
    [
        lambda text, root: text.replace("/", "\\"),
        lambda text, root: text.replace("/", "\\").replace("\na", "\n.\\a"),
        lambda text, root: text.replace("\na", f"\n{root}/a"),
        lambda text, root: text.replace("\na", f"\n{root.name}/a"),
        lambda text, root: text.replace("\na", f"\n../{root.name}/a"),
        lambda text, root: text.replace("\na", f"\nD:\\work\\{root.name}\\a"),
        lambda text, root: text.replace("\na", f"\n/elsewhere/{root.name}/a"),
        lambda text, root: text.replace("path,label", "Path,Label"),
        lambda text, root: text.replace("path,label", "File_Name , LABEL"),
        lambda text, root: "".join(f"{i},{line}\n" for i, line in enumerate(text.splitlines())).replace("0,p", ",p"),
        lambda text, root: text.replace("Käfer", '"Käfer"').replace("a/1.png", '"a/1.png"'),
    ],
)  # fmt: skip
def test_paths_and_columns_whose_meaning_is_plain(images, change):
    source = written(images, change(ROWS, images).encode())
    assert source.classes == ("Käfer", "ant") and source.train.label.tolist() == [0, 1, 1, -1]


def test_accents_of_another_form(tmp_path):
    import unicodedata

    for name in ("ü.png", "o.png"):
        Image.new("L", (4, 4)).save(tmp_path / unicodedata.normalize("NFD", name))
    text = unicodedata.normalize("NFC", lines("path,label", "ü.png,x", "o.png,y"))
    assert written(tmp_path, text.encode()).classes == ("x", "y")


@pytest.mark.parametrize(
    "content, ending, message",
    [
        (ROWS.encode("cp1252"), "csv", r"line 2 is not UTF-8 \(byte 0xe4\).*save it as UTF-8"),
        (ROWS.encode("utf-16")[:-1], "csv", "but is not UTF-.*: save it as UTF-8"),
        (ROWS.partition("\n")[2].encode(), "csv", "line 1 is a row, not a header .*such as path,label"),
        (ROWS.replace("\n", "\nelsewhere/", 4).encode(), "csv", "no row for a/0.png .*it has elsewhere/a/0.png"),
        (ROWS.replace("ant", '"ant', 1).encode(), "csv", "line [0-9]+: unexpected end|line [0-9]+"),
        (b'{"path": "a/0.png", "label": "x"}\n\n{"path": }\n', "jsonl", "line 3, column 10: Expecting value"),
        (b'{"path": "a/0.png", "label": "x"}\n{"path": "a", "path": "b"}\n', "jsonl", "line 2: path occurs twice"),
        (b"[" * 100_000, "json", "nested too deeply"),
        (b"[" * 100_000, "jsonl", "nested too deeply"),
        (b'{"a/0.png": "\\ud800"}', "json", "it must be a name or a whole number"),
        (b"D:\\x", "xlsx", "as CSV UTF-8"),
        (lines("path,label", "D:\\x\\y.png,a").encode(), "csv", "is outside data.dir"),
    ],
)  # fmt: skip
def test_what_is_not_plain_says_what_to_do(images, content, ending, message):
    with pytest.raises(ValueError, match=message) as caught:
        written(images, content, ending)
    assert "data.labels" in str(caught.value) and "\n" not in str(caught.value)
