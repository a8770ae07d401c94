"""Cards of strangers' values and strangers' cards: nothing gets out of its place, and nothing blocks a publish."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import DatasetCard
from support.run_folders import make_run

from eagle3_data.publishing.card.card import render_card
from eagle3_data.publishing.card.check import check_card
from eagle3_data.publishing.card.facts import read_counts
from eagle3_data.publishing.card.markdown import Markdown, block, code, escape, image, link
from eagle3_data.run_folder import RunFolder

EVIL = "x`|<img src=x onerror=alert(1)>]( https://evil.example)\n## Owned\n- item \x1b[2J\x00"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return make_run(tmp_path_factory.mktemp("run") / "run", {"B1_glaive": 12, "B8_sweagent": 12})


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return where every text and number in a manifest stands."""
    if isinstance(value, dict):
        return [path for key, inner in value.items() for path in paths(inner, (*at, key))]
    return [at]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    return {**value, path[0]: replaced(value[path[0]], path[1:], new)}


def test_no_value_of_a_manifest_leaves_its_place(run: RunFolder, tmp_path: Path) -> None:
    """A canary in each value in turn: no HTML, heading, table cell or escape sequence of its own comes out."""
    manifest = run.read_manifest().to_dict()
    manifest["left_out"] = {"B1_glaive": {"cut": 3}}
    manifest["selected_from"] = {"version": "1.0.0", "rows": 24}
    manifest["training"] = {"trainer": "plain", "rows": 24, "tokens": 1, "bytes": 2, "mask_bytes": 1}
    plain = render_card(run)
    rows = len(re.findall(r"^\|", plain, re.MULTILINE))
    tried = 0
    try:
        for path in paths(manifest):
            if path[0] in ("format", "recipe", "stages", "throughput"):
                continue
            if not isinstance(_at(manifest, path), str):
                continue
            run.write_manifest(replaced(manifest, path, EVIL))
            card = render_card(run, repo="org/x", version="1.0.0")
            tried += 1
            front, body = card.split("\n---\n", 1)
            assert yaml.safe_load(front.strip("-\n")), path
            text = body[: body.index("<!-- eagle3-data generated")]
            assert "<img" not in re.sub(r"`[^`\n]*`", "", text).replace("\\<img", "") and "\n## Owned" not in text, (
                path
            )
            assert "\x1b" not in text and "\x00" not in text, path
            assert len(re.findall(r"^\|", text, re.MULTILINE)) in (rows, rows + 1), path
    finally:
        run.write_manifest(manifest)
    assert tried > 30


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def test_the_change_list_and_the_names_of_figures_are_foreign_too(run: RunFolder) -> None:
    run.figures_path.mkdir(exist_ok=True)
    name = run.figures_path / "a](x)<b>`c.png"
    name.write_bytes(b"")
    try:
        changes = [{"version": EVIL, "lines": [EVIL]}]
        card = render_card(run, repo="org/x", version="1.0.0", changes=changes)
    finally:
        name.unlink()
    text = card[card.index("# EAGLE-3") :]
    assert "\n## Owned" not in text and "\x1b" not in text and "\n- item" not in text
    assert "(figures/a%5D%28x%29%3Cb%3E%60c.png)" in text


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (escape("a|b`c<d>[e]*f"), r"a\|b\`c\<d\>\[e\]\*f"),
        (escape(r"a\|b"), r"a\\\|b"),
        (escape("B1_glaive _x_"), r"B1_glaive \_x\_"),
        (escape(None), "–"),
        (escape(Markdown("**as it is**")), "**as it is**"),
        (code("a`b\nc"), "`a'b c`"),
        (code(""), "not recorded"),
        (link("t]", "https://x.example/a b)"), r"[t\]](https://x.example/a%20b%29)"),
        (link("t", "javascript:alert(1)"), "t"),
        (image("a_b", "figures/a b.png"), "![a_b](figures/a%20b.png)"),
        (block("```x\x1b"), "````text\n```x\n````"),
    ],
)
def test_the_one_function(made: str, wanted: str) -> None:
    assert made == wanted


