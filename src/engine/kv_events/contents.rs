//! Which contents are cached, and the events that say so.
//!
//! Consumers go by tokens, not by blocks. The cache can hold a text twice, once per form of attention, so
//! contents are counted: the first block announces its content, the last one takes it back. Consumers drop a
//! content whose predecessor they do not know, and differ on what becomes of those behind one that goes; no
//! prompt could reach either here. So a content is announced while all before it are. Contents with pictures
//! are not announced: their tokens are equal for all pictures.

use std::collections::HashMap;
use std::sync::Arc;

use crate::scheduler::{CacheChange, Name, NamedBlock};

/// An event, in the words of vLLM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Event {
    /// A chain of contents is cached.
    Stored {
        /// Name of the content before the first; `None` at the beginning of a text.
        parent: Option<u64>,
        /// Names in their order.
        hashes: Vec<u64>,
        /// Tokens of all of them.
        tokens: Vec<u32>,
        /// Prefix-cache salt of all of them.
        salt: Option<Arc<str>>,
    },
    /// These contents are cached no more.
    Removed(Vec<u64>),
    /// Nothing is cached.
    Cleared,
}

/// Consumers' name of a content: the last eight bytes, as vLLM shortens its own.
fn short(name: &Name) -> u64 {
    let [.., a, b, c, d, e, f, g, h] = *name;
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

#[derive(Debug)]
struct Content {
    /// Blocks that hold it, at least one.
    blocks: usize,
    parent: Option<Name>,
    tokens: Arc<[u32]>,
    salt: Option<Arc<str>>,
    has_media: bool,
    announced: bool,
}

/// The contents of all named blocks.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// Content of each block, by the block's name.
    of_blocks: HashMap<Name, Name, ahash::RandomState>,
    contents: HashMap<Name, Content, ahash::RandomState>,
    /// Contents behind a content, which itself may not be cached.
    behind: HashMap<Name, Vec<Name>, ahash::RandomState>,
}

impl Contents {
    /// Applies a change; its events are added to `events`.
    pub(super) fn apply(&mut self, change: CacheChange, events: &mut Vec<Event>) {
        match change {
            CacheChange::Named(block) => self.add(*block, events),
            CacheChange::Unnamed(name) => self.remove(&name, events),
        }
    }

    fn add(&mut self, block: NamedBlock, events: &mut Vec<Event>) {
        let NamedBlock { name, content, parent, tokens, salt, has_media } = block;
        self.of_blocks.insert(name, content);
        if let Some(known) = self.contents.get_mut(&content) {
            known.blocks += 1;
            return;
        }
        if let Some(parent) = parent {
            self.behind.entry(parent).or_default().push(content);
        }
        let new = Content { blocks: 1, parent, tokens, salt, has_media, announced: false };
        self.contents.insert(content, new);
        self.announce(content, events);
    }

    fn is_announced(&self, name: &Name) -> bool {
        self.contents.get(name).is_some_and(|content| content.announced)
    }

    /// Announces a content, and those behind it, if all before it are.
    fn announce(&mut self, first: Name, events: &mut Vec<Event>) {
        let mut next = vec![first];
        while let Some(name) = next.pop() {
            let Some(content) = self.contents.get(&name) else { continue };
            let begins = content.parent.is_none_or(|parent| self.is_announced(&parent));
            if content.has_media || content.announced || !begins {
                continue;
            }
            say_stored(&name, content, events);
            if let Some(content) = self.contents.get_mut(&name) {
                content.announced = true;
            }
            next.extend(self.behind.get(&name).into_iter().flatten());
        }
    }

    fn remove(&mut self, block: &Name, events: &mut Vec<Event>) {
        let Some(name) = self.of_blocks.remove(block) else { return };
        let Some(content) = self.contents.get_mut(&name) else { return };
        content.blocks -= 1;
        if content.blocks > 0 {
            return;
        }
        self.take_back(name, events);
        let parent = self.contents.remove(&name).and_then(|content| content.parent);
        if let Some(parent) = parent
            && let Some(behind) = self.behind.get_mut(&parent)
        {
            behind.retain(|other| *other != name);
            if behind.is_empty() {
                self.behind.remove(&parent);
            }
        }
    }

    /// Takes back a content if it was announced, and before it all that were behind it.
    fn take_back(&mut self, first: Name, events: &mut Vec<Event>) {
        let mut announced = Vec::new();
        let mut next = vec![first];
        while let Some(name) = next.pop() {
            let Some(content) = self.contents.get_mut(&name).filter(|content| content.announced) else {
                continue;
            };
            content.announced = false;
            announced.push(name);
            next.extend(self.behind.get(&name).into_iter().flatten());
        }
        announced.iter().rev().for_each(|name| say_removed(name, events));
    }

    /// All that is cached and can be reached, from nothing on.
    pub(super) fn snapshot(&mut self) -> Vec<Event> {
        let mut events = vec![Event::Cleared];
        self.contents.values_mut().for_each(|content| content.announced = false);
        let begins = self.contents.iter().filter(|(_, content)| content.parent.is_none());
        let mut begins: Vec<Name> = begins.map(|(name, _)| *name).collect();
        begins.sort_unstable();
        for name in begins {
            self.announce(name, &mut events);
        }
        events
    }
}

