//! Parts of answers that several routes have, and how they become JSON.
//!
//! Whole answers are types, which the OpenAPI document describes. The chunks of a stream are written around these parts by hand: what
//! never changes in them is constant, so that a streamed token costs a copy and an escape.

use std::collections::HashMap;
use std::io::Write;

use schemars::{JsonSchema, Schema, json_schema};
use serde::{Serialize, Serializer};

use super::values::inline_schema;
use crate::generate::{self, ArgumentsForm, Finish, ReasoningField, TokenLogprobs};
use perigee_text::Tokenizer;

/// JSON has no infinities: what is below every logit is written as this.
const LOWEST_LOGPROB: f32 = -9999.0;

/// A whole answer.
pub(super) fn document(answer: &(impl Serialize + ?Sized)) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    json(&mut out, answer);
    out
}

/// Appends a value.
pub(super) fn json(out: &mut Vec<u8>, value: &(impl Serialize + ?Sized)) {
    serde_json::to_writer(out, value).expect("writing to memory");
}

/// Appends a JSON string.
pub(super) fn string(out: &mut Vec<u8>, text: &str) {
    json(out, text);
}

/// Appends constant or already valid JSON.
pub(super) fn raw(out: &mut Vec<u8>, json: &str) {
    out.extend_from_slice(json.as_bytes());
}

/// Appends a count.
pub(super) fn number(out: &mut Vec<u8>, value: u64) {
    write!(out, "{value}").expect("writing to memory");
}

/// Appends `,"NAME":VALUE`.
pub(super) fn member(out: &mut Vec<u8>, name: &str, value: &(impl Serialize + ?Sized)) {
    raw(out, ",\"");
    raw(out, name);
    raw(out, "\":");
    json(out, value);
}

/// An object of pairs, in their order.
#[derive(Debug)]
pub(super) struct Pairs<K, V>(pub(super) Vec<(K, V)>);

impl<K: Serialize, V: Serialize> Serialize for Pairs<K, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

inline_schema!(Pairs<K, V> where [K, V: JsonSchema], generator => json_schema!(
    {"type": "object", "additionalProperties": generator.subschema_for::<V>()}
));

/// `usage` of chat and text completions.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptTokens,
    completion_tokens_details: CompletionTokens,
    cached_tokens: usize,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct PromptTokens {
    cached_tokens: usize,
    image_tokens: usize,
}

/// The counts of drafted tokens are there only if there were any.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct CompletionTokens {
    reasoning_tokens: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    accepted_prediction_tokens: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rejected_prediction_tokens: Option<usize>,
}

impl From<generate::Usage> for Usage {
    fn from(usage: generate::Usage) -> Self {
        let generate::Usage {
            prompt_tokens, completion_tokens, cached_tokens, image_tokens, drafted, ..
        } = usage;
        Self {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            prompt_tokens_details: PromptTokens { cached_tokens, image_tokens },
            completion_tokens_details: CompletionTokens {
                reasoning_tokens: usage.reasoning_tokens,
                accepted_prediction_tokens: drafted.map(|(accepted, _)| accepted),
                rejected_prediction_tokens: drafted.map(|(_, rejected)| rejected),
            },
            cached_tokens,
        }
    }
}

/// `sampling_applied`: by field, what is used in place of what was asked for; `None` where nothing is.
pub(super) type Applied = Option<Pairs<&'static str, Change>>;

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct Change {
    asked: f64,
    applied: f64,
}

pub(super) fn applied(applied: &[generate::Applied]) -> Applied {
    let change = |c: &generate::Applied| (c.field, Change { asked: c.asked, applied: c.applied });
    (!applied.is_empty()).then(|| Pairs(applied.iter().map(change).collect()))
}

/// The public name of an ending.
pub(super) fn finish_reason(finish: &Finish) -> &'static str {
    match finish {
        Finish::EndOfTurn | Finish::StopToken(_) | Finish::StopString(_) => "stop",
        Finish::ToolCalls => "tool_calls",
        Finish::Repetition { strict: true } => "repetition",
        // A cut answer, for clients that know no other word.
        Finish::Length | Finish::Repetition { strict: false } => "length",
    }
}

