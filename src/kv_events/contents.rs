//! Which contents are cached, and the events that say so.
//!
//! Consumers go by tokens, not by blocks. The cache can hold a text twice, once per form of attention, so contents are counted: the first block
//! announces its content, the last one takes it back. Consumers drop a content whose predecessor they do not know (and no prompt could reach it
//! here either), so it is announced once that is. Contents with pictures are not announced: their tokens are equal for all pictures.

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
    index: usize,
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
    /// Contents that wait for their predecessor, by its name.
    waiting: HashMap<Name, Vec<Name>, ahash::RandomState>,
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
        let NamedBlock { name, content, parent, index, tokens, salt, has_media } = block;
        self.of_blocks.insert(name, content);
        if let Some(known) = self.contents.get_mut(&content) {
            known.blocks += 1;
            return;
        }
        let new = Content { blocks: 1, parent, index, tokens, salt, has_media, announced: false };
        self.contents.insert(content, new);
        self.announce(content, events);
    }

    /// Announces a content and those that waited for it, or lets it wait.
    fn announce(&mut self, first: Name, events: &mut Vec<Event>) {
        let mut next = vec![first];
        while let Some(name) = next.pop() {
            let Some(content) = self.contents.get(&name) else { continue };
            if content.has_media {
                continue;
            }
            if let Some(parent) = content.parent
                && !self.contents.get(&parent).is_some_and(|parent| parent.announced)
            {
                self.waiting.entry(parent).or_default().push(name);
                continue;
            }
            say_stored(&name, content, events);
            if let Some(content) = self.contents.get_mut(&name) {
                content.announced = true;
            }
            next.extend(self.waiting.remove(&name).into_iter().flatten());
        }
    }

    fn remove(&mut self, block: &Name, events: &mut Vec<Event>) {
        let Some(name) = self.of_blocks.remove(block) else { return };
        let Some(content) = self.contents.get_mut(&name) else { return };
        content.blocks -= 1;
        if content.blocks > 0 {
            return;
        }
        if let Some(content) = self.contents.remove(&name) {
            match (content.announced, content.parent) {
                (true, _) => say_removed(&name, events),
                (false, Some(parent)) => self.wait_no_more(&parent, &name),
                (false, None) => {}
            }
        }
    }

    fn wait_no_more(&mut self, parent: &Name, name: &Name) {
        if let Some(waiting) = self.waiting.get_mut(parent) {
            waiting.retain(|other| other != name);
            if waiting.is_empty() {
                self.waiting.remove(parent);
            }
        }
    }

    /// All that is cached, from nothing on. Contents whose predecessor is gone wait for it afterwards.
    pub(super) fn snapshot(&mut self) -> Vec<Event> {
        let mut events = vec![Event::Cleared];
        let mut names: Vec<(usize, Name)> =
            self.contents.iter().map(|(name, content)| (content.index, *name)).collect();
        names.sort_unstable();
        self.waiting.clear();
        self.contents.values_mut().for_each(|content| content.announced = false);
        for (_, name) in names {
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

        /// What is found from the beginning of a text on.
        fn reachable(&self) -> HashSet<u64> {
            let reach = |mut hash: u64| loop {
                match self.known.get(&hash) {
                    None => return false,
                    Some(None) => return true,
                    Some(Some(parent)) => hash = *parent,
                }
            };
            self.known.keys().copied().filter(|hash| reach(*hash)).collect()
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
            index,
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
                assert_eq!(consumer.reachable(), expected);
            }
            for name in named.into_keys() {
                let mut events = Vec::new();
                contents.apply(CacheChange::Unnamed(name), &mut events);
                consumer.read(&events);
            }
            assert!(consumer.known.is_empty());
            assert!(
                contents.contents.is_empty() && contents.of_blocks.is_empty() && contents.waiting.is_empty()
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
