//! Documents in messages: a text file becomes text of the prompt, between tags that name it.
//!
//! What is no text is refused with the remedy: a model of this family reads words and pictures, and dropped pages would be missed
//! without a word.

use serde_json::{Value, json};

use super::{ApiError, images};
use perigee_model::vision::decode_base64;

const PDF: &str =
    "a PDF cannot be read here: send its text (for example a source of type `text`), or its pages as images";

/// The parts that a document stands for: Anthropic's block of that type, at `path` in the body.
pub(super) fn block(path: &str, block: &Value) -> Result<Vec<Value>, ApiError> {
    let source = &block["source"];
    let at = |field: &str| format!("{path}.source.{field}");
    let string = |field: &str| source[field].as_str().ok_or_else(|| ApiError::missing(at(field)));
    let inner = match source["type"].as_str() {
        Some("text") => vec![text(string("data")?)],
        Some("base64") => vec![text(&decoded(&at("data"), string("data")?)?)],
        Some("content") => contents(&source["content"], &at("content"))?,
        Some(kind @ ("url" | "file")) => {
            return Err(ApiError::invalid_value(
                at("type"),
                format!(
                    "a document of type `{kind}` is not fetched: send its text as a source of type `text`"
                ),
            ));
        }
        None => return Err(ApiError::missing(at("type"))),
        Some(other) => return Err(ApiError::unknown_value(at("type"), other, "text, base64, content")),
    };
    Ok(framed("document", &[("title", &block["title"]), ("context", &block["context"])], inner))
}

/// The parts that a result of the client's own search stands for, Anthropic's `search_result`.
pub(super) fn search_result(path: &str, block: &Value) -> Result<Vec<Value>, ApiError> {
    let inner = contents(&block["content"], &format!("{path}.content"))?;
    Ok(framed("search_result", &[("source", &block["source"]), ("title", &block["title"])], inner))
}

/// The parts that a file stands for, OpenAI's `file`: its data are a `data:` URL, or base64 alone.
pub(super) fn file(path: &str, file: &Value) -> Result<Vec<Value>, ApiError> {
    let place = format!("{path}.file_data");
    let Some(data) = file["file_data"].as_str() else {
        return Err(match ["file_id", "file_url"].iter().find(|field| !file[**field].is_null()) {
            Some(field) => ApiError::invalid_value(
                format!("{path}.{field}"),
                "files are not kept or fetched here: send the content in `file_data`",
            ),
            None => ApiError::missing(place),
        });
    };
    let payload =
        data.strip_prefix("data:").and_then(|rest| rest.split_once(',')).map_or(data, |(_, data)| data);
    Ok(framed("document", &[("title", &file["filename"])], vec![text(&decoded(&place, payload)?)]))
}

/// The part of a text.
pub(super) fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

/// The text that base64 data hold. What the client calls them is not read: clients often name a wrong type.
fn decoded(place: &str, data: &str) -> Result<String, ApiError> {
    // As many bytes as the body's limit lets in.
    let bytes =
        decode_base64(data, usize::MAX).map_err(|error| ApiError::invalid_value(place, error.to_string()))?;
    if bytes.starts_with(b"%PDF") {
        return Err(ApiError::invalid_value(place, PDF));
    }
    String::from_utf8(bytes).ok().filter(|text| !text.contains('\0')).ok_or_else(|| {
        ApiError::invalid_value(place, "the document is not text in UTF-8: only text can be read here")
    })
}

/// A string, or a list of texts and images.
fn contents(content: &Value, path: &str) -> Result<Vec<Value>, ApiError> {
    let blocks = match content {
        Value::String(own) => return Ok(vec![text(own)]),
        Value::Array(blocks) => blocks,
        Value::Null => return Err(ApiError::missing(path)),
        _ => return Err(ApiError::invalid_type(path, "a string or a list of blocks is expected")),
    };
    let part = |(index, block): (usize, &Value)| {
        let path = format!("{path}[{index}]");
        match (block["type"].as_str(), &block["text"]) {
            (Some("text"), Value::String(own)) => Ok(text(own)),
            (Some("text"), _) => Err(ApiError::missing(format!("{path}.text"))),
            (Some("image"), _) => images::block(&path, &block["source"]),
            (Some(other), _) => Err(ApiError::unknown_value(format!("{path}.type"), other, "text, image")),
            (None, _) => Err(ApiError::missing(format!("{path}.type"))),
        }
    };
    blocks.iter().enumerate().map(part).collect()
}

