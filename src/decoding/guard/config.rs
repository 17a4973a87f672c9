//! The guard's switches.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the guard may do about a loop.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Nothing is watched.
    Off,
    /// Report it.
    Warn,
    /// End the reply.
    Stop,
    /// Take it back and go on without it; end the reply if it comes back.
    #[default]
    Rescue,
}

/// Watching replies for endless repetition and broken numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// What may be done about a reply that repeats itself without end: off, warn (report it), stop
    /// (end the reply), rescue (take the loop back and go on without it, max_rescues times, then
    /// stop). Requests may choose another with repetition_guard.
    pub mode: Mode,
    /// Whether requests may choose a mode of their own, or switch the guard off. If not,
    /// repetition_guard in a request is an error.
    pub client_may_choose: bool,
    /// Most tokens kept back from the client while a loop is suspected, 0 to 4096. Larger: longer
    /// loops can be taken back unseen, at the price of longer pauses in honest repetition.
    pub hold_tokens: u32,
    /// Times a reply may be taken back and written anew, 0 to 8. Larger: more time spent on replies
    /// that may be lost.
    pub max_rescues: u32,
    /// Tokens after a rescue in which the loop's own phrases stay forbidden, 0 to 65536. Larger:
    /// less chance that it returns, more constraint on what is said.
    pub ban_tokens: u32,
    /// Whether a reply that was stopped for a loop ends with the finish_reason "repetition", which
    /// is vLLM's word; otherwise it is "length", which every client knows. stop_reason is
    /// "repetition_detected" either way.
    pub strict_finish_reasons: bool,
    /// What is written before thinking is closed that went round in circles. Empty: such thinking
    /// is treated like an answer.
    pub close_thinking_text: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            mode: Mode::Rescue,
            client_may_choose: true,
            hold_tokens: 256,
            max_rescues: 1,
            ban_tokens: 512,
            strict_finish_reasons: false,
            close_thinking_text: "\n\nThis goes in circles; I answer.\n".into(),
        }
    }
}

impl Config {
    /// Problems as (key, limit).
    pub fn validate(&self) -> Vec<(&'static str, String)> {
        let mut problems = Vec::new();
        for (key, value, most) in [
            ("hold_tokens", self.hold_tokens, 4096),
            ("max_rescues", self.max_rescues, 8),
            ("ban_tokens", self.ban_tokens, 65_536),
        ] {
            if value > most {
                problems.push((key, format!("must be from 0 to {most}")));
            }
        }
        if self.close_thinking_text.len() > 1000 {
            problems.push(("close_thinking_text", "must have at most 1000 bytes".into()));
        }
        problems
    }
}

impl Mode {
    /// The name in configuration and requests.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Warn => "warn",
            Self::Stop => "stop",
            Self::Rescue => "rescue",
        }
    }
}
