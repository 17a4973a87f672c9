//! The releases with a built-in chat format, and their detection from a checkpoint.

use crate::markers;
use crate::tokenizer::Tokenizer;

/// Members of the family whose chat format is built in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// K2-Instruct: no reasoning.
    K2Instruct,
    /// K2-Thinking: the model opens its reasoning itself.
    K2Thinking,
    /// K2.5: the prompt opens the reasoning.
    K25,
    /// K2.6: as K2.5, with `preserve_thinking`.
    K26,
    /// K2.7-Code: always thinking, all reasoning preserved.
    K27Code,
}

/// The family whose built-in template fits a checkpoint without one. The `model_type` (of
/// `config.json`) `kimi_k25` stands for K2.5 to K2.7 and is taken as K2.6, whose prompts equal
/// those of K2.5 unless requested otherwise. Any other is K2-Thinking if the vocabulary has the
/// think markers, else K2-Instruct. K2.7-Code and K2.6 cannot be told apart by their
/// files, so K2.7-Code must be chosen by name.
pub fn family_of(model_type: &str, tokenizer: &Tokenizer) -> Family {
    if model_type == "kimi_k25" {
        Family::K26
    } else if tokenizer.special_id(markers::THINK).is_some()
        && tokenizer.special_id(markers::THINK_END).is_some()
    {
        Family::K2Thinking
    } else {
        Family::K2Instruct
    }
}
