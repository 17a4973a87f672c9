//! Messages to a prompt: the checkpoint's jinja template or the family's own.
//!
//! The result is a list of control tokens, which only the template can write, and texts, which cannot contain any.

mod builtin;
mod family;
mod jinja;
mod python_containers;
mod python_source;
mod python_values;
mod sentinel;
mod tool_declaration;

use std::borrow::Cow;
use std::sync::Arc;

pub use family::{Family, family_of};
pub use jinja::{civil, days_from_civil};

use minijinja::Environment;
use minijinja::value::Value;
use serde_json::{Map, Value as Json};

use super::markers;
use super::reply::{ReplyStart, call_ids};
use super::tokenizer::{AddedTokens, Slicer, Specials, Tokenizer, TokenizerError};
use jinja::{NOW_VARIABLE, Raised, SENTINEL_VARIABLE};
use sentinel::Marker;

/// Variable with the declared tools in TypeScript.
const TYPESCRIPT_VARIABLE: &str = "tools_ts_str";

/// Reasons why a template was refused or a conversation could not be rendered.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The template does not compile (a fault of the checkpoint or of the template's author).
    #[error("chat template: {0}")]
    Syntax(String),
    /// The template refused the conversation by `raise_exception`; the message is the template's own (a fault of the request).
    #[error("the chat template refused the conversation: {0}")]
    Refused(String),
    /// The template failed on this conversation, or ran out of its fuel or output limit.
    #[error("the chat template failed: {0}")]
    Failed(String),
}

impl TemplateError {
    /// The same with the file in front, if the template is at fault.
    fn of(self, file: &str) -> Self {
        match self {
            Self::Syntax(reason) => Self::Syntax(format!("{file}: {reason}")),
            other => other,
        }
    }
}

/// The inputs of a rendering besides the messages.
#[derive(Debug, Clone)]
pub struct RenderOptions<'a> {
    /// Declared tools in OpenAI form; an empty list counts as no tools.
    pub tools: Option<&'a [Json]>,
    /// Whether the prompt ends with the header of an assistant turn.
    pub add_generation_prompt: bool,
    /// Whether the last message is an unfinished assistant turn: its end marker is left off so that
    /// the reply continues it. Requires `add_generation_prompt` to be off.
    pub continue_final_message: bool,
    /// Further template variables (`chat_template_kwargs`), such as `thinking`. They cannot replace the messages or tools.
    pub kwargs: Option<&'a Map<String, Json>>,
    /// The time for templates that print it (`strftime_now`), seconds since 1970 UTC.
    pub now_unix_s: i64,
}

impl Default for RenderOptions<'_> {
    fn default() -> Self {
        Self {
            tools: None,
            add_generation_prompt: true,
            continue_final_message: false,
            kwargs: None,
            now_unix_s: 0,
        }
    }
}

/// A piece of a rendered prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
enum PromptPart {
    /// A control token that the template wrote.
    Control { id: u32, name: String },
    /// Text, encoded with special tokens as text. Two texts are never adjacent.
    Text(String),
}

/// A rendered prompt: control tokens that the template wrote, and text that cannot contain any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedPrompt {
    parts: Vec<PromptPart>,
    start: ReplyStart,
    num_calls: usize,
}

impl RenderedPrompt {
    /// Number of tool calls in the conversation, from which the reply's own are numbered.
    pub fn num_calls(&self) -> usize {
        self.num_calls
    }

    /// The part that a reply to this prompt begins in.
    pub fn reply_start(&self) -> ReplyStart {
        self.start
    }

    /// The whole prompt as one string.
    pub fn text(&self) -> String {
        let text = |part: &PromptPart| match part {
            PromptPart::Control { name, .. } => name.clone(),
            PromptPart::Text(text) => text.clone(),
        };
        self.parts.iter().map(text).collect()
    }

    /// The whole prompt as token ids of the tokenizer whose special tokens it was rendered with.
    pub fn to_token_ids(&self, tokenizer: &Tokenizer) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = Vec::new();
        let mut slicer = Slicer::default();
        for part in &self.parts {
            match part {
                PromptPart::Control { id, name } => {
                    // The hard cuts count a control token's characters too; a cut inside the token
                    // has no effect.
                    slicer.walk(name, &mut Vec::new());
                    ids.push(*id);
                }
                PromptPart::Text(text) => {
                    tokenizer.encode_part(text, Specials::AsText, &mut slicer, &mut ids)?
                }
            }
        }
        Ok(ids)
    }
}

/// A compiled chat template, bound to the special tokens of one tokenizer. Cheap to share behind an `Arc`.
pub struct ChatTemplate {
    env: Environment<'static>,
    source: String,
    family: Option<Family>,
    added: Arc<AddedTokens>,
    named: Vec<(String, String)>,
    /// Whether the keys of declared tools are sorted.
    sorts_tools: bool,
    /// Whether declared tools may be given in TypeScript.
    typescript: bool,
}

