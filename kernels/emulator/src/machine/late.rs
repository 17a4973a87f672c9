//! Weak stores to the memory of other devices, on their way.
//!
//! Until a release of system scope by its own device, nothing makes such a store visible to others, and two
//! of them may arrive in any order. Their own device sees them: an access of it to the same bytes, after
//! whatever order, makes them arrive first.

use super::memory::Memory;
use super::random::Random;

/// Most stores that arrive at a time, as a power of two.
const MAX_ARRIVALS_LOG2: u32 = 8;

/// A store that was issued.
#[derive(Debug)]
pub(super) struct Store {
    /// The device that it comes from.
    device: usize,
    address: u64,
    bytes: Vec<u8>,
}

impl Store {
    fn overlaps(&self, address: u64, len: u64) -> bool {
        self.address < address.saturating_add(len) && address < self.address + self.bytes.len() as u64
    }
}

impl Memory {
    /// Keeps a store of a device back. Errors name the range.
    pub(super) fn delay(&mut self, device: usize, address: u64, bytes: &[u8]) -> Result<(), String> {
        self.find(address, bytes.len())?;
        self.late.push(Store { device, address, bytes: bytes.to_vec() });
        Ok(())
    }

    /// Lets the stores of a device that touch a range arrive.
    pub(super) fn arrive_in(&mut self, device: usize, address: u64, len: u64) {
        self.arrive(|store| store.device == device && store.overlaps(address, len));
    }

    /// Lets all stores of a device arrive.
    pub(super) fn arrive_of(&mut self, device: usize) {
        self.arrive(|store| store.device == device);
    }

    /// Lets all stores arrive; whether there was one.
    pub(super) fn arrive_all(&mut self) -> bool {
        let any = !self.late.is_empty();
        self.arrive(|_| true);
        any
    }

    /// Lets some stores arrive that no older one is in the way of.
    pub(super) fn arrive_some(&mut self, random: &mut Random) {
        let some = 1 << random.below(MAX_ARRIVALS_LOG2 + 1);
        (0..some).for_each(|_| self.arrive_one(random));
    }

    fn arrive_one(&mut self, random: &mut Random) {
        if self.late.is_empty() {
            return;
        }
        let one = random.below(self.late.len() as u32) as usize;
        let Store { address, ref bytes, .. } = self.late[one];
        let len = bytes.len() as u64;
        let first = self.late.iter().position(|store| store.overlaps(address, len)).unwrap_or(one);
        let store = self.late.remove(first);
        self.land(&store);
    }

    fn arrive(&mut self, mut which: impl FnMut(&Store) -> bool) {
        if self.late.is_empty() {
            return;
        }
        let (due, late) = std::mem::take(&mut self.late).into_iter().partition(|store| which(store));
        self.late = late;
        let due: Vec<Store> = due;
        due.iter().for_each(|store| self.land(store));
    }

    fn land(&mut self, store: &Store) {
        self.changes += 1;
        // The range was checked when the store was issued, and no allocation is freed while kernels run.
        if let Ok((region, offset)) = self.find(store.address, store.bytes.len()) {
            region.set(offset, &store.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::memory::Region;

    #[test]
    fn stores_arrive_in_any_order_but_that_of_one_address() {
        let mut orders = [0; 2];
        for seed in 0..32 {
            let mut memory = Memory::new(2);
            let there = memory.allocate(1, Region::of(vec![0; 8]), 256);
            for (offset, value) in [(0, 1), (4, 2), (0, 3)] {
                memory.delay(0, there + offset, &[value]).unwrap();
            }
            assert!(memory.delay(0, there + 8, &[1]).is_err());
            let mut random = Random::new(seed);
            let mut got = |memory: &mut Memory| {
                memory.arrive_one(&mut random);
                let (region, offset) = memory.find(there, 8).unwrap();
                let (bytes, _) = region.get(offset, 8);
                (bytes[0], bytes[4])
            };
            let first = got(&mut memory);
            orders[usize::from(first == (0, 2))] += 1;
            assert!(first == (0, 2) || first == (1, 0), "{first:?}");
            got(&mut memory);
            assert_eq!(got(&mut memory), (3, 2));
        }
        assert!(orders.into_iter().all(|count| count > 3), "{orders:?}");
    }

    #[test]
    fn what_a_device_touches_or_releases_arrives() {
        let mut memory = Memory::new(2);
        let there = memory.allocate(1, Region::of(vec![0; 8]), 256);
        for (device, offset) in [(0, 0), (0, 4), (1, 6)] {
            memory.delay(device, there + offset, &[7]).unwrap();
        }
        let mut got = |arrive: &dyn Fn(&mut Memory)| {
            arrive(&mut memory);
            let (region, offset) = memory.find(there, 8).unwrap();
            let (bytes, _) = region.get(offset, 8);
            [0, 4, 6].map(|at| bytes[at])
        };
        assert_eq!(got(&|memory| memory.arrive_in(0, there + 2, 4)), [0, 7, 0]);
        assert_eq!(got(&|memory| memory.arrive_of(0)), [7, 7, 0]);
        assert_eq!(got(&|memory| assert!(memory.arrive_all())), [7, 7, 7]);
        assert_eq!(got(&|memory| assert!(!memory.arrive_all())), [7, 7, 7]);
    }
}
