//! Addresses, loads, stores and atomics.

use super::block::Warp;
use super::cluster::{Env, Flow, Step};
use super::fault::{Trouble, lane as blame};
use super::memory::Region;
use crate::Lanes;
use crate::execute::{Isa, Registers};
use crate::lower::{GLOBAL_START, LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, Type};
use crate::number::bf16::Bf16;
use crate::number::half::F16;
use crate::number::round::{Mode, flush};
use crate::number::sixteen::Sixteen;
use crate::program::{Access, Address, Atomic, AtomicOp, Target};
use crate::text::Space;

/// A mapped address of shared memory: rank + 1 in the top byte. The top byte of a block's own
/// addresses is 0.
pub(crate) fn map_shared(offset: u32, rank: u32) -> u32 {
    (offset & OFFSET) | (rank + 1) << 24
}

/// Offset in the shared memory of a block.
pub(crate) const OFFSET: u32 = 0xff_ffff;

impl Address {
    /// The addresses in all lanes.
    #[inline(always)]
    fn all(&self, registers: &Registers) -> [u64; 32] {
        let mut addresses = [0; 32];
        if self.wide {
            let base = registers.wide(self.slot);
            for lane in 0..32 {
                addresses[lane] = base[lane].wrapping_add(self.offset as u64);
            }
        } else {
            let base = registers.narrow(self.slot);
            for lane in 0..32 {
                addresses[lane] = u64::from(base[lane].wrapping_add(self.offset as u32));
            }
        }
        addresses
    }

    /// The address in a lane.
    #[inline(always)]
    pub(crate) fn of(&self, registers: &Registers, lane: u32) -> u64 {
        if self.wide {
            registers.wide(self.slot)[lane as usize].wrapping_add_signed(self.offset)
        } else {
            u64::from(registers.narrow(self.slot)[lane as usize].wrapping_add(self.offset as u32))
        }
    }
}

/// Most bytes that a load or store moves in a lane.
const MAX_ACCESS: usize = 32;

/// A region that holds what the lanes of an access touch.
struct Span<'a> {
    region: &'a mut Region,
    /// Offset of the first byte that is touched, and bytes to the last one.
    start: usize,
    bytes: usize,
    /// First byte of each lane behind `start`.
    offsets: Lanes,
}

/// The lowest and the highest address of some lanes, and all their bits; the first two hold if the sign is not among these.
fn bounds(isa: Isa, addresses: &[u64; 32], exec: u32) -> (u64, u64, u64) {
    #[inline(always)]
    fn of(addresses: &[u64; 32], exec: u32) -> (u64, u64, u64) {
        // As signed numbers, which vectors compare.
        let (mut low, mut high, mut bits) = ([i64::MAX; 4], [0; 4], [0; 4]);
        for first in (0..32).step_by(4) {
            for i in 0..4 {
                let active = -i64::from(exec >> (first + i) & 1);
                let address = addresses[first + i] as i64;
                low[i] = low[i].min((address & active) | (i64::MAX & !active));
                high[i] = high[i].max(address & active);
                bits[i] |= address & active;
            }
        }
        let low = low.into_iter().min().unwrap_or_default();
        let high = high.into_iter().max().unwrap_or_default();
        let bits = bits.into_iter().fold(0, |all, bits| all | bits);
        (low as u64, high as u64, bits as u64)
    }
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn avx2(addresses: &[u64; 32], exec: u32) -> (u64, u64, u64) {
        of(addresses, exec)
    }
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the instruction set was detected.
        Isa::Avx2 => unsafe { avx2(addresses, exec) },
        _ => of(addresses, exec),
    }
}

/// Whether the lanes' bytes were written: often all between are, which is one look.
#[inline(always)]
fn written(region: &Region, start: usize, bytes: usize, offsets: &Lanes, exec: u32, len: usize) -> bool {
    (bytes <= 2048 && region.get(start, bytes).1)
        || lanes(exec).all(|lane| region.get(start + offsets[lane as usize] as usize, len).1)
}

/// Calls `f` for the lanes of a mask.
#[inline(always)]
fn each(exec: u32, mut f: impl FnMut(usize)) {
    if exec == u32::MAX {
        (0..32).for_each(f);
    } else {
        lanes(exec).for_each(|lane| f(lane as usize));
    }
}

