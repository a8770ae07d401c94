"""Tool schemas as the TypeScript declaration that Kimi-K2.5 was trained on.

Goes in: OpenAI tool schemas (JSON Schema parameters) with sorted keys. Comes out: the text that the model's template
takes as `tools_ts_str`. The form is that of the model's own tokenizer class (tool_declaration_ts.py in the model
repository), oddities included, since what matters is the text the model saw.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

_INDENT: Final = "  "
_CONSTRAINTS: Final[dict[str, tuple[str, ...]]] = {
    "string": ("maxLength", "minLength", "pattern"),
    "number": ("maximum", "minimum"),
    "integer": ("maximum", "minimum"),
    "array": ("maxItems", "minItems"),
}
_UNION: Final = {
    "string": "string",
    "number": "number",
    "integer": "number",
    "boolean": "boolean",
    "null": "null",
    "object": "{}",
    "array": "Array<any>",
}


def declare_tools(tools: Iterable[Mapping[str, Any]]) -> str:
    """Return the declaration of all function tools, "" when there is none.

    Raises:
        ValueError, TypeError, KeyError: a schema has no TypeScript form.
    """
    functions = [_Function(tool["function"]).declare() for tool in tools if _is_function(tool)]
    if not functions:
        return ""
    body = "\n".join(functions)
    return f"# Tools\n\n## functions\nnamespace functions {{\n{body}\n}}\n"


def _is_function(tool: Mapping[str, Any]) -> bool:
    return tool.get("type") == "function" and bool(tool.get("function"))


def _comment(text: str, indent: str) -> str:
    return "\n".join(f"{indent}// {line}" if line else "" for line in text.split("\n"))


class _Function:
    """One function; it collects the named definitions (`$defs`) that its parameters bring along."""

    def __init__(self, function: Mapping[str, Any]) -> None:
        self._function = function
        self._definitions: dict[str, Any] = {}
        self._refers_to_itself = False

    def declare(self) -> str:
        parameters = self._function.get("parameters") or {}
        self._collect(parameters, top=True)
        # Only what the parameters themselves refer to counts: definitions are printed after this was settled.
        known, whole = dict(self._definitions), self._refers_to_itself
        lines: list[str] = []
        name = self._function.get("name", "function")
        if whole:
            fields = ",\n".join(
                self._field(key, schema, key not in set(parameters.get("required", ())), _INDENT)
                for key, schema in parameters.get("properties", {}).items()
            )
            lines.append("interface parameters {" + (f"\n{fields}\n" if fields else "") + "}")
        for key, schema in known.items():
            self._collect(schema)
            text = self._type(schema, "")
            description = schema.get("description", "")
            lines.append((_comment(description, "") + "\n" if description else "") + f"interface {key} {text}")
        head = "\n".join(lines)
        shape = "parameters" if whole else self._object(parameters, "")
        description = self._function.get("description")
        parts = [head, _comment(description, "") if description else "", f"type {name} = (_: {shape}) => any;"]
        return "\n".join(part for part in parts if part)

    def _collect(self, schema: Any, top: bool = False) -> None:
        """Walk a schema as it will be printed, gathering definitions and refusing what has no form."""
        if isinstance(schema, bool):
            return
        if not top:
            if "$ref" in schema:
                self._resolve(schema["$ref"])
                return
            if "anyOf" in schema:
                for option in schema["anyOf"]:
                    self._collect(option)
                return
            if "enum" in schema:
                _check_enum(schema)
                return
            if "type" not in schema:
                if schema:
                    raise ValueError(f"a schema without a type: {schema}")
                return
            kind = schema["type"]
            if isinstance(kind, list):
                for option in kind:
                    _UNION[option]
                return
            if kind == "array":
                if schema.get("items"):
                    self._collect(schema["items"])
                return
            if kind != "object":
                return
        self._definitions.update(schema.get("$defs") or {})
        if isinstance(schema.get("additionalProperties"), Mapping):
            self._collect(schema["additionalProperties"])
        for item in schema.get("properties", {}).values():
            self._collect(item)

    def _resolve(self, reference: str) -> str:
        if reference == "#":
            self._refers_to_itself = True
            return "parameters"
        if not reference.startswith("#/$defs/"):
            raise ValueError(f"a reference of another form than #/$defs/NAME: {reference}")
        name = reference.rsplit("/", 1)[-1]
        if name not in self._definitions:
            raise ValueError(f"a reference to nothing: {reference}")
        return name

    def _type(self, schema: Any, indent: str) -> str:
        if isinstance(schema, bool):
            return "any" if schema else "null"
        if "$ref" in schema:
            return self._resolve(schema["$ref"])
        if "anyOf" in schema:
            return " | ".join(self._type(option, indent) for option in schema["anyOf"])
        if "enum" in schema:
            _check_enum(schema)
            return " | ".join(f'"{value}"' if isinstance(value, str) else str(value) for value in schema["enum"])
        if "type" not in schema:
            if schema:
                raise ValueError(f"a schema without a type: {schema}")
            return "any"
        kind = schema["type"]
        if isinstance(kind, list):
            return " | ".join(_UNION[option] for option in kind)
        if kind == "object":
            return self._object(schema, indent)
        if kind == "array":
            return self._array(schema, indent)
        name: str = "number" if kind == "integer" else kind
        return name

    def _object(self, schema: Mapping[str, Any], indent: str) -> str:
        inner = indent + _INDENT
        properties: Mapping[str, Any] = schema.get("properties", {})
        required = set(schema.get("required", ()))
        fields = [
            self._field(key, properties[key], optional, inner)
            for optional in (False, True)
            for key in sorted(properties)
            if (key not in required) is optional
        ]
        extra = schema.get("additionalProperties")
        if extra is not None:
            if isinstance(extra, bool):
                kind = "any" if extra else "never"
            elif isinstance(extra, Mapping):
                kind = self._type(extra, inner)
            else:
                raise ValueError(f"additionalProperties: {extra!r}")
            fields.append(f"{inner}[k: string]: {kind}")
        if not fields:
            return "{}"
        return "{\n" + ",\n".join(fields) + "\n" + indent + "}"

    def _array(self, schema: Mapping[str, Any], indent: str) -> str:
        if not schema.get("items"):
            return "Array<any>"
        inner = indent + _INDENT
        comment = _docstring(schema["items"], inner)
        if not comment:
            return f"Array<{self._type(schema['items'], indent)}>"
        return f"Array<\n{comment}{inner}{self._type(schema['items'], inner)}\n{indent}>"

    def _field(self, name: str, schema: Any, optional: bool, indent: str) -> str:
        comment = _docstring(schema, indent)
        default = schema.get("default") if isinstance(schema, Mapping) else None
        if default is not None:
            shown = repr(default) if isinstance(default, (int, float)) else json.dumps(default, ensure_ascii=False)
            comment += f"{indent}// Default: {shown}\n"
        return f"{comment}{indent}{name}{'?' if optional else ''}: {self._type(schema, indent)}"


def _docstring(schema: Any, indent: str) -> str:
    if not isinstance(schema, Mapping):
        return ""
    lines = []
    if schema.get("description"):
        lines.append(_comment(schema["description"], indent))
    plain = not any(key in schema for key in ("$ref", "anyOf", "enum"))
    kind = schema.get("type")
    if plain and isinstance(kind, str):
        found = [f"{key}: {schema[key]}" for key in _CONSTRAINTS.get(kind, ()) if key in schema]
        if found:
            lines.append(f"{indent}// {', '.join(found)}")
    return "".join(line + "\n" for line in lines)


def _check_enum(schema: Mapping[str, Any]) -> None:
    kind = schema.get("type")
    if kind is None:
        return
    if isinstance(kind, list):
        others = [option for option in kind if option != "null"]
        if len(kind) not in (1, 2) or (len(kind) == 2 and len(others) == 2):
            raise ValueError(f"an enum of type {kind}")
        kind = kind[0] if kind[0] != "null" or len(kind) == 1 else kind[1]
    types: dict[str, Any] = {"string": str, "number": (int, float), "integer": int, "boolean": bool}
    for value in schema["enum"]:
        if value is not None and kind in types and not isinstance(value, types[kind]):
            raise ValueError(f"the enum value {value!r} is not a {kind}")
