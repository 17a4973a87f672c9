//! Images in messages: what each dialect calls them, and their way out of the messages.
//!
//! While messages are read, an image stands in its part, [`part`]; [`take`] then moves it out, and leaves what chat templates read.

use serde_json::{Value, json};

use super::ApiError;
use crate::generate::{ImageData, ImageInput};

/// Types of parts with an image.
pub(super) const IMAGES: [&str; 3] = ["image_url", "input_image", "image"];
/// Types of parts with what no model of the family is served with.
const OTHER_MEDIA: [&str; 8] =
    ["video", "video_url", "input_video", "audio", "audio_url", "input_audio", "file", "input_file"];

/// Most characters of a client's word in an error.
const MAX_SHOWN_CHARS: usize = 32;

/// The part of an image, at `path` in the body. `image` is a URL, or an object that has one; its `detail` means nothing to these models.
pub(super) fn part(path: &str, kind: &str, image: Option<Value>) -> Result<Value, ApiError> {
    let field = if kind == "image" { "image" } else { "image_url" };
    let place = format!("{path}.{field}");
    let url = match image {
        None | Some(Value::Null) => return Err(ApiError::missing(place)),
        Some(Value::String(url)) => url,
        Some(Value::Object(mut object)) => match object.remove("url") {
            Some(Value::String(url)) => url,
            None => return Err(ApiError::missing(format!("{place}.url"))),
            Some(_) => return Err(ApiError::invalid_type(&format!("{place}.url"), "a string is expected")),
        },
        Some(_) => return Err(ApiError::invalid_type(&place, "a URL or an object with one is expected")),
    };
    Ok(json!({"type": "image", "place": path, "url": url}))
}

/// The part of an image in Anthropic's form.
pub(super) fn block(path: &str, source: &Value) -> Result<Value, ApiError> {
    let at = |field: &str| format!("{path}.source.{field}");
    let string = |field: &str| source[field].as_str().ok_or_else(|| ApiError::missing(at(field)));
    match source["type"].as_str() {
        Some("base64") => Ok(json!({"type": "image", "place": path, "base64": string("data")?})),
        Some("url") => Ok(json!({"type": "image", "place": path, "url": string("url")?})),
        Some("file") => Err(ApiError::unsupported(at("type"), "an image of an uploaded file")),
        None => Err(ApiError::missing(at("type"))),
        Some(other) => Err(ApiError::unknown_value(at("type"), other, "base64, url")),
    }
}

/// The refusal of a part that is neither text nor an image.
pub(super) fn refused(path: &str, kind: &str) -> ApiError {
    match kind {
        _ if kind.contains("video") => {
            ApiError::invalid_value(path, "video input is not supported; send frames of it as images")
        }
        _ if OTHER_MEDIA.contains(&kind) => ApiError::unsupported(path, &format!("content of type {kind}")),
        _ => {
            let shown: String = kind.chars().take(MAX_SHOWN_CHARS).collect();
            ApiError::unknown_value(format!("{path}.type"), &shown, "text, image_url")
        }
    }
}

/// Moves the images out of messages, in their order.
pub(super) fn take(messages: &mut [Value]) -> Vec<ImageInput> {
    let contents = messages.iter_mut().filter_map(|message| message.get_mut("content")?.as_array_mut());
    let parts = contents.flatten().filter(|part| part["type"] == "image");
    let mut images = Vec::new();
    for part in parts {
        let mut text = |field: &str| match part.get_mut(field).map(Value::take) {
            Some(Value::String(text)) => Some(text),
            _ => None,
        };
        let place = text("place").unwrap_or_default();
        let data = match (text("url"), text("base64")) {
            (Some(url), _) => ImageData::Url(url),
            (None, payload) => ImageData::Base64(payload.unwrap_or_default()),
        };
        images.push(ImageInput { place, data });
        *part = json!({"type": "image"});
    }
    images
}
