//! Blocks that share memory, and the loop that runs a warp.

use super::access::map_shared;
use super::block::{Barrier, Block, Group, State, Warp};
use super::fault::{Fault, Trouble};
use super::matrix::Scratch;
use super::memory::{Memory, Region};
use super::observe::Observers;
use super::pending::{Pending, Transfer};
use super::profile::Count;
use super::race::{BlockWatch, LaunchWatch};
use super::random::Random;
use super::spin::Spin;
use super::{Asynchrony, Options};
use crate::case::LaunchShape;
use crate::execute::{Isa, Pattern, Registers};
use crate::lower::dynamic_shared_start;
use crate::program::{Action, Constant, Inst, LaneMask, Program, SHARED_START, SINK, Special, TRUE};

/// A cluster: at least one block.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) blocks: Vec<Block>,
    /// Threads that arrived at the cluster's barrier, threads that have not exited, and the phase.
    pub(crate) arrived: u32,
    pub(crate) live: u32,
    pub(crate) phase: u64,
    /// Loads that report to an mbarrier, oldest first.
    pub(crate) transfers: Vec<Transfer>,
}

/// What an instruction leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    Next,
    /// Nothing happened: to be tried again after others ran.
    Wait,
    /// Done, and so are other lanes of the warp: those at one place become one group again.
    Join,
    /// Done, and another warp should run.
    Yield,
    /// At a barrier of the block.
    Barrier(u32),
}

/// How a turn of a warp ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// All lanes exited.
    Done,
    /// Nothing more can happen now.
    Blocked,
    /// The turn's instructions are used up.
    Running,
}

/// What a turn needs beside the warp.
pub(crate) struct Env<'a> {
    pub(crate) program: &'a Program,
    /// The device, where there are several.
    pub(crate) device: Option<usize>,
    /// Whether there are other queues of launches. A turn then ends with a strong write, so that others come
    /// between it and what follows.
    pub(crate) several: bool,
    pub(crate) shape: &'a LaunchShape,
    pub(crate) options: &'a Options,
    pub(crate) memory: &'a mut Memory,
    pub(crate) parameters: &'a mut Region,
    pub(crate) cluster: &'a mut Cluster,
    /// Rank of the warp's block in the cluster.
    pub(crate) rank: usize,
    pub(crate) random: &'a mut Random,
    /// Executions of each instruction.
    pub(crate) counts: &'a mut [Count],
    pub(crate) observers: &'a mut Observers,
    /// Index of the instruction, where it is more than registers and control flow.
    pub(crate) pc: u32,
    pub(crate) scratch: &'a mut Scratch,
    pub(crate) isa: Isa,
}

pub(crate) type Step<T = Flow> = Result<T, Trouble>;

impl Cluster {
    /// The cluster with this index in a grid of clusters; `fresh` is kept from one to the next.
    pub(crate) fn new(
        program: &Program,
        shape: &LaunchShape,
        options: &Options,
        watch: Option<(usize, &LaunchWatch)>,
        index: [u32; 3],
        fresh: &mut FreshRegisters,
    ) -> Self {
        let [cx, cy, cz] = shape.cluster;
        let ranks = cx * cy * cz;
        let threads: u32 = shape.block.iter().product();
        let blocks = (0..ranks)
            .map(|rank| {
                let inside = [rank % cx, rank / cx % cy, rank / cx / cy];
                let block: [u32; 3] =
                    std::array::from_fn(|axis| index[axis] * shape.cluster[axis] + inside[axis]);
                new_block(program, shape, options, watch, block, inside, rank, fresh)
            })
            .collect();
        Self { blocks, arrived: 0, live: threads * ranks, phase: 0, transfers: Vec::new() }
    }

    /// Stands in the place of a cluster whose turn it is.
    pub(crate) fn placeholder() -> Self {
        Self { blocks: Vec::new(), arrived: 0, live: 0, phase: 0, transfers: Vec::new() }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.blocks.iter().all(Block::is_done)
    }

