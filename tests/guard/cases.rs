//! Requests with what their replies do and what the guard must do about it, one JSON object a line.
//!
//! A reply is a list of pieces: a text, or a text and how often it follows itself.

use std::sync::Arc;

use perigee_decoding::guard::{Event, Guard, Mode, Options, Verdict};
use perigee_http::generate::{GuardChoice, GuardPlan};
use perigee_text::{Specials, Tokenizer, markers};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Case {
    #[serde(default)]
    pub(crate) name: String,
    /// The user's message; absent: only the thresholds count.
    #[serde(default)]
    pub(crate) request: String,
    pub(crate) reply: Vec<Piece>,
    /// Whether the reply is a loop that must be taken back or ended; otherwise it must pass.
    pub(crate) found: bool,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Piece {
    Once(String),
    Times(String, usize),
}

impl Case {
    /// The cases of a file; an error names the line.
    pub(crate) fn parse(lines: &str) -> Result<Vec<Self>, String> {
        let filled = lines.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        filled
            .map(|(at, line)| {
                let mut case: Self =
                    serde_json::from_str(line).map_err(|error| format!("line {}: {error}", at + 1))?;
                if case.name.is_empty() {
                    case.name = format!("line {}", at + 1);
                }
                Ok(case)
            })
            .collect()
    }

    pub(crate) fn reply(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let text = |piece: &Piece| match piece {
            Piece::Once(text) => text.clone(),
            Piece::Times(text, copies) => text.repeat(*copies),
        };
        encode(&self.reply.iter().map(text).collect::<String>(), tokenizer)
    }
}

pub(crate) fn encode(text: &str, tokenizer: &Tokenizer) -> Vec<u32> {
    tokenizer.encode(text, Specials::AsText).unwrap_or_default()
}

/// A user's message as the prompt of a conversation; as plain text where the vocabulary has no
/// turns.
pub(crate) fn prompt(request: &str, tokenizer: &Tokenizer) -> Arc<[u32]> {
    let id = |name| tokenizer.special_id(name);
    let turn = [markers::IM_USER, markers::IM_MIDDLE, markers::IM_END, markers::IM_ASSISTANT].map(id);
    let encode = |text| encode(text, tokenizer);
    let [Some(user), Some(middle), Some(end), Some(assistant)] = turn else { return encode(request).into() };
    let user = [vec![user], encode("user"), vec![middle], encode(request), vec![end]].concat();
    [user, vec![assistant], encode("assistant"), vec![middle]].concat().into()
}

/// The guard of a reply to `prompt`, with rescues.
pub(crate) fn options(guards: &GuardPlan, prompt: Arc<[u32]>) -> Options {
    let choice = GuardChoice { mode: Some(Mode::Rescue), ..GuardChoice::default() };
    guards.options(&choice, &prompt, false, false).expect("the mode is not off")
}

/// The first thing that is done about a reply: after how many of its tokens, how many had been
/// delivered, and what.
pub(crate) struct Acted {
    pub(crate) at: usize,
    pub(crate) delivered: usize,
    pub(crate) event: Event,
}

pub(crate) fn first_action(options: Options, reply: &[u32]) -> Option<Acted> {
    let mut guard = Guard::new(options, reply.len());
    reply.iter().enumerate().find_map(|(at, &token)| match guard.observe(token) {
        Verdict::Deliver { .. } => None,
        Verdict::Rescue { keep, event } | Verdict::Stop { keep, event } => {
            Some(Acted { at: at + 1, delivered: keep, event })
        }
    })
}