/// Where the lanes of a whole warp touch memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// One behind the other, from this address on.
    Rows(u64),
    /// All here.
    Same(u64),
    /// In another way, or not by all lanes.
    Scattered,
}

impl Layout {
    /// The layout of `len` bytes in each lane.
    #[inline(always)]
    fn of(addresses: &[u64; 32], exec: u32, len: usize) -> Self {
        let first = addresses[0];
        let (mut rows, mut same) = (0, 0);
        for lane in 0..32 {
            rows |= addresses[lane] ^ first.wrapping_add((lane * len) as u64);
            same |= addresses[lane] ^ first;
        }
        match (exec, rows, same) {
            (u32::MAX, 0, _) => Self::Rows(first),
            (u32::MAX, _, 0) => Self::Same(first),
            _ => Self::Scattered,
        }
    }
}

/// Reads the registers of an access from its bytes in 32 lanes; `false` if that takes more than a copy.
fn set_registers(registers: &mut Registers, access: &Access, bytes: &[u8]) -> bool {
    let count = access.registers.len();
    let kind = (access.ty.bytes(), access.registers[0].bytes);
    if access.registers.iter().any(|target| target.bytes != kind.1) {
        return false;
    }
    for (index, target) in access.registers.iter().enumerate() {
        match kind {
            (4, 4) => {
                let (words, _) = bytes.as_chunks::<4>();
                let register = registers.narrow_mut(target.slot);
                for (value, word) in register.iter_mut().zip(words[index..].iter().step_by(count)) {
                    *value = u32::from_le_bytes(*word);
                }
            }
            (8, 8) => {
                let (words, _) = bytes.as_chunks::<8>();
                let register = registers.wide_mut(target.slot);
                for (value, word) in register.iter_mut().zip(words[index..].iter().step_by(count)) {
                    *value = u64::from_le_bytes(*word);
                }
            }
            _ => return false,
        }
    }
    true
}

/// Writes the registers of an access to its bytes in 32 lanes, which `fill` gives; `false`, and nothing is written, if that takes more than
/// a copy.
fn put_registers<'b>(registers: &Registers, access: &Access, fill: impl FnOnce() -> &'b mut [u8]) -> bool {
    let count = access.registers.len();
    let kind = (access.ty.bytes(), access.registers[0].bytes);
    if !matches!(kind, (2 | 4, 4) | (8, 8)) || access.registers.iter().any(|target| target.bytes != kind.1) {
        return false;
    }
    let bytes = fill();
    for (index, target) in access.registers.iter().enumerate() {
        match kind.0 {
            2 => {
                let (words, _) = bytes.as_chunks_mut::<2>();
                let register = registers.narrow(target.slot);
                for (word, value) in words[index..].iter_mut().step_by(count).zip(register) {
                    *word = (*value as u16).to_le_bytes();
                }
            }
            4 => {
                let (words, _) = bytes.as_chunks_mut::<4>();
                let register = registers.narrow(target.slot);
                for (word, value) in words[index..].iter_mut().step_by(count).zip(register) {
                    *word = value.to_le_bytes();
                }
            }
            _ => {
                let (words, _) = bytes.as_chunks_mut::<8>();
                let register = registers.wide(target.slot);
                for (word, value) in words[index..].iter_mut().step_by(count).zip(register) {
                    *word = value.to_le_bytes();
                }
            }
        }
    }
    true
}

/// Lanes of a mask, lowest first.
pub(crate) fn lanes(mask: u32) -> impl Iterator<Item = u32> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        (rest != 0).then(|| {
            let lane = rest.trailing_zeros();
            rest &= rest - 1;
            lane
        })
    })
}

/// Writes loaded bytes to a register, extended as the type says.
fn set_register(registers: &mut Registers, target: Target, lane: u32, ty: Type, bytes: &[u8]) {
    let mut word = [0; 16];
    word[..bytes.len()].copy_from_slice(bytes);
    let value = u64::from_le_bytes(word[..8].try_into().expect("eight bytes"));
    let value = match ty {
        Type::S8 => value as i8 as u64,
        Type::S16 => value as i16 as u64,
        Type::S32 => value as i32 as u64,
        _ => value,
    };
    let lane = lane as usize;
    match target.bytes {
        0 => {}
        4 => registers.narrow_mut(target.slot)[lane] = value as u32,
        _ => registers.wide_mut(target.slot)[lane] = value,
    }
    if target.bytes == 16 {
        registers.wide_mut(target.slot + 2)[lane] =
            u64::from_le_bytes(word[8..].try_into().expect("eight bytes"));
    }
}

