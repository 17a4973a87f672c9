//! `truncation: auto`: the oldest turns are left out of a conversation that is too long.

use serde_json::Value;

use crate::generate::ChatPrompt;

/// Leaves out the oldest messages, of at least this share of the conversation's text. The system's messages
/// at its beginning stay, as does everything from the last message of the user on; a result never stays
/// without its call. Returns whether anything was left out.
pub(in super::super) fn drop_oldest(chat: &mut ChatPrompt, share: f64) -> bool {
    let messages = &chat.messages;
    let role = |at: usize| messages[at]["role"].as_str().unwrap_or_default();
    let is_system = |at: &usize| matches!(role(*at), "system" | "developer");
    let first = (0..messages.len()).take_while(is_system).count();
    let Some(last) = (first..messages.len()).rev().find(|&at| role(at) == "user") else { return false };
    let bytes: usize = messages.iter().map(|message| message.to_string().len()).sum();
    let wanted = (bytes as f64 * share).ceil() as usize;
    let (mut end, mut dropped) = (first, 0);
    while end < last && (dropped < wanted.max(1) || role(end) == "tool") {
        dropped += messages[end].to_string().len();
        end += 1;
    }
    if end == first {
        return false;
    }
    let images = |messages: &[Value]| {
        let parts = messages.iter().filter_map(|message| message["content"].as_array()).flatten();
        parts.filter(|part| part["type"] == "image").count()
    };
    let (before, within) = (images(&messages[..first]), images(&messages[first..end]));
    chat.images.drain(before..before + within);
    chat.messages.drain(first..end);
    true
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::generate::{ImageData, ImageInput};

    fn message(role: &str, content: Value) -> Value {
        json!({"role": role, "content": content})
    }

    fn conversation() -> ChatPrompt {
        let image = |place: &str| ImageInput { place: place.into(), data: ImageData::Url(String::new()) };
        let shown = json!([{"type": "image"}, {"type": "text", "text": "old"}]);
        ChatPrompt {
            messages: vec![
                message("system", "rules".into()),
                message("user", shown),
                message("assistant", "call".into()),
                message("tool", "result".into()),
                message("user", json!([{"type": "image"}])),
                message("assistant", "call".into()),
                message("tool", "result".into()),
            ],
            tools: Vec::new(),
            add_generation_prompt: true,
            continue_final_message: false,
            kwargs: None,
            images: vec![image("old"), image("new")],
        }
    }

    #[test]
    fn the_oldest_turns_go_first_and_results_with_their_calls() {
        let mut chat = conversation();
        assert!(drop_oldest(&mut chat, 0.0));
        assert_eq!(chat.messages[1], message("assistant", "call".into()));
        assert_eq!(chat.images.len(), 1, "an image goes with its message");
        assert!(drop_oldest(&mut chat, 0.0));
        let roles: Vec<&str> = chat.messages.iter().map(|m| m["role"].as_str().unwrap()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "tool"]);
        assert!(!drop_oldest(&mut chat, 1.0), "the last turn stays");
        assert_eq!(chat.images[0].place, "new");
    }

    #[test]
    fn a_share_is_left_out_at_once() {
        let mut chat = conversation();
        assert!(drop_oldest(&mut chat, 0.9));
        assert_eq!((chat.messages.len(), chat.messages[1]["role"].as_str()), (4, Some("user")));
    }
}
