//! A launch: clusters in flight, and the order in which their warps run.

use std::sync::Arc;

use super::Options;
use super::cluster::{Cluster, Env, FreshRegisters, Turn};
use super::fault::{Fault, Trouble};
use super::matrix::Scratch;
use super::memory::{Memory, Region};
use super::observe::Observers;
use super::profile::{Count, Profiler, Report};
use super::race::{Clock, LaunchWatch, Place, Races};
use super::random::Random;
use crate::case::LaunchShape;
use crate::execute::Isa;
use crate::program::Program;

/// Instructions of a warp's turn.
const TURN: u32 = 4096;
/// The same where several devices run: what one waits for is another's work.
const TURN_OF_SEVERAL: u32 = 256;
/// Turns in which all warps only waited, or stood at barriers, after which none goes on by itself: what the
/// barriers let through has shown that it waits as well.
const QUIET: u32 = 16;
/// Looks in a row without a change from which on a warp is taken for one that waits.
const LOOKS: u32 = 3;
/// Turns without a change after which nobody stands still any more, so that a deadlock is found.
const STILL: u32 = 1024;
/// Turns for which such a warp stands still, at most.
const DOZE: u32 = 32;
/// Instructions of a warp that only waits in which it shows what for.
const POLL: u32 = 128;
/// Turns of the resident clusters after which another one is admitted: its blocks may be what the
/// resident ones wait for.
const PATIENCE: u32 = 64;
/// Clusters in flight at most.
const MAX_RESIDENT: usize = 1024;
/// Blocks of a grid at most; the order of all of them is kept.
const MAX_BLOCKS: u64 = 1 << 24;
/// Shared memory of a block at most, bytes: the largest of any architecture.
const MAX_SHARED: u32 = 232_448;

/// How a turn of a grid ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turned {
    Ended,
    Moved,
    /// Nothing can go on unless something changes elsewhere.
    Idle,
}

/// What the turns of some warps came to, least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Went {
    Nowhere,
    /// Round in loops that wait.
    Round,
    /// Standing still although something may have come that they wait for.
    Dozing,
    On,
}

/// What a launch begins with.
#[derive(Debug, Default)]
pub(crate) struct Begin {
    /// What is known from the launches before it.
    pub(crate) known: Clock,
    /// Whether another launch will follow it.
    pub(crate) keeps_end: bool,
    /// Whether there are other queues of launches.
    pub(crate) several: bool,
    /// Index in its queue.
    pub(crate) number: usize,
}

/// A launch that is being executed.
#[derive(Debug)]
pub(crate) struct Grid {
    program: Arc<Program>,
    device: usize,
    several: bool,
    watch: Option<LaunchWatch>,
    shape: LaunchShape,
    options: Options,
    parameters: Region,
    random: Random,
    /// Clusters still to start, last first.
    waiting: Vec<u64>,
    resident: Vec<Cluster>,
    fresh: FreshRegisters,
    turns: u32,
    /// Turns in a row in which warps only waited, and the changes of the machine before them.
    quiet: u32,
    quiet_at: u64,
    /// Turns in a row without such a change in which nobody did but wait.
    still: u32,
    /// The changes of the machine at which none of them does.
    watchful_at: Option<u64>,
    /// Instructions so far, in warps, attempts of those that wait included.
    executed: u64,
    counts: Vec<Count>,
    observers: Observers,
    scratch: Scratch,
    isa: Isa,
}

