//! Keys and values that were expanded, kept from one piece of a prompt to the next.
//!
//! A prompt that is computed in pieces attends in each to all that is before it, and expanding that anew costs as much as some fifty
//! rows attending to it: most of what small pieces cost. What 64 whole positions expand to depends on their cached rows
//! alone, so it is kept under the versions of these rows ([`Cache::groups`]) and holds until one of them is written, whichever
//! sequence asks. When the memory is in use, further positions are expanded in every step, as without it.

use super::KEY_BLOCK;
use crate::buffer::Cache;
use crate::storage::Storage;
use perigee_ops::Segment;
use std::collections::HashMap;

/// Bytes of all expansions.
pub(crate) const EXPANSION_BYTES: usize = 64 << 20;

/// Steps without use after which an expansion makes room for another. Until then it stays: of a context that is larger than the memory
/// the same part is found in every step, where the least recently used one would be gone just before it is asked for.
const STALE_STEPS: u64 = 8;

/// Most groups of rows with a version of their own in 64 positions.
const MAX_GROUPS: usize = KEY_BLOCK / 8;

/// Which positions, of what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Name {
    cache: u64,
    kv_up: u64,
    layer: u32,
    /// Groups of cached rows in order of position.
    groups: [u32; MAX_GROUPS],
}

/// A place for the expansion of 64 positions.
#[derive(Debug, Clone, Default)]
struct Entry {
    name: Option<Name>,
    versions: [u32; MAX_GROUPS],
    /// The last call that used it.
    used: u64,
}

/// An expansion to be computed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Missing {
    pub(super) place: u32,
    /// Segment of the call.
    pub(super) segment: usize,
    /// First of the positions.
    pub(super) first_key: usize,
}

/// Expansions of one backend.
#[derive(Default)]
pub(crate) struct Expansions {
    /// `[places][entry_words]`.
    storage: Option<Storage>,
    entry_words: usize,
    entries: Vec<Entry>,
    index: HashMap<Name, u32, ahash::RandomState>,
    /// Calls so far; a layer is one.
    call: u64,
    /// Where the search for a stale place goes on.
    hand: usize,
    /// Of the call under way. What a failed call left here was not computed.
    missing: Vec<Missing>,
    /// Places of the whole 64 positions of every segment, one after the other.
    places: Vec<Option<u32>>,
    /// First of `places` of every segment.
    firsts: Vec<usize>,
}

impl Expansions {
    /// Finds or makes places for what the segments attend to; `missing` are then to be computed. `words` is the size of an expansion.
    pub(super) fn plan(
        &mut self,
        cache: &Cache,
        layer: usize,
        kv_up: u64,
        words: usize,
        segments: &[Segment],
        block_tables: &[u32],
    ) {
        for missing in std::mem::take(&mut self.missing) {
            self.forget(missing.place);
        }
        self.call += 1;
        self.places.clear();
        self.firsts.clear();
        if self.storage.is_none() && words * 4 <= EXPANSION_BYTES {
            // Without memory for it nothing is kept.
            let count = EXPANSION_BYTES / 4 / words;
            self.storage = Storage::zeroed(count * words, "expanded keys and values").ok();
            self.entry_words = words;
            self.entries = vec![Entry::default(); if self.storage.is_some() { count } else { 0 }];
        }
        let stale_calls = STALE_STEPS * cache.shape.num_layers as u64;
        // Every place is looked at once in a call.
        let mut looks = self.entries.len();
        for (at, segment) in segments.iter().enumerate() {
            self.firsts.push(self.places.len());
            let table = &block_tables[segment.block_table.clone()];
            for first_key in (0..segment.context_len() / KEY_BLOCK).map(|block| block * KEY_BLOCK) {
                let Some((groups, versions)) = cache.groups(layer, table, first_key) else { break };
                let name = Name { cache: cache.id, kv_up, layer: layer as u32, groups };
                let known = self.index.get(&name).copied();
                let place = match known {
                    _ if words > self.entry_words => None,
                    Some(place) => Some(place),
                    None => self.vacate(stale_calls, &mut looks),
                };
                self.places.push(place);
                let Some(place) = place else { continue };
                let entry = &mut self.entries[place as usize];
                entry.used = self.call;
                if known.is_none() || entry.versions != versions {
                    (entry.name, entry.versions) = (Some(name), versions);
                    self.index.insert(name, place);
                    self.missing.push(Missing { place, segment: at, first_key });
                }
            }
        }
    }

    /// What is to be computed, the words of all places, and how many one has.
    pub(super) fn missing(&mut self) -> (&[Missing], &mut [u32], usize) {
        let words = self.storage.as_mut().map_or(&mut [][..], |storage| storage.words_mut());
        (&self.missing, words, self.entry_words)
    }

    /// Notes that everything missing was computed.
    pub(super) fn complete(&mut self) {
        self.missing.clear();
    }

    /// The expansion of 64 positions of a segment of the call, if it has a place.
    pub(super) fn get(&self, segment: usize, first_key: usize) -> Option<&[u32]> {
        let next = self.firsts.get(segment + 1).copied().unwrap_or(self.places.len());
        let place = (*self.places[..next].get(self.firsts[segment] + first_key / KEY_BLOCK)?)?;
        let words = self.storage.as_ref()?.words();
        Some(&words[place as usize * self.entry_words..][..self.entry_words])
    }