    /// Counts the arrivals at the cluster's barrier.
    pub(crate) fn arrive(&mut self, threads: u32) {
        self.arrived += threads;
        self.complete();
    }

    pub(crate) fn complete(&mut self) {
        if self.arrived > 0 && self.arrived >= self.live {
            self.arrived = 0;
            self.phase += 1;
        }
    }
}

fn new_block(
    program: &Program,
    shape: &LaunchShape,
    options: &Options,
    watch: Option<(usize, &LaunchWatch)>,
    index: [u32; 3],
    inside: [u32; 3],
    rank: u32,
    fresh: &mut FreshRegisters,
) -> Block {
    let threads: u32 = shape.block.iter().product();
    let number = index[0] + shape.grid[0] * (index[1] + shape.grid[1] * index[2]);
    let [wide, high] = [0, 1].map(|axis| shape.grid[axis] / shape.cluster[axis]);
    let [x, y, z] = std::array::from_fn(|axis| index[axis] / shape.cluster[axis]);
    let (block, cluster) = (number, x + wide * (y + high * z));
    let dynamic = dynamic_shared_start(program.static_shared);
    let shared_bytes = if shape.dynamic_shared_bytes > 0 {
        dynamic + shape.dynamic_shared_bytes
    } else {
        SHARED_START + program.static_shared
    };
    let warps = (0..threads.div_ceil(32))
        .map(|number| {
            let live = match threads - number * 32 {
                rest @ 0..32 => (1 << rest) - 1,
                _ => u32::MAX,
            };
            let set = |registers: &mut Registers, slot: u32, constant: Constant| {
                let value = |lane: u32| match constant {
                    Constant::Narrow(value) => u64::from(value),
                    Constant::Wide(value) => value,
                    Constant::Shared(offset, _) => u64::from(map_shared(offset, rank)),
                    Constant::DynamicShared(_) => u64::from(map_shared(dynamic, rank)),
                    Constant::Special(special, _) => {
                        special_value(special, shape, index, inside, rank, number, lane, shared_bytes)
                    }
                };
                set_constant(registers, slot, constant, value);
            };
            let registers = fresh.of(rank, number).get_or_insert_with(|| {
                let seed = options.noise.map(|seed| seed ^ u64::from(number) << 32 ^ u64::from(rank) << 48);
                let pattern = seed.map_or(Pattern::Zero, Pattern::Noise);
                let mut registers = Registers::new(program.slots, program.predicates, pattern);
                registers.predicates[TRUE as usize] = u32::MAX;
                registers.predicates[SINK as usize] = 0;
                program.constants.iter().for_each(|&(slot, constant)| set(&mut registers, slot, constant));
                registers
            });
            let mut registers = registers.clone();
            for &(slot, constant) in &program.constants {
                if let Constant::Special(special, _) = constant
                    && is_of_block(special)
                {
                    set(&mut registers, slot, constant);
                }
            }
            Some(Box::new(Warp {
                index: number,
                registers,
                groups: vec![Group { pc: 0, mask: live, state: State::Ready }],
                live,
                executed: 0,
                local: Region::new(32 * program.local_bytes as usize),
                pending: Pending::default(),
                cluster_phase: 0,
                watch: watch.map(|(device, launch)| {
                    launch.warp(block * threads.div_ceil(32) + number, device, cluster, block)
                }),
                spin: Spin::default(),
                rest: 0,
                doze: 0,
                looks: 0,
                cluster_arrived: 0,
            }))
        })
        .collect();
    Block {
        index,
        shared: Region::new(shared_bytes as usize),
        warps,
        barriers: std::array::from_fn(|_| Barrier::default()),
        live: threads,
        tensor_memory: None,
        watch: watch.map(|_| BlockWatch::new()),
    }
}

/// Registers as warps of a launch begin with them, by rank in the cluster and number in the block; made when first asked for. They differ
/// between blocks in what [`is_of_block`] alone.
#[derive(Debug, Default)]
pub(crate) struct FreshRegisters(Vec<Vec<Option<Registers>>>);

