"""Tool schemas become the declaration that Kimi-K2.5 was trained on."""

import json
import logging
from typing import Any

import pytest

from eagle3_data.target.chats import prepare_tools

HEAD = "# Tools\n\n## functions\nnamespace functions {\n"


def tool(parameters: Any, description: str | None = "Does it.") -> list[dict[str, Any]]:
    function = {"name": "act", "parameters": parameters}
    if description is not None:
        function["description"] = description
    return [{"type": "function", "function": function}]


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


CASES = [
    ({}, "// Does it.\ntype act = (_: {}) => any;"),
    (
        {**of(b={"type": "string"}, a={"type": "integer"}, c={"type": "boolean"}), "required": ["c"]},
        "// Does it.\ntype act = (_: {\n  c: boolean,\n  a?: number,\n  b?: string\n}) => any;",
    ),
    (
        of(unit={"type": "string", "enum": ["c", "f"], "description": "Scale"}, n={"enum": [1, None, True]}),
        '// Does it.\ntype act = (_: {\n  n?: 1 | None | True,\n  // Scale\n  unit?: "c" | "f"\n}) => any;',
    ),
    (
        of(x={"type": "number", "minimum": 0, "maximum": 2.5, "default": 1}, s={"type": "string", "default": 'a"é'}),
        "// Does it.\ntype act = (_: {\n"
        '  // Default: "a\\"é"\n  s?: string,\n'
        "  // maximum: 2.5, minimum: 0\n  // Default: 1\n  x?: number\n}) => any;",
    ),
    (
        of(
            list={"type": "array", "minItems": 1, "items": {"type": "string", "description": "One"}},
            any={"type": "array"},
        ),
        "// Does it.\ntype act = (_: {\n  any?: Array<any>,\n"
        "  // minItems: 1\n  list?: Array<\n    // One\n    string\n  >\n}) => any;",
    ),
    (
        of(deep={**of(k={"type": ["string", "null"]}), "additionalProperties": False}, either={"anyOf": [{}, of()]}),
        "// Does it.\ntype act = (_: {\n  deep?: {\n    k?: string | null,\n    [k: string]: never\n  },\n"
        "  either?: any | {}\n}) => any;",
    ),
    (
        {
            **of(node={"$ref": "#/$defs/Node"}),
            "$defs": {"Node": {**of(v={"type": "integer"}), "description": "A node"}},
        },
        "// A node\ninterface Node {\n  v?: number\n}\n// Does it.\ntype act = (_: {\n  node?: Node\n}) => any;",
    ),
    (
        of(again={"$ref": "#"}, v={"type": "string"}),
        "interface parameters {\n  again?: parameters,\n  v?: string\n}\n"
        "// Does it.\ntype act = (_: parameters) => any;",
    ),
]


@pytest.mark.parametrize(("parameters", "body"), CASES)
def test_declaration(parameters: Any, body: str) -> None:
    _, declaration = prepare_tools(tool(parameters), typescript=True)
    assert declaration == f"{HEAD}{body}\n}}\n"
    assert prepare_tools(json.dumps(tool(parameters)), typescript=True)[1] == declaration


def test_description_lines_and_absence() -> None:
    _, declaration = prepare_tools(tool({}, "One\n\nTwo"), typescript=True)
    assert declaration == f"{HEAD}// One\n\n// Two\ntype act = (_: {{}}) => any;\n}}\n"
    assert prepare_tools(tool({}, None), typescript=True)[1] == f"{HEAD}type act = (_: {{}}) => any;\n}}\n"


@pytest.mark.parametrize(
    "parameters",
    [of(x={"description": "no type"}), of(x={"$ref": "#/$defs/Missing"}), of(x={"type": "integer", "enum": ["a"]})],
)
def test_what_has_no_declaration_is_said_loudly(parameters: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        schemas, declaration = prepare_tools(tool({**parameters, "title": str(parameters)}), typescript=True)
    assert declaration is None
    assert schemas is not None
    assert "declared as JSON" in caplog.text