impl Grid {
    pub(crate) fn new(
        program: &Arc<Program>,
        device: usize,
        shape: LaunchShape,
        parameters: &[u8],
        options: &Options,
        races: &mut Option<Races>,
        begin: Begin,
    ) -> Result<Self, Fault> {
        let refuse = |text: String| Fault {
            device: begin.several.then_some(device),
            kernel: program.name.clone(),
            line: 0,
            opcode: String::new(),
            block: [0; 3],
            thread: None,
            text,
        };
        let threads = shape.block.iter().try_fold(1u32, |product, &size| product.checked_mul(size));
        let directives = &program.directives;
        let blocks = shape.grid.iter().fold(1u64, |product, &size| product.saturating_mul(size.into()));
        let ranks = shape.cluster.iter().try_fold(1u32, |product, &size| product.checked_mul(size));
        match () {
            () if !matches!(threads, Some(1..=1024)) => {
                return Err(refuse(format!("{:?} threads a block; 1 to 1024 are possible", shape.block)));
            }
            () if blocks == 0 => return Err(refuse("a grid without blocks".to_string())),
            () if blocks > MAX_BLOCKS => return Err(refuse(format!("{blocks} blocks are too many"))),
            () if directives.required_block.is_some_and(|block| block != shape.block) => {
                return Err(refuse(format!(
                    "{:?} threads a block; the kernel requires {:?}",
                    shape.block, directives.required_block
                )));
            }
            () if directives.max_threads.is_some_and(|max| threads.unwrap_or(0) > max) => {
                return Err(refuse(format!(
                    "{threads:?} threads; the kernel allows {:?}",
                    directives.max_threads
                )));
            }
            () if directives.required_cluster.is_some_and(|cluster| cluster != shape.cluster) => {
                return Err(refuse(format!(
                    "clusters of {:?}; the kernel requires {:?}",
                    shape.cluster, directives.required_cluster
                )));
            }
            () if !matches!(ranks, Some(1..=16)) => {
                return Err(refuse(format!("clusters of {:?}; 1 to 16 blocks are possible", shape.cluster)));
            }
            () if (0..3).any(|axis| !shape.grid[axis].is_multiple_of(shape.cluster[axis])) => {
                return Err(refuse(format!("a grid of {:?} in clusters of {:?}", shape.grid, shape.cluster)));
            }
            () if program.static_shared.saturating_add(shape.dynamic_shared_bytes) > MAX_SHARED => {
                return Err(refuse(format!(
                    "{} bytes of shared memory; {MAX_SHARED} are possible",
                    u64::from(program.static_shared) + u64::from(shape.dynamic_shared_bytes)
                )));
            }
            () if (parameters.len() as u64) < program.parameter_bytes => {
                return Err(refuse(format!(
                    "{} bytes of parameters; the kernel has {}",
                    parameters.len(),
                    program.parameter_bytes
                )));
            }
            () => {}
        }
        let watch = match races {
            Some(races) => {
                let warps = blocks * u64::from(threads.unwrap_or(1).div_ceil(32));
                let watch = races.begin(device, program, shape, warps, begin.known);
                Some(watch.ok_or_else(|| refuse(format!("{warps} warps are too many for race detection")))?)
            }
            None => None,
        };
        let clusters = blocks / u64::from(ranks.unwrap_or(1));
        let mut waiting: Vec<u64> = (0..clusters).rev().collect();
        // Devices and launches differ in their orders.
        let own = (device as u64) << 48 ^ (begin.number as u64) << 56;
        let mut random = Random::new(options.shuffle.unwrap_or(0) ^ own);
        if options.shuffle.is_some() {
            for at in (1..waiting.len()).rev() {
                waiting.swap(at, random.below(at as u32 + 1) as usize);
            }
        }
        let mut observers = Observers::new(options.profile.then(|| Profiler::new(program.code.len())));
        observers.end = (begin.keeps_end && options.races).then(Clock::default);
        Ok(Self {
            program: program.clone(),
            device,
            several: begin.several,
            watch,
            shape,
            options: options.clone(),
            parameters: Region::of(parameters.to_vec()),
            random,
            waiting,
            resident: Vec::new(),
            fresh: FreshRegisters::default(),
            turns: 0,
            quiet: 0,
            quiet_at: 0,
            still: 0,
            watchful_at: None,
            executed: 0,
            counts: vec![Count::default(); program.code.len()],
            observers,
            scratch: Scratch::default(),
            isa: Isa::best(),
        })
    }

    /// Gives every warp in flight a turn. `races` is that of all launches.
    pub(crate) fn turn(&mut self, memory: &mut Memory, races: &mut Option<Races>) -> Result<Turned, Fault> {
        std::mem::swap(&mut self.observers.races, races);
        let turned = self.turn_watched(memory);
        std::mem::swap(&mut self.observers.races, races);
        turned
    }