impl FreshRegisters {
    fn of(&mut self, rank: u32, number: u32) -> &mut Option<Registers> {
        let (rank, number) = (rank as usize, number as usize);
        if self.0.len() <= rank {
            self.0.resize_with(rank + 1, Vec::new);
        }
        let warps = &mut self.0[rank];
        if warps.len() <= number {
            warps.resize(number + 1, None);
        }
        &mut warps[number]
    }
}

/// Whether a value depends on which block it is read in, beside the block's rank in its cluster.
fn is_of_block(special: Special) -> bool {
    matches!(special, Special::Block(_) | Special::Cluster(_) | Special::Multiprocessor)
}

fn set_constant(registers: &mut Registers, slot: u32, constant: Constant, value: impl Fn(u32) -> u64) {
    let wide = constant.is_wide();
    let by_lane =
        matches!(constant, Constant::Special(Special::Thread(_) | Special::Lane | Special::LaneMask(_), _));
    let first = value(0);
    match (wide, by_lane) {
        (false, false) => *registers.narrow_mut(slot) = [first as u32; 32],
        (true, false) => *registers.wide_mut(slot) = [first; 32],
        (false, true) => *registers.narrow_mut(slot) = std::array::from_fn(|lane| value(lane as u32) as u32),
        (true, true) => *registers.wide_mut(slot) = std::array::from_fn(|lane| value(lane as u32)),
    }
}

fn special_value(
    special: Special,
    shape: &LaunchShape,
    block: [u32; 3],
    inside: [u32; 3],
    rank: u32,
    warp: u32,
    lane: u32,
    shared_bytes: u32,
) -> u64 {
    let thread = warp * 32 + lane;
    let [x, y, _] = shape.block;
    let linear = block[0] + shape.grid[0] * (block[1] + shape.grid[1] * block[2]);
    u64::from(match special {
        Special::Thread(0) => thread % x,
        Special::Thread(1) => thread / x % y,
        Special::Thread(_) => thread / x / y,
        Special::BlockShape(axis) => shape.block[axis],
        Special::Block(axis) => block[axis],
        Special::GridShape(axis) => shape.grid[axis],
        Special::Lane => lane,
        Special::Warp => warp,
        Special::NumWarps => shape.block.iter().product::<u32>().div_ceil(32),
        Special::Multiprocessor => linear % NUM_MULTIPROCESSORS,
        Special::NumMultiprocessors => NUM_MULTIPROCESSORS,
        Special::LaneMask(mask) => {
            let own = 1u32 << lane;
            match mask {
                LaneMask::Eq => own,
                LaneMask::Lt => own - 1,
                LaneMask::Le => own | (own - 1),
                LaneMask::Gt => !(own | (own - 1)),
                LaneMask::Ge => !(own - 1),
            }
        }
        Special::BlockInCluster(axis) => inside[axis],
        Special::ClusterShape(axis) => shape.cluster[axis],
        Special::ClusterRank => rank,
        Special::ClusterSize => shape.cluster.iter().product(),
        Special::Cluster(axis) => block[axis] / shape.cluster[axis],
        Special::NumClusters(axis) => shape.grid[axis] / shape.cluster[axis],
        Special::IsExplicitCluster => u32::from(shape.cluster != [1; 3]),
        Special::DynamicSharedBytes => shape.dynamic_shared_bytes,
        Special::TotalSharedBytes => shared_bytes,
        Special::Grid | Special::Zero => 0,
    })
}

/// Multiprocessors that a device claims to have.
const NUM_MULTIPROCESSORS: u32 = 132;

