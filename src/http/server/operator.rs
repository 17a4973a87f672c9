//! What the operator may see and do through HTTP; the boot fills it in.

use serde_json::Value;

/// The operator's side of a server.
pub trait Operator: Send + Sync {
    /// What all settings in force come to, in 16 hexadecimal digits: equal on servers with equal settings, but for their secrets.
    fn settings_digest(&self) -> String;

    /// Every setting with its value and origin, secrets masked.
    fn settings(&self) -> Value;

    /// Reads the settings anew and puts in force what can change while requests run: all of it or
    /// nothing. Says what changed. Errors: every problem of the settings, in words.
    fn reload(&self) -> Result<Value, String>;
}
