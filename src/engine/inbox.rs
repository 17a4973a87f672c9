//! Commands of the handles, as the engine's thread takes them.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use super::handle::Command;

/// Longest wait for commands when sequences are queued but none can run.
const STALLED_WAIT: Duration = Duration::from_millis(5);

/// The queue of commands.
pub(super) struct Inbox {
    commands: Receiver<Command>,
    /// The engine ends once no sequence runs or waits: it was told to, or no handle is left.
    closing: bool,
}

/// How long the engine may wait for a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    /// Without a command there is nothing to do.
    UntilOneComes,
    /// Sequences are queued and none can run: time may change that.
    Briefly,
    No,
}

impl Inbox {
    pub(super) fn new(commands: Receiver<Command>) -> Self {
        Self { commands, closing: false }
    }

    pub(super) fn close(&mut self) {
        self.closing = true;
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing
    }

    /// The next command, if one comes within the wait.
    pub(super) fn next(&mut self, wait: Wait) -> Option<Command> {
        let next = match wait {
            Wait::UntilOneComes => self.commands.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Wait::Briefly => self.commands.recv_timeout(STALLED_WAIT),
            Wait::No => return self.commands.try_recv().ok(),
        };
        self.closing |= matches!(next, Err(RecvTimeoutError::Disconnected));
        next.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_ends_when_no_handle_is_left_and_it_has_nothing_to_do() {
        let (handle, commands) = std::sync::mpsc::channel();
        let mut inbox = Inbox::new(commands);
        assert!(inbox.next(Wait::Briefly).is_none());
        handle.send(Command::TellAgain).unwrap();
        assert!(matches!(inbox.next(Wait::UntilOneComes), Some(Command::TellAgain)));
        drop(handle);
        assert!(inbox.next(Wait::No).is_none() && !inbox.is_closing());
        assert!(inbox.next(Wait::UntilOneComes).is_none() && inbox.is_closing());
    }
}