/// Adds the public names of endings to a schema.
pub(super) fn finish_reasons(schema: &mut Schema) {
    schema.insert(
        "enum".to_owned(),
        ["stop", "length", "tool_calls", "function_call", "repetition"][..].into(),
    );
}

/// `tool_arguments`: what became of the arguments of each call; nothing where all are as the model wrote them.
pub(super) fn tool_arguments(forms: &[ArgumentsForm]) -> Option<Vec<&'static str>> {
    let marked = |form: &ArgumentsForm| matches!(form, ArgumentsForm::Mended | ArgumentsForm::Invalid);
    forms.iter().any(marked).then(|| forms.iter().map(|form| form.name()).collect())
}

/// `stop_reason`.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub(super) enum StopReason<'a> {
    Text(&'a str),
    Token(u32),
    None,
}

impl<'a> From<&'a Finish> for StopReason<'a> {
    fn from(finish: &'a Finish) -> Self {
        match finish {
            Finish::StopString(text) => Self::Text(text),
            Finish::StopToken(id) => Self::Token(*id),
            Finish::EndOfTurn | Finish::ToolCalls | Finish::Length => Self::None,
            Finish::Repetition { .. } => Self::Text("repetition_detected"),
        }
    }
}

impl<'a> StopReason<'a> {
    /// `matched_stop`, SGLang's name for a text or a token that ended the reply.
    pub(super) fn matched(finish: &'a Finish) -> Self {
        match finish {
            Finish::Repetition { .. } => Self::None,
            other => Self::from(other),
        }
    }
}

/// Appends `"finish_reason":...,"stop_reason":...,"matched_stop":...`. `reason` is the public name of the end.
pub(super) fn finish(out: &mut Vec<u8>, reason: &str, finish: &Finish) {
    raw(out, "\"finish_reason\":");
    string(out, reason);
    member(out, "stop_reason", &StopReason::from(finish));
    member(out, "matched_stop", &StopReason::matched(finish));
}

/// Appends reasoning under its names: `"reasoning_content":...,"reasoning":...`; null where there is none, since clients read the
/// member of every delta.
pub(super) fn reasoning(out: &mut Vec<u8>, field: ReasoningField, text: Option<&str>) {
    let names: &[&str] = match field {
        ReasoningField::Both => &["\"reasoning_content\":", ",\"reasoning\":"],
        ReasoningField::ReasoningContent => &["\"reasoning_content\":"],
        ReasoningField::Reasoning => &["\"reasoning\":"],
    };
    for name in names {
        raw(out, name);
        match text {
            Some(text) => string(out, text),
            None => raw(out, "null"),
        }
    }
}

/// A logprob: the shortest decimal that reads back as the same f32. Clients compare the number in two places for equality.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Logprob(f32);

impl Serialize for Logprob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(value) = *self;
        serializer.serialize_f32(if value.is_finite() { value.max(LOWEST_LOGPROB) } else { LOWEST_LOGPROB })
    }
}

inline_schema!(Logprob, _generator => json_schema!({"type": "number"}));

/// `logprobs` of a choice of chat.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct ChatLogprobs<'a> {
    content: Vec<Scored<'a>>,
    refusal: (),
}

/// A token's entry, which the Responses API has too.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct Scored<'a> {
    token: String,
    logprob: Logprob,
    bytes: &'a [u8],
    top_logprobs: Vec<Alternative<'a>>,
}

/// One of the most likely tokens.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Alternative<'a> {
    token: String,
    logprob: Logprob,
    bytes: &'a [u8],
}

/// `prompt_logprobs`: null for the first token, then a token's scores by id.
pub(super) type PromptLogprobs = Vec<Option<Pairs<u32, PromptScore>>>;

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct PromptScore {
    logprob: Logprob,
    rank: u32,
    decoded_token: String,
}

