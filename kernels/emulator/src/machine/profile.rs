//! Counts of a launch: executions by instruction and by class, wavefronts of shared memory, sectors of
//! global memory.
//!
//! The counts are exact and depend only on the kernel and its inputs, so that a test can pin them. They
//! are those of PTX: what ptxas merges, splits or moves is not seen.

mod class;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use class::Class;

use super::observe::Touch;
use super::race::Place;
use crate::program::{Action, Inst, Program};

/// Banks of shared memory, of four bytes each.
const BANKS: usize = 32;
/// Bytes of a bank in a wavefront.
const BANK_BYTES: u32 = 4;
/// Bytes of a sector of global memory, the unit of a transfer from L2.
const SECTOR: u64 = 32;
/// Bytes of a cache line.
const LINE: u64 = 128;

/// Executions of an instruction: by warps, and the lanes that were active in them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Count {
    pub(crate) warps: u64,
    pub(crate) lanes: u64,
}

/// What a launch executed.
#[derive(Debug, Clone)]
pub struct Report {
    program: Arc<Program>,
    /// By instruction.
    counts: Vec<Count>,
    /// By instruction, if it was counted.
    traffic: Option<Vec<Traffic>>,
}

/// What became of one instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstructionCount {
    /// Line in the PTX text.
    pub line: u32,
    /// Opcode with modifiers.
    pub opcode: String,
    /// Executions, in warps.
    pub warps: u64,
    /// Executions, in active lanes.
    pub lanes: u64,
    /// Memory traffic; `None` unless [`super::Options::profile`] is set.
    pub traffic: Option<Traffic>,
}

/// Memory traffic of all executions of an instruction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes of all active lanes, or of the boxes of bulk copies. An asynchronous copy counts once.
    pub bytes: u64,
    /// Passes over shared memory: in each, every bank delivers one word. Accesses of 8 bytes a lane are
    /// done in two halves of a warp, those of 16 bytes and matrix rows in quarters. Lanes that read one
    /// word share it; atomic operations on one word are done one after the other.
    pub wavefronts: u64,
    /// Wavefronts without bank conflicts.
    pub ideal_wavefronts: u64,
    /// Sectors of 32 bytes of global memory.
    pub sectors: u64,
    /// Sectors that would hold the distinct bytes, were they adjacent.
    pub ideal_sectors: u64,
    /// Lines of 128 bytes of global memory.
    pub lines: u64,
    /// Lines that would hold the distinct bytes, were they adjacent.
    pub ideal_lines: u64,
}

impl Traffic {
    /// Wavefronts that bank conflicts add.
    pub fn excess_wavefronts(&self) -> u64 {
        self.wavefronts - self.ideal_wavefronts
    }

    /// Sectors moved beyond those that the bytes need.
    pub fn excess_sectors(&self) -> u64 {
        self.sectors - self.ideal_sectors
    }

    fn add(&mut self, other: &Self) {
        self.bytes += other.bytes;
        self.wavefronts += other.wavefronts;
        self.ideal_wavefronts += other.ideal_wavefronts;
        self.sectors += other.sectors;
        self.ideal_sectors += other.ideal_sectors;
        self.lines += other.lines;
        self.ideal_lines += other.ideal_lines;
    }
}

/// Sums over the instructions of a class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Total {
    /// Executions, in warps.
    pub warps: u64,
    /// Executions, in active lanes.
    pub lanes: u64,
    /// Memory traffic; zero unless [`super::Options::profile`] is set.
    pub traffic: Traffic,
}

impl InstructionCount {
    /// Class by the opcode.
    pub fn class(&self) -> Class {
        Class::of(&self.opcode)
    }
}

impl Report {
    pub(crate) fn new(program: Arc<Program>, counts: Vec<Count>, profiler: Option<Profiler>) -> Self {
        Self { program, counts, traffic: profiler.map(|profiler| profiler.traffic) }
    }

    /// Every instruction of the kernel in the order of the text, those that never ran included. A kernel has thousands, and of most launches
    /// nobody asks.
    pub fn instructions(&self) -> impl Iterator<Item = InstructionCount> {
        let Program { code, opcodes, .. } = &*self.program;
        let all = code.iter().zip(opcodes).zip(&self.counts).enumerate();
        all.map(|(pc, ((inst, opcode), &Count { warps, lanes }))| InstructionCount {
            line: inst.line,
            opcode: opcode.clone(),
            warps,
            lanes,
            traffic: self.traffic.as_ref().map(|traffic| traffic[pc]),
        })
    }

    /// Instructions, in warps.
    pub fn warp_instructions(&self) -> u64 {
        self.counts.iter().map(|count| count.warps).sum()
    }

    /// Instructions, in active lanes.
    pub fn lane_instructions(&self) -> u64 {
        self.counts.iter().map(|count| count.lanes).sum()
    }

