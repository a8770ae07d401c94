"""Upstream files of every form, and what is said about those that are not what they should be."""

import bz2
import gc
import gzip
import json
import lzma
import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eagle3_data.errors import SourceError
from eagle3_data.sources import draw
from eagle3_data.sources.columns import BadRow, Column
from eagle3_data.sources.reading import read_rows

ROWS = [
    {"system": f"s {i} \u2028\u0085", "chat": "é" * (i * 37 % 90), "more": {"list": [i, None]}} for i in range(600)
]
COLUMNS = (Column("system"), Column("chat"))


def rows_of(path: Path, **options: Any) -> list[tuple[int, Any]]:
    return list(read_rows(str(path), path.name, COLUMNS, **options))


def as_parquet(path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=130)


def as_zstd(path: Path, text: str) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.CompressedOutputStream(file, "zstd") as stream:
        stream.write(text.encode())


WRITERS: dict[str, Any] = {
    "rows.jsonl": lambda p: p.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in ROWS), "utf-8"),
    "blank-lines.jsonl": lambda p: p.write_text("\n\r\n".join(json.dumps(r) for r in ROWS), "utf-8"),
    "mark.jsonl": lambda p: p.write_text("".join(json.dumps(r) + "\r\n" for r in ROWS), "utf-8-sig"),
    "rows.jsonl.gz": lambda p: p.write_bytes(gzip.compress("\n".join(map(json.dumps, ROWS)).encode())),
    "array.json": lambda p: p.write_text(json.dumps(ROWS, ensure_ascii=False), "utf-8"),
    "pretty.json": lambda p: p.write_text(json.dumps(ROWS, indent=3), "utf-8-sig"),
    "lines.json": lambda p: p.write_text("\n".join(map(json.dumps, ROWS)), "utf-8"),
    "rows.jsonl.zst": lambda p: as_zstd(p, "\n".join(map(json.dumps, ROWS))),
    "array.json.zst": lambda p: as_zstd(p, json.dumps(ROWS)),
    "lines.json.xz": lambda p: p.write_bytes(lzma.compress("\n".join(map(json.dumps, ROWS)).encode())),
    "rows.parquet": as_parquet,
}


@pytest.mark.parametrize("name", WRITERS)
def test_the_same_rows_from_every_form(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "eagle3_data.sources.json_array._CHUNK", 257
    )  # rows and characters are cut by the buffer's edge
    WRITERS[name](tmp_path / name)
    keep = ("system", "chat") if name.endswith(".parquet") else ("system", "chat", "more")
    expected = [(i, {key: row[key] for key in keep}) for i, row in enumerate(ROWS)]
    assert rows_of(tmp_path / name) == expected
    wanted = np.array(sorted(random.Random(0).sample(range(600), 40)))
    assert rows_of(tmp_path / name, wanted=wanted) == [expected[i] for i in wanted]


def test_a_pretty_printed_object_and_a_traj_file_are_one_row_each(tmp_path: Path) -> None:
    for name in ("one.json", "one.traj"):
        (tmp_path / name).write_text(json.dumps(ROWS[0], indent=2))
        assert rows_of(tmp_path / name) == [(0, ROWS[0])]
    (tmp_path / "empty.json").write_text("[]")
    (tmp_path / "empty.jsonl").write_text("")
    assert rows_of(tmp_path / "empty.json") == rows_of(tmp_path / "empty.jsonl") == []


def test_bad_lines_are_rows_of_their_own(tmp_path: Path) -> None:
    lines = [b'{"system": "a"', b"[1]", b'{"system": "\xff"}', b"[" * 5000, b'{"system": NaN}', b'{"chat": "\\ud83d"}']
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    found = [row for _, row in rows_of(tmp_path / "a.jsonl")]
    kinds = [row.reason if isinstance(row, BadRow) else "row" for row in found]
    assert kinds == ["not_json", "not_object", "not_utf8", "not_json", "row", "row"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[{"system": "a", "chat": "b"}', "the file ends before the array does at character 29, row 1"),
        ('[{"system": "a", "chat": "b"} {"system"', "no comma between two rows at character 30, row 1"),
        ('[{"system": "a", "chat": "b"}, {"system": a}' + " " * 40, "Expecting value.*row 1"),
        ('[{"system": "a", "chat": "b"}] and more', "text after the array"),
        ('[{"system": "a", "chat": "b"},]', "Expecting value"),
    ],
)
def test_a_damaged_array_names_the_place(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(SourceError, match=f"a.json: not a JSON array of rows .*{words}"):
        rows_of(tmp_path / "a.json")


def test_a_truncated_parquet_file_or_archive_is_one_error(tmp_path: Path) -> None:
    as_parquet(tmp_path / "a.parquet")
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-200])
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"a": 1}\n' * 9999)[:-20])
    (tmp_path / "not.jsonl.gz").write_bytes(b'{"a": 1}\n')
    for name in ("cut.parquet", "cut.jsonl.gz", "not.jsonl.gz", "absent.jsonl"):
        with pytest.raises(SourceError, match=f"{name}: cannot be read"):
            rows_of(tmp_path / name)


