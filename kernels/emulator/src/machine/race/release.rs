//! What the value at an address carries from the threads that released it.
//!
//! A strong write leaves what its thread released; a read-modify-write adds to what the value before it
//! carried (PTX ISA 9.0, section 8.9: release patterns and observation order). A reader synchronises with
//! a release only if the scopes of both include the other thread.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use super::clock::Clock;
use super::launches::Home;
use crate::program::Scope;

/// A release that a value carries.
#[derive(Debug, Clone)]
pub(super) struct Release {
    by: Home,
    /// Whether blocks other than that of `by` have released as well, on the same device.
    many: bool,
    scope: Scope,
    pub(super) clock: Arc<Clock>,
}

impl Release {
    pub(super) fn new(by: Home, scope: Scope, clock: Clock) -> Self {
        Self { by, many: false, scope, clock: Arc::new(clock) }
    }

    /// How far the releaser is from a reader, if an access of this scope there reads a value that carries the release.
    pub(super) fn reaches(&self, reader: Home, scope: Scope) -> Option<Scope> {
        // Of many blocks of its own device, a reader of a narrow scope may mean its own: an access of the wrong scope is a race by itself.
        let distance = match self.by.distance(reader) {
            Scope::Device | Scope::Cluster if self.many => Scope::Block,
            distance => distance,
        };
        (distance <= self.scope && distance <= scope).then_some(distance)
    }

    /// Takes another release in, if both are of one device and reach as far.
    fn absorb(&mut self, other: &Self) -> bool {
        let same_block = self.by == other.by;
        let one = self.by.device == other.by.device && (same_block || self.scope >= Scope::Device);
        if self.scope != other.scope || !one {
            return false;
        }
        self.many |= other.many || !same_block;
        Arc::make_mut(&mut self.clock).join(&other.clock);
        true
    }
}

/// What values carry, by the address of their word.
#[derive(Debug)]
pub(super) struct Releases<A>(HashMap<A, Vec<Release>>);

impl<A> Default for Releases<A> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<A: Copy + Eq + Hash> Releases<A> {
    pub(super) fn at(&self, word: A) -> &[Release] {
        self.0.get(&word).map_or(&[], Vec::as_slice)
    }

    /// A write, which carries what its thread has released.
    pub(super) fn write(&mut self, word: A, left: &[Release]) {
        if left.is_empty() {
            // Most memory carries nothing.
            if !self.0.is_empty() {
                self.0.remove(&word);
            }
        } else {
            self.0.insert(word, left.to_vec());
        }
    }

    /// A read-modify-write, which carries on what it has read.
    pub(super) fn modify(&mut self, word: A, left: &[Release]) {
        if left.is_empty() {
            return;
        }
        let carried = self.0.entry(word).or_default();
        for release in left {
            if !carried.iter_mut().any(|old| old.absorb(release)) {
                carried.push(release.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::clock::Epoch;
    use super::*;

    fn release(device: usize, block: u32, scope: Scope) -> Release {
        let mut clock = Clock::default();
        clock.learn(Epoch { agent: device as u32 * 8 + block, time: 1 });
        Release::new(Home { device, launch: device, cluster: block, block }, scope, clock)
    }

    #[test]
    fn a_release_reaches_readers_whose_scope_reaches_back() {
        let reader = |device, block| Home { device, launch: device, cluster: block, block };
        for (scope, (device, block), of_reader, want) in [
            (Scope::System, (1, 0), Scope::System, Some(Scope::System)),
            (Scope::Device, (1, 0), Scope::System, None),
            (Scope::System, (1, 0), Scope::Device, None),
            (Scope::Device, (0, 1), Scope::Device, Some(Scope::Device)),
            (Scope::Device, (0, 1), Scope::Block, None),
            (Scope::Block, (0, 0), Scope::Block, Some(Scope::Block)),
        ] {
            assert_eq!(release(0, 0, scope).reaches(reader(device, block), of_reader), want, "{scope:?}");
        }
    }

    #[test]
    fn read_modify_writes_carry_on_and_writes_begin_anew() {
        let mut releases = Releases::default();
        releases.modify(4u64, &[release(0, 0, Scope::System)]);
        releases.modify(4, &[release(0, 1, Scope::System)]);
        releases.modify(4, &[release(1, 0, Scope::System)]);
        releases.modify(4, &[]);
        assert_eq!((releases.at(4).len(), releases.at(8).len()), (2, 0));
        let first = &releases.at(4)[0].clock;
        assert_eq!((first.get(0), first.get(1), first.get(8)), (1, 1, 0));
        releases.write(4, &[release(1, 1, Scope::Device)]);
        assert_eq!(releases.at(4).len(), 1);
        releases.write(4, &[]);
        assert!(releases.at(4).is_empty());
    }
}