/// Shows single tokens.
pub(super) struct TokenText<'a> {
    /// Gives the bytes.
    pub(super) tokenizer: &'a Tokenizer,
    /// `return_tokens_as_token_ids`: show `token_id:N` instead of text.
    pub(super) as_ids: bool,
}

impl<'a> TokenText<'a> {
    /// A token's text; bytes that are no UTF-8 on their own become U+FFFD.
    pub(super) fn text(&self, id: u32) -> String {
        if self.as_ids {
            return format!("token_id:{id}");
        }
        String::from_utf8_lossy(self.bytes(id)).into_owned()
    }

    fn bytes(&self, id: u32) -> &'a [u8] {
        self.tokenizer.token_bytes(id).unwrap_or_default()
    }

    pub(super) fn chat_logprobs(&self, entries: &[TokenLogprobs]) -> ChatLogprobs<'a> {
        ChatLogprobs { content: entries.iter().map(|entry| self.scored(entry)).collect(), refusal: () }
    }

    pub(super) fn scored(&self, entry: &TokenLogprobs) -> Scored<'a> {
        let alternative = |&(id, value): &(u32, f32)| Alternative {
            token: self.text(id),
            logprob: Logprob(value),
            bytes: self.bytes(id),
        };
        Scored {
            token: self.text(entry.token),
            logprob: Logprob(entry.logprob),
            bytes: self.bytes(entry.token),
            top_logprobs: entry.top.iter().map(alternative).collect(),
        }
    }

    pub(super) fn prompt_logprobs(&self, entries: &[TokenLogprobs]) -> PromptLogprobs {
        let score = |id: u32, value: f32, rank: u32| {
            (id, PromptScore { logprob: Logprob(value), rank, decoded_token: self.text(id) })
        };
        let scores = |entry: &TokenLogprobs| {
            let ranked = entry.top.iter().zip(1..).filter(|((id, _), _)| *id != entry.token);
            let others = ranked.map(|(&(id, value), rank)| score(id, value, rank));
            Some(Pairs([score(entry.token, entry.logprob, entry.rank)].into_iter().chain(others).collect()))
        };
        [None].into_iter().chain(entries.iter().map(scores)).collect()
    }
}

/// One position in the parallel arrays of text completions.
pub(super) enum Position<'a> {
    /// The first token of an echoed prompt: nothing comes before it, so it has no logprob.
    Unscored(u32),
    /// Any other token.
    Scored(&'a TokenLogprobs),
}

impl<'a> Position<'a> {
    fn token(&self) -> u32 {
        match self {
            Self::Unscored(id) => *id,
            Self::Scored(entry) => entry.token,
        }
    }

    fn entry(&self) -> Option<&'a TokenLogprobs> {
        match self {
            Self::Unscored(_) => None,
            Self::Scored(entry) => Some(entry),
        }
    }
}

/// The scores of an echoed prompt: its first token has none.
pub(super) fn echoed<'a>(prompt: &[u32], logprobs: &'a [TokenLogprobs]) -> Vec<Position<'a>> {
    let first = prompt.first().map(|&id| Position::Unscored(id));
    first.into_iter().chain(logprobs.iter().map(Position::Scored)).collect()
}

/// The parallel arrays of text completions.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct CompletionLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<Logprob>>,
    top_logprobs: Vec<Option<Pairs<String, Logprob>>>,
    text_offset: Vec<usize>,
}

/// Makes the parallel arrays; keeps the offset between the chunks of a stream.
#[derive(Debug, Default, Clone)]
pub(super) struct LogprobArrays {
    /// Characters that have begun in the tokens so far.
    offset: usize,
}