@pytest.mark.parametrize("kind", [gzip, bz2, lzma], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("damage", ["cut", "overwritten", "not compressed"])
def test_a_damaged_archive_is_one_error(kind: Any, damage: str, tmp_path: Path) -> None:
    rows = b"".join(b'{"system": "%d", "chat": ""}\n' % i for i in range(9999))
    data = bytearray(kind.compress(rows))
    if damage == "cut":
        del data[-20:]
    elif damage == "overwritten":
        data[len(data) // 2 : len(data) // 2 + 40] = bytes(40)
    else:
        data = bytearray(rows)
    name = f"a.jsonl.{ {'gzip': 'gz', 'bz2': 'bz2', 'lzma': 'xz'}[kind.__name__] }"
    (tmp_path / name).write_bytes(data)
    with pytest.raises(SourceError, match=rf"^{name}: cannot be read \(.+\); fetch the file again"):
        rows_of(tmp_path / name)


@pytest.mark.parametrize("name", ["a\nb.jsonl", "a\x1b[31mb.jsonl", "a\u202eb.jsonl", "a\x9b2Jb.jsonl"])
def test_an_error_about_a_file_is_one_printable_line(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text('{"other": 1}\n' * 3)
    for source in ("B1_glaive", "chat"):
        with pytest.raises(SourceError) as caught:
            draw(source, data_files=str(tmp_path / name), cache_dir=tmp_path / "cache")
        assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "path", ["x" * 5000, "~no-such-user-here/a.jsonl", "hf://datasets/", "nothing://a/b.jsonl", "a\0.jsonl"]
)
def test_what_can_be_no_path_is_one_error(path: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no such file|; correct data_files"):
        draw("chat", data_files=path, cache_dir=tmp_path / "cache")


def test_a_column_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    text = pa.array(['[{"role": "user", "content": "a"}]'])
    pq.write_table(pa.Table.from_arrays([text, text], ["messages", "messages"]), tmp_path / "a.parquet")
    with pytest.raises(SourceError, match=r"a\.parquet: column 'messages' occurs twice"):
        draw("chat", data_files=str(tmp_path / "a.parquet"), cache_dir=tmp_path / "cache")


@pytest.mark.parametrize("name", ["rows.jsonl", "array.json", "rows.jsonl.gz", "rows.jsonl.zst", "rows.parquet"])
def test_no_file_stays_open(name: str, tmp_path: Path) -> None:
    WRITERS[name](tmp_path / name)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        rows_of(tmp_path / name)
        left = read_rows(str(tmp_path / name), name, COLUMNS)
        next(left)
        del left
        gc.collect()
    assert not [one for one in caught if str(tmp_path) in str(one.message)]


def good(**changes: Any) -> dict[str, Any]:
    return {
        "system": "SYSTEM: You are a helpful assistant, with no access to external functions.\n\n",
        "chat": "USER: Hello\n\nASSISTANT: Hi <|endoftext|>",
        **changes,
    }


@pytest.mark.parametrize("form", ["jsonl", "json", "parquet"])
@pytest.mark.parametrize(
    ("row", "words"),
    [
        (
            {"prompt": "x", "system": "y"},
            r"column 'chat' is missing: found prompt, system; expected system \(text\), chat \(text\)",
        ),
        (good(chat=["USER: x"]), "column 'chat' is list.*, expected text"),
        (good(system=3), "column 'system' is int.*, expected text"),
    ],
    ids=["missing", "list", "integer"],
)
def test_a_foreign_file_is_one_error(form: str, row: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = tmp_path / f"foreign.{form}"
    rows = [row] * 100
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text(json.dumps(rows) if form == "json" else "\n".join(map(json.dumps, rows)))
    with pytest.raises(SourceError, match=f"^B1_glaive: foreign.{form}: .*{words}"):
        draw("B1_glaive", None, str(path), cache_dir=tmp_path)


def test_single_bad_rows_stop_nothing(tmp_path: Path) -> None:
    rows = [good(), good(chat=None), {"chat": "x"}, good(system=[]), "text", good(chat="USER: Bye")]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)) + '\n{"system')
    report = draw("B1_glaive", None, str(tmp_path / "a.jsonl"), cache_dir=tmp_path).report
    assert (report.read, report.kept) == (7, 2)
    assert report.rejected == {"missing_column": 2, "not_json": 1, "not_object": 1, "wrong_type": 1}
    assert [example["row"] for example in report.reject_examples["missing_column"]] == [1, 2]


def test_one_broken_traj_file_among_others_is_a_rejected_row(tmp_path: Path) -> None:
    history = [{"role": "system", "content": "s"}, {"role": "user", "content": "fix it"}]
    folder = tmp_path / "trajectories"
    folder.mkdir()
    (folder / "a.traj").write_text(json.dumps({"history": history}))
    (folder / "b.traj").write_text('{"history": [')
    (folder / "notes.txt").write_text("not read")
    report = draw("B8_sweagent", "traj", str(folder), cache_dir=tmp_path).report
    assert (report.read, report.kept, report.rejected) == (2, 1, {"not_json": 1})
    (folder / "a.traj").write_text('{"trajectory": []}')
    with pytest.raises(SourceError, match=r"a\.traj: its row cannot be read.*'history' is missing"):
        draw("B8_sweagent", "traj", str(folder), cache_dir=tmp_path)


def test_an_empty_file_and_an_unknown_form_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n")
    with pytest.raises(SourceError, match=r"no rows in a\.jsonl"):
        draw("chat", None, str(tmp_path / "a.jsonl"), cache_dir=tmp_path)
    (tmp_path / "a.csv").write_text("a,b\n")
    with pytest.raises(SourceError, match=r"a\.csv: its name has no known ending"):
        draw("chat", None, str(tmp_path / "a.csv"), cache_dir=tmp_path)


@pytest.mark.parametrize(
    ("name", "config", "row", "options", "words"),
    [
        ("B4_mixturethoughts", "all", {"num_tokens": 1}, {}, "column 'source' is missing: found .*expected"),
        ("B5_openthoughts", "openthoughts2-1m", {}, {}, "column 'source' is missing"),
        ("B5_openthoughts", "openthoughts3-1.2m", {"source": "x"}, {}, "column 'domain' is missing"),
        ("B8_sweagent", "nebius", {}, {}, "column 'instance_id' is missing"),
        ("chat", None, {"part": "x"}, {"origin_column": "prt"}, "no column 'prt', which origin_column names"),
        ("chat", None, {"system": ["x"]}, {}, "column 'system' is list, expected text"),
        ("chat", None, {"messages": [{"role": "user", "txt": "x"}]}, {}, r"none of content, .* \(found: role, txt\)"),
        ("chat", None, {"messages": [{"speaker": "user", "text": "x"}]}, {}, r"none of role, from \(found: speaker"),
    ],
)
def test_a_column_that_labels_or_says_nothing_any_more_is_one_error(
    name: str, config: str | None, row: dict[str, Any], options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    """Licences and filters go by the labels: rows without them must not pass as free of what is filtered out."""
    turns = [{"role": "user", "content": "hi"}]
    path = tmp_path / "renamed.jsonl"
    path.write_text(json.dumps({"messages": turns, "conversations": turns, "trajectory": turns, **row}))
    with pytest.raises(SourceError, match=f"^{name}: renamed.jsonl: .*{words}"):
        draw(name, config, str(path), cache_dir=tmp_path, **options)


def test_nullable_and_categorical_columns_of_a_parquet_file(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "hi"}]
    table = pa.table({"conversations": [turns] * 3, "source": pa.array(["camelai", None, "x"]).dictionary_encode()})
    pq.write_table(table.append_column("domain", pa.nulls(3)), tmp_path / "a.parquet")
    drawn = draw("B5_openthoughts", "openthoughts3-1.2m", str(tmp_path / "a.parquet"), cache_dir=tmp_path)
    assert (drawn.report.kept, drawn.report.duplicates) == (1, 2)
    assert drawn.prompts[0]["origin"] == "camelai"
