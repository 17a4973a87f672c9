//! Structural tags: free text in which a tag, once it has begun, holds JSON of its schema.

use serde_json::Value;

use super::GrammarError;

/// Most tags of one request.
const MAX_TAGS: usize = 128;

/// One tag.
#[derive(Debug, Clone, PartialEq)]
pub struct StructuralTag {
    /// The opening text; begins with one of the triggers.
    pub begin: String,
    /// JSON Schema of the content.
    pub schema: Value,
    /// The closing text.
    pub end: String,
}

/// Tags and their triggers.
#[derive(Debug, Clone, PartialEq)]
pub struct StructuralTags {
    pub(super) tags: Vec<StructuralTag>,
    pub(super) triggers: Vec<String>,
}

impl StructuralTags {
    /// Text with these tags. A trigger must continue as a tag that begins with it.
    ///
    /// Errors: no tag or trigger, too many, an empty trigger or end, and a tag that begins with no
    /// trigger.
    pub fn new(tags: Vec<StructuralTag>, triggers: Vec<String>) -> Result<Self, GrammarError> {
        let syntax = |text: String| Err(GrammarError::Syntax(text));
        if tags.is_empty() || triggers.is_empty() {
            return syntax("structural tags need at least one structure and one trigger".into());
        }
        if tags.len() > MAX_TAGS || triggers.len() > MAX_TAGS {
            return Err(GrammarError::Limit { what: "structural tags or triggers", limit: MAX_TAGS });
        }
        if triggers.iter().any(String::is_empty) {
            return syntax("a trigger is empty".into());
        }
        for tag in &tags {
            if !triggers.iter().any(|trigger| tag.begin.starts_with(trigger)) {
                return syntax(format!("no trigger is a beginning of the tag {:?}", tag.begin));
            }
            if tag.end.is_empty() {
                return syntax(format!("the tag {:?} has an empty end", tag.begin));
            }
        }
        Ok(Self { tags, triggers })
    }
}
