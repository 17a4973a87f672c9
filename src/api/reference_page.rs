//! The OpenAPI document as a page for people: no script, nothing from elsewhere, everything taken from the document.

use serde_json::Value;

/// Written before the routes: the colours follow the reader's system.
const STYLE: &str = "\
:root{--ink:#1b1f24;--soft:#5b6470;--line:#dfe3e8;--paper:#fff;--shade:#f5f7f9;--get:#1a7f4b;--post:#2459c9}
@media (prefers-color-scheme:dark){:root{--ink:#e6e9ed;--soft:#9aa4b0;--line:#333a43;--paper:#14171b;--shade:#1d2126;--get:#4cc38a;--post:#82aaff}}
*{box-sizing:border-box}
body{margin:0;font:15px/1.55 system-ui,sans-serif;color:var(--ink);background:var(--paper);display:grid;grid-template-columns:19rem minmax(0,1fr)}
nav{position:sticky;top:0;height:100vh;overflow:auto;padding:1.5rem 1rem 2rem 1.5rem;border-right:1px solid var(--line);font-size:14px}
nav h2{font-size:12px;margin:1.4em 0 .3em;color:var(--soft);text-transform:uppercase;letter-spacing:.06em}
nav a{display:block;padding:.12em 0;color:inherit;text-decoration:none;overflow-wrap:anywhere}
nav a:hover{text-decoration:underline}
main{padding:1.5rem 2.5rem 4rem;max-width:66rem}
h1{margin:.2em 0}h1 small{font-weight:400;color:var(--soft);font-size:.6em}
section{border-top:1px solid var(--line);margin-top:2.2rem;padding-top:1.2rem}
section>h2{font-size:1.05rem;margin:.2em 0;overflow-wrap:anywhere}
h3{font-size:13px;margin:1.3em 0 .4em;color:var(--soft);text-transform:uppercase;letter-spacing:.06em}
code,pre{font:13px/1.5 ui-monospace,monospace}
p code,td code{background:var(--shade);border-radius:3px;padding:.05em .3em}
pre{background:var(--shade);border:1px solid var(--line);border-radius:6px;padding:.8em 1em;overflow:auto}
.get{color:var(--get)}.post{color:var(--post)}
table{border-collapse:collapse;width:100%}
td{vertical-align:top;padding:.35em 1em .35em 0;border-bottom:1px solid var(--line)}
td:first-child{white-space:nowrap;width:1%}
td .kind{color:var(--soft)}td b{font-weight:600}
details table{margin:.4em 0 .2em}summary{cursor:pointer;color:var(--soft)}
@media (max-width:60rem){body{display:block}nav{position:static;height:auto;border:0}main{padding:0 1.2rem 3rem}td:first-child{white-space:normal}}";

/// Deepest objects whose fields are listed; what lies below is named by its type.
const MAX_DEPTH: usize = 4;

/// The page of `document`.
pub(super) fn page(document: &Value) -> String {
    let page = Page { document };
    let (mut navigation, mut sections) = (String::new(), String::new());
    for tag in document["tags"].as_array().into_iter().flatten() {
        navigation += &format!("<h2>{}</h2>\n", escape(text(&tag["name"])));
        for (path, item) in document["paths"].as_object().into_iter().flatten() {
            for (method, operation) in item.as_object().into_iter().flatten() {
                if operation["tags"][0] == tag["name"] {
                    let id = text(&operation["operationId"]);
                    navigation += &format!("<a href=\"#{id}\"><code>{}</code></a>\n", escape(path));
                    sections += &page.section(method, path, operation);
                }
            }
        }
    }
    let info = &document["info"];
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>{title} API</title>\n\
         <style>{STYLE}</style>\n<nav><b>{title}</b> {version}\n{navigation}</nav>\n<main>\n\
         <h1>{title} API <small>{version}</small></h1>\n<p>{about}</p>\n\
         <p>The same for machines: <a href=\"/openapi.json\">/openapi.json</a>.</p>\n{sections}</main>\n</html>\n",
        title = escape(text(&info["title"])),
        version = escape(text(&info["version"])),
        about = marked(text(&info["description"])),
    )
}

struct Page<'a> {
    document: &'a Value,
}

