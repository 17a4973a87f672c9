//! Memory as regions of bytes with their initialisation.

use super::late::Store;
use crate::lower::GLOBAL_START;

/// Bytes with a record of which of them were ever written.
#[derive(Debug, Clone)]
pub(crate) struct Region {
    bytes: Vec<u8>,
    /// One bit a byte; empty where everything counts as written.
    written: Vec<u64>,
}

impl Region {
    /// Fresh memory; its bytes are 0xff until they are written, so that a use of them shows.
    pub(crate) fn new(bytes: usize) -> Self {
        Self { bytes: vec![0xff; bytes], written: vec![0; bytes.div_ceil(64)] }
    }

    /// Memory with this content.
    pub(crate) fn of(bytes: Vec<u8>) -> Self {
        Self { bytes, written: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes of a range, which must lie inside, and whether all were written.
    #[inline(always)]
    pub(crate) fn get(&self, offset: usize, len: usize) -> (&[u8], bool) {
        (&self.bytes[offset..offset + len], self.is_written(offset, len))
    }

    #[inline(always)]
    fn is_written(&self, offset: usize, len: usize) -> bool {
        if self.written.is_empty() || len == 0 {
            return true;
        }
        let Bits { first, last, head, tail } = Bits::of(offset, len);
        if first == last {
            return self.written[first] & head & tail == head & tail;
        }
        let between = self.written[first + 1..last].iter().fold(u64::MAX, |all, word| all & word);
        (self.written[first] | !head) & between & (self.written[last] | !tail) == u64::MAX
    }

    /// The first byte of a range that was never written.
    pub(crate) fn first_unwritten(&self, offset: usize, len: usize) -> Option<usize> {
        (offset..offset + len).find(|&at| !self.is_written(at, 1))
    }

    /// Writes a range, which must lie inside.
    #[inline(always)]
    pub(crate) fn set(&mut self, offset: usize, bytes: &[u8]) {
        self.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
        self.mark(offset, bytes.len());
    }

    #[inline(always)]
    fn mark(&mut self, offset: usize, len: usize) {
        if self.written.is_empty() || len == 0 {
            return;
        }
        let Bits { first, last, head, tail } = Bits::of(offset, len);
        if first == last {
            self.written[first] |= head & tail;
            return;
        }
        self.written[first] |= head;
        self.written[first + 1..last].fill(u64::MAX);
        self.written[last] |= tail;
    }

    /// Bytes of a range that must lie inside, of which `len` at each of some offsets will be written to.
    #[inline(always)]
    pub(crate) fn fill_some(
        &mut self,
        offset: usize,
        bytes: usize,
        offsets: impl Iterator<Item = usize>,
        len: usize,
    ) -> &mut [u8] {
        // Often all of a short range were written before, which is one look.
        if len != 0 && !(bytes <= 2048 && self.is_written(offset, bytes)) {
            // Marks of one word are set together: neighbours are often in one.
            let (mut at, mut marks) = (0, 0);
            for start in offsets {
                let Bits { first, last, head, tail } = Bits::of(offset + start, len);
                if first != last {
                    self.mark(offset + start, len);
                } else if first == at {
                    marks |= head & tail;
                } else {
                    self.written[at] |= marks;
                    (at, marks) = (first, head & tail);
                }
            }
            self.written[at] |= marks;
        }
        &mut self.bytes[offset..offset + bytes]
    }

    /// Bytes to write to, of a range that must lie inside.
    #[inline(always)]
    pub(crate) fn fill(&mut self, offset: usize, len: usize) -> &mut [u8] {
        self.mark(offset, len);
        &mut self.bytes[offset..offset + len]
    }
}

/// Words of 64 bits that a range of bits touches: the first and the last one, and what the range has of each.
struct Bits {
    first: usize,
    last: usize,
    head: u64,
    tail: u64,
}

impl Bits {
    /// Of a range that is not empty.
    #[inline(always)]
    fn of(offset: usize, len: usize) -> Self {
        let end = offset + len - 1;
        Self {
            first: offset / 64,
            last: end / 64,
            head: u64::MAX << (offset % 64),
            tail: u64::MAX >> (63 - end % 64),
        }
    }
}

/// An allocation of device memory.
#[derive(Debug)]
struct Allocation {
    base: u64,
    device: usize,
    /// What it holds, for messages.
    name: Option<String>,
    region: Region,
}

/// A range of addresses at which `multimem` instructions reach several allocations.
#[derive(Debug)]
struct Multicast {
    base: u64,
    bytes: u64,
    /// Base addresses of the copies.
    copies: Vec<u64>,
}

/// The global memory of all devices, in one address space.
#[derive(Debug)]
pub(crate) struct Memory {
    /// How often anything changed that a waiting warp may see: memory, mbarriers, warps that ended.
    pub(crate) changes: u64,
    /// Strong writes so far.
    pub(crate) signals: u64,
    /// Stores to other devices that have not arrived, oldest first.
    pub(super) late: Vec<Store>,
    /// By base address.
    allocations: Vec<Allocation>,
    /// Next free address of each device, and that of multicast ranges behind them.
    next: Vec<u64>,
    multicasts: Vec<Multicast>,
    /// Index of the allocation that was found last.
    recent: usize,
}

/// Bytes of address space of a device.
const DEVICE_SPAN: u64 = 1 << 40;
/// Unmapped bytes between two allocations.
const GUARD: u64 = 4096;

impl Memory {
    pub(crate) fn new(devices: usize) -> Self {
        let next = (0..=devices as u64).map(|device| GLOBAL_START + device * DEVICE_SPAN).collect();
        Self {
            changes: 0,
            signals: 0,
            late: Vec::new(),
            allocations: Vec::new(),
            next,
            multicasts: Vec::new(),
            recent: 0,
        }
    }

    pub(crate) fn num_devices(&self) -> usize {
        self.next.len() - 1
    }

    /// The device whose range of addresses holds this one.
    pub(crate) fn device_of(&self, address: u64) -> Option<usize> {
        let device = address.checked_sub(GLOBAL_START)? / DEVICE_SPAN;
        (device < self.num_devices() as u64).then_some(device as usize)
    }

    /// Names an allocation; false if there is none at this address.
    pub(crate) fn name(&mut self, base: u64, name: &str) -> bool {
        match self.allocations.binary_search_by_key(&base, |allocation| allocation.base) {
            Ok(at) => {
                self.allocations[at].name = Some(name.to_owned());
                true
            }
            Err(_) => false,
        }
    }

    /// The name of the allocation that an address lies in, with offset and device; `None` if it has no name.
    pub(crate) fn describe(&self, address: u64) -> Option<String> {
        let at = self.allocations.partition_point(|allocation| allocation.base <= address);
        let Allocation { base, device, name, region } = self.allocations.get(at.checked_sub(1)?)?;
        let (name, offset) = (name.as_ref()?, address - base);
        (offset < region.len() as u64).then(|| format!("`{name}` + {offset:#x} of device {device}"))
    }

    /// A range of addresses that stands for allocations of one size, on several devices.
    pub(crate) fn multicast(&mut self, copies: &[u64]) -> Result<u64, String> {
        let mut bytes = None;
        for &copy in copies {
            let at = self.allocations.binary_search_by_key(&copy, |allocation| allocation.base);
            let at = at.map_err(|_| format!("no allocation at {copy:#x} to multicast to"))?;
            let size = self.allocations[at].region.len() as u64;
            if *bytes.get_or_insert(size) != size {
                return Err(format!("a multicast to allocations of {size} bytes and of other sizes"));
            }
        }
        let bytes = bytes.ok_or("a multicast to nothing")?;
        let last = self.num_devices();
        let base = self.next[last].next_multiple_of(256);
        self.next[last] = base + bytes + GUARD;
        self.multicasts.push(Multicast { base, bytes, copies: copies.to_vec() });
        Ok(base)
    }

    /// Addresses of the copies that a range of multicast addresses stands for.
    pub(crate) fn copies(&self, address: u64, len: u64) -> Option<impl Iterator<Item = u64> + '_> {
        let inside = |multicast: &&Multicast| {
            let offset = address.wrapping_sub(multicast.base);
            offset < multicast.bytes && multicast.bytes - offset >= len
        };
        let Multicast { base, copies, .. } = self.multicasts.iter().find(inside)?;
        Some(copies.iter().map(move |copy| copy + (address - base)))
    }

    /// Allocates on a device.
    pub(crate) fn allocate(&mut self, device: usize, region: Region, align: u64) -> u64 {
        let base = self.next[device].next_multiple_of(align.max(256));
        self.next[device] = base + region.len() as u64 + GUARD;
        let at = self.allocations.partition_point(|allocation| allocation.base < base);
        self.allocations.insert(at, Allocation { base, device, name: None, region });
        base
    }

    /// Frees an allocation by its base address.
    pub(crate) fn free(&mut self, base: u64) -> bool {
        match self.allocations.binary_search_by_key(&base, |allocation| allocation.base) {
            Ok(at) => {
                self.allocations.remove(at);
                self.recent = 0;
                true
            }
            Err(_) => false,
        }
    }

    /// The region and the offset of a range; `Err` describes where it lies.
    #[inline(always)]
    pub(crate) fn find(&mut self, address: u64, len: usize) -> Result<(&mut Region, usize), String> {
        let inside = |allocation: &Allocation| {
            let offset = address.wrapping_sub(allocation.base);
            let size = allocation.region.len() as u64;
            (offset < size && offset + len as u64 <= size).then_some(offset as usize)
        };
        if let Some(offset) = self.allocations.get(self.recent).and_then(inside) {
            return Ok((&mut self.allocations[self.recent].region, offset));
        }
        self.search(address, len)
    }

    fn search(&mut self, address: u64, len: usize) -> Result<(&mut Region, usize), String> {
        if self.copies(address, 1).is_some() {
            return Err(format!("{len} bytes at the multicast address {address:#x}, for `multimem` alone"));
        }
        let at = self.allocations.partition_point(|allocation| allocation.base <= address);
        let Some(index) = at.checked_sub(1) else {
            return Err(format!("{len} bytes at {address:#x}, before any allocation"));
        };
        let allocation = &self.allocations[index];
        let offset = address - allocation.base;
        let size = allocation.region.len() as u64;
        if offset.saturating_add(len as u64) > size {
            return Err(format!(
                "{len} bytes at {address:#x}, {} bytes behind the end of an allocation of {size} bytes at {:#x} on device {}",
                (offset + len as u64).saturating_sub(size),
                allocation.base,
                allocation.device
            ));
        }
        self.recent = index;
        Ok((&mut self.allocations[index].region, offset as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_initialisation() {
        let mut memory = Memory::new(2);
        let a = memory.allocate(0, Region::new(100), 4);
        let b = memory.allocate(1, Region::of(vec![7; 8]), 4096);
        assert!(a.is_multiple_of(256) && b.is_multiple_of(4096));
        let (region, offset) = memory.find(a + 60, 8).unwrap();
        assert_eq!(region.get(offset, 8), (&[0xff; 8][..], false));
        region.set(offset, &[1; 8]);
        assert!(region.get(offset, 8).1 && !region.get(offset - 1, 8).1);
        assert_eq!(region.first_unwritten(60, 20), Some(68));
        let mut region = Region::new(400);
        for (offset, len) in [(0, 0), (3, 5), (63, 1), (60, 8), (64, 64), (10, 300), (5, 395)] {
            region.fill(offset, len).fill(1);
            assert!(region.get(offset, len).1, "{offset} {len}");
            assert!(
                offset == 0 || !region.get(offset - 1, 1).1 && !region.get(offset - 1, len + 1).1,
                "{offset} {len}"
            );
            assert!(offset + len >= 400 || !region.get(offset, len + 1).1, "{offset} {len}");
            region = Region::new(400);
        }
        assert!(memory.find(a + 96, 8).unwrap_err().contains("4 bytes behind the end"));
        assert_eq!(memory.find(b, 8).unwrap().0.get(0, 8), (&[7; 8][..], true));
        assert!(memory.find(3, 1).unwrap_err().contains("before any"));
        assert!(memory.name(b, "flags") && !memory.name(b + 8, "flags"));
        assert_eq!(memory.describe(b + 4).as_deref(), Some("`flags` + 0x4 of device 1"));
        assert_eq!((memory.describe(b + 8), memory.describe(a)), (None, None));
        assert_eq!((memory.device_of(a), memory.device_of(b), memory.device_of(3)), (Some(0), Some(1), None));
        assert!(memory.multicast(&[]).is_err() && memory.multicast(&[a, b]).is_err());
        let c = memory.allocate(0, Region::of(vec![8; 8]), 256);
        let both = memory.multicast(&[c, b]).unwrap();
        assert_eq!(memory.copies(both + 4, 4).unwrap().collect::<Vec<_>>(), [c + 4, b + 4]);
        assert!(memory.copies(both + 4, 8).is_none() && memory.copies(c, 4).is_none());
        assert!(memory.find(both, 4).unwrap_err().contains("multimem") && memory.device_of(both).is_none());
        assert!(memory.free(a) && !memory.free(a));
        assert!(memory.find(a, 1).is_err());
    }
}
