"""The manifest as a typed object: what was written is read again, the cap of a source, and damage in one sentence."""

import ast
import json
from pathlib import Path

import pytest
from support.run_folders import manifest as manifest_values

import eagle3_data
from eagle3_data.errors import DataError
from eagle3_data.manifest import MANIFEST_FORMAT, Manifest, SourceExtent
from eagle3_data.run_folder import RunFolder

VALUES = manifest_values({"B1_glaive": 10, "B8_sweagent": 3}, cap=200, vocabulary=1000, failed=1)


def test_what_was_written_is_read_again_unknown_keys_too(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert run.read_manifest().is_empty
    values = {**VALUES, "a_later_key": {"x": [1, None]}, "engine": {**VALUES["engine"], "another": 1}}
    run.write_manifest(values)
    assert json.loads(run.manifest_path.read_text()) == {**values, "format": MANIFEST_FORMAT}
    changed = run.read_manifest().model_copy(update={"name": "other"})
    run.write_manifest(changed)
    assert json.loads(run.manifest_path.read_text()) == {**values, "name": "other", "format": MANIFEST_FORMAT}
    assert run.read_manifest() == changed and not changed.is_empty


def test_some_sources_of_a_manifest() -> None:
    part = Manifest.of(VALUES).only(["B8_sweagent"])
    assert {*part.extent.sources, *part.reports, *part.generation} == {"B8_sweagent"}
    assert part.to_dict() == {
        **VALUES,
        "format": MANIFEST_FORMAT,
        "extent": {"sources": {"B8_sweagent": VALUES["extent"]["sources"]["B8_sweagent"]}},
        **{key: {"B8_sweagent": VALUES[key]["B8_sweagent"]} for key in ("sources", "generation")},
    }


@pytest.mark.parametrize(
    ("stated", "cap", "continued_to", "furthest"),
    [
        ({}, None, None, None),
        ({"max_new_tokens": "auto"}, None, None, None),
        ({"max_new_tokens": 200}, 200, None, 200),
        ({"max_new_tokens": "auto", "caps": 300}, 300, None, 300),
        ({"max_new_tokens": 400, "caps": 300}, 300, None, 400),
        ({"max_new_tokens": 200, "caps": 200, "extended_to": 800}, 200, 800, 800),
        ({"max_new_tokens": 900, "caps": 900, "extended_to": 800}, 900, None, 900),
        ({"max_new_tokens": "auto", "extended_to": 800}, None, 800, 800),
        ({"max_new_tokens": 200, "extended_to": None}, 200, None, 200),
    ],
)
def test_the_cap_of_a_source(
    stated: dict[str, object], cap: int | None, continued_to: int | None, furthest: int | None
) -> None:
    extent = SourceExtent.model_validate(stated)
    assert (extent.cap, extent.continued_to, extent.furthest) == (cap, continued_to, furthest)


def test_auto_is_what_the_pilot_found() -> None:
    manifest = Manifest.of({"pilot": {"B1_glaive": {"max_new_tokens": 512, "rows": 474}}})
    assert manifest.cap_for("B1_glaive", 100) == 100
    assert manifest.cap_for("B1_glaive", "auto") == 512
    assert manifest.cap_for("B8_sweagent", "auto") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "manifest.json: not valid JSON"),
        ("[]", "manifest.json: not a manifest of eagle3-data"),
        ('{"name": "another program"}', "manifest.json: not a manifest of eagle3-data"),
        ('{"format": 0}', "written by an earlier version of eagle3-data"),
        ('{"format": 999}', "upgrade eagle3-data"),
        ('{"format": "v2"}', "but 'v2'; upgrade eagle3-data"),
        ('{"format": 1, "extent": {"sources": {"B1": {"caps": "200"}}}}', "damaged at extent.sources.B1.caps"),
        ('{"format": 1, "generation": {"B1": {"records": null}}}', "damaged at generation.B1.records"),
        ('{"format": 1, "generation": []}', "damaged at generation"),
        ('{"format": 1, "identity": {"sampling": 3}}', "damaged at identity.sampling"),
        ('{"format": 1, "recipe": 7}', "damaged at recipe"),
        ('{"format": 1, "pilot": {"B1": {"max_new_tokens": 0}}}', "damaged at pilot.B1.max_new_tokens"),
        (f'{{"format": 1, "name": {"[" * 90_000}', "manifest.json: not valid JSON"),
    ],
)
def test_damage_is_one_clear_error(text: str, message: str, tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.manifest_path.write_text(text.replace('"format": 1', f'"format": {MANIFEST_FORMAT}'))
    with pytest.raises(DataError) as caught:
        run.read_manifest()
    assert message in str(caught.value) and str(run.manifest_path) in str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


def test_nothing_else_reads_a_raw_key() -> None:
    """`manifest["…"]` and `manifest.get("…")` are not written outside the module."""
    package = Path(eagle3_data.__file__).parent
    # what is published is a document that is merged and made public key by key; its own module reads it
    for path in [path for path in package.rglob("*.py") if package / "publishing" not in path.parents]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Subscript) or (
                isinstance(node, ast.Attribute) and node.attr in ("get", "setdefault")
            ):
                read = ast.unparse(node.value)  # type: ignore[attr-defined]
                assert not read.endswith(("manifest", "read_manifest()")), f"{path}:{node.lineno}: {ast.unparse(node)}"