impl Page<'_> {
    fn section(&self, method: &str, path: &str, operation: &Value) -> String {
        let mut section = format!(
            "<section id=\"{}\">\n<h2><code><span class=\"{method}\">{}</span> {}</code></h2>\n<p>{}</p>\n",
            text(&operation["operationId"]),
            method.to_uppercase(),
            escape(path),
            marked(text(&operation["summary"]))
        );
        let body = &operation["requestBody"]["content"]["application/json"];
        if let Some(example) = body.get("example") {
            section += &format!("<h3>Example</h3>\n<pre>{}</pre>\n", escape(&curl(path, example)));
        }
        if let Some(schema) = body.get("schema") {
            section += "<h3>Request</h3>\n";
            section += &self.fields(schema, 0);
        }
        section += "<h3>Answers</h3>\n<table>\n";
        for (status, answer) in operation["responses"].as_object().into_iter().flatten() {
            let kinds: Vec<_> =
                answer["content"].as_object().into_iter().flatten().map(|(kind, _)| kind.as_str()).collect();
            section += &format!("<tr><td><code>{status}</code><td>{}", marked(text(&answer["description"])));
            if status == "200" {
                section += &format!(" <span class=\"kind\">{}</span>", escape(&kinds.join(", ")));
                let schema = &answer["content"]["application/json"]["schema"];
                section += &self.folded(schema, 0);
            }
            section.push('\n');
        }
        section + "</table>\n</section>\n"
    }

    /// What a reference leads to; another schema stays itself.
    fn resolved<'s>(&'s self, schema: &'s Value) -> &'s Value {
        let target =
            schema["$ref"].as_str().and_then(|target| self.document.pointer(target.trim_start_matches('#')));
        target.unwrap_or(schema)
    }

    /// The schema without the null that every optional field may be.
    fn without_null<'s>(&'s self, schema: &'s Value) -> &'s Value {
        match schema["anyOf"].as_array().map(Vec::as_slice) {
            Some([one, null]) if null["type"] == "null" => self.resolved(one),
            _ => self.resolved(schema),
        }
    }

    /// A table of an object's fields; empty when it names none.
    fn fields(&self, schema: &Value, depth: usize) -> String {
        let schema = self.resolved(schema);
        let Some(fields) = schema["properties"].as_object().filter(|fields| !fields.is_empty()) else {
            return String::new();
        };
        let required =
            |name: &str| schema["required"].as_array().is_some_and(|names| names.iter().any(|n| n == name));
        // What must be there comes first.
        let (first, rest): (Vec<_>, Vec<_>) = fields.iter().partition(|(name, _)| required(name));
        let mut table = String::from("<table>\n");
        for (name, of) in first.into_iter().chain(rest) {
            let of = self.without_null(of);
            table += &format!("<tr><td><code>{}</code><td>", escape(name));
            if required(name) {
                table += "<b>required</b> ";
            }
            table += &format!("<span class=\"kind\">{}</span>", escape(&self.kind(of)));
            let about = text(&of["description"]);
            if !about.is_empty() {
                table += &format!("<br>{}", marked(about));
            }
            table += &self.folded(of, depth);
            table.push('\n');
        }
        table + "</table>\n"
    }

    /// The fields of whatever objects a value may be or hold, folded.
    fn folded(&self, schema: &Value, depth: usize) -> String {
        if depth >= MAX_DEPTH {
            return String::new();
        }
        let schema = self.resolved(schema);
        let mut inside = self.fields(schema, depth + 1);
        if !inside.is_empty() {
            return format!("<details><summary>fields</summary>{inside}</details>");
        }
        inside = self.folded(&schema["items"], depth + 1);
        for alternative in alternatives(schema) {
            inside += &self.folded(alternative, depth + 1);
        }
        inside
    }

    /// The type and its limits in a few words: `integer, 0 to 20`.
    fn kind(&self, schema: &Value) -> String {
        self.kind_at(schema, 0)
    }

    fn kind_at(&self, schema: &Value, depth: usize) -> String {
        // A schema may hold itself.
        if depth > MAX_DEPTH {
            return "any".to_owned();
        }
        let schema = self.resolved(schema);
        if let Some(value) = schema.get("const") {
            return value.to_string();
        }
        if let Some(values) = schema["enum"].as_array() {
            return values.iter().map(Value::to_string).collect::<Vec<_>>().join(" | ");
        }
        let mut kinds: Vec<String> = Vec::new();
        for alternative in alternatives(schema) {
            let kind = self.kind_at(alternative, depth + 1);
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        if !kinds.is_empty() {
            return kinds.join(", or ");
        }
        let kind = match &schema["type"] {
            Value::String(kind) if kind == "array" => match self.kind_at(&schema["items"], depth + 1) {
                items if items == "any" => "array".to_owned(),
                items => format!("array of ({items})"),
            },
            Value::String(kind) => kind.clone(),
            Value::Array(kinds) => kinds.iter().map(text).collect::<Vec<_>>().join(" or "),
            _ => return "any".to_owned(),
        };
        kind + &limits(schema)
    }
}

