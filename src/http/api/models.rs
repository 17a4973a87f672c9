//! `/v1/models`.

use serde_json::{Value, json};

use super::ApiError;

/// The model being served.
#[derive(Debug, Clone)]
pub struct ModelCard {
    /// The names clients may use, at least one; the first is the canonical one.
    pub names: Vec<String>,
    /// Unix seconds.
    pub created: u64,
    /// Most tokens of prompt and reply.
    pub max_model_len: usize,
    /// Whether every other name is taken for the model's too.
    pub accept_any_name: bool,
}

/// Longest name that is accepted beside the served ones, bytes: it is repeated in every chunk of a
/// stream.
const MAX_NAME_BYTES: usize = 256;

impl ModelCard {
    /// The name to echo: the client's own if it is one of ours, the canonical one if it gave none.
    pub(super) fn resolve(&self, asked: Option<&str>) -> Result<String, ApiError> {
        match asked {
            None => Ok(self.names.first().cloned().unwrap_or_default()),
            Some(name) if self.names.iter().any(|n| n == name) => Ok(name.to_owned()),
            Some(name) if self.accept_any_name && name.len() <= MAX_NAME_BYTES => Ok(name.to_owned()),
            Some(name) => Err(ApiError::unknown_model(name, &self.names)),
        }
    }

    /// The list of all names. `reasons`: whether the model can think before it answers.
    pub(super) fn list(&self, reasons: bool, sees: bool) -> Value {
        let data: Vec<Value> = self.names.iter().map(|name| self.entry(name, reasons, sees)).collect();
        json!({"object": "list", "data": data})
    }

    /// One name's entry.
    pub(super) fn entry(&self, name: &str, reasons: bool, sees: bool) -> Value {
        json!({
            "id": name,
            "object": "model",
            "created": self.created,
            "owned_by": "perigee",
            "root": self.names.first(),
            "parent": null,
            "max_model_len": self.max_model_len,
            "context_length": self.max_model_len,
            "supports_reasoning": reasons,
            "supports_image_in": sees,
            "supports_video_in": false,
            "display_name": name,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_names_are_taken_where_the_operator_says_so() {
        let mut card =
            ModelCard { names: vec!["kimi".into()], created: 0, max_model_len: 1, accept_any_name: false };
        assert_eq!(card.resolve(Some("gpt-x")).unwrap_err().status, 404);
        card.accept_any_name = true;
        assert_eq!(card.resolve(Some("gpt-x")).as_deref(), Ok("gpt-x"));
        assert_eq!(card.resolve(None).as_deref(), Ok("kimi"));
        assert_eq!(card.resolve(Some(&"x".repeat(MAX_NAME_BYTES + 1))).unwrap_err().status, 404);
    }
}