impl Env<'_> {
    pub(crate) fn block(&mut self) -> &mut Block {
        &mut self.cluster.blocks[self.rank]
    }

    /// Runs a warp for at most `budget` instructions.
    pub(crate) fn run(&mut self, warp: &mut Warp, budget: u32) -> Result<(Turn, bool), Fault> {
        let mut left = budget;
        let mut progress = false;
        loop {
            let Some(at) = warp.choose() else {
                let turn = if warp.groups.is_empty() { Turn::Done } else { Turn::Blocked };
                return Ok((turn, progress));
            };
            let Group { mut pc, mask, .. } = warp.groups[at];
            // Groups at a higher pc are met when this one gets there.
            let meet = warp
                .groups
                .iter()
                .map(|group| group.pc)
                .filter(|&other| other > pc)
                .min()
                .unwrap_or(u32::MAX);
            loop {
                let Some(inst) = self.program.code.get(pc as usize) else {
                    return Err(self.fault(warp, pc, "the code ends without `ret`".into()));
                };
                let exec = mask & (warp.registers.predicates[inst.guard as usize] ^ inst.invert);
                let count = &mut self.counts[pc as usize];
                count.warps += 1;
                count.lanes += if exec == u32::MAX { 32 } else { u64::from(exec.count_ones()) };
                warp.executed += 1;
                match &inst.action {
                    Action::Alu(run) => {
                        if exec != 0 {
                            // SAFETY: the operation was picked for an instruction set that this
                            // machine has.
                            unsafe { run(&mut warp.registers, &inst.operands, exec) };
                        }
                        pc += 1;
                    }
                    Action::Branch(target) => {
                        if exec == mask {
                            pc = *target;
                        } else if exec == 0 {
                            pc += 1;
                        } else {
                            warp.groups[at] = Group { pc: pc + 1, mask: mask & !exec, state: State::Ready };
                            warp.groups.push(Group { pc: *target, mask: exec, state: State::Ready });
                            progress = true;
                            left = left.saturating_sub(1);
                            break;
                        }
                    }
                    Action::BranchTable(targets) => {
                        let index = *warp.registers.narrow(inst.operands.a);
                        warp.groups.remove(at);
                        for lane in (0..32).filter(|lane| mask >> lane & 1 == 1) {
                            let pc = match targets.get(index[lane as usize] as usize) {
                                _ if exec >> lane & 1 == 0 => pc + 1,
                                Some(&target) => target,
                                None => {
                                    let text = format!(
                                        "index {} of {} targets",
                                        index[lane as usize],
                                        targets.len()
                                    );
                                    return Err(self.fault(warp, pc, Trouble { lane: Some(lane), text }));
                                }
                            };
                            // `choose` joins the lanes again.
                            warp.groups.push(Group { pc, mask: 1 << lane, state: State::Ready });
                        }
                        progress = true;
                        left = left.saturating_sub(1);
                        if left == 0 {
                            return Ok((Turn::Running, true));
                        }
                        break;
                    }
                    Action::Exit => {
                        self.memory.changes += 1;
                        self.exit(warp, exec).map_err(|trouble| self.fault(warp, pc, trouble))?;
                        progress = true;
                        if exec == mask {
                            warp.groups.remove(at);
                            break;
                        }
                        warp.groups[at].mask = mask & !exec;
                        warp.groups[at].pc = pc + 1;
                        break;
                    }
                    Action::Nop => pc += 1,
                    _ if exec == 0 => pc += 1,
                    _ => {
                        self.pc = pc;
                        if self.observers.is_watching() {
                            self.observe(warp, inst, exec)
                                .map_err(|trouble| self.fault(warp, pc, trouble))?;
                        }
                        if let Some(device) = self.device
                            && !self.memory.late.is_empty()
                        {
                            self.arrive_before(warp, inst, exec, device);
                        }
                        // A loop that waits may tell its block again and again that nothing has come.
                        let same = match &inst.action {
                            Action::Store(access) if self.several => self.is_stored(warp, access, exec),
                            _ => false,
                        };
                        let flow = self
                            .execute(warp, inst, exec, mask)
                            .map_err(|trouble| self.fault(warp, pc, trouble))?;
                        match flow {
                            Flow::Next => {
                                pc += 1;
                                self.memory.changes += u64::from(inst.action.is_seen() && !same);
                                if self.several && inst.action.is_strong_write() {
                                    self.memory.signals += 1;
                                    left = 1;
                                }
                            }
                            Flow::Wait => {
                                // It did not run.
                                let count = &mut self.counts[pc as usize];
                                count.warps -= 1;
                                count.lanes -= u64::from(exec.count_ones());
                                let group = &mut warp.groups[at];
                                group.pc = pc;
                                group.state = State::Parked;
                                if warp
                                    .groups
                                    .iter()
                                    .any(|g| matches!(g.state, State::Ready | State::Yielded))
                                {
                                    break;
                                }
                                return Ok((Turn::Blocked, progress));
                            }
                            Flow::Join => {
                                warp.groups[at] = Group { pc: pc + 1, mask, state: State::Ready };
                                progress = true;
                                left = left.saturating_sub(1);
                                if left == 0 {
                                    return Ok((Turn::Running, true));
                                }
                                break;
                            }
                            Flow::Yield => {
                                // The warp's other lanes go on before the next attempt.
                                warp.groups[at] = Group { pc: pc + 1, mask, state: State::Yielded };
                                return Ok((Turn::Running, true));
                            }
                            Flow::Barrier(number) => {
                                progress = true;
                                let group = &mut warp.groups[at];
                                if exec != mask {
                                    group.mask = mask & !exec;
                                    group.pc = pc + 1;
                                    warp.groups.push(Group {
                                        pc: pc + 1,
                                        mask: exec,
                                        state: State::Barrier(number),
                                    });
                                } else {
                                    group.pc = pc + 1;
                                    group.state = State::Barrier(number);
                                }
                                self.complete_barrier(warp, number);
                                break;
                            }
                        }
                    }
                }
                progress = true;
                left = left.saturating_sub(1);
                if left == 0 || pc >= meet {
                    warp.groups[at].pc = pc;
                    if left == 0 {
                        return Ok((Turn::Running, true));
                    }
                    break;
                }
            }
        }
    }

    /// Ends lanes: their copies happen, and barriers stop waiting for them.
    fn exit(&mut self, warp: &mut Warp, lanes: u32) -> Step<()> {
        for transfer in warp.pending.copies.due(lanes, None) {
            self.perform(&transfer)?;
        }
        for transfer in warp.pending.stores.due(lanes, None) {
            self.perform(&transfer)?;
        }
        self.race_exit(warp, lanes)?;
        warp.live &= !lanes;
        if warp.live == 0
            && let (Some(end), Some(watch)) = (&mut self.observers.end, &warp.watch)
        {
            end.join(watch.end());
        }
        let count = lanes.count_ones();
        self.block().live -= count;
        self.cluster.live -= count;
        // Lanes that had arrived no longer count beside those that live.
        if warp.cluster_phase == self.cluster.phase {
            self.cluster.arrived -= (warp.cluster_arrived & lanes).count_ones();
            warp.cluster_arrived &= !lanes;
        }
        self.cluster.complete();
        for number in 0..16 {
            self.complete_barrier(warp, number);
        }
        Ok(())
    }

    /// Whether transfers happen when they are issued.
    pub(crate) fn happens_at_issue(&mut self) -> bool {
        match self.options.asynchrony {
            Asynchrony::Issue => true,
            Asynchrony::Late => false,
            Asynchrony::Random => self.random.below(2) == 0,
        }
    }

    /// Gives a reason its place.
    pub(crate) fn fault(&self, warp: &Warp, pc: u32, trouble: Trouble) -> Fault {
        let [x, y, _] = self.shape.block;
        let thread = trouble.lane.map(|lane| {
            let thread = warp.index * 32 + lane;
            [thread % x, thread / x % y, thread / x / y]
        });
        Fault {
            device: self.device,
            kernel: self.program.name.clone(),
            line: self.program.code.get(pc as usize).map_or(0, |inst: &Inst| inst.line),
            opcode: self.program.opcodes.get(pc as usize).cloned().unwrap_or_default(),
            block: self.cluster.blocks[self.rank].index,
            thread,
            text: trouble.text,
        }
    }
}
