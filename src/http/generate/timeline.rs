//! When things happened to a reply.

use std::time::Instant;

use perigee_decoding::guard;
use perigee_text::ReplyPiece;

/// Most findings, and most calls, whose times are kept.
const MAX_KEPT: usize = 32;

/// The times of one reply, for traces.
#[derive(Debug, Clone, PartialEq)]
pub struct Timeline {
    /// The engine was asked for the reply.
    pub submitted: Instant,
    /// The sequence left the queue.
    pub admitted: Option<Instant>,
    /// The first token came.
    pub first_token: Option<Instant>,
    /// The reply ended, or failed.
    pub ended: Option<Instant>,
    /// Prompt tokens from the prefix cache.
    pub cached_tokens: usize,
    /// Reply tokens so far.
    pub tokens: usize,
    /// What the guard found, the first 32.
    pub findings: Vec<Finding>,
    /// Tool calls, the first 32.
    pub calls: Vec<CallTime>,
}

/// A finding of the guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finding {
    /// When it came.
    pub at: Instant,
    /// Name of its kind.
    pub kind: &'static str,
    /// Name of the response taken.
    pub action: &'static str,
}

/// The writing of a tool call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallTime {
    /// Name of the function, as the reply has it.
    pub name: String,
    /// Its name was complete.
    pub begun: Instant,
    /// Something else followed its arguments; `None`: the reply ended with it.
    pub ended: Option<Instant>,
}

impl Timeline {
    pub(super) fn begin() -> Self {
        Self {
            submitted: Instant::now(),
            admitted: None,
            first_token: None,
            ended: None,
            cached_tokens: 0,
            tokens: 0,
            findings: Vec::new(),
            calls: Vec::new(),
        }
    }

    pub(super) fn found(&mut self, event: &guard::Event) {
        if self.findings.len() < MAX_KEPT {
            let (kind, action) = (event.kind.name(), event.action.name());
            self.findings.push(Finding { at: Instant::now(), kind, action });
        }
    }

    pub(super) fn said(&mut self, pieces: &[ReplyPiece]) {
        for piece in pieces {
            if matches!(piece, ReplyPiece::Arguments { .. }) {
                continue;
            }
            if let Some(call) = self.calls.last_mut() {
                call.ended.get_or_insert_with(Instant::now);
            }
            if let ReplyPiece::Call { name, .. } = piece
                && self.calls.len() < MAX_KEPT
            {
                self.calls.push(CallTime { name: name.clone(), begun: Instant::now(), ended: None });
            }
        }
    }
}
