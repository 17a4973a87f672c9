//! `perigee render` and `perigee parse`: the prompt of a request, and the pieces of a raw reply; no
//! engine runs.

use std::fmt::Write as _;
use std::io::Read;
use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::commands::{EXIT_USAGE, load_settings, print, print_json};
use crate::boot::{
    BootError, ModelDefaults, chain, load_sight, load_text, open_checkpoint, read_blueprint,
    sampling_defaults,
};
use crate::config::args::{ParseArgs, RenderArgs, StartArg};
use perigee_http::api::render_request;
use perigee_text::{ReplyEnd, ReplyFormat, ReplyStart, markers, whole_reply};

/// Most bytes of a file.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// `perigee render`.
pub(super) fn render(args: &RenderArgs) -> ExitCode {
    let loaded = match load_settings(&args.settings) {
        Ok(loaded) => loaded,
        Err(code) => return code,
    };
    finish((|| {
        let settings = &loaded.settings;
        let body = read(&args.file)?;
        let checkpoint = open_checkpoint(settings)?;
        let blueprint = read_blueprint(&checkpoint)?;
        let mut text = load_text(settings, &checkpoint, &blueprint)?;
        load_sight(settings, &checkpoint, &blueprint, &mut text)?;
        let model = ModelDefaults::of(&checkpoint, &blueprint, text.template.family())?;
        let defaults = sampling_defaults(settings, &model);
        let prompt = match render_request(&body, &text, &defaults) {
            Ok(prompt) => prompt,
            Err(error) => return Ok(usage(&error.message)),
        };
        if args.json {
            let images: Vec<Value> = prompt
                .images
                .iter()
                .map(|image| json!({"start": image.start, "tokens": image.tokens}))
                .collect();
            return Ok(print_json(&json!({
                "prompt": prompt.text, "prompt_token_ids": &prompt.tokens[..], "images": images
            })));
        }
        let ids: Vec<String> = prompt.tokens.iter().map(u32::to_string).collect();
        let mut shown = format!("{}\n\n{} tokens: {}\n", prompt.text, ids.len(), ids.join(" "));
        for (number, image) in prompt.images.iter().enumerate() {
            let (first, last) = (image.start, image.start + image.tokens - 1);
            let _ = writeln!(shown, "image {}: {} tokens, {first} to {last}", number + 1, image.tokens);
        }
        Ok(print(&shown))
    })())
}

/// `perigee parse`.
pub(super) fn parse(args: &ParseArgs) -> ExitCode {
    finish((|| {
        let text = String::from_utf8_lossy(&read(&args.file)?).into_owned();
        let tools = match &args.tools {
            None => Vec::new(),
            Some(file) => match tools_of(serde_json::from_slice(&read(file)?)?) {
                Some(tools) => tools,
                None => {
                    return Ok(usage(&format!(
                        "{}: neither a list of tools nor a request with tools",
                        file.display()
                    )));
                }
            },
        };
        let start = match args.start {
            StartArg::Reasoning => ReplyStart::Reasoning,
            StartArg::Answer => ReplyStart::Answer,
            StartArg::Auto => likely_start(&text),
        };
        let end = if args.cut { ReplyEnd::Cut } else { ReplyEnd::Turn };
        let said = whole_reply(ReplyFormat::of_text().with_tools(&tools, 0), start, &text, end);
        let finish = match () {
            () if args.cut => "length",
            () if said.calls.is_empty() => "stop",
            () => "tool_calls",
        };
        let calls: Vec<Value> = said
            .calls
            .iter()
            .map(|call| {
                json!({"id": call.id, "type": "function",
                       "function": {"name": call.name, "arguments": call.arguments}})
            })
            .collect();
        let mut message = json!({"role": "assistant", "content": said.content});
        if said.content.is_empty() && (said.reasoning.is_some() || !calls.is_empty()) {
            message["content"] = Value::Null;
        }
        if let Some(reasoning) = said.reasoning {
            message["reasoning_content"] = reasoning.into();
        }
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        Ok(print_json(&json!({"message": message, "finish_reason": finish})))
    })())
}

/// Reasoning that is closed and never opened was opened by the prompt.
fn likely_start(text: &str) -> ReplyStart {
    match (text.find(markers::THINK), text.find(markers::THINK_END)) {
        (None, Some(_)) => ReplyStart::Reasoning,
        (Some(open), Some(close)) if close < open => ReplyStart::Reasoning,
        _ => ReplyStart::Open,
    }
}

/// The tools of a list, or of a request.
fn tools_of(value: Value) -> Option<Vec<Value>> {
    match value {
        Value::Array(tools) => Some(tools),
        Value::Object(mut request) => match request.remove("tools") {
            Some(Value::Array(tools)) => Some(tools),
            _ => None,
        },
        _ => None,
    }
}

/// A file's bytes; `-` is the standard input.
fn read(file: &Path) -> Result<Vec<u8>, BootError> {
    let mut bytes = Vec::new();
    let outcome = match file.to_str() {
        Some("-") => std::io::stdin().take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes),
        _ => std::fs::File::open(file).and_then(|f| f.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)),
    };
    outcome.map_err(|error| format!("{}: {error}", file.display()))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(format!("{}: larger than {MAX_FILE_BYTES} bytes", file.display()).into());
    }
    Ok(bytes)
}

fn usage(message: &str) -> ExitCode {
    eprintln!("perigee: {message}");
    ExitCode::from(EXIT_USAGE)
}

fn finish(outcome: Result<ExitCode, BootError>) -> ExitCode {
    outcome.unwrap_or_else(|error| {
        eprintln!("perigee: {}", chain(&*error));
        ExitCode::FAILURE
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_says_where_it_began() {
        for (text, start) in [
            ("a</think>b", ReplyStart::Reasoning),
            ("<think>a</think>b", ReplyStart::Open),
            ("a</think>b<think>c", ReplyStart::Reasoning),
            ("a", ReplyStart::Open),
        ] {
            assert_eq!(likely_start(text), start, "{text}");
        }
    }
}
