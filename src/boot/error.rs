//! Errors of boot stages, and how they are printed.

use std::error::Error;

/// Any error of a boot station; printed with its whole chain of sources.
pub(crate) type BootError = Box<dyn Error + Send + Sync>;

/// An error with its chain of sources, in one line.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
