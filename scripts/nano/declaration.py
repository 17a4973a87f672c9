"""Tool declarations as the chat format prints them: TypeScript, or compact sorted JSON."""

import json


def _type(schema):
    if "enum" in schema:
        return " | ".join(f'"{value}"' if isinstance(value, str) else str(value) for value in schema["enum"])
    kind = schema["type"]
    if kind == "array":
        return f"Array<{_type(schema['items'])}>"
    return "number" if kind == "integer" else kind


def _lines(text, indent):
    return [f"{indent}// {line}" if line else "" for line in text.split("\n")] if text else []


def typescript(tools) -> str:
    blocks = []
    for tool in tools:
        function = tool["function"]
        parameters = function.get("parameters") or {}
        required = set(parameters.get("required", ()))
        fields = []
        properties = parameters.get("properties", {})
        for key in sorted(properties, key=lambda key: (key not in required, key)):
            lines = _lines(properties[key].get("description"), "  ")
            lines.append(f"  {key}{'' if key in required else '?'}: {_type(properties[key])}")
            fields.append("\n".join(lines))
        body = "{\n" + ",\n".join(fields) + "\n}" if fields else "{}"
        blocks.append("\n".join(_lines(function.get("description"), "") + [f"type {function['name']} = (_: {body}) => any;"]))
    return "# Tools\n\n## functions\nnamespace functions {\n" + "\n".join(blocks) + "\n}\n"


def compact_json(tools) -> str:
    return json.dumps(tools, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
