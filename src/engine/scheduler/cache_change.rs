//! Changes of the set of named blocks, for the events that publish what is cached.

use std::sync::Arc;

/// Name of a block or of a content, 32 bytes.
pub type Name = [u8; 32];

/// A change of the set of named blocks, in the order in which they happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CacheChange {
    /// A block got a name: later prompts find it.
    Named(Box<NamedBlock>),
    /// The block of this name is found no more.
    Unnamed(Name),
}

/// A block that got a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedBlock {
    /// Its name; no two blocks have it at once.
    pub name: Name,
    /// Name of its content: chained over salt, tokens and pictures, whatever the form of attention. Blocks of both forms share it.
    pub content: Name,
    /// Content of the block before it; `None` at the beginning of a text.
    pub parent: Option<Name>,
    /// Its tokens.
    pub tokens: Arc<[u32]>,
    /// Prefix-cache salt of its sequence.
    pub salt: Option<Arc<str>>,
    /// Whether a token stands for a part of a picture.
    pub has_media: bool,
}
