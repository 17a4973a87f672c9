"""The JSON schema of an InferencePool's spec, written by hand: no package that the check installs has its definition.

Source: API reference of inference.networking.k8s.io/v1, as of RELEASE: fields, types, bounds, patterns, and the two rules that the
definition states in CEL. Releases before that one require `endpointPickerRef`. Unknown fields are refused.
"""

RELEASE = "v1.6.0"

# Python's `$` would accept a line break at the end of a value, which a cluster refuses.
DNS_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
GROUP = rf"^({DNS_LABEL}(\.{DNS_LABEL})*)?\Z"
KIND = r"^[A-Za-z]([-A-Za-z0-9]*[A-Za-z0-9])?\Z"
LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?\Z"


def text(least, most, **more):
    return {"type": "string", "minLength": least, "maxLength": most, **more}


def choice(*values):
    return {"type": "string", "enum": list(values)}


def fields(required, **properties):
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


PORT = fields(["number"], number={"type": "integer", "minimum": 1, "maximum": 65535})
PICKER = fields(["name"], group=text(0, 253, pattern=GROUP), kind=text(1, 63, pattern=KIND), name=text(1, 253), port=PORT,
                failureMode=choice("FailOpen", "FailClose"))
# An absent kind is Service, and meets the condition too.
PICKER |= {"if": {"properties": {"kind": {"const": "Service"}}}, "then": {"required": ["port"]}}
LABELS = {"type": "object", "minProperties": 1, "maxProperties": 64, "additionalProperties": text(0, 63, pattern=LABEL_VALUE)}
# A port has no field but its number, so that unique items are unique numbers.
PORTS = {"type": "array", "items": PORT, "minItems": 1, "maxItems": 8, "uniqueItems": True}
SPEC = fields(["selector", "targetPorts"], selector=fields(["matchLabels"], matchLabels=LABELS), targetPorts=PORTS,
              appProtocol=choice("http", "kubernetes.io/h2c"), endpointPickerRef=PICKER)
