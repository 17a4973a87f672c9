//! A reply before the server is ready: weights that load and answer nonsense are found here, and not by the first customer.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::error::BootError;
use perigee_http::api::{Answer, Api, Kind, Summary};

/// Most tokens of the reply.
const MAX_TOKENS: u32 = 48;
/// Characters that are too few to judge by how often each occurs.
const FEW_CHARS: usize = 12;

/// Asks the model a question as a client does, through the whole walk. Errors: no reply, or one that is no text of a model that
/// works: empty, broken, or one character again and again. What it says is not judged.
pub(super) async fn self_test(api: &Api) -> Result<(), BootError> {
    let question = json!({
        "messages": [{"role": "user", "content": "Which number comes after seven? Answer in one sentence."}],
        "max_tokens": MAX_TOKENS,
    });
    let mut summary = Summary::default();
    let answer =
        api.reply(Kind::Chat, question.to_string().into_bytes().into(), "self-test", &mut summary).await;
    let failed =
        |what: &str| BootError::from(format!("the self-test before ready failed (model.self_test): {what}"));
    let body = match answer {
        Ok(Answer::Json(body)) => body,
        Ok(_) => return Err(failed("the answer was no JSON")),
        Err(error) => return Err(failed(&error.message)),
    };
    let answer: Value = serde_json::from_slice(&body)?;
    let message = &answer["choices"][0]["message"];
    let part = |name: &str| message[name].as_str().unwrap_or_default();
    let (reasoning, content) = (part("reasoning_content"), part("content"));
    match fault(&format!("{reasoning}{content}"), summary.finish) {
        Some(fault) => Err(failed(&format!("{fault}; it said {:?}", excerpt(reasoning, content)))),
        None => {
            let tokens = summary.usage.completion_tokens;
            tracing::info!(tokens, said = excerpt(reasoning, content), "self-test");
            Ok(())
        }
    }
}

/// What is wrong with a reply, if something is.
fn fault(text: &str, finish: &str) -> Option<&'static str> {
    let mut counts = HashMap::new();
    text.chars().filter(|c| !c.is_whitespace()).for_each(|c| *counts.entry(c).or_insert(0usize) += 1);
    let all: usize = counts.values().sum();
    let most = counts.values().max().copied().unwrap_or(0);
    if finish == "repetition" {
        Some("the reply was endless repetition")
    } else if all == 0 {
        Some("the reply was empty")
    } else if text.contains(char::REPLACEMENT_CHARACTER) {
        Some("the reply was no text (U+FFFD)")
    } else if all >= FEW_CHARS && most * 4 >= all * 3 {
        Some("the reply was one character again and again")
    } else {
        None
    }
}

fn excerpt(reasoning: &str, content: &str) -> String {
    let text = if content.is_empty() { reasoning } else { content };
    text.trim().chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_is_told_from_words() {
        for text in ["Eight comes after seven.", "8", "八。", "7, 8, 9, 10, 11, 12", "!!!"] {
            assert_eq!(fault(text, "stop"), None, "{text}");
        }
        for (text, finish, word) in [
            ("", "stop", "empty"),
            (" \n", "length", "empty"),
            ("!!!!!!!!!!!!!!!!!!!!", "length", "one character"),
            ("Eight !!!!!!!!!!!!!!!!!!!!", "length", "one character"),
            ("Ei\u{fffd}ght", "stop", "no text"),
            ("and and and", "repetition", "endless"),
        ] {
            assert!(fault(text, finish).is_some_and(|fault| fault.contains(word)), "{text}");
        }
    }
}