impl ChatTemplate {
    /// Compiles jinja source with the special tokens of `tokenizer`.
    pub fn from_jinja(source: &str, tokenizer: &Tokenizer) -> Result<Self, TemplateError> {
        let source = jinja::without_generation_tags(source);
        let template = Self::new(&source, None, tokenizer);
        let compiled = template.env.template_from_named_str("chat_template", &template.source).map(|_| ());
        compiled.map_err(|error| TemplateError::Syntax(chain(&error)))?;
        Ok(template)
    }

    /// The built-in template of a family member.
    pub fn built_in(family: Family, tokenizer: &Tokenizer) -> Self {
        Self::new(builtin::TEMPLATE, Some(family), tokenizer)
    }

    /// The checkpoint's template: `chat_template.jinja` if it exists, else `chat_template` of
    /// `tokenizer_config.json` (a string, or a list of `{name, template}` of which `default` is
    /// taken), else the built-in one of `family_of(model_type, tokenizer)`.
    pub fn load(
        file: &dyn Fn(&str) -> Option<Vec<u8>>,
        model_type: &str,
        tokenizer: &Tokenizer,
    ) -> Result<Self, TemplateError> {
        if let Some(source) = file("chat_template.jinja") {
            let source = String::from_utf8(source)
                .map_err(|_| TemplateError::Syntax("chat_template.jinja is not UTF-8".to_owned()))?;
            return Self::from_jinja(&source, tokenizer).map_err(|error| error.of("chat_template.jinja"));
        }
        let config =
            file("tokenizer_config.json").and_then(|json| serde_json::from_slice::<Json>(&json).ok());
        match config.as_ref().and_then(|config| config.get("chat_template")) {
            None | Some(Json::Null) => Ok(Self::built_in(family_of(model_type, tokenizer), tokenizer)),
            Some(Json::String(source)) => {
                Self::from_jinja(source, tokenizer).map_err(|error| error.of("tokenizer_config.json"))
            }
            Some(list) => {
                let source = list.as_array().and_then(|list| {
                    list.iter().find(|entry| entry["name"] == "default")?.get("template")?.as_str()
                });
                let reason = "chat_template of tokenizer_config.json is neither a string nor a list with a template named default";
                let source = source.ok_or_else(|| TemplateError::Syntax(reason.to_owned()))?;
                Self::from_jinja(source, tokenizer).map_err(|error| error.of("tokenizer_config.json"))
            }
        }
    }

    fn new(source: &str, family: Option<Family>, tokenizer: &Tokenizer) -> Self {
        // Released templates that print TypeScript name its variable; those of thinking models were
        // used with sorted tools.
        let (sorts_tools, typescript) = match family {
            Some(family) => builtin::tool_form(family),
            None => {
                let typescript = source.contains(TYPESCRIPT_VARIABLE);
                (typescript || source.contains(markers::THINK), typescript)
            }
        };
        Self {
            sorts_tools,
            typescript,
            env: jinja::environment(),
            source: python_source::rewrite(source).into_owned(),
            family,
            added: tokenizer.shared_added(),
            named: tokenizer.named_tokens().to_vec(),
        }
    }

    /// The built-in family, or `None` for a template from a file.
    pub fn family(&self) -> Option<Family> {
        self.family
    }