fn alternatives(schema: &Value) -> impl Iterator<Item = &Value> {
    ["anyOf", "oneOf"].into_iter().flat_map(|key| schema[key].as_array().into_iter().flatten())
}

/// `, 0 to 2`, `, above 0 to 1`, `, 1 to 64 characters`; nothing where a number is only bounded by its type.
fn limits(schema: &Value) -> String {
    /// Bounds from here on are those of a machine word and tell a reader nothing.
    const WORD: f64 = i32::MAX as f64;
    let bound =
        |key: &str| schema.get(key).filter(|value| value.as_f64().is_some_and(|value| value.abs() < WORD));
    let range = |low: Option<String>, high: Option<&Value>, unit: &str| match (low, high) {
        (Some(low), Some(high)) => format!(", {low} to {high}{unit}"),
        (Some(low), None) => format!(", {low}{unit} or more"),
        (None, Some(high)) => format!(", at most {high}{unit}"),
        (None, None) => String::new(),
    };
    let low = bound("minimum").map(Value::to_string);
    let low = low.or_else(|| bound("exclusiveMinimum").map(|value| format!("above {value}")));
    range(low, bound("maximum"), "")
        + &range(bound("minLength").map(Value::to_string), bound("maxLength"), " characters")
        + &range(bound("minItems").map(Value::to_string), bound("maxItems"), " items")
}

/// The command that sends `example`.
fn curl(path: &str, example: &Value) -> String {
    let body = serde_json::to_string_pretty(example).unwrap_or_default().replace('\'', "'\\''");
    format!("curl http://localhost:8000{path} -H 'content-type: application/json' -d '{body}'")
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Escaped, with what stands between backquotes as code.
fn marked(text: &str) -> String {
    let mut marked = String::new();
    for (i, part) in text.split('`').enumerate() {
        match i % 2 {
            0 => marked += &escape(part),
            _ => marked += &format!("<code>{}</code>", escape(part)),
        }
    }
    marked
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn kinds_name_types_limits_and_alternatives() {
        let document =
            json!({"components": {"schemas": {"Id": {"type": "string", "minLength": 1, "maxLength": 8}}}});
        let page = Page { document: &document };
        let cases = [
            (json!({"type": "integer", "minimum": 0, "maximum": 20}), "integer, 0 to 20"),
            (json!({"type": "number", "exclusiveMinimum": 0, "maximum": 1}), "number, above 0 to 1"),
            (json!({"type": "integer", "minimum": -1, "maximum": u32::MAX}), "integer, -1 or more"),
            (json!({"enum": ["left", "right"]}), "\"left\" | \"right\""),
            (
                json!({"type": "array", "maxItems": 4, "items": {"$ref": "#/components/schemas/Id"}}),
                "array of (string, 1 to 8 characters), at most 4 items",
            ),
            (json!({"anyOf": [{"type": "string"}, {"type": "object"}]}), "string, or object"),
            (json!({"type": ["string", "null"]}), "string or null"),
            (json!({}), "any"),
        ];
        for (schema, kind) in cases {
            assert_eq!(page.kind(&schema), kind, "{schema}");
        }
    }

    #[test]
    fn markup_in_the_document_stays_text() {
        assert_eq!(marked("a `<b>` & c"), "a <code>&lt;b&gt;</code> &amp; c");
        assert!(curl("/x", &json!({"a": "it's"})).contains(r"it'\''s"));
    }
}