GOOD = "<!-- eagle3-data generated "
DEEP = "[" * 5_000
# name, what becomes of the card that a publish left
MALFORMED = [
    ("empty", lambda card: ""),
    ("blank", lambda card: "\n\n"),
    ("only a fence", lambda card: "---\n"),
    ("no front matter", lambda card: card.split("\n---\n", 1)[1]),
    ("front matter never closed", lambda card: card.replace("\n---\n", "\n", 1)),
    ("YAML that does not parse", lambda card: card.replace("configs:\n", "configs: [\n", 1)),
    ("YAML with tabs", lambda card: card.replace("configs:\n", "\tconfigs:\n", 1)),
    ("YAML that is a list", lambda card: "---\n- a\n- b\n---\n# Text\n"),
    ("YAML that is a word", lambda card: "---\nhello\n---\n# Text\n"),
    ("YAML nested deeply", lambda card: f"---\na: {DEEP}\n---\n# Text\n"),
    (
        "YAML that grows without end",
        lambda card: (
            "---\na: &a [x,x,x,x,x,x,x,x,x]\n"
            + "".join(
                f"{b}: &{b} [*{a},*{a},*{a},*{a},*{a},*{a},*{a},*{a}]\n"
                for a, b in zip("abcdefgh", "bcdefghi", strict=True)
            )
            + "---\n# Text\n"
        ),
    ),
    ("YAML with Python objects", lambda card: "---\na: !!python/object/apply:os.system [id]\n---\n# Text\n"),
    ("keys that are no words", lambda card: "---\n1: a\n? [x]\n: b\n---\n# Text\n"),
    ("tags that are a number", lambda card: card.replace("tags:\n- eagle3\n", "tags: 5\nold_tags:\n- eagle3\n", 1)),
    ("tags that are mappings", lambda card: card.replace("tags:\n- eagle3\n", "tags:\n- {a: b}\n- eagle3\n", 1)),
    ("a licence that is none", lambda card: re.sub(r"license:\n(- .*\n)+", "license: {a: 1}\n", card, count=1)),
    ("a mark that is no JSON", lambda card: card.replace(GOOD + "{", GOOD + "{,", 1)),
    (
        "a mark of other types",
        lambda card: re.sub(GOOD + ".*", GOOD + '{"lines": 5, "metadata": [], "tags": 1} -->', card),
    ),
    ("a mark without its end", lambda card: card[: card.index(GOOD) + 40]),
    ("hashes that are no base64", lambda card: re.sub('"lines":"....', '"lines":"?!?!', card, count=1)),
    ("a mark nested deeply", lambda card: re.sub(GOOD + ".*", GOOD + '{"lines":' + DEEP + "} -->", card)),
    ("bytes that are no text", lambda card: (bytes(range(256)) * 20).decode("utf-8", errors="replace")),
    ("a byte order mark and DOS lines", lambda card: "\ufeff" + card.replace("\n", "\r\n")),
    ("very many lines", lambda card: card + "line\n" * 200_000),
]


@pytest.mark.parametrize(("spoil",), [case[1:] for case in MALFORMED], ids=[case[0] for case in MALFORMED])
def test_no_earlier_card_blocks_a_publish(run: RunFolder, spoil: Any) -> None:
    fresh = render_card(run)
    notes: list[str] = []
    merged = render_card(run, existing=spoil(fresh), notes=notes)
    check_card(merged, read_counts(run, ["B1_glaive", "B8_sweagent"]))
    assert len(notes) <= 2 and all("\n" not in note and len(note) < 500 for note in notes)
    for heading in ("## Load it", "## Limits"):
        assert heading in merged
    assert len(merged) < 4 * len(fresh)
    # and the next version merges with that without a word
    again: list[str] = []
    assert render_card(run, existing=merged, notes=again) == merged and not again


@pytest.mark.parametrize(
    ("spoil", "says", "kept"),
    [
        (
            lambda text: text.replace("configs:\n", "configs: [\n", 1),
            "metadata of the earlier README.md cannot be read",
            True,
        ),
        (lambda text: text.replace(GOOD + "{", GOOD + "{,", 1), "its last line is damaged", False),
        (
            lambda text: re.sub(r"license:\n(- .*\n)+", "license: 5\n", text, count=1),
            "license: 5 is no licence id",
            True,
        ),
    ],
)
def test_what_people_wrote_is_kept_where_it_can_be_told(run: RunFolder, spoil: Any, says: str, kept: bool) -> None:
    ours = render_card(run).replace("## Limits\n", "## Limits\n\nMind the gap.\n", 1)
    notes: list[str] = []
    merged = render_card(run, existing=spoil(ours), notes=notes)
    assert len(notes) == 1 and says in notes[0]
    assert ("Mind the gap." in merged) == kept
    assert DatasetCard(merged).data.license == ["apache-2.0", "cc-by-4.0"]
    assert json.loads(re.search(GOOD + r"(\{.*\}) -->", merged)[1])["metadata"]  # type: ignore[index]
