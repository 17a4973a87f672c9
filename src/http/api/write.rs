//! Answers as JSON, written by hand: the parts that never change are constants, so that a streamed token costs a copy and an
//! escape, and a logprob is formatted in one place (clients compare the same number in two places for equality).

use std::collections::HashMap;
use std::io::Write;

use crate::generate::{Applied, Finish, ReasoningField, TokenLogprobs, Usage};
use perigee_text::Tokenizer;

/// JSON has no infinities: what is below every logit is written as this.
const LOWEST_LOGPROB: f32 = -9999.0;

/// Appends a JSON string.
pub(super) fn string(out: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(out, text).expect("writing to memory");
}

/// Appends constant or already valid JSON.
pub(super) fn raw(out: &mut Vec<u8>, json: &str) {
    out.extend_from_slice(json.as_bytes());
}

/// Appends a count.
pub(super) fn number(out: &mut Vec<u8>, value: u64) {
    write!(out, "{value}").expect("writing to memory");
}

/// Appends a logprob: the shortest decimal that reads back as the same f32.
pub(super) fn logprob(out: &mut Vec<u8>, value: f32) {
    let value = if value.is_finite() { value.max(LOWEST_LOGPROB) } else { LOWEST_LOGPROB };
    serde_json::to_writer(out, &value).expect("writing to memory");
}

/// Appends `[a,b,...]` with each item written by `write`.
pub(super) fn list<T>(
    out: &mut Vec<u8>,
    items: impl IntoIterator<Item = T>,
    mut write: impl FnMut(&mut Vec<u8>, T),
) {
    out.push(b'[');
    for (i, item) in items.into_iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        write(out, item);
    }
    out.push(b']');
}

/// Appends token ids.
pub(super) fn token_ids(out: &mut Vec<u8>, ids: &[u32]) {
    list(out, ids, |out, &id| number(out, id.into()));
}

/// Appends `"usage":{...}`.
pub(super) fn usage(out: &mut Vec<u8>, usage: Usage) {
    let Usage {
        prompt_tokens,
        image_tokens,
        completion_tokens,
        cached_tokens,
        reasoning_tokens,
        drafted,
        ..
    } = usage;
    let total = prompt_tokens + completion_tokens;
    write!(
        out,
        "\"usage\":{{\"prompt_tokens\":{prompt_tokens},\"completion_tokens\":{completion_tokens},\
         \"total_tokens\":{total},\"prompt_tokens_details\":{{\"cached_tokens\":{cached_tokens},\"image_tokens\":{image_tokens}}},\
         \"completion_tokens_details\":{{\"reasoning_tokens\":{reasoning_tokens}"
    )
    .expect("writing to memory");
    if let Some((accepted, rejected)) = drafted {
        write!(out, ",\"accepted_prediction_tokens\":{accepted},\"rejected_prediction_tokens\":{rejected}")
            .expect("writing to memory");
    }
    write!(out, "}},\"cached_tokens\":{cached_tokens}}}").expect("writing to memory");
}

/// Appends `,"sampling_applied":{FIELD:VALUE,...}`: what is used in place of what was asked for, if anything.
pub(super) fn applied(out: &mut Vec<u8>, applied: &[Applied]) {
    if applied.is_empty() {
        return;
    }
    raw(out, ",\"sampling_applied\":{");
    for (at, change) in applied.iter().enumerate() {
        raw(out, if at > 0 { ",\"" } else { "\"" });
        raw(out, change.field);
        raw(out, "\":{\"asked\":");
        serde_json::to_writer(&mut *out, &change.asked).expect("writing to memory");
        raw(out, ",\"applied\":");
        serde_json::to_writer(&mut *out, &change.applied).expect("writing to memory");
        out.push(b'}');
    }
    out.push(b'}');
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

/// Appends `"finish_reason":...,"stop_reason":...`.
pub(super) fn finish(out: &mut Vec<u8>, finish: &Finish) {
    raw(out, "\"finish_reason\":\"");
    raw(out, finish_reason(finish));
    raw(out, "\",\"stop_reason\":");
    match finish {
        Finish::StopString(text) => string(out, text),
        Finish::StopToken(id) => number(out, u64::from(*id)),
        Finish::EndOfTurn | Finish::ToolCalls | Finish::Length => raw(out, "null"),
        Finish::Repetition { .. } => raw(out, "\"repetition_detected\""),
    }
}

/// Appends reasoning under its names: `"reasoning_content":...,"reasoning":...`.
pub(super) fn reasoning(out: &mut Vec<u8>, field: ReasoningField, text: &str) {
    let names: &[&str] = match field {
        ReasoningField::Both => &["reasoning_content", "reasoning"],
        ReasoningField::ReasoningContent => &["reasoning_content"],
        ReasoningField::Reasoning => &["reasoning"],
    };
    for (i, name) in names.iter().enumerate() {
        raw(out, if i > 0 { ",\"" } else { "\"" });
        raw(out, name);
        raw(out, "\":");
        string(out, text);
    }
}

/// Appends both names of reasoning: null under those that do not have it.
pub(super) fn reasoning_or_null(out: &mut Vec<u8>, given: Option<(ReasoningField, &str)>) {
    use ReasoningField::{Both, Reasoning, ReasoningContent};
    for (i, (name, other)) in
        [("reasoning_content", Reasoning), ("reasoning", ReasoningContent)].iter().enumerate()
    {
        raw(out, if i > 0 { ",\"" } else { "\"" });
        raw(out, name);
        raw(out, "\":");
        match given {
            Some((field, text)) if field == Both || field != *other => string(out, text),
            _ => raw(out, "null"),
        }
    }
}

/// Appends `,"NAME":[...]`, or null where the ids were not asked for.
pub(super) fn ids_or_null(out: &mut Vec<u8>, name: &str, ids: Option<&[u32]>) {
    raw(out, ",\"");
    raw(out, name);
    raw(out, "\":");
    match ids {
        Some(ids) => token_ids(out, ids),
        None => raw(out, "null"),
    }
}

/// Shows single tokens.
pub(super) struct TokenText<'a> {
    /// Gives the bytes.
    pub(super) tokenizer: &'a Tokenizer,
    /// `return_tokens_as_token_ids`: show `token_id:N` instead of text.
    pub(super) as_ids: bool,
}

