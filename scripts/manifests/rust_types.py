"""The JSON schema of a custom resource, from the Rust types that were generated from its definition.

No package has the definition of a HTTPRoute itself; the crate `gateway-api` has its types, as kopium writes them: structs with a line for each
field, enums with a line for each variant, names for JSON where they differ. Patterns and lengths are lost in them.
"""

import re

FIELD = re.compile(r"pub (?:r#)?(\w+): (.+),$")
VARIANT = re.compile(r"(\w+),$")
ITEM = re.compile(r"pub (struct|enum) (\w+) \{$")
RENAME = re.compile(r'rename = "([^"]+)"')
PLAIN = {"String": {"type": "string"}, "bool": {"type": "boolean"}, "i32": {"type": "integer"}, "i64": {"type": "integer"}}


def items(source):
    """Structs and enums by name: kind, and pairs of a name in JSON and a type (none for a variant)."""
    found, members, rename = {}, None, None
    for line in map(str.strip, source.splitlines()):
        if item := ITEM.match(line):
            members = []
            found[item[2]] = (item[1], members)
        elif line == "}":
            members = None
        elif members is not None and line.startswith("#[serde("):
            rename = RENAME.search(line)
        elif members is not None and (member := FIELD.match(line) or VARIANT.match(line)):
            members.append((rename[1] if rename else member[1], member[2] if member.re is FIELD else None))
            rename = None
    return found


def schema(source, root):
    """The schema of the struct `root`, unknown fields refused; a type that is not there is a KeyError."""
    known = items(source)

    def of_type(name):
        if name.startswith("Option<"):
            return of_type(name[len("Option<"):-1])
        if name.startswith("Vec<"):
            return {"type": "array", "items": of_type(name[len("Vec<"):-1])}
        return PLAIN[name] if name in PLAIN else of_item(name)

    def of_item(name):
        kind, members = known[name]
        if kind == "enum":
            return {"type": "string", "enum": [variant for variant, _ in members]}
        required = [field for field, of in members if not of.startswith("Option<")]
        return {"type": "object", "properties": {field: of_type(of) for field, of in members}, "required": required,
                "additionalProperties": False}

    return of_item(root)
