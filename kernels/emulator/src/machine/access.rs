//! Addresses, loads and stores.

use super::block::Warp;
use super::cluster::{Env, Flow, Step};
use super::fault::{Trouble, lane as blame};
use super::memory::Region;
use crate::Lanes;
use crate::execute::{Isa, Registers, Word};
use crate::lower::{GLOBAL_START, LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, Type};
use crate::program::{Access, Address, Target};
use crate::text::Space;

/// An address of shared memory: the block's rank in the cluster is the top byte, as devices have it
/// (what loads for pairs of blocks compute with). A block's own addresses have it too.
pub(crate) fn map_shared(offset: u32, rank: u32) -> u32 {
    (offset & OFFSET) | rank << 24
}

/// The rank of the block that an address of shared memory names.
pub(crate) fn rank_of(address: u32) -> usize {
    (address >> 24) as usize
}

/// Offset in the shared memory of a block.
pub(crate) const OFFSET: u32 = 0xff_ffff;

impl Address {
    /// Where the lanes of `exec` touch `len` bytes each; `None` if that is not aligned or their addresses are far from each other: the lanes
    /// are then looked at one by one.
    #[inline(always)]
    fn together(&self, registers: &Registers, exec: u32, len: usize) -> Option<Together> {
        let first = self.of(registers, exec.trailing_zeros() & 31);
        // Of the lower halves alone, of which vectors hold twice as many.
        let mut lanes = [0; 32];
        if self.wide {
            let base = registers.wide(self.slot);
            let mut apart = 0;
            for lane in 0..32 {
                let address = base[lane].wrapping_add_signed(self.offset);
                lanes[lane] = address as u32;
                apart |= ((address ^ first) >> 32) as u32 & is_in(exec, lane);
            }
            if apart != 0 {
                return None;
            }
        } else {
            let base = registers.narrow(self.slot);
            for lane in 0..32 {
                lanes[lane] = base[lane].wrapping_add(self.offset as u32);
            }
        }
        let (mut low, mut high, mut bits, mut rows, mut same) = (u32::MAX, 0, 0, 0, 0);
        for lane in 0..32 {
            let (address, active) = (lanes[lane], is_in(exec, lane));
            low = low.min(address | !active);
            high = high.max(address & active);
            bits |= address & active;
            rows |= address ^ (first as u32).wrapping_add((lane * len) as u32);
            same |= address ^ first as u32;
        }
        let bytes = (high - low) as usize + len;
        if bits & (len.next_power_of_two() as u32 - 1) != 0 || bytes > 1 << 30 {
            return None;
        }
        let layout = match exec {
            u32::MAX if same == 0 => Layout::Same,
            // Lanes that wrap around are not one behind the other.
            u32::MAX if rows == 0 && bytes == 32 * len => Layout::Rows,
            _ => Layout::Scattered,
        };
        Some(Together { address: first & !0xffff_ffff | u64::from(low), bytes, len, layout, low, lanes })
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

/// All bits if the lane is in the mask, else none.
#[inline(always)]
fn is_in(mask: u32, lane: usize) -> u32 {
    (mask >> lane & 1).wrapping_neg()
}

/// What the lanes of an access touch, within 1 GiB.
struct Together {
    /// The first byte.
    address: u64,
    /// Bytes from there to the last one.
    bytes: usize,
    /// Bytes of a lane.
    len: usize,
    layout: Layout,
    /// Lower half of `address`, and of every lane's address.
    low: u32,
    lanes: Lanes,
}

impl Together {
    /// First byte behind `address` of a lane that takes part.
    #[inline(always)]
    fn offset(&self, lane: usize) -> usize {
        self.lanes[lane].wrapping_sub(self.low) as usize
    }

    /// The same in words of 32 bits, for accesses of these: lanes are aligned.
    #[inline(always)]
    fn words(&self) -> Lanes {
        let mut words = [0; 32];
        for lane in 0..32 {
            words[lane] = self.lanes[lane].wrapping_sub(self.low) / 4;
        }
        words
    }

    /// Whether the lanes' bytes, which begin at `start` of the region, were written: often all between are, which is one look.
    #[inline(always)]
    fn is_written(&self, region: &Region, start: usize, exec: u32) -> bool {
        (self.bytes <= 2048 && region.get(start, self.bytes).1)
            || lanes(exec).all(|lane| region.get(start + self.offset(lane as usize), self.len).1)
    }
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

/// How lanes touch memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// All lanes of the warp, one behind the other.
    Rows,
    /// All lanes of the warp, the same bytes.
    Same,
    /// In another way, or not all lanes.
    Scattered,
}

/// Reads the registers of an access from its bytes in 32 lanes; `false` if that takes more than a copy.
#[inline(always)]
fn set_registers(registers: &mut Registers, access: &Access, bytes: &[u8]) -> bool {
    let targets = &access.registers[..];
    let held = targets[0].bytes;
    if matches!(access.ty, Type::S8 | Type::S16) || targets.iter().any(|target| target.bytes != held) {
        return false;
    }
    match (access.ty.bytes(), held, targets.len()) {
        (1, 4, 1) => deal::<u32, 1, 1>(registers, targets, bytes, |[byte]| byte.into()),
        (1, 4, 4) => deal::<u32, 1, 4>(registers, targets, bytes, |[byte]| byte.into()),
        (2, 4, 1) => deal::<u32, 2, 1>(registers, targets, bytes, |half| u16::from_le_bytes(half).into()),
        (2, 4, 2) => deal::<u32, 2, 2>(registers, targets, bytes, |half| u16::from_le_bytes(half).into()),
        (2, 4, 4) => deal::<u32, 2, 4>(registers, targets, bytes, |half| u16::from_le_bytes(half).into()),
        (4, 4, 1) => deal::<u32, 4, 1>(registers, targets, bytes, u32::from_le_bytes),
        (4, 4, 2) => deal::<u32, 4, 2>(registers, targets, bytes, u32::from_le_bytes),
        (4, 4, 4) => deal_fours(registers, targets, bytes),
        (4, 4, 8) => deal::<u32, 4, 8>(registers, targets, bytes, u32::from_le_bytes),
        (8, 8, 1) => deal::<u64, 8, 1>(registers, targets, bytes, u64::from_le_bytes),
        (8, 8, 2) => deal::<u64, 8, 2>(registers, targets, bytes, u64::from_le_bytes),
        (8, 8, 4) => deal::<u64, 8, 4>(registers, targets, bytes, u64::from_le_bytes),
        _ => false,
    }
}

/// Deals words of `SIZE` bytes, `COUNT` of each lane one behind the other, out to `COUNT` registers. The constants let vectors do it.
#[inline(always)]
fn deal<W: Word, const SIZE: usize, const COUNT: usize>(
    registers: &mut Registers,
    targets: &[Target],
    bytes: &[u8],
    word: impl Fn([u8; SIZE]) -> W,
) -> bool {
    let (words, _) = bytes.as_chunks::<SIZE>();
    let (rows, _) = words.as_chunks::<COUNT>();
    let (Some(rows), Ok(targets)) = (rows.first_chunk::<32>(), <&[Target; COUNT]>::try_from(targets)) else {
        return false;
    };
    for index in 0..COUNT {
        let register = W::lanes_mut(registers, targets[index].slot);
        for lane in 0..32 {
            register[lane] = word(rows[lane][index]);
        }
    }
    true
}

/// [`deal`] of four words of 32 bits, of which the compiler makes no vectors.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn deal_fours(registers: &mut Registers, targets: &[Target], bytes: &[u8]) -> bool {
    use std::arch::x86_64::{
        __m128i, _mm_loadu_si128, _mm_storeu_si128, _mm_unpackhi_epi32, _mm_unpackhi_epi64,
        _mm_unpacklo_epi32, _mm_unpacklo_epi64,
    };
    let (Some(rows), &[x, y, z, w]) = (bytes.as_chunks::<16>().0.first_chunk::<32>(), targets) else {
        return false;
    };
    let mut lane = 0;
    // Not by closures, which the compiler calls.
    // SAFETY: SSE2 is a part of x86-64, a row has 16 bytes, and so have four lanes of a register.
    unsafe {
        macro_rules! row {
            ($row:expr) => {
                _mm_loadu_si128(rows[$row].as_ptr().cast::<__m128i>())
            };
        }
        macro_rules! set {
            ($target:expr, $words:expr) => {
                let four = registers.narrow_mut($target.slot)[lane..lane + 4].as_mut_ptr();
                _mm_storeu_si128(four.cast(), $words);
            };
        }
        while lane < 32 {
            let (a, b, c, d) = (row!(lane), row!(lane + 1), row!(lane + 2), row!(lane + 3));
            let (ab, cd) = (_mm_unpacklo_epi32(a, b), _mm_unpacklo_epi32(c, d));
            let (high_ab, high_cd) = (_mm_unpackhi_epi32(a, b), _mm_unpackhi_epi32(c, d));
            set!(x, _mm_unpacklo_epi64(ab, cd));
            set!(y, _mm_unpackhi_epi64(ab, cd));
            set!(z, _mm_unpacklo_epi64(high_ab, high_cd));
            set!(w, _mm_unpackhi_epi64(high_ab, high_cd));
            lane += 4;
        }
    }
    true
}

#[cfg(not(target_arch = "x86_64"))]
fn deal_fours(registers: &mut Registers, targets: &[Target], bytes: &[u8]) -> bool {
    deal::<u32, 4, 4>(registers, targets, bytes, u32::from_le_bytes)
}

/// Sets the registers of an access in 32 lanes to what one lane reads; `false` if that takes more than a copy.
#[inline(always)]
fn fill_registers(registers: &mut Registers, access: &Access, bytes: &[u8]) -> bool {
    let size = access.ty.bytes();
    if !matches!(size, 4 | 8) || access.registers.iter().any(|target| target.bytes != size) {
        return false;
    }
    for (target, word) in access.registers.iter().zip(bytes.chunks_exact(size as usize)) {
        match word {
            &[a, b, c, d] => *registers.narrow_mut(target.slot) = [u32::from_le_bytes([a, b, c, d]); 32],
            _ => {
                let word = word.try_into().expect("eight bytes");
                *registers.wide_mut(target.slot) = [u64::from_le_bytes(word); 32];
            }
        }
    }
    true
}

/// Writes the registers of an access to its bytes in 32 lanes, which `fill` gives; `false`, and nothing is written, if that takes more than
/// a copy.
#[inline(always)]
fn put_registers<'b>(registers: &Registers, access: &Access, fill: impl FnOnce() -> &'b mut [u8]) -> bool {
    let targets = &access.registers[..];
    let held = targets[0].bytes;
    if targets.iter().any(|target| target.bytes != held) {
        return false;
    }
    match (access.ty.bytes(), held, targets.len()) {
        (2, 4, 1) => collect::<u32, 2, 1>(registers, targets, fill(), |word| (word as u16).to_le_bytes()),
        (2, 4, 2) => collect::<u32, 2, 2>(registers, targets, fill(), |word| (word as u16).to_le_bytes()),
        (2, 4, 4) => collect::<u32, 2, 4>(registers, targets, fill(), |word| (word as u16).to_le_bytes()),
        (4, 4, 1) => collect::<u32, 4, 1>(registers, targets, fill(), u32::to_le_bytes),
        (4, 4, 2) => collect::<u32, 4, 2>(registers, targets, fill(), u32::to_le_bytes),
        (4, 4, 4) => collect::<u32, 4, 4>(registers, targets, fill(), u32::to_le_bytes),
        (8, 8, 1) => collect::<u64, 8, 1>(registers, targets, fill(), u64::to_le_bytes),
        (8, 8, 2) => collect::<u64, 8, 2>(registers, targets, fill(), u64::to_le_bytes),
        _ => return false,
    }
    true
}

