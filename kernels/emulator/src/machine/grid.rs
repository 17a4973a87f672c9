//! A launch: clusters in flight, and the order in which their warps run.

use std::sync::Arc;

use super::Options;
use super::cluster::{Cluster, Env, FreshRegisters, Turn};
use super::fault::{Fault, Trouble};
use super::matrix::Scratch;
use super::memory::{Memory, Region};
use super::observe::Observers;
use super::profile::{Count, Profiler, Report};
use super::race::Races;
use super::random::Random;
use crate::case::LaunchShape;
use crate::execute::Isa;
use crate::program::Program;

/// Instructions of a warp's turn.
const TURN: u32 = 4096;
/// Turns of the resident clusters after which another one is admitted: its blocks may be what the
/// resident ones wait for.
const PATIENCE: u32 = 64;
/// Clusters in flight at most.
const MAX_RESIDENT: usize = 1024;
/// Blocks of a grid at most; the order of all of them is kept.
const MAX_BLOCKS: u64 = 1 << 24;
/// Shared memory of a block at most, bytes: the largest of any architecture.
const MAX_SHARED: u32 = 232_448;

/// A launch that is being executed.
#[derive(Debug)]
pub(crate) struct Grid {
    program: Arc<Program>,
    shape: LaunchShape,
    options: Options,
    parameters: Region,
    random: Random,
    /// Clusters still to start, last first.
    waiting: Vec<u64>,
    resident: Vec<Cluster>,
    fresh: FreshRegisters,
    turns: u32,
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
        shape: LaunchShape,
        parameters: &[u8],
        options: &Options,
    ) -> Result<Self, Fault> {
        let refuse = |text: String| Fault {
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
        let races = match options.races {
            true => {
                let warps = blocks * u64::from(threads.unwrap_or(1).div_ceil(32));
                Some(
                    Races::new(warps)
                        .ok_or_else(|| refuse(format!("{warps} warps are too many for race detection")))?,
                )
            }
            false => None,
        };
        let clusters = blocks / u64::from(ranks.unwrap_or(1));
        let mut waiting: Vec<u64> = (0..clusters).rev().collect();
        let mut random = Random::new(options.shuffle.unwrap_or(0));
        if options.shuffle.is_some() {
            for at in (1..waiting.len()).rev() {
                waiting.swap(at, random.below(at as u32 + 1) as usize);
            }
        }
        Ok(Self {
            program: program.clone(),
            shape,
            options: options.clone(),
            parameters: Region::of(parameters.to_vec()),
            random,
            waiting,
            resident: Vec::new(),
            fresh: FreshRegisters::default(),
            turns: 0,
            executed: 0,
            counts: vec![Count::default(); program.code.len()],
            observers: Observers::new(races, options.profile.then(|| Profiler::new(program.code.len()))),
            scratch: Scratch::default(),
            isa: Isa::best(),
        })
    }

    /// Gives every warp in flight a turn; true when the grid has ended.
    pub(crate) fn turn(&mut self, memory: &mut Memory) -> Result<bool, Fault> {
        if self.resident.is_empty() && !self.admit() {
            return Ok(true);
        }
        let mut progress = false;
        for at in 0..self.resident.len() {
            progress |= self.turn_of(at, memory)?;
        }
        self.resident.retain(|cluster| !cluster.is_done() || !cluster.transfers.is_empty());
        self.turns += 1;
        if !progress {
            // What is pending happens as late as it can: now. Then other blocks may help.
            let transferred = self.transfer(memory)?;
            if !transferred && !self.resident.is_empty() && !self.admit() {
                return Err(self.deadlock());
            }
        } else if self.turns.is_multiple_of(PATIENCE) {
            // A loop that polls counts as progress: what it waits for must happen all the same.
            self.transfer(memory)?;
            if self.resident.len() < MAX_RESIDENT {
                self.admit();
            }
        }
        if self.executed > self.options.max_instructions {
            let text = format!("no end after {} instructions", self.executed);
            return Err(self.fault_of_first(text));
        }
        Ok(self.resident.is_empty() && self.waiting.is_empty())
    }

    fn admit(&mut self) -> bool {
        let Some(number) = self.waiting.pop() else { return false };
        let grid: [u64; 3] =
            std::array::from_fn(|axis| u64::from(self.shape.grid[axis] / self.shape.cluster[axis]));
        let index = [number % grid[0], number / grid[0] % grid[1], number / grid[0] / grid[1]];
        let index = index.map(|value| value as u32);
        let fresh = &mut self.fresh;
        self.resident.push(Cluster::new(&self.program, &self.shape, &self.options, index, fresh));
        true
    }

    fn env<'a>(&'a mut self, memory: &'a mut Memory, cluster: &'a mut Cluster, rank: usize) -> Env<'a> {
        Env {
            program: &self.program,
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

    /// A turn of every warp of a cluster; whether anything happened.
    fn turn_of(&mut self, at: usize, memory: &mut Memory) -> Result<bool, Fault> {
        let placeholder =
            Cluster { blocks: Vec::new(), arrived: 0, live: 0, phase: 0, transfers: Vec::new() };
        let mut cluster = std::mem::replace(&mut self.resident[at], placeholder);
        let result = self.turn_of_cluster(&mut cluster, memory);
        self.resident[at] = cluster;
        result
    }

    fn turn_of_cluster(&mut self, cluster: &mut Cluster, memory: &mut Memory) -> Result<bool, Fault> {
        let mut order: Vec<(usize, usize)> = cluster
            .blocks
            .iter()
            .enumerate()
            .flat_map(|(rank, block)| (0..block.warps.len()).map(move |warp| (rank, warp)))
            .collect();
        let mut budget = TURN;
        if self.options.shuffle.is_some() {
            for at in (1..order.len()).rev() {
                order.swap(at, self.random.below(at as u32 + 1) as usize);
            }
            // Short turns of random length mix the warps.
            budget = 1 + self.random.below(64);
        }
        let mut progress = false;
        for (rank, index) in order {
            let Some(mut warp) = cluster.blocks[rank].warps[index].take() else { continue };
            if warp.is_blocked() {
                cluster.blocks[rank].warps[index] = Some(warp);
                continue;
            }
            let before = warp.executed;
            let result = self.env(memory, cluster, rank).run(&mut warp, budget);
            self.executed += warp.executed - before;
            let (turn, moved) = result?;
            progress |= moved;
            if turn != Turn::Done {
                cluster.blocks[rank].warps[index] = Some(warp);
            }
        }
        Ok(progress)
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
            let placeholder =
                Cluster { blocks: Vec::new(), arrived: 0, live: 0, phase: 0, transfers: Vec::new() };
            let mut cluster = std::mem::replace(&mut self.resident[at], placeholder);
            let result = self.env(memory, &mut cluster, 0).perform(&transfer);
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
        Fault { kernel: self.program.name.clone(), line: 0, opcode: String::new(), block, thread: None, text }
    }

    fn fault_of_first(&self, text: String) -> Fault {
        let block =
            self.resident.first().and_then(|cluster| cluster.blocks.first()).map_or([0; 3], |b| b.index);
        self.fault_at(block, text)
    }

    fn deadlock(&self) -> Fault {
        let mut places = Vec::new();
        for block in self.resident.iter().flat_map(|cluster| &cluster.blocks) {
            for warp in block.warps.iter().flatten() {
                for group in &warp.groups {
                    // A group at a barrier has gone past the instruction.
                    let at = match group.state {
                        super::block::State::Barrier(_) => group.pc.saturating_sub(1),
                        _ => group.pc,
                    };
                    let line = self.program.code.get(at as usize).map_or(0, |inst| inst.line);
                    let opcode = self.program.opcodes.get(at as usize).map_or("", String::as_str);
                    places.push(format!(
                        "block {:?} warp {} lanes {:#010x} at line {line} `{opcode}`",
                        block.index, warp.index, group.mask
                    ));
                }
            }
        }
        places.truncate(16);
        self.fault_of_first(format!("nothing can go on: {}", places.join("; ")))
    }

    pub(crate) fn report(self) -> Report {
        Report::new(self.program, self.counts, self.observers.profile)
    }
}
