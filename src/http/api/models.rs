//! `/v1/models`.

use schemars::JsonSchema;
use serde::Serialize;

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
    /// The model's own name where it is the one compiled into the program, whatever the names above say; `None` for a checkpoint.
    pub embedded: Option<String>,
}

/// Longest name that is accepted beside the served ones, bytes: it is repeated in every chunk of a
/// stream.
const MAX_NAME_BYTES: usize = 256;

impl ModelCard {
    /// The canonical name.
    pub(super) fn name(&self) -> &str {
        self.names.first().map_or("", String::as_str)
    }

    /// What is served: the embedded model's own name, or the canonical one.
    pub(super) fn root(&self) -> &str {
        self.embedded.as_deref().unwrap_or_else(|| self.name())
    }

    /// The name to echo: the client's own if it is one of ours, the canonical one if it gave none.
    pub(super) fn resolve(&self, asked: Option<&str>) -> Result<String, ApiError> {
        match asked {
            None => Ok(self.name().to_owned()),
            Some(name) if self.names.iter().any(|n| n == name) => Ok(name.to_owned()),
            Some(name) if self.accept_any_name && name.len() <= MAX_NAME_BYTES => Ok(name.to_owned()),
            Some(name) => Err(ApiError::unknown_model(name, &self.names)),
        }
    }

    /// The list of all names. `reasons`: whether the model can think before it answers.
    /// `for_codex`: whether Codex asks, which names its version.
    pub(super) fn list(&self, reasons: bool, sees: bool, for_codex: bool) -> ModelList<'_> {
        let data = self.names.iter().map(|name| self.entry(name, reasons, sees)).collect();
        ModelList { object: "list", data, models: for_codex.then_some([]) }
    }

    /// One name's entry.
    pub(super) fn entry<'a>(&'a self, name: &'a str, reasons: bool, sees: bool) -> Model<'a> {
        Model {
            id: name,
            object: "model",
            created: self.created,
            owned_by: "perigee",
            root: self.root(),
            parent: (),
            max_model_len: self.max_model_len,
            context_length: self.max_model_len,
            supports_reasoning: reasons,
            supports_image_in: sees,
            supports_video_in: false,
            display_name: name,
            embedded: self.embedded.is_some(),
        }
    }
}

/// The answer of `/v1/models`.
#[derive(Serialize, JsonSchema)]
pub(super) struct ModelList<'a> {
    #[schemars(extend("const" = "list"))]
    object: &'a str,
    data: Vec<Model<'a>>,
    /// Codex's own list, whose entries are its presets of models: there are none here. Only where it asks.
    #[serde(skip_serializing_if = "Option::is_none")]
    models: Option<[(); 0]>,
}

/// The answer of `/v1/models/{name}`.
#[derive(Serialize, JsonSchema)]
pub(super) struct Model<'a> {
    id: &'a str,
    #[schemars(extend("const" = "model"))]
    object: &'a str,
    created: u64,
    owned_by: &'a str,
    root: &'a str,
    parent: (),
    max_model_len: usize,
    context_length: usize,
    supports_reasoning: bool,
    supports_image_in: bool,
    supports_video_in: bool,
    display_name: &'a str,
    /// Whether this is the toy model that is compiled into the program, not a checkpoint.
    embedded: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card() -> ModelCard {
        ModelCard {
            names: vec!["kimi".into()],
            created: 0,
            max_model_len: 1,
            accept_any_name: false,
            embedded: None,
        }
    }

    /// Regression: the embedded model under a customer's name could not be told from the customer's model.
    #[test]
    fn the_embedded_model_is_known_under_every_name() {
        let entry = |card: &ModelCard| serde_json::to_value(card.entry("kimi", false, false)).unwrap();
        let checkpoint = entry(&card());
        assert_eq!((&checkpoint["root"], &checkpoint["embedded"]), (&"kimi".into(), &false.into()));
        let embedded = entry(&ModelCard { embedded: Some("toy".into()), ..card() });
        assert_eq!((&embedded["id"], &embedded["root"]), (&"kimi".into(), &"toy".into()));
        assert_eq!(embedded["embedded"], true);
    }

    #[test]
    fn other_names_are_taken_where_the_operator_says_so() {
        let mut card = card();
        let refused = card.resolve(Some("gpt-x")).unwrap_err();
        assert_eq!(refused.status, 404);
        assert!(refused.message.contains("model.accept_any_name"), "{}", refused.message);
        card.accept_any_name = true;
        assert_eq!(card.resolve(Some("gpt-x")).as_deref(), Ok("gpt-x"));
        assert_eq!(card.resolve(None).as_deref(), Ok("kimi"));
        assert_eq!(card.resolve(Some(&"x".repeat(MAX_NAME_BYTES + 1))).unwrap_err().status, 404);
    }
}
