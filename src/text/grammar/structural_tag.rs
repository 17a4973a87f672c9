//! Structural tags: free text in which a tag, once it has begun, holds JSON of its schema, and the
//! nested formats that these are built of.

use serde_json::Value;

use super::GrammarError;

/// Most tags of one request.
const MAX_TAGS: usize = 128;
/// Most formats in one another, and most in all.
const MAX_DEPTH: usize = 16;
const MAX_FORMATS: usize = 512;

/// A format of text, built of others.
#[derive(Debug, Clone, PartialEq)]
pub enum StructuralFormat {
    /// This text.
    Text(String),
    /// JSON of this schema.
    Json(Value),
    /// Text that the regular expression matches as a whole.
    Regex(String),
    /// Any text, up to the text that follows.
    AnyText,
    /// One after the other.
    Sequence(Vec<Self>),
    /// One of these.
    Choice(Vec<Self>),
    /// A tag.
    Tag(Box<StructuralTag>),
    /// Any text with tags in it. A trigger must continue as a tag that begins with it.
    Triggered {
        /// Beginnings of the tags.
        triggers: Vec<String>,
        /// The tags.
        tags: Vec<StructuralTag>,
        /// Whether there is a tag.
        at_least_one: bool,
        /// Whether the text ends with its first tag.
        stop_after_first: bool,
    },
    /// Tags with a text between them, and nothing else.
    Separated {
        /// The tags.
        tags: Vec<StructuralTag>,
        /// The text between two of them.
        separator: String,
        /// Whether there is a tag.
        at_least_one: bool,
        /// Whether there is at most one.
        stop_after_first: bool,
    },
}

/// One tag.
#[derive(Debug, Clone, PartialEq)]
pub struct StructuralTag {
    /// The opening text.
    pub begin: String,
    /// Format of the content.
    pub content: StructuralFormat,
    /// The closing text.
    pub end: String,
}

/// A checked format.
#[derive(Debug, Clone, PartialEq)]
pub struct StructuralTags(pub(super) StructuralFormat);

impl StructuralTags {
    /// Text with these tags. A trigger must continue as a tag that begins with it.
    ///
    /// Errors: no tag or trigger, too many, an empty trigger or end, and a tag that begins with no
    /// trigger.
    pub fn new(tags: Vec<StructuralTag>, triggers: Vec<String>) -> Result<Self, GrammarError> {
        Self::of(StructuralFormat::Triggered { triggers, tags, at_least_one: false, stop_after_first: false })
    }

    /// Text of this format.
    ///
    /// Errors: as [`StructuralTags::new`]; a list or a text that is empty; any text where the text
    /// that ends it is not known; too many formats, or too many in one another.
    pub fn of(format: StructuralFormat) -> Result<Self, GrammarError> {
        let mut count = 0;
        format.check(false, 0, &mut count)?;
        Ok(Self(format))
    }
}

fn refused<T>(text: impl Into<String>) -> Result<T, GrammarError> {
    Err(GrammarError::Syntax(text.into()))
}

impl StructuralFormat {
    /// Checks the format. `is_followed`: whether more comes after it that is not a known text.
    fn check(&self, is_followed: bool, depth: usize, count: &mut usize) -> Result<(), GrammarError> {
        *count += 1;
        if depth > MAX_DEPTH || *count > MAX_FORMATS {
            let (what, limit) = match depth > MAX_DEPTH {
                true => ("levels of nested formats", MAX_DEPTH),
                false => ("formats in a structural tag", MAX_FORMATS),
            };
            return Err(GrammarError::Limit { what, limit });
        }
        if is_followed && matches!(self, Self::AnyText | Self::Triggered { .. }) && self.is_open() {
            return refused(
                "any text is followed by something else than a constant text or the end of its tag",
            );
        }
        match self {
            Self::Text(text) if text.is_empty() => refused("a constant text is empty"),
            Self::Sequence(parts) => {
                parts.iter().enumerate().try_for_each(|(number, part)| {
                    let is_followed = match parts.get(number + 1) {
                        Some(Self::Text(_)) => false,
                        Some(_) => true,
                        None => is_followed,
                    };
                    part.check(is_followed, depth + 1, count)
                })?;
                if parts.is_empty() { refused("a sequence is empty") } else { Ok(()) }
            }
            Self::Choice(parts) => {
                parts.iter().try_for_each(|part| part.check(is_followed, depth + 1, count))?;
                if parts.is_empty() { refused("a choice is empty") } else { Ok(()) }
            }
            Self::Tag(tag) => tag.check(depth, count),
            Self::Triggered { triggers, tags, .. } => {
                check_tags(tags, triggers.len(), depth, count)?;
                if triggers.is_empty() {
                    return refused("structural tags need at least one structure and one trigger");
                }
                if triggers.iter().any(String::is_empty) {
                    return refused("a trigger is empty");
                }
                let triggered =
                    |tag: &StructuralTag| triggers.iter().any(|trigger| tag.begin.starts_with(trigger));
                match tags.iter().find(|tag| !triggered(tag)) {
                    Some(tag) => refused(format!("no trigger is a beginning of the tag {:?}", tag.begin)),
                    None => Ok(()),
                }
            }
            Self::Separated { tags, .. } => check_tags(tags, 0, depth, count),
            _ => Ok(()),
        }
    }

    /// Whether its end is not seen without the text that follows.
    pub(super) fn is_open(&self) -> bool {
        match self {
            Self::AnyText => true,
            Self::Triggered { at_least_one, stop_after_first, .. } => !(*at_least_one && *stop_after_first),
            Self::Sequence(parts) => parts.last().is_some_and(Self::is_open),
            Self::Choice(parts) => parts.iter().any(Self::is_open),
            _ => false,
        }
    }
}

impl StructuralTag {
    fn check(&self, depth: usize, count: &mut usize) -> Result<(), GrammarError> {
        if self.begin.is_empty() || self.end.is_empty() {
            return refused(format!("the tag {:?} has an empty begin or an empty end", self.begin));
        }
        self.content.check(false, depth + 1, count)
    }
}

fn check_tags(
    tags: &[StructuralTag],
    triggers: usize,
    depth: usize,
    count: &mut usize,
) -> Result<(), GrammarError> {
    if tags.is_empty() {
        return refused("structural tags need at least one structure and one trigger");
    }
    if tags.len() > MAX_TAGS || triggers > MAX_TAGS {
        return Err(GrammarError::Limit { what: "structural tags or triggers", limit: MAX_TAGS });
    }
    tags.iter().try_for_each(|tag| tag.check(depth, count))
}