/// Adds a content to the last event if it goes on there, or an event.
fn say_stored(name: &Name, content: &Content, events: &mut Vec<Event>) {
    let before = content.parent.as_ref().map(short);
    match events.last_mut() {
        Some(Event::Stored { hashes, tokens, salt, .. })
            if before.is_some() && hashes.last().copied() == before && *salt == content.salt =>
        {
            hashes.push(short(name));
            tokens.extend_from_slice(&content.tokens);
        }
        _ => events.push(Event::Stored {
            parent: before,
            hashes: vec![short(name)],
            tokens: content.tokens.to_vec(),
            salt: content.salt.clone(),
        }),
    }
}

fn say_removed(name: &Name, events: &mut Vec<Event>) {
    match events.last_mut() {
        Some(Event::Removed(names)) => names.push(short(name)),
        _ => events.push(Event::Removed(vec![short(name)])),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// A consumer that holds every rule of the strictest ones.
    #[derive(Default)]
    struct Consumer {
        known: HashMap<u64, Option<u64>>,
    }

    impl Consumer {
        fn read(&mut self, events: &[Event]) {
            for event in events {
                match event {
                    Event::Cleared => self.known.clear(),
                    Event::Stored { parent, hashes, tokens, .. } => {
                        assert_eq!(tokens.len(), 2 * hashes.len());
                        let mut parent = *parent;
                        for hash in hashes {
                            assert!(
                                parent.is_none_or(|parent| self.known.contains_key(&parent)),
                                "unknown parent"
                            );
                            assert!(self.known.insert(*hash, parent).is_none(), "stored twice");
                            parent = Some(*hash);
                        }
                    }
                    Event::Removed(hashes) => {
                        for hash in hashes {
                            assert!(self.known.remove(hash).is_some(), "removed and not stored");
                        }
                    }
                }
            }
        }
    }

    /// A text is its tokens; block `index` of it, in a form of attention.
    fn block(text: &[u32], index: usize, form: u8, media: Option<usize>) -> NamedBlock {
        let name = |len: usize, first: u8| {
            let mut hasher = blake3::Hasher::new();
            hasher.update(&[first]);
            for token in &text[..len] {
                hasher.update(&token.to_le_bytes());
            }
            *hasher.finalize().as_bytes()
        };
        NamedBlock {
            name: name(2 * (index + 1), form),
            content: name(2 * (index + 1), 9),
            parent: index.checked_sub(1).map(|_| name(2 * index, 9)),
            tokens: text[2 * index..2 * (index + 1)].into(),
            salt: None,
            has_media: media == Some(index),
        }
    }

    /// Whether a prompt finds this content: all before it are cached, and none has a picture.
    fn is_found<'a>(mut block: &'a NamedBlock, cached: &HashMap<Name, &'a NamedBlock>) -> bool {
        loop {
            match (block.has_media, block.parent) {
                (true, _) => return false,
                (false, None) => return true,
                (false, Some(parent)) => match cached.get(&parent) {
                    None => return false,
                    Some(parent) => block = parent,
                },
            }
        }
    }

    #[test]
    fn consumers_know_what_is_cached_after_any_changes() {
        let mut rng = fastrand::Rng::with_seed(7);
        for _ in 0..300 {
            let (mut contents, mut consumer) = (Contents::default(), Consumer::default());
            let mut named: HashMap<Name, NamedBlock> = HashMap::new();
            for _ in 0..60 {
                let mut events = Vec::new();
                for _ in 0..rng.usize(1..4) {
                    // Few tokens, so that texts share beginnings; every block of a text comes and goes on its own.
                    let text: Vec<u32> = (0..8).map(|_| rng.u32(0..2)).collect();
                    let media = (text[0] + text[1] == 2).then_some(1);
                    let block = block(&text, rng.usize(0..4), rng.u8(0..2), media);
                    let change = match named.remove(&block.name) {
                        Some(block) => CacheChange::Unnamed(block.name),
                        None => {
                            named.insert(block.name, block.clone());
                            CacheChange::Named(Box::new(block))
                        }
                    };
                    contents.apply(change, &mut events);
                }
                if rng.u8(0..20) == 0 {
                    events = contents.snapshot();
                }
                consumer.read(&events);
                let cached: HashMap<Name, &NamedBlock> =
                    named.values().map(|block| (block.content, block)).collect();
                let found = cached.values().filter(|block| is_found(block, &cached));
                let expected: HashSet<u64> = found.map(|block| short(&block.content)).collect();
                assert_eq!(consumer.known.keys().copied().collect::<HashSet<u64>>(), expected);
            }
            for name in named.into_keys() {
                let mut events = Vec::new();
                contents.apply(CacheChange::Unnamed(name), &mut events);
                consumer.read(&events);
            }
            assert!(consumer.known.is_empty());
            assert!(
                contents.contents.is_empty() && contents.of_blocks.is_empty() && contents.behind.is_empty()
            );
        }
    }

    #[test]
    fn a_prompt_is_one_event() {
        let (text, mut contents, mut events) =
            ((0..8).collect::<Vec<u32>>(), Contents::default(), Vec::new());
        for index in 0..4 {
            contents.apply(CacheChange::Named(Box::new(block(&text, index, 0, None))), &mut events);
        }
        let [Event::Stored { parent: None, hashes, tokens, salt: None }] = &events[..] else {
            panic!("{events:?}")
        };
        assert_eq!((hashes.len(), tokens), (4, &text));
        let mut again = Vec::new();
        contents.apply(CacheChange::Named(Box::new(block(&text, 2, 1, None))), &mut again);
        contents.apply(CacheChange::Unnamed(block(&text, 2, 0, None).name), &mut again);
        assert!(again.is_empty(), "the other form holds the content");
    }
}