impl LogprobArrays {
    pub(super) fn next(&mut self, show: &TokenText<'_>, positions: &[Position<'_>]) -> CompletionLogprobs {
        let logprob = |entry: &TokenLogprobs| Logprob(entry.logprob);
        CompletionLogprobs {
            tokens: positions.iter().map(|position| show.text(position.token())).collect(),
            token_logprobs: positions.iter().map(|position| position.entry().map(logprob)).collect(),
            top_logprobs: positions.iter().map(|p| p.entry().map(|entry| likeliest(show, entry))).collect(),
            text_offset: positions.iter().map(|position| self.place(show.bytes(position.token()))).collect(),
        }
    }

    /// The offset of a token with these bytes.
    fn place(&mut self, bytes: &[u8]) -> usize {
        let place = self.offset;
        // A character may lie in several tokens: bytes that continue one begin none (RFC 3629, section 3).
        self.offset += bytes.iter().filter(|byte| **byte & 0xC0 != 0x80).count();
        place
    }
}

/// Token text to logprob: the token itself and the most likely ones. Distinct tokens may have the same text (single bytes all look
/// like U+FFFD); the largest value stays, so that the map's maximum is always the most likely token's.
fn likeliest(show: &TokenText<'_>, entry: &TokenLogprobs) -> Pairs<String, Logprob> {
    let mut pairs: Vec<(String, Logprob)> = Vec::with_capacity(entry.top.len() + 1);
    // There may be as many as the vocabulary has tokens.
    let mut places: HashMap<String, usize> = HashMap::with_capacity(entry.top.len() + 1);
    let own = [(entry.token, entry.logprob)];
    for &(id, value) in entry.top.iter().chain(own.iter().filter(|o| entry.top.iter().all(|t| t.0 != o.0))) {
        let text = show.text(id);
        match places.get(&text) {
            Some(&place) => pairs[place].1.0 = pairs[place].1.0.max(value),
            None => {
                places.insert(text.clone(), pairs.len());
                pairs.push((text, Logprob(value)));
            }
        }
    }
    Pairs(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn logprobs_read_back_as_the_same_f32() {
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..10_000 {
            let value = -(rng.f32() * 40.0);
            let text = written(|out| json(out, &Logprob(value)));
            assert_eq!(text.parse::<f64>().unwrap() as f32, value, "{text}");
        }
        for value in [f32::NEG_INFINITY, f32::NAN, -1e30] {
            assert_eq!(written(|out| json(out, &Logprob(value))), "-9999.0");
        }
    }

    #[test]
    fn endings() {
        for (end, expected) in [
            (Finish::EndOfTurn, r#""finish_reason":"stop","stop_reason":null,"matched_stop":null"#),
            (Finish::StopToken(7), r#""finish_reason":"stop","stop_reason":7,"matched_stop":7"#),
            (
                Finish::StopString("\"".into()),
                r#""finish_reason":"stop","stop_reason":"\"","matched_stop":"\"""#,
            ),
            (Finish::Length, r#""finish_reason":"length","stop_reason":null,"matched_stop":null"#),
            (Finish::ToolCalls, r#""finish_reason":"tool_calls","stop_reason":null,"matched_stop":null"#),
            (
                Finish::Repetition { strict: false },
                r#""finish_reason":"length","stop_reason":"repetition_detected","matched_stop":null"#,
            ),
            (
                Finish::Repetition { strict: true },
                r#""finish_reason":"repetition","stop_reason":"repetition_detected","matched_stop":null"#,
            ),
        ] {
            assert_eq!(written(|out| finish(out, finish_reason(&end), &end)), expected);
        }
    }

    #[test]
    fn usage_has_both_places_of_cached_tokens() {
        let usage = generate::Usage {
            prompt_tokens: 5,
            completion_tokens: 2,
            cached_tokens: 4,
            reasoning_tokens: 1,
            ..generate::Usage::default()
        };
        assert_eq!(
            written(|out| json(out, &Usage::from(usage))),
            r#"{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7,"prompt_tokens_details":{"cached_tokens":4,"image_tokens":0},"completion_tokens_details":{"reasoning_tokens":1},"cached_tokens":4}"#
        );
    }
}