impl TokenText<'_> {
    /// A token's text; bytes that are no UTF-8 on their own become U+FFFD.
    pub(super) fn text(&self, id: u32) -> String {
        if self.as_ids {
            return format!("token_id:{id}");
        }
        String::from_utf8_lossy(self.tokenizer.token_bytes(id).unwrap_or_default()).into_owned()
    }

    /// Appends chat's `{"content":[...],"refusal":null}`.
    pub(super) fn chat_logprobs(&self, out: &mut Vec<u8>, entries: &[TokenLogprobs]) {
        raw(out, "{\"content\":");
        list(out, entries, |out, entry| self.scored(out, entry));
        raw(out, ",\"refusal\":null}");
    }

    /// One token's entry, as the Responses API has it too.
    pub(super) fn score(&self, entry: &TokenLogprobs) -> serde_json::Value {
        let mut out = Vec::new();
        self.scored(&mut out, entry);
        serde_json::from_slice(&out).unwrap_or_default()
    }

    fn scored(&self, out: &mut Vec<u8>, entry: &TokenLogprobs) {
        out.push(b'{');
        self.chat_entry(out, entry.token, entry.logprob);
        raw(out, ",\"top_logprobs\":");
        list(out, &entry.top, |out, &(id, value)| {
            out.push(b'{');
            self.chat_entry(out, id, value);
            out.push(b'}');
        });
        out.push(b'}');
    }

    fn chat_entry(&self, out: &mut Vec<u8>, id: u32, value: f32) {
        raw(out, "\"token\":");
        string(out, &self.text(id));
        raw(out, ",\"logprob\":");
        logprob(out, value);
        raw(out, ",\"bytes\":");
        list(out, self.tokenizer.token_bytes(id).unwrap_or_default(), |out, &b| number(out, b.into()));
    }

    /// Appends `prompt_logprobs`: null for the first token, then `{id: {logprob, rank, decoded_token}}` per position.
    pub(super) fn prompt_logprobs(&self, out: &mut Vec<u8>, entries: &[TokenLogprobs]) {
        raw(out, "[null");
        for entry in entries {
            raw(out, ",{");
            self.prompt_entry(out, entry.token, entry.logprob, entry.rank);
            for (i, &(id, value)) in entry.top.iter().enumerate() {
                if id != entry.token {
                    out.push(b',');
                    self.prompt_entry(out, id, value, i as u32 + 1);
                }
            }
            out.push(b'}');
        }
        out.push(b']');
    }

    fn prompt_entry(&self, out: &mut Vec<u8>, id: u32, value: f32, rank: u32) {
        write!(out, "\"{id}\":{{\"logprob\":").expect("writing to memory");
        logprob(out, value);
        write!(out, ",\"rank\":{rank},\"decoded_token\":").expect("writing to memory");
        string(out, &self.text(id));
        out.push(b'}');
    }
}

/// One position in the parallel arrays of text completions.
pub(super) enum Scored<'a> {
    /// The first token of an echoed prompt: nothing comes before it, so it has no logprob.
    Unscored(u32),
    /// Any other token.
    Entry(&'a TokenLogprobs),
}

/// The scores of an echoed prompt: its first token has none.
pub(super) fn echoed<'a>(prompt: &[u32], logprobs: &'a [TokenLogprobs]) -> Vec<Scored<'a>> {
    prompt
        .first()
        .map(|&id| Scored::Unscored(id))
        .into_iter()
        .chain(logprobs.iter().map(Scored::Entry))
        .collect()
}