    /// A place that is empty, or was not used for some calls.
    fn vacate(&mut self, stale_calls: u64, looks: &mut usize) -> Option<u32> {
        while *looks > 0 {
            *looks -= 1;
            let place = self.hand;
            self.hand = (self.hand + 1) % self.entries.len();
            let entry = &self.entries[place];
            if entry.name.is_none() || entry.used + stale_calls < self.call {
                self.forget(place as u32);
                return Some(place as u32);
            }
        }
        None
    }

    fn forget(&mut self, place: u32) {
        if let Some(name) = self.entries[place as usize].name.take() {
            self.index.remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_ops::{AttentionForm, CacheDtype, CacheShape};

    const WORDS: usize = EXPANSION_BYTES / 4 / 6;

    fn cache(block_size: usize) -> Cache {
        let shape = CacheShape {
            num_layers: 2,
            num_blocks: 64,
            block_size,
            latent_dim: 8,
            rope_dim: 4,
            dtype: CacheDtype::F32,
        };
        Cache::allocate(&shape).unwrap()
    }

    /// Places missing and found for one sequence whose blocks are `table`, with `keys` positions.
    fn plan(
        kept: &mut Expansions,
        cache: &Cache,
        layer: usize,
        table: &[u32],
        keys: usize,
    ) -> (usize, usize) {
        let segment = Segment {
            rows: 0..1,
            first_position: keys - 1,
            form: AttentionForm::Expanded,
            block_table: 0..table.len(),
        };
        kept.plan(cache, layer, 7, WORDS, &[segment], table);
        let found = (0..keys).step_by(KEY_BLOCK).filter(|key| kept.get(0, *key).is_some()).count();
        let missing = kept.missing.len();
        kept.complete();
        (missing, found)
    }

    #[test]
    fn what_was_expanded_is_found_until_a_row_is_written() {
        for block_size in [8, 32, 64, 128] {
            let (mut kept, mut cache) = (Expansions::default(), cache(block_size));
            let table: Vec<u32> = (0..256 / block_size as u32).map(|block| 63 - block).collect();
            assert_eq!(plan(&mut kept, &cache, 0, &table, 63), (0, 0), "nothing whole");
            assert_eq!(plan(&mut kept, &cache, 0, &table, 130), (2, 2));
            assert_eq!(plan(&mut kept, &cache, 0, &table, 200), (1, 3));
            assert_eq!(plan(&mut kept, &cache, 1, &table, 130), (2, 2), "another layer");
            let slot =
                |position: usize| table[position / block_size] as usize * block_size + position % block_size;
            cache.store(0, slot(64), &[1.0; 8]);
            assert_eq!(plan(&mut kept, &cache, 0, &table, 200), (1, 3));
            assert_eq!(plan(&mut kept, &cache, 1, &table, 130), (0, 2));
            cache.row_bytes_mut(1, slot(127)).fill(1);
            assert_eq!(plan(&mut kept, &cache, 1, &table, 130), (1, 2));
        }
    }

    #[test]
    fn what_is_used_stays_and_what_is_stale_makes_room() {
        let (mut kept, cache) = (Expansions::default(), cache(64));
        let table: Vec<u32> = (0..20).collect();
        assert_eq!(plan(&mut kept, &cache, 0, &table, 64 * 9), (6, 6), "six places");
        assert_eq!(plan(&mut kept, &cache, 0, &table, 64 * 9), (0, 6), "the same ones are found again");
        let (used, other) = (&table[..3], &table[10..]);
        for _ in 0..2 * STALE_STEPS {
            assert_eq!(plan(&mut kept, &cache, 0, used, 64 * 3), (0, 3));
        }
        assert_eq!(plan(&mut kept, &cache, 0, other, 64 * 5), (3, 3), "three were stale");
        assert_eq!(plan(&mut kept, &cache, 0, used, 64 * 3), (0, 3));
    }

    #[test]
    fn a_failed_call_leaves_nothing_to_be_found() {
        let (mut kept, cache) = (Expansions::default(), cache(64));
        let segment =
            Segment { rows: 0..1, first_position: 127, form: AttentionForm::Expanded, block_table: 0..2 };
        kept.plan(&cache, 0, 7, WORDS, &[segment.clone(), segment], &[0, 1]);
        assert_eq!(kept.missing.len(), 2, "once for both");
        assert_eq!(plan(&mut kept, &cache, 0, &[0, 1], 128), (2, 2), "what was not computed is missing");
    }

    #[test]
    fn caches_and_matrices_are_told_apart_and_what_is_too_large_is_not_kept() {
        let (mut kept, one, other) = (Expansions::default(), cache(64), cache(64));
        assert_eq!(plan(&mut kept, &one, 0, &[0], 64), (1, 1));
        assert_eq!(plan(&mut kept, &other, 0, &[0], 64), (1, 1));
        let segment =
            Segment { rows: 0..1, first_position: 63, form: AttentionForm::Expanded, block_table: 0..1 };
        kept.plan(&one, 0, 8, WORDS, std::slice::from_ref(&segment), &[0]);
        assert_eq!(kept.missing.len(), 1);
        kept.plan(&one, 0, 9, WORDS + 1, std::slice::from_ref(&segment), &[0]);
        assert!(kept.missing.is_empty() && kept.get(0, 0).is_none());
        let mut none = Expansions::default();
        none.plan(&one, 0, 7, EXPANSION_BYTES, &[segment], &[0]);
        assert!(none.missing.is_empty() && none.get(0, 0).is_none());
    }
}
