//! Faults: what a kernel did that a device would punish, or hide.

/// First words of the reason of a race.
pub(crate) const RACE: &str = "race on ";
/// First words of the reason where nothing can go on.
pub(crate) const DEADLOCK: &str = "deadlock: ";

/// Where and why a kernel was stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The device, where there are several.
    pub device: Option<usize>,
    /// Name of the kernel.
    pub kernel: String,
    /// Line in the PTX text; 0 if no instruction is to blame.
    pub line: u32,
    /// Opcode with modifiers.
    pub opcode: String,
    /// Block index.
    pub block: [u32; 3],
    /// Thread index in the block, where one thread is to blame.
    pub thread: Option<[u32; 3]>,
    /// Reason.
    pub text: String,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(device) = self.device {
            write!(f, "device {device}, ")?;
        }
        write!(f, "{}", self.kernel)?;
        if self.line > 0 {
            write!(f, ", line {} `{}`", self.line, self.opcode)?;
        }
        write!(f, ", block {:?}", self.block)?;
        if let Some(thread) = self.thread {
            write!(f, ", thread {thread:?}")?;
        }
        write!(f, ": {}", self.text)
    }
}

impl std::error::Error for Fault {}

impl Fault {
    /// Whether it is a race: accesses that nothing orders.
    pub fn is_race(&self) -> bool {
        self.text.starts_with(RACE)
    }

    /// Whether nothing could go on, whatever order warps run in from here.
    pub fn is_deadlock(&self) -> bool {
        self.text.starts_with(DEADLOCK)
    }
}

/// A reason before it has a place: the lane that is to blame, if one is.
#[derive(Debug, Clone)]
pub(crate) struct Trouble {
    pub(crate) lane: Option<u32>,
    pub(crate) text: String,
}

impl From<String> for Trouble {
    fn from(text: String) -> Self {
        Self { lane: None, text }
    }
}

impl From<&str> for Trouble {
    fn from(text: &str) -> Self {
        Self { lane: None, text: text.to_string() }
    }
}

/// Blames a lane.
pub(crate) fn lane(lane: u32) -> impl FnOnce(String) -> Trouble {
    move |text| Trouble { lane: Some(lane), text }
}