/// Collects the words of `COUNT` registers in all lanes as [`deal`] takes them.
#[inline(always)]
fn collect<W: Word, const SIZE: usize, const COUNT: usize>(
    registers: &Registers,
    targets: &[Target],
    bytes: &mut [u8],
    word: impl Fn(W) -> [u8; SIZE],
) {
    let (words, _) = bytes.as_chunks_mut::<SIZE>();
    let (rows, _) = words.as_chunks_mut::<COUNT>();
    let rows: &mut [[[u8; SIZE]; COUNT]; 32] = rows.first_chunk_mut().expect("the bytes of 32 lanes");
    let values: [&[W; 32]; COUNT] = std::array::from_fn(|index| W::lanes(registers, targets[index].slot));
    for lane in 0..32 {
        for index in 0..COUNT {
            rows[lane][index] = word(values[index][lane]);
        }
    }
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
pub(super) fn set_register(registers: &mut Registers, target: Target, lane: u32, ty: Type, bytes: &[u8]) {
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

/// A number that tells sequences of values apart.
fn mixed(all: u64, value: u64) -> u64 {
    (all ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
}

/// The bytes of a register in a lane; the first `bytes_of_type` count.
pub(super) fn register_bytes(registers: &Registers, target: Target, lane: u32) -> [u8; 16] {
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

    /// Bytes of shared memory of a block of the cluster.
    #[inline(always)]
    pub(crate) fn shared(&mut self, address: u32, len: usize) -> Result<(&mut Region, usize), String> {
        let rank = rank_of(address);
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

    pub(super) fn aligned(address: u64, bytes: u32, lane: u32) -> Step<()> {
        if address.is_multiple_of(u64::from(bytes.next_power_of_two())) {
            return Ok(());
        }
        Err(Trouble { lane: Some(lane), text: format!("{bytes} bytes at {address:#x} are misaligned") })
    }

    /// The region and offset of bytes in global memory, the own block's shared memory or the parameters; `None` elsewhere.
    #[inline(always)]
    fn own_range(&mut self, space: Space, address: u64, bytes: usize) -> Option<(&mut Region, usize)> {
        match space {
            Space::Global | Space::Constant => self.memory.find(address, bytes).ok(),
            Space::Generic if address >= GLOBAL_START => self.memory.find(address, bytes).ok(),
            Space::Shared if address >> 24 == self.rank as u64 => self.shared(address as u32, bytes).ok(),
            Space::Param if address.checked_add(bytes as u64)? <= self.parameters.len() as u64 => {
                Some((self.parameters, address as usize))
            }
            _ => None,
        }
    }

    pub(super) fn load(&mut self, warp: &mut Warp, access: &Access, exec: u32) -> Step {
        let done = match self.isa {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the instruction set was detected.
            Isa::Avx2 => unsafe { self.load_together_avx2(warp, access, exec) },
            _ => self.load_together(warp, access, exec),
        };
        if done { Ok(Flow::Next) } else { self.load_apart(warp, access, exec) }
    }

    /// A strong load, which may be that of a loop that waits.
    pub(super) fn look(&mut self, warp: &mut Warp, access: &Access, exec: u32) -> Step {
        let held = |warp: &Warp| -> u64 {
            let lanes = lanes(exec).map(|lane| lane as usize);
            let target = access.registers[0];
            match target.bytes {
                0 => 0,
                4 => lanes.fold(0, |all, lane| mixed(all, warp.registers.narrow(target.slot)[lane].into())),
                _ => lanes.fold(0, |all, lane| mixed(all, warp.registers.wide(target.slot)[lane])),
            }
        };
        let before = held(warp);
        let step = self.load(warp, access, exec)?;
        warp.looks = if held(warp) == before { warp.looks.saturating_add(1) } else { 0 };
        Ok(step)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
    fn load_together_avx2(&mut self, warp: &mut Warp, access: &Access, exec: u32) -> bool {
        self.load_together(warp, access, exec)
    }

    /// Loads in all lanes at once; `false`, and nothing is changed, where they are to be looked at one by one.
    #[inline(always)]
    fn load_together(&mut self, warp: &mut Warp, access: &Access, exec: u32) -> bool {
        let size = access.ty.bytes() as usize;
        let check = self.options.uninitialized;
        let Some(all) = access.address.together(&warp.registers, exec, size * access.registers.len()) else {
            return false;
        };
        let Some((region, start)) = self.own_range(access.address.space, all.address, all.bytes) else {
            return false;
        };
        let (data, written) = match all.layout {
            Layout::Scattered => {
                (region.get(start, all.bytes).0, !check || all.is_written(region, start, exec))
            }
            _ => region.get(start, all.bytes),
        };
        if check && !written {
            return false;
        }
        let registers = &mut warp.registers;
        if match all.layout {
            Layout::Rows => set_registers(registers, access, data),
            Layout::Same => fill_registers(registers, access, data),
            Layout::Scattered => false,
        } {
            return true;
        }
        if size == 4 && access.registers.iter().all(|target| target.bytes == 4) {
            let (words, _) = data.as_chunks::<4>();
            let at = all.words();
            for (index, target) in access.registers.iter().enumerate() {
                let (words, register) = (&words[index..], registers.narrow_mut(target.slot));
                each(exec, |lane| register[lane] = u32::from_le_bytes(words[at[lane] as usize]));
            }
            return true;
        }
        for (index, target) in access.registers.iter().enumerate() {
            if size == 1 && target.bytes == 4 && access.ty != Type::S8 {
                let register = registers.narrow_mut(target.slot);
                each(exec, |lane| register[lane] = data[all.offset(lane) + index].into());
            } else if size == 2 && target.bytes == 4 && access.ty != Type::S16 {
                let register = registers.narrow_mut(target.slot);
                each(exec, |lane| {
                    let word = data[all.offset(lane) + 2 * index..].first_chunk();
                    register[lane] = u16::from_le_bytes(*word.expect("two bytes")).into();
                });
            } else {
                for lane in lanes(exec) {
                    let at = all.offset(lane as usize) + index * size;
                    set_register(registers, *target, lane, access.ty, &data[at..at + size]);
                }
            }
        }
        true
    }

    /// Loads lane by lane, and finds the fault that there may be.
    fn load_apart(&mut self, warp: &mut Warp, access: &Access, exec: u32) -> Step {
        let size = access.ty.bytes() as usize;
        let total = size * access.registers.len();
        let addresses: [u64; 32] =
            std::array::from_fn(|lane| access.address.of(&warp.registers, lane as u32));
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
        if self.options.late_stores && !access.ordering.is_strong() && self.device.is_some() {
            return self.store_apart(warp, access, exec);
        }
        let done = match self.isa {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the instruction set was detected.
            Isa::Avx2 => unsafe { self.store_together_avx2(warp, access, exec) },
            _ => self.store_together(warp, access, exec),
        };
        if done { Ok(Flow::Next) } else { self.store_apart(warp, access, exec) }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
    fn store_together_avx2(&mut self, warp: &mut Warp, access: &Access, exec: u32) -> bool {
        self.store_together(warp, access, exec)
    }

    /// Stores in all lanes at once; `false`, and nothing is changed, where they are to be looked at one by one.
    #[inline(always)]
    fn store_together(&mut self, warp: &Warp, access: &Access, exec: u32) -> bool {
        let size = access.ty.bytes() as usize;
        let total = size * access.registers.len();
        let Some(all) = access.address.together(&warp.registers, exec, total) else {
            return false;
        };
        let Some((region, start)) = self.own_range(access.address.space, all.address, all.bytes) else {
            return false;
        };
        if all.layout == Layout::Rows
            && put_registers(&warp.registers, access, || region.fill(start, all.bytes))
        {
            return true;
        }
        // Lane by lane: where lanes write to one address, the last one stays. Lanes are aligned, so they share all of their bytes or none.
        let offsets = lanes(exec).map(|lane| all.offset(lane as usize));
        let data = region.fill_some(start, all.bytes, offsets, total);
        if size == 4 && access.registers.iter().all(|target| target.bytes == 4) {
            let (words, _) = data.as_chunks_mut::<4>();
            let at = all.words();
            for (index, target) in access.registers.iter().enumerate() {
                let (words, register) = (&mut words[index..], warp.registers.narrow(target.slot));
                each(exec, |lane| words[at[lane] as usize] = register[lane].to_le_bytes());
            }
            return true;
        }
        for lane in lanes(exec) {
            data[all.offset(lane as usize)..][..total]
                .copy_from_slice(&Self::values(warp, access, lane)[..total]);
        }
        true
    }

    /// Stores lane by lane, and finds the fault that there may be.
    fn store_apart(&mut self, warp: &mut Warp, access: &Access, exec: u32) -> Step {
        let total = access.ty.bytes() as usize * access.registers.len();
        for lane in lanes(exec) {
            let bytes = Self::values(warp, access, lane);
            let address = access.address.of(&warp.registers, lane);
            Self::aligned(address, total as u32, lane)?;
            if self.options.late_stores
                && !access.ordering.is_strong()
                && matches!(access.address.space, Space::Global | Space::Generic)
                && let (Some(own), Some(other)) = (self.device, self.memory.device_of(address))
                && own != other
            {
                self.memory.delay(own, address, &bytes[..total]).map_err(blame(lane))?;
                continue;
            }
            self.write(warp, lane, access.address.space, address, &bytes[..total])?;
        }
        Ok(Flow::Next)
    }

    /// Whether a store would leave memory as it is.
    pub(super) fn is_stored(&mut self, warp: &mut Warp, access: &Access, exec: u32) -> bool {
        let total = access.ty.bytes() as usize * access.registers.len();
        lanes(exec).all(|lane| {
            let bytes = Self::values(warp, access, lane);
            let address = access.address.of(&warp.registers, lane);
            let place = self.place(warp, lane, access.address.space, address, total);
            place.is_ok_and(|(region, offset)| region.get(offset, total) == (&bytes[..total], true))
        })
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::execute::Pattern;
    use crate::machine::random::Random;

    /// What lanes touch, found one by one: the first byte, the bytes to the last one, and how.
    fn apart(addresses: &[u64; 32], exec: u32, len: usize) -> Option<(u64, usize, Layout)> {
        let active: Vec<u64> = lanes(exec).map(|lane| addresses[lane as usize]).collect();
        let (low, high) = (*active.iter().min()?, *active.iter().max()?);
        let bytes = usize::try_from(high - low).ok()?.checked_add(len)?;
        let aligned = active.iter().all(|address| address.is_multiple_of(len as u64));
        if !aligned || low >> 32 != high >> 32 || bytes > 1 << 30 {
            return None;
        }
        let rows = active.iter().enumerate().all(|(lane, address)| *address == low + (lane * len) as u64);
        let layout = match exec {
            u32::MAX if active.iter().all(|address| *address == low) => Layout::Same,
            u32::MAX if rows => Layout::Rows,
            _ => Layout::Scattered,
        };
        Some((low, bytes, layout))
    }

    #[test]
    fn lanes_are_looked_at_together_as_one_by_one() {
        let mut random = Random::new(7);
        let (mut found, mut refused) = ([0; 3], 0);
        for _ in 0..20_000 {
            let wide = random.below(2) == 0;
            let len = 1usize << random.below(6);
            let exec = match random.below(3) {
                0 => 1 << random.below(32),
                1 => random.below(u32::MAX) | 1 << random.below(32),
                _ => u32::MAX,
            };
            // Also at the end of a 4 GiB block, and of all addresses.
            let base = match random.below(4) {
                0 => 0u64.wrapping_sub(u64::from(random.below(64)) * len as u64),
                1 => (7 << 32) - u64::from(random.below(64)) * len as u64,
                _ => u64::from(random.below(1 << 20)) * len as u64,
            };
            let (step, noise) = (random.below(3) as usize * len, random.below(8) == 0);
            let offset = i64::from(random.below(3)) * len as i64 - len as i64;
            let mut registers = Registers::new(2, 1, Pattern::Zero);
            let addresses: [u64; 32] = std::array::from_fn(|lane| {
                let moved = if noise { u64::from(random.below(u32::MAX)) << random.below(9) } else { 0 };
                let base = base.wrapping_add((lane * step) as u64).wrapping_add(moved);
                if wide {
                    registers.wide_mut(0)[lane] = base;
                    base.wrapping_add_signed(offset)
                } else {
                    registers.narrow_mut(0)[lane] = base as u32;
                    u64::from((base as u32).wrapping_add(offset as u32))
                }
            });
            let address = Address { space: Space::Global, wide, slot: 0, offset };
            let all = address.together(&registers, exec, len);
            match (&all, apart(&addresses, exec, len)) {
                (Some(all), Some(expected)) => {
                    assert_eq!((all.address, all.bytes, all.layout), expected);
                    for lane in lanes(exec) {
                        let lane = lane as usize;
                        assert_eq!(all.address + all.offset(lane) as u64, addresses[lane]);
                    }
                    found[all.layout as usize] += 1;
                }
                (None, None) => refused += 1,
                (got, expected) => panic!("{addresses:x?} {exec:#x} {len}: {} {expected:?}", got.is_some()),
            }
        }
        assert!(found.into_iter().chain([refused]).all(|count| count > 500), "{found:?} {refused}");
    }
}