/// The bytes of a register in a lane; the first `bytes_of_type` count.
fn register_bytes(registers: &Registers, target: Target, lane: u32) -> [u8; 16] {
    let lane = lane as usize;
    let mut bytes = [0; 16];
    if target.bytes == 4 {
        bytes[..4].copy_from_slice(&registers.narrow(target.slot)[lane].to_le_bytes());
    } else if target.bytes > 4 {
        bytes[..8].copy_from_slice(&registers.wide(target.slot)[lane].to_le_bytes());
        if target.bytes == 16 {
            bytes[8..].copy_from_slice(&registers.wide(target.slot + 2)[lane].to_le_bytes());
        }
    }
    bytes
}

impl Env<'_> {
    /// The region and offset of bytes that a lane of the warp names.
    #[inline(always)]
    pub(crate) fn place<'b>(
        &'b mut self,
        warp: &'b mut Warp,
        lane: u32,
        space: Space,
        address: u64,
        len: usize,
    ) -> Step<(&'b mut Region, usize)> {
        let (space, address) = match space {
            Space::Generic if address >= GLOBAL_START => (Space::Global, address),
            Space::Generic => match address & !0xffff_ffff {
                SHARED_WINDOW => (Space::Shared, address - SHARED_WINDOW),
                LOCAL_WINDOW => (Space::Local, address - LOCAL_WINDOW),
                PARAM_WINDOW => (Space::Param, address - PARAM_WINDOW),
                _ => {
                    let text = format!("generic address {address:#x} is in no space");
                    return Err(Trouble { lane: Some(lane), text });
                }
            },
            other => (other, address),
        };
        match space {
            Space::Global | Space::Constant => self.memory.find(address, len).map_err(blame(lane)),
            Space::Shared => self.shared(address as u32, len).map_err(blame(lane)),
            Space::Param => {
                let size = self.parameters.len();
                if address.saturating_add(len as u64) > size as u64 {
                    let text = format!("{len} bytes at {address:#x} of {size} bytes of parameters");
                    return Err(Trouble { lane: Some(lane), text });
                }
                Ok((self.parameters, address as usize))
            }
            _ => {
                let size = self.program.local_bytes as usize;
                if address.saturating_add(len as u64) > size as u64 {
                    let text = format!("{len} bytes at {address:#x} of {size} bytes of local memory");
                    return Err(Trouble { lane: Some(lane), text });
                }
                Ok((&mut warp.local, lane as usize * size + address as usize))
            }
        }
    }

    /// Bytes of shared memory, of the own block or, by a mapped address, of another one.
    #[inline(always)]
    pub(crate) fn shared(&mut self, address: u32, len: usize) -> Result<(&mut Region, usize), String> {
        let rank = match address >> 24 {
            0 => self.rank,
            mapped => mapped as usize - 1,
        };
        let offset = (address & OFFSET) as usize;
        let Some(block) = self.cluster.blocks.get_mut(rank) else {
            return Err(format!("shared address {address:#x} names block {rank} of the cluster"));
        };
        let size = block.shared.len();
        if offset < crate::program::SHARED_START as usize || offset + len > size {
            return Err(format!("{len} bytes at {offset:#x} of shared memory that ends at {size:#x}"));
        }
        if rank != self.rank && block.is_done() {
            return Err(format!("shared memory of block {rank} of the cluster, which has exited"));
        }
        Ok((&mut block.shared, offset))
    }

    /// Reads bytes; a byte that was never written is a fault if those are looked for.
    pub(crate) fn read(
        &mut self,
        warp: &mut Warp,
        lane: u32,
        space: Space,
        address: u64,
        into: &mut [u8],
    ) -> Step<()> {
        let check = self.options.uninitialized;
        let (region, offset) = self.place(warp, lane, space, address, into.len())?;
        let (bytes, written) = region.get(offset, into.len());
        into.copy_from_slice(bytes);
        if check && !written {
            let first = region.first_unwritten(offset, into.len()).unwrap_or(offset) - offset;
            let text = format!("{} bytes at {address:#x}: byte {first} was never written", into.len());
            return Err(Trouble { lane: Some(lane), text });
        }
        Ok(())
    }

    /// Writes bytes.
    pub(crate) fn write(
        &mut self,
        warp: &mut Warp,
        lane: u32,
        space: Space,
        address: u64,
        bytes: &[u8],
    ) -> Step<()> {
        let (region, offset) = self.place(warp, lane, space, address, bytes.len())?;
        region.set(offset, bytes);
        Ok(())
    }

    fn aligned(address: u64, bytes: u32, lane: u32) -> Step<()> {
        if address.is_multiple_of(u64::from(bytes.next_power_of_two())) {
            return Ok(());
        }
        Err(Trouble { lane: Some(lane), text: format!("{bytes} bytes at {address:#x} are misaligned") })
    }

    /// The one region, in global memory or in the own block's shared memory, that holds `len` bytes
    /// at the addresses of all lanes of `exec`. `None` if there is none, or if an address is
    /// misaligned: the lanes are then looked at one by one.
    #[inline(always)]
    fn span(&mut self, space: Space, addresses: &[u64; 32], exec: u32, len: usize) -> Option<Span<'_>> {
        let (low, high, bits) = bounds(self.isa, addresses, exec);
        let bytes = usize::try_from(high.wrapping_sub(low)).ok()?.checked_add(len)?;
        let unaligned = bits & (len.next_power_of_two() as u64 - 1) != 0;
        // No region has an address with the sign.
        if unaligned || bits >> 63 != 0 || bytes > 1 << 30 {
            return None;
        }
        let (region, start) = self.own_range(space, low, len, bytes)?;
        // Of lanes that do not take part the offset is any.
        let mut offsets = [0; 32];
        for lane in 0..32 {
            offsets[lane] = (addresses[lane].wrapping_sub(low) as u32).min((bytes - len) as u32);
        }
        Some(Span { region, start, bytes, offsets })
    }

    /// The region and offset of bytes in global memory, the own block's shared memory or the parameters, aligned for accesses of `len` bytes.
    #[inline(always)]
    fn own_range(
        &mut self,
        space: Space,
        address: u64,
        len: usize,
        bytes: usize,
    ) -> Option<(&mut Region, usize)> {
        if address & (len.next_power_of_two() as u64 - 1) != 0 {
            return None;
        }
        match space {
            Space::Global | Space::Constant => self.memory.find(address, bytes).ok(),
            Space::Generic if address >= GLOBAL_START => self.memory.find(address, bytes).ok(),
            Space::Shared if address <= u64::from(OFFSET) => self.shared(address as u32, bytes).ok(),
            Space::Param if address.checked_add(bytes as u64)? <= self.parameters.len() as u64 => {
                Some((self.parameters, address as usize))
            }
            _ => None,
        }
    }

    /// Loads as one copy where the lanes read one behind the other, or all the same; `false` if they do not.
    #[inline(always)]
    fn load_whole(
        &mut self,
        warp: &mut Warp,
        access: &Access,
        addresses: &[u64; 32],
        exec: u32,
        total: usize,
    ) -> bool {
        let check = self.options.uninitialized;
        let (address, bytes) = match Layout::of(addresses, exec, total) {
            Layout::Rows(address) => (address, 32 * total),
            Layout::Same(address) => (address, total),
            Layout::Scattered => return false,
        };
        let Some((region, offset)) = self.own_range(access.address.space, address, total, bytes) else {
            return false;
        };
        let (found, written) = region.get(offset, bytes);
        if check && !written {
            return false;
        }
        if bytes == 32 * total {
            return set_registers(&mut warp.registers, access, found);
        }
        let mut repeated = [0; 32 * MAX_ACCESS];
        let repeated = &mut repeated[..32 * total];
        repeated.chunks_exact_mut(total).for_each(|lane| lane.copy_from_slice(found));
        set_registers(&mut warp.registers, access, repeated)
    }

    pub(super) fn load(&mut self, warp: &mut Warp, access: &Access, exec: u32) -> Step {
        let size = access.ty.bytes() as usize;
        let total = size * access.registers.len();
        let addresses = access.address.all(&warp.registers);
        if self.load_whole(warp, access, &addresses, exec, total) {
            return Ok(Flow::Next);
        }
        let check = self.options.uninitialized;
        if let Some(Span { region, start, bytes, offsets }) =
            self.span(access.address.space, &addresses, exec, total)
            && (!check || written(region, start, bytes, &offsets, exec, total))
        {
            let (data, _) = region.get(start, bytes);
            for (index, target) in access.registers.iter().enumerate() {
                if size == 4 && target.bytes == 4 {
                    let register = warp.registers.narrow_mut(target.slot);
                    each(exec, |lane| {
                        let at = offsets[lane] as usize + 4 * index;
                        register[lane] = u32::from_le_bytes(*data[at..].first_chunk().expect("four bytes"));
                    });
                    continue;
                }
                if size == 2 && target.bytes == 4 && access.ty != Type::S16 {
                    let register = warp.registers.narrow_mut(target.slot);
                    each(exec, |lane| {
                        let at = offsets[lane] as usize + 2 * index;
                        register[lane] =
                            u16::from_le_bytes(*data[at..].first_chunk().expect("two bytes")).into();
                    });
                    continue;
                }
                for lane in lanes(exec) {
                    let at = offsets[lane as usize] as usize + index * size;
                    set_register(&mut warp.registers, *target, lane, access.ty, &data[at..at + size]);
                }
            }
            return Ok(Flow::Next);
        }
        let mut bytes = [0; 32];
        for lane in lanes(exec) {
            let address = addresses[lane as usize];
            Self::aligned(address, total as u32, lane)?;
            self.read(warp, lane, access.address.space, address, &mut bytes[..total])?;
            for (target, bytes) in access.registers.iter().zip(bytes.chunks_exact(size)) {
                set_register(&mut warp.registers, *target, lane, access.ty, bytes);
            }
        }
        Ok(Flow::Next)
    }

    pub(super) fn store(&mut self, warp: &mut Warp, access: &Access, exec: u32) -> Step {
        let size = access.ty.bytes() as usize;
        let total = size * access.registers.len();
        let addresses = access.address.all(&warp.registers);
        if let Layout::Rows(address) = Layout::of(&addresses, exec, total)
            && let Some((region, offset)) = self.own_range(access.address.space, address, total, 32 * total)
            && put_registers(&warp.registers, access, || region.fill(offset, 32 * total))
        {
            return Ok(Flow::Next);
        }
        if let Some(Span { region, start, offsets, .. }) =
            self.span(access.address.space, &addresses, exec, total)
        {
            // Lane by lane: where lanes write to one address, the last one stays.
            for lane in lanes(exec) {
                let offset = start + offsets[lane as usize] as usize;
                if size == 4 && access.registers.iter().all(|target| target.bytes == 4) {
                    for (index, target) in access.registers.iter().enumerate() {
                        let word = warp.registers.narrow(target.slot)[lane as usize];
                        region.set_word(offset + 4 * index, word);
                    }
                    continue;
                }
                let bytes = Self::values(warp, access, lane);
                region.set(offset, &bytes[..total]);
            }
            return Ok(Flow::Next);
        }
        for lane in lanes(exec) {
            let bytes = Self::values(warp, access, lane);
            let address = addresses[lane as usize];
            Self::aligned(address, total as u32, lane)?;
            self.write(warp, lane, access.address.space, address, &bytes[..total])?;
        }
        Ok(Flow::Next)
    }

    /// The values of a store in a lane, one after the other.
    pub(super) fn values(warp: &Warp, access: &Access, lane: u32) -> [u8; 32] {
        let size = access.ty.bytes() as usize;
        let mut bytes = [0; 32];
        for (target, bytes) in access.registers.iter().zip(bytes.chunks_exact_mut(size)) {
            bytes.copy_from_slice(&register_bytes(&warp.registers, *target, lane)[..size]);
        }
        bytes
    }

    pub(super) fn atomic(&mut self, warp: &mut Warp, atomic: &Atomic, exec: u32) -> Step {
        let size = atomic.ty.bytes() as usize;
        for lane in lanes(exec) {
            let base = atomic.address.of(&warp.registers, lane);
            Self::aligned(base, (size * atomic.values.len()) as u32, lane)?;
            for (index, value) in atomic.values.iter().enumerate() {
                let address = base + (index * size) as u64;
                let mut old = [0; 16];
                self.read(warp, lane, atomic.address.space, address, &mut old[..size])?;
                let value = register_bytes(&warp.registers, *value, lane);
                let new = match (atomic.op, atomic.swap) {
                    (AtomicOp::CompareAndSwap, Some(swap)) => {
                        let equal = old[..size] == value[..size];
                        if equal { register_bytes(&warp.registers, swap, lane) } else { old }
                    }
                    (AtomicOp::Exchange, _) => value,
                    _ => {
                        let number =
                            |bytes: [u8; 16]| u64::from_le_bytes(bytes[..8].try_into().expect("eight"));
                        let result = combine(atomic, number(old), number(value)).map_err(blame(lane))?;
                        let mut bytes = [0; 16];
                        bytes[..8].copy_from_slice(&result.to_le_bytes());
                        bytes
                    }
                };
                self.write(warp, lane, atomic.address.space, address, &new[..size])?;
                if let Some(destinations) = &atomic.destinations {
                    set_register(&mut warp.registers, destinations[index], lane, atomic.ty, &old[..size]);
                }
            }
        }
        Ok(Flow::Next)
    }
}

