//! What the answer to a checked request contains, whole or streamed.

use std::io::Write;

use serde_json::{Map, Value};

use super::client_tools::ClientTools;
use super::responses::Keep;
use super::write;
use crate::generate::{Applied, Finish, ReasoningField};

/// The routes that generate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completion,
    /// `/v1/messages`.
    Messages,
    /// `/v1/responses`.
    Responses,
    /// `/inference/v1/generate`.
    Tokens,
}

/// What an answer should contain.
#[derive(Debug, Clone)]
pub(super) struct Format {
    pub(super) kind: Kind,
    /// With its prefix, `chatcmpl-` or `cmpl-`.
    pub(super) id: String,
    /// Unix seconds.
    pub(super) created: u64,
    /// The name the client used.
    pub(super) model: String,
    pub(super) include_usage: bool,
    pub(super) continuous_usage: bool,
    pub(super) logprobs: bool,
    pub(super) prompt_logprobs: bool,
    pub(super) echo: bool,
    /// Text that comes first in the content of chat.
    pub(super) echoed_content: Option<String>,
    /// Whether a call comes in the form of `functions`, the predecessor of `tools`.
    pub(super) functions: bool,
    /// Under which names reasoning is given; `None` leaves it out.
    pub(super) reasoning: Option<ReasoningField>,
    /// The client's form of the tools that are not plain functions.
    pub(super) client_tools: ClientTools,
    /// What a response of `/v1/responses` is stored with; `None` stores nothing.
    pub(super) keep: Option<Keep>,
    /// What `/v1/responses` repeats of its request.
    pub(super) echoed: Option<Map<String, Value>>,
    pub(super) return_token_ids: bool,
    pub(super) tokens_as_ids: bool,
    /// Most tokens that the client asked for, which may be more than the context has room for.
    pub(super) max_tokens: Option<u32>,
    /// Where the operator's policy changed what was asked for.
    pub(super) applied: Vec<Applied>,
}

impl Format {
    /// The public name of a reply's end.
    pub(super) fn finish_reason(&self, finish: &Finish) -> &'static str {
        match finish {
            Finish::ToolCalls if self.functions => "function_call",
            other => write::finish_reason(other),
        }
    }

    /// Appends the fields every answer begins with, the brace included.
    pub(super) fn head(&self, out: &mut Vec<u8>, object: &str) {
        write::raw(out, "{\"id\":");
        write::string(out, &self.id);
        write!(out, ",\"object\":\"{object}\",\"created\":{},\"model\":", self.created)
            .expect("writing to memory");
        write::string(out, &self.model);
    }
}