    /// The jinja source, for rendering elsewhere. That of a built-in template begins with the values of its
    /// family.
    pub fn source(&self) -> Cow<'_, str> {
        match self.family {
            None => Cow::Borrowed(&self.source),
            Some(family) => Cow::Owned(builtin::source(family)),
        }
    }

    /// Whether the template can write this text: its source, or the format of a built-in family,
    /// contains it.
    pub fn mentions(&self, text: &str) -> bool {
        match self.family {
            Some(family) if text == markers::THINK => builtin::thinks(family),
            _ => self.source.contains(text),
        }
    }

    /// Renders a conversation. `messages` are OpenAI message objects. A null `reasoning_content`
    /// counts as absent (some templates would print it as `None`), and foreign call ids are
    /// replaced by native ones.
    pub fn render(
        &self,
        messages: &[Json],
        options: &RenderOptions<'_>,
    ) -> Result<RenderedPrompt, TemplateError> {
        let (messages, num_calls) = call_ids::native_ids(messages);
        let messages = &*messages;
        let tools: Vec<Json> = match options.tools.unwrap_or_default() {
            tools if self.sorts_tools => tools.iter().map(tool_declaration::sorted).collect(),
            tools => tools.to_vec(),
        };
        let typescript =
            self.typescript.then(|| tool_declaration::typescript(&tools)).flatten().map(Json::String);
        let kwargs = options.kwargs.into_iter().flatten();
        let values =
            messages.iter().chain(&tools).chain(&typescript).chain(kwargs.clone().map(|(_, value)| value));
        let marker = Marker::new(&self.added, values).ok_or_else(|| {
            TemplateError::Failed("the conversation holds every private-use character".to_owned())
        })?;
        let mut context: Vec<(String, Value)> = self
            .named
            .iter()
            .map(|(key, text)| (key.clone(), Value::from(text)))
            .chain(kwargs.map(|(key, value)| (key.clone(), marker.value(value))))
            .collect();
        let mut set = |key: &str, value| context.push((key.to_owned(), value));
        set(
            "messages",
            messages.iter().map(|message| marker.value(&without_null_reasoning(message))).collect(),
        );
        set(
            "tools",
            if tools.is_empty() { Value::from(()) } else { tools.iter().map(|t| marker.value(t)).collect() },
        );
        set(TYPESCRIPT_VARIABLE, typescript.map_or(Value::UNDEFINED, |text| marker.value(&text)));
        set("add_generation_prompt", Value::from(options.add_generation_prompt));
        set(SENTINEL_VARIABLE, Value::from(marker.sentinel().to_string()));
        set(NOW_VARIABLE, Value::from(options.now_unix_s));
        if let Some(family) = self.family {
            set("format", builtin::format_variable(family));
        }
        let rendered = jinja::render(&self.env, &self.source, Value::from_pairs(context)).map_err(failure)?;
        let mut parts = self.split(&rendered, marker.sentinel());
        if options.continue_final_message {
            leave_open(&mut parts);
        }
        Ok(RenderedPrompt { start: self.reply_start(&parts), parts, num_calls })
    }

    /// The part that a reply begins in. Only the open turn at the end counts: earlier turns have
    /// closed think parts of their own.
    fn reply_start(&self, parts: &[PromptPart]) -> ReplyStart {
        // In a vocabulary without think tokens the template's markers are text. In any other, text
        // with markers is a client's.
        let in_text = self.added.by_text(markers::THINK).is_none() && self.mentions(markers::THINK);
        for part in parts.iter().rev() {
            match part {
                PromptPart::Control { name, .. } if name == markers::THINK => return ReplyStart::Reasoning,
                PromptPart::Control { name, .. } if name == markers::THINK_END => return ReplyStart::Answer,
                PromptPart::Control { .. } => break,
                PromptPart::Text(text) if in_text => {
                    match (text.rfind(markers::THINK), text.rfind(markers::THINK_END)) {
                        (Some(open), Some(close)) if open < close => return ReplyStart::Answer,
                        (Some(at), _) if text.len() == at + markers::THINK.len() => {
                            return ReplyStart::Reasoning;
                        }
                        _ => {}
                    }
                }
                PromptPart::Text(_) => {}
            }
        }
        ReplyStart::Open
    }

    /// Splits rendered text into control tokens and the texts between them, without sentinels.
    fn split(&self, rendered: &str, sentinel: char) -> Vec<PromptPart> {
        let mut parts = Vec::new();
        let text = |text: &str| {
            let text: String = text.chars().filter(|&c| c != sentinel).collect();
            (!text.is_empty()).then_some(PromptPart::Text(text))
        };
        let mut from = 0;
        while let Some(found) = self.added.find(rendered, from) {
            let token = &self.added.tokens()[found.index];
            parts.extend(text(&rendered[from..found.start]));
            parts.push(PromptPart::Control { id: token.id, name: token.text.clone() });
            from = found.end;
        }
        parts.extend(text(&rendered[from..]));
        parts
    }
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate")
            .field("family", &self.family)
            .field("source_bytes", &self.source.len())
            .finish_non_exhaustive()
    }
}

fn without_null_reasoning(message: &Json) -> std::borrow::Cow<'_, Json> {
    match message.as_object() {
        Some(fields) if fields.get("reasoning_content").is_some_and(Json::is_null) => {
            let mut fields = fields.clone();
            fields.shift_remove("reasoning_content");
            std::borrow::Cow::Owned(Json::Object(fields))
        }
        _ => std::borrow::Cow::Borrowed(message),
    }
}

/// Removes the end marker of the last turn, and white space after it.
fn leave_open(parts: &mut Vec<PromptPart>) {
    let is_blank = |part: &PromptPart| matches!(part, PromptPart::Text(text) if text.trim().is_empty());
    let is_end = |part: &PromptPart| matches!(part, PromptPart::Control { name, .. } if markers::TURN_ENDS.contains(&&name[..]));
    let end = parts.iter().rposition(|part| !is_blank(part));
    if let Some(end) = end.filter(|&end| is_end(&parts[end])) {
        parts.truncate(end);
    }
}

fn failure(error: minijinja::Error) -> TemplateError {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(error) = source {
        if let Some(Raised(message)) = error.downcast_ref() {
            return TemplateError::Refused(message.clone());
        }
        source = error.source();
    }
    TemplateError::Failed(chain(&error))
}

/// The error and its causes in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(&format!(": {error}"));
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests;
