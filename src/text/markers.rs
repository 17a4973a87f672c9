//! Names of the Kimi special tokens, defined once. Ids differ per checkpoint:
//! `Tokenizer::special_id` gives them.

/// Document start; never added by a template.
pub const BOS: &str = "[BOS]";
/// Document end.
pub const EOS: &str = "[EOS]";
/// End of text, an alternative stop.
pub const EOT: &str = "[EOT]";
/// Padding.
pub const PAD: &str = "[PAD]";
/// Unknown.
pub const UNK: &str = "[UNK]";
/// Ends every turn.
pub const IM_END: &str = "<|im_end|>";
/// Opens a user turn.
pub const IM_USER: &str = "<|im_user|>";
/// Opens an assistant turn.
pub const IM_ASSISTANT: &str = "<|im_assistant|>";
/// Opens a turn of any other role.
pub const IM_SYSTEM: &str = "<|im_system|>";
/// Separates the header of a turn from its body.
pub const IM_MIDDLE: &str = "<|im_middle|>";
/// Opens the tool-call section of an assistant turn.
pub const TOOL_CALLS_SECTION_BEGIN: &str = "<|tool_calls_section_begin|>";
/// Closes the tool-call section.
pub const TOOL_CALLS_SECTION_END: &str = "<|tool_calls_section_end|>";
/// Opens one call; its id follows.
pub const TOOL_CALL_BEGIN: &str = "<|tool_call_begin|>";
/// Separates a call's id from its arguments.
pub const TOOL_CALL_ARGUMENT_BEGIN: &str = "<|tool_call_argument_begin|>";
/// Closes one call.
pub const TOOL_CALL_END: &str = "<|tool_call_end|>";
/// Opens reasoning.
pub const THINK: &str = "<think>";
/// Closes reasoning.
pub const THINK_END: &str = "</think>";
/// Opens a media group.
pub const MEDIA_BEGIN: &str = "<|media_begin|>";
/// Opens a media group in Kimi-VL.
pub const MEDIA_START: &str = "<|media_start|>";
/// Separates a media group's kind from its content.
pub const MEDIA_CONTENT: &str = "<|media_content|>";
/// Closes a media group.
pub const MEDIA_END: &str = "<|media_end|>";
/// Stands for one media embedding.
pub const MEDIA_PAD: &str = "<|media_pad|>";

/// Tokens that end a chat turn whatever a checkpoint's configuration lists: K2.5 lists only
/// `[EOS]`, which chat turns never emit.
pub const TURN_ENDS: [&str; 3] = [IM_END, EOS, EOT];

/// The name of added-token slot `id` that the tokenizer configuration leaves unnamed.
pub fn reserved(id: u32) -> String {
    format!("<|reserved_token_{id}|>")
}