/// Parts between tags, with what is said about them in tags of its own.
fn framed(tag: &str, about: &[(&str, &Value)], inner: Vec<Value>) -> Vec<Value> {
    let said =
        about.iter().filter_map(|(name, value)| Some(format!("<{name}>{}</{name}>\n", value.as_str()?)));
    let open = text(&format!("<{tag}>\n{}", said.collect::<String>()));
    let close = text(&format!("\n</{tag}>\n"));
    [open].into_iter().chain(inner).chain([close]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a model reads of the parts.
    fn read(parts: Result<Vec<Value>, ApiError>) -> Result<String, (String, String)> {
        let parts = parts.map_err(|error| (error.param.unwrap_or_default(), error.message))?;
        let shown = |part: &Value| part["text"].as_str().unwrap_or("[image]").to_owned();
        Ok(parts.iter().map(shown).collect())
    }

    #[test]
    fn a_text_has_its_name_and_its_bounds() {
        let framed = "<document>\n<title>a.txt</title>\nPort 8000.\n</document>\n";
        for source in [
            json!({"type": "text", "media_type": "text/plain", "data": "Port 8000."}),
            json!({"type": "base64", "media_type": "text/plain", "data": "UG9ydCA4MDAwLg=="}),
            json!({"type": "base64", "media_type": "application/pdf", "data": "UG9ydCA4MDAwLg"}),
            json!({"type": "content", "content": "Port 8000."}),
            json!({"type": "content", "content": [{"type": "text", "text": "Port "}, {"type": "text", "text": "8000."}]}),
        ] {
            assert_eq!(
                read(block("b", &json!({"source": source, "title": "a.txt"}))).as_deref(),
                Ok(framed),
                "{source}"
            );
        }
        for data in ["data:text/plain;base64,UG9ydCA4MDAwLg==", "UG9ydCA4MDAwLg=="] {
            assert_eq!(
                read(file("f", &json!({"filename": "a.txt", "file_data": data}))).as_deref(),
                Ok(framed)
            );
        }
        let found = json!({"source": "https://a", "title": "A", "content": [{"type": "text", "text": "x"}]});
        assert_eq!(
            read(search_result("s", &found)).as_deref(),
            Ok("<search_result>\n<source>https://a</source>\n<title>A</title>\nx\n</search_result>\n")
        );
        let picture = json!({"type": "image", "source": {"type": "base64", "data": "AA=="}});
        let source = json!({"source": {"type": "content", "content": [picture]}, "context": "c"});
        assert_eq!(
            read(block("b", &source)).as_deref(),
            Ok("<document>\n<context>c</context>\n[image]\n</document>\n")
        );
    }

    #[test]
    fn what_cannot_be_read_is_refused_with_the_remedy() {
        let source = |source: Value| read(block("b", &json!({"source": source})));
        let base64 = |data: &str| source(json!({"type": "base64", "data": data}));
        for (found, place, words) in [
            (base64("JVBERi0xLjQ="), "b.source.data", "PDF"),
            (base64("/9j/4AAQ"), "b.source.data", "UTF-8"),
            (base64("AAAA"), "b.source.data", "UTF-8"),
            (base64("*"), "b.source.data", "invalid character"),
            (source(json!({"type": "url", "url": "https://a/b.pdf"})), "b.source.type", "not fetched"),
            (source(json!({"type": "file", "file_id": "x"})), "b.source.type", "not fetched"),
            (source(json!({"type": "text"})), "b.source.data", "required"),
            (source(json!({"type": "content"})), "b.source.content", "required"),
            (
                source(json!({"type": "content", "content": [{"type": "x"}]})),
                "b.source.content[0].type",
                "allowed",
            ),
            (source(json!({})), "b.source.type", "required"),
            (read(file("f", &json!({"file_id": "x"}))), "f.file_id", "file_data"),
            (read(file("f", &json!({}))), "f.file_data", "required"),
            (
                read(file("f", &json!({"file_data": "data:application/pdf;base64,JVBERi0="}))),
                "f.file_data",
                "PDF",
            ),
        ] {
            let (param, message) = found.unwrap_err();
            assert_eq!(param, place, "{message}");
            assert!(message.contains(words), "{message}");
        }
    }
}
