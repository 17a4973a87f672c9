//! The response object: the whole answer, and what the events of a stream repeat of it.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::super::ApiError;
use super::super::format::Format;
use super::super::write::{self, TokenText};
use super::items;
use crate::generate::{self, ArgumentsForm, Finish, FullReply};

/// The response object; without an end it is one in progress.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ResponsesAnswer<'a> {
    id: &'a str,
    #[schemars(extend("const" = "response"))]
    object: &'a str,
    created_at: u64,
    #[schemars(extend("enum" = ["completed", "incomplete", "in_progress", "cancelled", "failed"]))]
    status: &'a str,
    error: Option<Failure<'a>>,
    incomplete_details: Option<Incomplete>,
    model: &'a str,
    #[schemars(schema_with = "items::schema")]
    output: Vec<Value>,
    usage: Option<Usage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_arguments: Option<Vec<&'static str>>,
    /// What a response repeats of its request.
    #[serde(flatten)]
    #[schemars(skip)]
    echoed: Option<&'a Map<String, Value>>,
}

/// Why a response in the background has no output.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Failure<'a> {
    code: &'a str,
    message: &'a str,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Incomplete {
    #[schemars(extend("const" = "max_output_tokens"))]
    reason: &'static str,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Usage {
    input_tokens: usize,
    input_tokens_details: InputTokens,
    output_tokens: usize,
    output_tokens_details: OutputTokens,
    total_tokens: usize,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct InputTokens {
    cached_tokens: usize,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct OutputTokens {
    reasoning_tokens: usize,
}

impl<'a> ResponsesAnswer<'a> {
    /// The answer that is not streamed.
    pub(crate) fn of(
        format: &'a Format,
        show: &TokenText<'_>,
        usage: generate::Usage,
        full: &[FullReply],
    ) -> Self {
        let output = full.first().map(|reply| output(format, show, reply)).unwrap_or_default();
        let forms = full.first().map_or(&[][..], |reply| &reply.forms);
        Self::new(format, output, full.first().map(|reply| (usage, &reply.finish))).with_forms(forms)
    }

    /// With what became of the arguments of its calls.
    pub(super) fn with_forms(self, forms: &[ArgumentsForm]) -> Self {
        Self { tool_arguments: write::tool_arguments(forms), ..self }
    }

    /// A response that is worked on.
    pub(crate) fn in_progress(format: &'a Format) -> Self {
        Self::new(format, Vec::new(), None)
    }

    /// A response that will not come.
    pub(crate) fn failed(format: &'a Format, error: &'a ApiError) -> Self {
        let error = Failure { code: error.code, message: &error.message };
        Self { status: "failed", error: Some(error), ..Self::in_progress(format) }
    }

    pub(super) fn new(
        format: &'a Format,
        output: Vec<Value>,
        end: Option<(generate::Usage, &Finish)>,
    ) -> Self {
        let cut = matches!(end, Some((_, finish)) if finish.is_cut());
        Self {
            id: &format.id,
            object: "response",
            created_at: format.created,
            status: match end {
                None => "in_progress",
                Some(_) if cut => "incomplete",
                Some(_) => "completed",
            },
            error: None,
            incomplete_details: cut.then_some(Incomplete { reason: "max_output_tokens" }),
            model: &format.model,
            output,
            usage: end.map(|(usage, _)| Usage::from(usage)),
            tool_arguments: None,
            echoed: format.echoed.as_ref(),
        }
    }
}

impl From<generate::Usage> for Usage {
    fn from(usage: generate::Usage) -> Self {
        Self {
            input_tokens: usage.prompt_tokens,
            input_tokens_details: InputTokens { cached_tokens: usage.cached_tokens },
            output_tokens: usage.completion_tokens,
            output_tokens_details: OutputTokens { reasoning_tokens: usage.reasoning_tokens },
            total_tokens: usage.prompt_tokens + usage.completion_tokens,
        }
    }
}

fn output(format: &Format, show: &TokenText<'_>, reply: &FullReply) -> Vec<Value> {
    let mut output = Vec::new();
    let said = &reply.said;
    if let Some(reasoning) = said.reasoning.as_ref().filter(|r| format.reasoning.is_some() && !r.is_empty()) {
        output.push(items::reasoning(&items::id(format, "rs", output.len()), Some(reasoning)));
    }
    // Every response has an item.
    if !said.content.is_empty() || (output.is_empty() && said.calls.is_empty()) {
        let scores = items::logprobs(show, &reply.logprobs, &reply.in_answer);
        let id = items::id(format, "msg", output.len());
        output.push(items::message(&id, Some((&said.content, scores))));
    }
    for call in &said.calls {
        let tool = format.client_tools.of(&call.name);
        let id = items::id(format, items::call_prefix(tool.kind), output.len());
        output.push(items::call(&id, &call.id, &tool, Some(&call.arguments)));
    }
    if let Some(last) = output.last_mut().filter(|_| reply.finish.is_cut()) {
        items::cut(last);
    }
    output
}