    /// Sums by class, of those classes that ran.
    pub fn totals(&self) -> BTreeMap<Class, Total> {
        let mut totals = BTreeMap::<Class, Total>::new();
        for count in self.instructions().filter(|count| count.warps > 0) {
            let total = totals.entry(count.class()).or_default();
            total.warps += count.warps;
            total.lanes += count.lanes;
            total.traffic.add(&count.traffic.unwrap_or_default());
        }
        totals
    }

    /// Sum over a class.
    pub fn total(&self, class: Class) -> Total {
        self.totals().remove(&class).unwrap_or_default()
    }
}

/// Traffic of a launch by instruction.
#[derive(Debug)]
pub(crate) struct Profiler {
    traffic: Vec<Traffic>,
    /// Buffers.
    words: Vec<(usize, u32)>,
    ranges: Vec<(u64, u64)>,
}

impl Profiler {
    pub(crate) fn new(instructions: usize) -> Self {
        Self { traffic: vec![Traffic::default(); instructions], words: Vec::new(), ranges: Vec::new() }
    }

    /// Counts one execution with the bytes of its lanes.
    pub(crate) fn touches(&mut self, pc: u32, inst: &Inst, reads: &[Touch], writes: &[Touch]) {
        let atomic = matches!(inst.action, Action::Atomic(_));
        let mut traffic = Traffic::default();
        for touches in [reads, writes] {
            (traffic.wavefronts, traffic.ideal_wavefronts) =
                add((traffic.wavefronts, traffic.ideal_wavefronts), self.wavefronts(touches, atomic));
            self.global(touches, &mut traffic);
        }
        // A copy writes what it reads, and zeros.
        let bytes = |touches: &[Touch]| touches.iter().map(|touch| u64::from(touch.bytes)).sum::<u64>();
        traffic.bytes = bytes(writes).max(bytes(reads));
        self.traffic[pc as usize].add(&traffic);
    }

    /// Counts the bytes of a bulk copy.
    pub(crate) fn bulk(&mut self, pc: u32, bytes: u64) {
        self.traffic[pc as usize].bytes += bytes;
    }

    /// Wavefronts of an access to shared memory, and their number without conflicts.
    fn wavefronts(&mut self, touches: &[Touch], atomic: bool) -> (u64, u64) {
        let mut sum = (0, 0);
        let mut rest = touches;
        while let Some(first) = rest.first() {
            // Lanes that are served together: 128 bytes at most.
            let together = BANKS as u32 * BANK_BYTES / first.bytes.clamp(BANK_BYTES, 32);
            let group = |touch: &Touch| touch.lane / together;
            let len = rest.iter().take_while(|touch| group(touch) == group(first)).count();
            let (phase, others) = rest.split_at(len);
            rest = others;
            self.words.clear();
            for touch in phase {
                if let Place::Shared(rank, offset) = touch.place {
                    let words = offset / BANK_BYTES..(offset + touch.bytes).div_ceil(BANK_BYTES);
                    self.words.extend(words.map(|word| (rank, word)));
                }
            }
            if self.words.is_empty() {
                continue;
            }
            if !atomic {
                self.words.sort_unstable();
                self.words.dedup();
            }
            let mut banks = [0u64; BANKS];
            self.words.iter().for_each(|&(_, word)| banks[word as usize % BANKS] += 1);
            sum = add(sum, (banks.into_iter().max().unwrap_or(0), 1));
        }
        sum
    }

    /// Sectors and lines of an access to global memory.
    fn global(&mut self, touches: &[Touch], traffic: &mut Traffic) {
        self.ranges.clear();
        for touch in touches {
            if let Place::Global(start) = touch.place {
                self.ranges.push((start, start.saturating_add(touch.bytes.into())));
            }
        }
        if self.ranges.is_empty() {
            return;
        }
        self.ranges.sort_unstable();
        let (mut bytes, mut end) = (0, 0);
        let (mut sectors, mut lines) = (Units::new(SECTOR), Units::new(LINE));
        for &(start, stop) in &self.ranges {
            bytes += stop.saturating_sub(start.max(end));
            end = end.max(stop);
            sectors.add(start, stop);
            lines.add(start, stop);
        }
        traffic.sectors += sectors.count;
        traffic.lines += lines.count;
        traffic.ideal_sectors += bytes.div_ceil(SECTOR);
        traffic.ideal_lines += bytes.div_ceil(LINE);
    }
}

fn add(a: (u64, u64), b: (u64, u64)) -> (u64, u64) {
    (a.0 + b.0, a.1 + b.1)
}

/// Distinct aligned units that ranges in ascending order meet.
struct Units {
    size: u64,
    /// First unit that was not counted yet.
    next: u64,
    count: u64,
}

impl Units {
    fn new(size: u64) -> Self {
        Self { size, next: 0, count: 0 }
    }

    fn add(&mut self, start: u64, stop: u64) {
        let (first, end) = ((start / self.size).max(self.next), stop.div_ceil(self.size));
        self.count += end.saturating_sub(first);
        self.next = self.next.max(end);
    }
}