    fn turn_watched(&mut self, memory: &mut Memory) -> Result<Turned, Fault> {
        if self.resident.is_empty() && !self.admit(memory) {
            return Ok(Turned::Ended);
        }
        if self.several {
            // Blocks of several devices wait for each other: all are resident at once.
            while self.resident.len() < MAX_RESIDENT && self.admit(memory) {}
        }
        let mut went = Went::Nowhere;
        for at in 0..self.resident.len() {
            went = went.max(self.turn_of(at, memory)?);
        }
        if went == Went::Dozing {
            went = Went::On;
            self.still = if self.quiet_at == memory.changes { self.still + 1 } else { 0 };
            if self.still == STILL {
                // Nobody works: whoever waits looks, until something changes.
                self.still = 0;
                self.wake_all(memory.changes);
            }
        }
        if went == Went::On || self.quiet_at != memory.changes {
            (self.quiet, self.quiet_at) = (0, memory.changes);
        } else {
            self.quiet += 1;
        }
        let progress = went == Went::On || (went == Went::Round && self.quiet < QUIET);
        self.resident.retain(|cluster| !cluster.is_done() || !cluster.transfers.is_empty());
        self.turns += 1;
        if !progress {
            // What is pending happens as late as it can: now. Then other blocks may help.
            let transferred = self.transfer(memory)?;
            if !transferred && !self.resident.is_empty() && !self.admit(memory) {
                return Ok(Turned::Idle);
            }
        } else if self.turns.is_multiple_of(PATIENCE) {
            // A loop that polls counts as progress: what it waits for must happen all the same.
            self.transfer(memory)?;
            if self.resident.len() < MAX_RESIDENT {
                self.admit(memory);
            }
        }
        if self.executed > self.options.max_instructions {
            let text = format!("no end after {} instructions", self.executed);
            return Err(self.fault_of_first(text));
        }
        let ended = self.resident.is_empty() && self.waiting.is_empty();
        Ok(if ended { Turned::Ended } else { Turned::Moved })
    }

    fn wake_all(&mut self, changes: u64) {
        let blocks = self.resident.iter_mut().flat_map(|cluster| &mut cluster.blocks);
        blocks.flat_map(|block| block.warps.iter_mut().flatten()).for_each(|warp| warp.doze = 0);
        self.watchful_at = Some(changes);
    }

    fn admit(&mut self, memory: &mut Memory) -> bool {
        let Some(number) = self.waiting.pop() else { return false };
        memory.changes += 1;
        let grid: [u64; 3] =
            std::array::from_fn(|axis| u64::from(self.shape.grid[axis] / self.shape.cluster[axis]));
        let index = [number % grid[0], number / grid[0] % grid[1], number / grid[0] / grid[1]];
        let index = index.map(|value| value as u32);
        let fresh = &mut self.fresh;
        let watch = self.watch.as_ref().map(|watch| (self.device, watch));
        self.resident.push(Cluster::new(&self.program, &self.shape, &self.options, watch, index, fresh));
        true
    }