/// Writes the parallel arrays of text completions; keeps the offset between the chunks of a stream.
#[derive(Debug, Default, Clone)]
pub(super) struct LogprobArrays {
    /// Characters that have begun in the tokens so far.
    offset: usize,
}

impl LogprobArrays {
    /// Appends `{"tokens":[...],"token_logprobs":[...],"top_logprobs":[...],"text_offset":[...]}`.
    pub(super) fn write(&mut self, out: &mut Vec<u8>, show: &TokenText<'_>, entries: &[Scored<'_>]) {
        let id = |entry: &Scored<'_>| match entry {
            Scored::Unscored(id) => *id,
            Scored::Entry(e) => e.token,
        };
        raw(out, "{\"tokens\":");
        list(out, entries, |out, e| string(out, &show.text(id(e))));
        raw(out, ",\"token_logprobs\":");
        list(out, entries, |out, e| match e {
            Scored::Unscored(_) => raw(out, "null"),
            Scored::Entry(e) => logprob(out, e.logprob),
        });
        raw(out, ",\"top_logprobs\":");
        list(out, entries, |out, e| match e {
            Scored::Unscored(_) => raw(out, "null"),
            Scored::Entry(e) => top_map(out, show, e),
        });
        raw(out, ",\"text_offset\":");
        list(out, entries, |out, e| {
            number(out, self.offset as u64);
            let bytes = show.tokenizer.token_bytes(id(e)).unwrap_or_default();
            // A character may lie in several tokens: bytes that continue one begin none (RFC 3629, section 3).
            self.offset += bytes.iter().filter(|byte| **byte & 0xC0 != 0x80).count();
        });
        out.push(b'}');
    }
}

/// Token text to logprob: the token itself and the most likely ones. Distinct tokens may have the same text (single bytes all look
/// like U+FFFD); the largest value stays, so that the map's maximum is always the most likely token's.
fn top_map(out: &mut Vec<u8>, show: &TokenText<'_>, entry: &TokenLogprobs) {
    let mut map: Vec<(String, f32)> = Vec::with_capacity(entry.top.len() + 1);
    // There may be as many as the vocabulary has tokens.
    let mut places: HashMap<String, usize> = HashMap::with_capacity(entry.top.len() + 1);
    let own = [(entry.token, entry.logprob)];
    for &(id, value) in entry.top.iter().chain(own.iter().filter(|o| entry.top.iter().all(|t| t.0 != o.0))) {
        let text = show.text(id);
        match places.get(&text) {
            Some(&place) => map[place].1 = map[place].1.max(value),
            None => {
                places.insert(text.clone(), map.len());
                map.push((text, value));
            }
        }
    }
    out.push(b'{');
    for (i, (text, value)) in map.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        string(out, text);
        out.push(b':');
        logprob(out, *value);
    }
    out.push(b'}');
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
            let text = written(|out| logprob(out, value));
            assert_eq!(text.parse::<f64>().unwrap() as f32, value, "{text}");
        }
        for value in [f32::NEG_INFINITY, f32::NAN, -1e30] {
            assert_eq!(written(|out| logprob(out, value)), "-9999.0");
        }
    }

    #[test]
    fn endings() {
        for (end, expected) in [
            (Finish::EndOfTurn, r#""finish_reason":"stop","stop_reason":null"#),
            (Finish::StopToken(7), r#""finish_reason":"stop","stop_reason":7"#),
            (Finish::StopString("\"".into()), r#""finish_reason":"stop","stop_reason":"\"""#),
            (Finish::Length, r#""finish_reason":"length","stop_reason":null"#),
            (Finish::ToolCalls, r#""finish_reason":"tool_calls","stop_reason":null"#),
            (
                Finish::Repetition { strict: false },
                r#""finish_reason":"length","stop_reason":"repetition_detected""#,
            ),
            (
                Finish::Repetition { strict: true },
                r#""finish_reason":"repetition","stop_reason":"repetition_detected""#,
            ),
        ] {
            assert_eq!(written(|out| finish(out, &end)), expected);
        }
    }

    #[test]
    fn usage_has_both_places_of_cached_tokens() {
        let u = Usage {
            prompt_tokens: 5,
            completion_tokens: 2,
            cached_tokens: 4,
            reasoning_tokens: 1,
            ..Usage::default()
        };
        let json: serde_json::Value =
            serde_json::from_str(&format!("{{{}}}", written(|out| usage(out, u)))).unwrap();
        assert_eq!(json["usage"]["total_tokens"], 7);
        assert_eq!(json["usage"]["prompt_tokens_details"]["cached_tokens"], 4);
        assert_eq!(json["usage"]["cached_tokens"], 4);
        assert_eq!(json["usage"]["completion_tokens_details"]["reasoning_tokens"], 1);
    }
}
