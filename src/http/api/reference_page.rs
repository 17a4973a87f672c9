//! The OpenAPI document as a page for people: no script, nothing from elsewhere, everything taken from the document.

use serde_json::Value;

/// The colours follow the reader's system.
const STYLE: &str = "\
:root{color-scheme:light dark}
body{margin:2rem auto;padding:0 1.5rem;max-width:66rem;font:15px/1.55 system-ui,sans-serif}
nav a{display:inline-block;margin-right:1.5em}
section{border-top:1px solid #8885;margin-top:2.2rem}
code,pre{font:13px/1.5 ui-monospace,monospace}
pre,p code,td code{background:#8882;border-radius:4px;padding:.05em .3em}
pre{padding:.8em 1em;overflow:auto}
table{border-collapse:collapse;width:100%}
td{vertical-align:top;padding:.35em 1em .35em 0;border-bottom:1px solid #8883}
td:first-child{white-space:nowrap;width:1%}
.kind,summary{opacity:.7}summary{cursor:pointer}";

/// Deepest objects whose fields are listed; what lies below is named by its type.
const MAX_DEPTH: usize = 4;

/// The page of `document`.
pub(super) fn page(document: &Value) -> String {
    let page = Page { document };
    let (mut navigation, mut sections) = (String::new(), String::new());
    for tag in list(&document["tags"]) {
        navigation += &format!("<h2>{}</h2>\n", escape(text(&tag["name"])));
        for (path, item) in members(&document["paths"]) {
            for (method, operation) in
                members(item).filter(|(_, operation)| operation["tags"][0] == tag["name"])
            {
                let id = text(&operation["operationId"]);
                navigation += &format!("<a href=\"#{id}\"><code>{}</code></a>\n", escape(path));
                sections += &page.section(method, path, operation);
            }
        }
    }
    let info = &document["info"];
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>{title} API</title>\n\
         <style>{STYLE}</style>\n<h1>{title} API {version}</h1>\n<p>{about}</p>\n\
         <p>The same for machines: <a href=\"openapi.json\">openapi.json</a>.</p>\n<nav>{navigation}</nav>\n{sections}</html>\n",
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
            "<section id=\"{}\">\n<h2><code><span>{}</span> {}</code></h2>\n<p>{}</p>\n",
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
        for (status, answer) in members(&operation["responses"]) {
            section += &format!("<tr><td><code>{status}</code><td>{}", marked(text(&answer["description"])));
            if status == "200" {
                let kinds: Vec<&str> = members(&answer["content"]).map(|(kind, _)| kind.as_str()).collect();
                section += &format!(" <span class=\"kind\">{}</span>", escape(&kinds.join(", ")));
                section += &self.folded(&answer["content"]["application/json"]["schema"], 0);
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

    /// A table of an object's fields; empty when it names none.
    fn fields(&self, schema: &Value, depth: usize) -> String {
        let schema = self.resolved(schema);
        let required = |name: &str| list(&schema["required"]).any(|required| required == name);
        // What must be there comes first.
        let (first, rest): (Vec<_>, Vec<_>) =
            members(&schema["properties"]).partition(|(name, _)| required(name));
        if first.is_empty() && rest.is_empty() {
            return String::new();
        }
        let mut table = String::from("<table>\n");
        for (name, of) in first.into_iter().chain(rest) {
            table += &format!("<tr><td><code>{}</code><td>", escape(name));
            if required(name) {
                table += "<b>required</b> ";
            }
            table += &format!("<span class=\"kind\">{}</span>", escape(&self.kind(of, 0)));
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

    /// The type and its limits in a few words: `integer, 0 to 20`. The null that every optional field may be is not named.
    fn kind(&self, schema: &Value, depth: usize) -> String {
        // A schema may hold itself.
        if depth > MAX_DEPTH {
            return "any".to_owned();
        }
        let schema = self.resolved(schema);
        if let Some(value) = schema.get("const") {
            return value.to_string();
        }
        if let Some(values) = schema["enum"].as_array() {
            let values = values.iter().filter(|value| !value.is_null());
            return values.map(Value::to_string).collect::<Vec<_>>().join(" | ");
        }
        let mut kinds: Vec<String> = Vec::new();
        for alternative in alternatives(schema) {
            let kind = self.kind(alternative, depth + 1);
            if kind != "null" && !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        if !kinds.is_empty() {
            return kinds.join(", or ");
        }
        let kinds: Vec<&str> = match &schema["type"] {
            Value::Array(kinds) => kinds.iter().map(text).filter(|kind| *kind != "null").collect(),
            kind => kind.as_str().into_iter().collect(),
        };
        let kind = match kinds[..] {
            [] => return "any".to_owned(),
            ["array"] => match self.kind(&schema["items"], depth + 1) {
                items if items == "any" => "array".to_owned(),
                items => format!("array of ({items})"),
            },
            _ => kinds.join(" or "),
        };
        kind + &limits(schema)
    }
}

fn alternatives(schema: &Value) -> impl Iterator<Item = &Value> {
    list(&schema["anyOf"]).chain(list(&schema["oneOf"]))
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn members(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
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
            (json!({"type": ["string", "null"]}), "string"),
            (json!({"type": ["object", "string", "null"]}), "object or string"),
            (json!({}), "any"),
        ];
        for (schema, kind) in cases {
            assert_eq!(page.kind(&schema, 0), kind, "{schema}");
        }
    }

    #[test]
    fn markup_in_the_document_stays_text() {
        assert_eq!(marked("a `<b>` & c"), "a <code>&lt;b&gt;</code> &amp; c");
        assert!(curl("/x", &json!({"a": "it's"})).contains(r"it'\''s"));
    }
}