/// The new value of an atomic operation; operands are zero-extended.
fn combine(atomic: &Atomic, old: u64, value: u64) -> Result<u64, String> {
    use AtomicOp::*;
    macro_rules! integers {
        ($unsigned:ty, $t:ty) => {{
            let (a, b) = (old as $t, value as $t);
            let result = match atomic.op {
                Add => a.wrapping_add(b),
                Min => a.min(b),
                Max => a.max(b),
                And => a & b,
                Or => a | b,
                Xor => a ^ b,
                Inc => {
                    if a >= b {
                        0
                    } else {
                        a + 1
                    }
                }
                Dec => {
                    if a == 0 || a > b {
                        b
                    } else {
                        a - 1
                    }
                }
                Exchange | CompareAndSwap => return Err("not an operation on one value".to_string()),
            };
            u64::from(result as $unsigned)
        }};
    }
    fn sixteen<F: Sixteen>(op: AtomicOp, a: u16, b: u16) -> Result<u16, String> {
        match op {
            Add => Ok(F::add(a, b, Mode::RN)),
            Min => Ok(F::min(a, b, Default::default())),
            Max => Ok(F::max(a, b, Default::default())),
            _ => Err("not an operation on floats".to_string()),
        }
    }
    fn packed<F: Sixteen>(op: AtomicOp, a: u64, b: u64) -> Result<u64, String> {
        let low = sixteen::<F>(op, a as u16, b as u16)?;
        let high = sixteen::<F>(op, (a >> 16) as u16, (b >> 16) as u16)?;
        Ok(u64::from(low) | u64::from(high) << 16)
    }
    Ok(match atomic.ty {
        Type::U32 | Type::B32 => integers!(u32, u32),
        Type::S32 => integers!(u32, i32),
        Type::U64 | Type::B64 => integers!(u64, u64),
        Type::S64 => integers!(u64, i64),
        Type::F32 => {
            let (a, b) = (f32::from_bits(old as u32), f32::from_bits(value as u32));
            if atomic.op != Add {
                return Err("only `add` is an atomic operation on f32".to_string());
            }
            // In global memory subnormals are flushed, in shared memory they are kept.
            let sum = match atomic.address.space {
                Space::Shared => a + b,
                _ => flush(flush(a) + flush(b)),
            };
            u64::from(sum.to_bits())
        }
        Type::F64 if atomic.op == Add => (f64::from_bits(old) + f64::from_bits(value)).to_bits(),
        Type::F16 => sixteen::<F16>(atomic.op, old as u16, value as u16)?.into(),
        Type::Bf16 => sixteen::<Bf16>(atomic.op, old as u16, value as u16)?.into(),
        Type::F16x2 => packed::<F16>(atomic.op, old, value)?,
        Type::Bf16x2 => packed::<Bf16>(atomic.op, old, value)?,
        other => return Err(format!("no atomic operation on {other:?}")),
    })
}