    fn env<'a>(&'a mut self, memory: &'a mut Memory, cluster: &'a mut Cluster, rank: usize) -> Env<'a> {
        Env {
            program: &self.program,
            device: self.several.then_some(self.device),
            several: self.several,
            shape: &self.shape,
            options: &self.options,
            memory,
            parameters: &mut self.parameters,
            cluster,
            rank,
            random: &mut self.random,
            counts: &mut self.counts,
            observers: &mut self.observers,
            pc: 0,
            scratch: &mut self.scratch,
            isa: self.isa,
        }
    }

    /// A turn of every warp of a cluster.
    fn turn_of(&mut self, at: usize, memory: &mut Memory) -> Result<Went, Fault> {
        let mut cluster = std::mem::replace(&mut self.resident[at], Cluster::placeholder());
        let result = self.turn_of_cluster(&mut cluster, memory);
        self.resident[at] = cluster;
        result
    }

    fn turn_of_cluster(&mut self, cluster: &mut Cluster, memory: &mut Memory) -> Result<Went, Fault> {
        let mut order: Vec<(usize, usize)> = cluster
            .blocks
            .iter()
            .enumerate()
            .flat_map(|(rank, block)| (0..block.warps.len()).map(move |warp| (rank, warp)))
            .collect();
        let mut budget = if self.several { TURN_OF_SEVERAL } else { TURN };
        if self.options.shuffle.is_some() {
            for at in (1..order.len()).rev() {
                order.swap(at, self.random.below(at as u32 + 1) as usize);
            }
            // Short turns of random length mix the warps.
            budget = 1 + self.random.below(64);
        }
        let mut went = Went::Nowhere;
        for (rank, index) in order {
            let Some(mut warp) = cluster.blocks[rank].warps[index].take() else { continue };
            if warp.is_blocked() {
                cluster.blocks[rank].warps[index] = Some(warp);
                continue;
            }
            if warp.doze > 0 {
                warp.doze -= 1;
                went = went.max(Went::Dozing);
                cluster.blocks[rank].warps[index] = Some(warp);
                continue;
            }
            if warp.rest > 0 {
                warp.rest -= 1;
                went = Went::On;
                cluster.blocks[rank].warps[index] = Some(warp);
                continue;
            }
            let (before, signals) = (warp.executed, memory.signals);
            let result = self.env(memory, cluster, rank).run(&mut warp, budget);
            self.executed += warp.executed - before;
            let (turn, moved) = result?;
            warp.end_turn(memory.changes);
            went = went.max(match moved {
                false => Went::Nowhere,
                true if warp.spin.is_stuck(memory.changes) => Went::Round,
                true => Went::On,
            });
            if self.options.shuffle.is_some() && memory.signals != signals && self.random.below(4) == 0 {
                warp.rest = 1 << self.random.below(8);
            }
            if self.options.shuffle.is_some()
                && warp.looks >= LOOKS
                && self.watchful_at != Some(memory.changes)
            {
                // Any order is one that may be: who waits mostly looks less often than others work, and now and then as often.
                let wide_awake = self.random.below(8) == 0;
                warp.doze = if wide_awake { 0 } else { self.random.below(DOZE) };
                warp.looks = if wide_awake { 0 } else { warp.looks };
            }
            if turn != Turn::Done {
                cluster.blocks[rank].warps[index] = Some(warp);
            }
        }
        Ok(went)
    }

    /// Does one pending load of each resident cluster, the oldest or a random one.
    fn transfer(&mut self, memory: &mut Memory) -> Result<bool, Fault> {
        let mut any = false;
        for at in 0..self.resident.len() {
            let pending = self.resident[at].transfers.len();
            if pending == 0 {
                continue;
            }
            let which = match self.options.shuffle {
                Some(_) => self.random.below(pending as u32) as usize,
                None => 0,
            };
            let transfer = self.resident[at].transfers.remove(which);
            let mut cluster = std::mem::replace(&mut self.resident[at], Cluster::placeholder());
            let result = self.env(memory, &mut cluster, 0).perform(&transfer);
            memory.changes += 1;
            let block = cluster.blocks[0].index;
            self.resident[at] = cluster;
            result.map_err(|trouble: Trouble| {
                self.fault_at(block, format!("a pending copy: {}", trouble.text))
            })?;
            any = true;
        }
        Ok(any)
    }

    fn fault_at(&self, block: [u32; 3], text: String) -> Fault {
        Fault {
            device: self.several.then_some(self.device),
            kernel: self.program.name.clone(),
            line: 0,
            opcode: String::new(),
            block,
            thread: None,
            text,
        }
    }

    pub(crate) fn device(&self) -> usize {
        self.device
    }

    pub(crate) fn executed(&self) -> u64 {
        self.executed
    }

    pub(crate) fn kernel(&self) -> &str {
        &self.program.name
    }

    pub(crate) fn fault_of_first(&self, text: String) -> Fault {
        let block =
            self.resident.first().and_then(|cluster| cluster.blocks.first()).map_or([0; 3], |b| b.index);
        self.fault_at(block, text)
    }

    /// Where each warp waits, and for what, if it reads the same memory again and again: those first.
    pub(crate) fn waits(&mut self, memory: &mut Memory) -> Vec<String> {
        let (mut polling, mut standing) = (Vec::new(), Vec::new());
        for at in 0..self.resident.len() {
            let polls = self.polls(at, memory);
            for (block, polls) in self.resident[at].blocks.iter().zip(polls) {
                let warps = block.warps.iter().zip(polls).enumerate();
                for (number, (warp, polls)) in warps {
                    let Some(warp) = warp else { continue };
                    let place = format!("block {:?} warp {number}", block.index);
                    if let Some(reads) = self.reads(&polls, memory) {
                        polling.push(format!("{place} reads {reads} again and again"));
                        continue;
                    }
                    for group in &warp.groups {
                        // A group at a barrier has gone past the instruction.
                        let pc = match group.state {
                            super::block::State::Barrier(_) => group.pc.saturating_sub(1),
                            _ => group.pc,
                        };
                        let (lanes, at) = (group.mask, self.instruction(pc));
                        standing.push(format!("{place} lanes {lanes:#010x} at {at}"));
                    }
                }
            }
        }
        polling.append(&mut standing);
        polling
    }

    fn instruction(&self, pc: u32) -> String {
        let line = self.program.code.get(pc as usize).map_or(0, |inst| inst.line);
        let opcode = self.program.opcodes.get(pc as usize).map_or("", String::as_str);
        format!("line {line} `{opcode}`")
    }

    /// What the warps of a cluster read, by block and warp. Those that only wait run on for that, which changes nothing.
    fn polls(&mut self, at: usize, memory: &mut Memory) -> Vec<Vec<Vec<(u32, Place)>>> {
        let mut cluster = std::mem::replace(&mut self.resident[at], Cluster::placeholder());
        let kept = std::mem::take(&mut self.observers);
        let mut polls: Vec<Vec<_>> =
            cluster.blocks.iter().map(|block| vec![Vec::new(); block.warps.len()]).collect();
        for _ in 0..QUIET {
            for (rank, polls) in polls.iter_mut().enumerate() {
                for (number, polls) in polls.iter_mut().enumerate() {
                    let Some(mut warp) = cluster.blocks[rank].warps[number].take() else { continue };
                    if warp.spin.is_stuck(memory.changes) && !warp.is_blocked() {
                        self.observers.polls = Some(std::mem::take(polls));
                        // A fault of it would be that of an earlier turn.
                        let _ = self.env(memory, &mut cluster, rank).run(&mut warp, POLL);
                        *polls = self.observers.polls.take().unwrap_or_default();
                    }
                    cluster.blocks[rank].warps[number] = Some(warp);
                }
            }
        }
        self.observers = kept;
        self.resident[at] = cluster;
        polls
    }

    /// The instructions that a warp reads by, in words; the first of each, those of global memory before others.
    fn reads(&self, polls: &[(u32, Place)], memory: &Memory) -> Option<String> {
        let mut seen: Vec<(u32, Place)> = Vec::new();
        for &poll in polls {
            if !seen.contains(&poll) {
                seen.push(poll);
            }
        }
        seen.sort_by_key(|(_, place)| matches!(place, Place::Shared(..)));
        let place = |place: Place| match place {
            Place::Global(address) => memory.describe(address).unwrap_or_else(|| {
                let device = memory.device_of(address).map_or(String::new(), |at| format!(" of device {at}"));
                format!("global memory at {address:#x}{device}")
            }),
            Place::Shared(rank, offset) => format!("shared memory of cluster rank {rank} at {offset:#x}"),
        };
        let read = |&(pc, at): &_| format!("{} by {}", place(at), self.instruction(pc));
        let reads: Vec<_> = seen.iter().take(2).map(read).collect();
        (!reads.is_empty()).then(|| reads.join(" and "))
    }

    /// What was counted, and what the next launch of the device begins with.
    pub(crate) fn end(self) -> (Report, Begin) {
        let known = self.observers.end.unwrap_or_default();
        (Report::new(self.program, self.counts, self.observers.profile), Begin { known, ..Begin::default() })
    }
}
