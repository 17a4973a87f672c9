//! A kernel ready to run: instructions with their operands resolved to slots.

use crate::execute::{Alu, Operands};
use crate::lower::Type;
use crate::matrix::tcgen05_mma::Tcgen05MmaSpec;
use crate::matrix::{
    LdMatrixSpec, MmaSpec, StMatrixSpec, TensorMemoryAccess, TensorMemoryCopy, WgmmaControl, WgmmaSpec,
};
use crate::text::{Directives, Space};
use crate::transfer::reduce::Reduction;
use crate::transfer::tensor_map::Field;
use crate::transfer::tile;

/// A lowered kernel.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) name: String,
    pub(crate) code: Vec<Inst>,
    /// Text of each instruction's opcode, for messages and counts.
    pub(crate) opcodes: Vec<String>,
    /// Slots of a warp's registers.
    pub(crate) slots: u32,
    /// Predicate registers; 0 is always true, 1 takes what is not wanted.
    pub(crate) predicates: u32,
    /// Slots that hold a constant from the start.
    pub(crate) constants: Vec<(u32, Constant)>,
    /// Bytes of the parameter block.
    pub(crate) parameter_bytes: u64,
    /// Bytes of static shared memory, from [`SHARED_START`] on.
    pub(crate) static_shared: u32,
    /// Bytes of local memory of a thread.
    pub(crate) local_bytes: u32,
    pub(crate) directives: Directives,
}

impl Program {
    /// Whether a way of the code leads from one instruction to another.
    pub(crate) fn leads(&self, from: u32, to: u32) -> bool {
        let (mut seen, mut open) = (vec![false; self.code.len()], vec![from]);
        while let Some(at) = open.pop() {
            if at == to {
                return true;
            }
            let Some(inst) = self.code.get(at as usize) else { continue };
            if std::mem::replace(&mut seen[at as usize], true) {
                continue;
            }
            let goes_on = match &inst.action {
                Action::Branch(target) => {
                    open.push(*target);
                    false
                }
                Action::BranchTable(targets) => {
                    open.extend(targets);
                    false
                }
                Action::Exit | Action::Trap => false,
                _ => true,
            };
            if goes_on || inst.guard != TRUE {
                open.push(at + 1);
            }
        }
        false
    }
}

/// First address of shared memory that a kernel's variables may take: the bytes below are the
/// system's, and a null pointer is never valid.
pub(crate) const SHARED_START: u32 = 1024;

/// Predicate that is always true.
pub(crate) const TRUE: u32 = 0;
/// Predicate that is written and never read.
pub(crate) const SINK: u32 = 1;

/// Content of a constant slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Constant {
    Narrow(u32),
    Wide(u64),
    /// A read-only register, as 32 or as 64 bits.
    Special(Special, bool),
    /// A byte of static shared memory by its offset, as 32 or as 64 bits.
    Shared(u32, bool),
    /// First byte of dynamic shared memory, as 32 or as 64 bits.
    DynamicShared(bool),
}

impl Constant {
    /// Whether it has 64 bits.
    pub(crate) fn is_wide(self) -> bool {
        match self {
            Self::Narrow(_) => false,
            Self::Wide(_) => true,
            Self::Special(_, wide) | Self::Shared(_, wide) | Self::DynamicShared(wide) => wide,
        }
    }
}

/// Read-only registers that do not change while a warp runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Special {
    Thread(usize),
    BlockShape(usize),
    Block(usize),
    GridShape(usize),
    Lane,
    Warp,
    NumWarps,
    Multiprocessor,
    NumMultiprocessors,
    Grid,
    LaneMask(LaneMask),
    BlockInCluster(usize),
    ClusterShape(usize),
    ClusterRank,
    ClusterSize,
    Cluster(usize),
    NumClusters(usize),
    IsExplicitCluster,
    DynamicSharedBytes,
    TotalSharedBytes,
    Zero,
}

/// `%lanemask_*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum LaneMask {
    Eq,
    Lt,
    Le,
    Gt,
    Ge,
}

/// An instruction.
#[derive(Debug)]
pub(crate) struct Inst {
    /// Guard: executes for lanes where `predicates[guard] ^ invert` is set.
    pub(crate) guard: u32,
    pub(crate) invert: u32,
    pub(crate) operands: Operands,
    pub(crate) action: Action,
    /// Line in the text.
    pub(crate) line: u32,
}

/// An address: register plus offset.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Address {
    pub(crate) slot: u32,
    /// Whether the register has 64 bits.
    pub(crate) wide: bool,
    pub(crate) offset: i64,
    pub(crate) space: Space,
}

/// A register of a load, store or matrix instruction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target {
    pub(crate) slot: u32,
    /// Bytes of the register: 4, 8 or 16; 0 = not wanted.
    pub(crate) bytes: u32,
}

/// What a memory operation orders. PTX ISA 9.0, section 8.4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ordering {
    /// Nothing: an ordinary access.
    Weak,
    /// `.relaxed`, `.volatile`, `.mmio`: no race with its like; orders together with a fence.
    Relaxed,
    Acquire,
    Release,
    AcquireRelease,
}

impl Ordering {
    pub(crate) fn is_strong(self) -> bool {
        self != Self::Weak
    }

    pub(crate) fn acquires(self) -> bool {
        matches!(self, Self::Acquire | Self::AcquireRelease)
    }

    pub(crate) fn releases(self) -> bool {
        matches!(self, Self::Release | Self::AcquireRelease)
    }
}

/// The threads that a strong operation or a fence speaks to, narrowest first. PTX ISA 9.0, section 8.5.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) enum Scope {
    /// The block.
    #[default]
    Block,
    Cluster,
    Device,
    /// All devices.
    System,
}

impl Scope {
    /// Scopes, narrowest first.
    pub(crate) const ALL: [Self; 4] = [Self::Block, Self::Cluster, Self::Device, Self::System];
}

/// What a fence orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fence {
    pub(crate) scope: Scope,
    pub(crate) acquires: bool,
    pub(crate) releases: bool,
}

/// A load or store of one or more elements.
#[derive(Debug)]
pub(crate) struct Access {
    pub(crate) address: Address,
    pub(crate) ty: Type,
    pub(crate) ordering: Ordering,
    /// Of a strong access.
    pub(crate) scope: Scope,
    pub(crate) registers: Vec<Target>,
}

/// Operations of `atom` and `red`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AtomicOp {
    Add,
    Min,
    Max,
    Inc,
    Dec,
    And,
    Or,
    Xor,
    Exchange,
    CompareAndSwap,
}

/// An atomic operation.
#[derive(Debug)]
pub(crate) struct Atomic {
    pub(crate) address: Address,
    pub(crate) op: AtomicOp,
    pub(crate) ty: Type,
    pub(crate) ordering: Ordering,
    pub(crate) scope: Scope,
    /// Old values; `None` for `red`.
    pub(crate) destinations: Option<Vec<Target>>,
    /// Operands, one per element.
    pub(crate) values: Vec<Target>,
    /// New values of `cas`.
    pub(crate) swap: Option<Target>,
}

/// A `multimem` instruction: an access to the same offset of one allocation on each of several devices.
#[derive(Debug)]
pub(crate) struct Multimem {
    pub(crate) kind: MultimemKind,
    /// An address of a multicast range.
    pub(crate) access: Access,
}

/// What a `multimem` instruction does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MultimemKind {
    /// Loads all copies and combines them.
    LoadReduce(AtomicOp),
    /// Stores one value to all copies.
    Store,
    /// Combines each copy with one value.
    Reduce(AtomicOp),
}

/// `shfl` modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShuffleMode {
    Up,
    Down,
    Butterfly,
    Index,
}

/// `vote` modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VoteMode {
    All,
    Any,
    Uniform,
    Ballot,
}

/// `redux.sync` operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Redux {
    AddU32,
    MinU32,
    MaxU32,
    MinS32,
    MaxS32,
    And,
    Or,
    Xor,
    MinF32 { abs: bool, nan: bool },
    MaxF32 { abs: bool, nan: bool },
}

/// Operations on an mbarrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MbarrierOp {
    Init,
    Invalidate,
    Arrive {
        drop: bool,
        expect: bool,
        no_complete: bool,
    },
    ExpectTx,
    CompleteTx,
    /// `test_wait` and `try_wait`.
    Wait {
        parity: bool,
        may_suspend: bool,
    },
    PendingCount,
}

/// A bulk copy.
#[derive(Debug)]
pub(crate) struct Bulk {
    pub(crate) kind: BulkKind,
    /// Shared-memory address.
    pub(crate) shared: Address,
    /// Mbarrier of a load.
    pub(crate) mbarrier: Option<Address>,
    /// `.multicast::cluster` mask, 16 bits.
    pub(crate) multicast: Option<u32>,
    /// `.cta_group::2`: the mbarrier may be in the other block of a pair.
    pub(crate) pair: bool,
    /// Reduction of `cp.reduce.async.bulk`.
    pub(crate) reduction: Option<Reduction>,
}

/// What a bulk copy moves.
#[derive(Debug)]
pub(crate) enum BulkKind {
    /// Global to shared memory: source, bytes.
    Load(Address, u32),
    /// Shared to global memory: destination, bytes; element type of a reduction.
    Store(Address, u32, Option<Type>),
    /// Shared memory to that of another block of the cluster: source, bytes.
    Between(Address, u32),
    /// A box of a tensor to shared memory: map, coordinates (narrow slots), tile mode.
    TensorLoad(Address, Vec<u32>, tile::Access),
    /// Shared memory to a box of a tensor.
    TensorStore(Address, Vec<u32>, tile::Access),
    /// Prefetch of global memory, bytes: checked, moves nothing.
    Prefetch(Address, u32),
}

/// What an instruction does.
#[derive(Debug)]
pub(crate) enum Action {
    /// Registers only.
    Alu(Alu),
    Branch(u32),
    /// `brx.idx`: index register in `a`.
    BranchTable(Box<[u32]>),
    /// `ret` of an entry, `exit`.
    Exit,
    Trap,
    /// Hints: no effect on values.
    Nop,
    /// `fence`, `membar`: no effect on values.
    Fence(Fence),
    /// Hints that another warp should run.
    Yield,
    Load(Box<Access>),
    Store(Box<Access>),
    Atomic(Box<Atomic>),
    Multimem(Box<Multimem>),
    /// `d`, `a` value, `b` lane, `c` clamp; `imm` low: predicate; member mask slot.
    Shuffle {
        mode: ShuffleMode,
        members: u32,
    },
    /// Destination predicate or, for a ballot, `d`; source predicate and its inversion.
    Vote {
        mode: VoteMode,
        members: u32,
        destination: u32,
        source: u32,
        invert: u32,
    },
    /// `match.any` or `.all`: `d`, `a`; predicate of `.all`.
    Match {
        all: bool,
        wide: bool,
        members: u32,
        predicate: u32,
    },
    Redux {
        op: Redux,
        members: u32,
    },
    /// `elect.sync d|p`.
    Elect {
        members: u32,
        predicate: u32,
    },
    ActiveMask,
    /// `bar.warp.sync`.
    WarpSync {
        members: u32,
    },
    /// `bar`, `barrier`: number in `a`, count in `b` if `counted`.
    Barrier {
        wait: bool,
        counted: bool,
        aligned: bool,
    },
    /// `bar.red`: predicate in, result `popc` in `d`, or predicate.
    BarrierReduce {
        op: BarrierReduction,
        counted: bool,
        source: u32,
        invert: u32,
        destination: u32,
    },
    ClusterArrive {
        aligned: bool,
        /// Orders only what a fence before it covers.
        relaxed: bool,
    },
    ClusterWait {
        aligned: bool,
    },
    /// `cp.async`: shared address, global address, bytes, source size register or ignore predicate.
    CopyAsync(Box<CopyAsync>),
    CopyCommit,
    /// Waits until so many groups are open.
    CopyWait(u32),
    CopyWaitAll,
    /// `cp.async.mbarrier.arrive`.
    CopyArrive {
        address: Address,
        noinc: bool,
    },
    /// `d`, count or bytes in `a`, parity or state in `b`; predicate of a wait.
    Mbarrier {
        op: MbarrierOp,
        address: Address,
        predicate: u32,
        count: Option<u32>,
        sink: bool,
    },
    Bulk(Box<Bulk>),
    BulkCommit,
    BulkWait {
        groups: u32,
        /// Waits for the reads of the sources only.
        read: bool,
    },
    /// Tensor map in memory, ordinal constant, new value in `a` or wide `b`.
    TensorMapReplace {
        address: Address,
        field: Field,
        ordinal: u32,
        wide: bool,
    },
    /// Copy of a tensor map: destination, source, bytes.
    TensorMapCopy {
        destination: Address,
        source: Address,
        bytes: u32,
    },
    /// `mapa`: address in `a`, rank in `b`.
    MapAddress {
        wide: bool,
    },
    /// `getctarank`: address in `a`.
    RankOfAddress {
        wide: bool,
    },
    /// `st.async`.
    StoreAsync {
        access: Box<Access>,
        mbarrier: Address,
    },
    LdMatrix {
        spec: Box<LdMatrixSpec>,
        address: Address,
        registers: Vec<u32>,
    },
    StMatrix {
        spec: Box<StMatrixSpec>,
        address: Address,
        registers: Vec<u32>,
    },
    MovMatrix,
    Mma(Box<Mma>),
    Wgmma(Box<Wgmma>),
    /// `wgmma.commit_group`.
    ProductCommit,
    /// `wgmma.wait_group`: waits until so many groups are open.
    ProductWait(u32),
    Tensor {
        tensor: Box<Tensor>,
        /// `.cta_group::2`: of a pair of blocks.
        pair: bool,
    },
    /// `d` = instructions so far of the warp, wide if set.
    Clock {
        wide: bool,
    },
}

impl Action {
    /// Whether it may change what other warps see. An atomic operation tells by itself.
    pub(crate) fn is_seen(&self) -> bool {
        match self {
            Self::Load(_) | Self::Atomic(_) | Self::Fence(_) | Self::Yield | Self::LdMatrix { .. } => false,
            Self::Multimem(multimem) => !matches!(multimem.kind, MultimemKind::LoadReduce(_)),
            Self::Shuffle { .. } | Self::Vote { .. } | Self::Match { .. } | Self::Redux { .. } => false,
            Self::Elect { .. } | Self::ActiveMask | Self::WarpSync { .. } | Self::Clock { .. } => false,
            Self::MapAddress { .. } | Self::RankOfAddress { .. } => false,
            Self::Mbarrier { op, .. } => !matches!(op, MbarrierOp::Wait { .. } | MbarrierOp::PendingCount),
            _ => true,
        }
    }

    /// Whether it is a release, or a part of one, that speaks to all devices.
    pub(crate) fn releases_to_all(&self) -> bool {
        match self {
            Self::Fence(fence) => fence.releases && fence.scope == Scope::System,
            Self::Store(access) => access.ordering.releases() && access.scope == Scope::System,
            Self::Atomic(atomic) => atomic.ordering.releases() && atomic.scope == Scope::System,
            Self::Multimem(multimem) => {
                multimem.access.ordering.releases() && multimem.access.scope == Scope::System
            }
            _ => false,
        }
    }

    /// Whether other threads may wait for what it writes.
    pub(crate) fn is_strong_write(&self) -> bool {
        match self {
            Self::Store(access) => access.ordering.is_strong(),
            Self::Atomic(_) => true,
            Self::Multimem(multimem) => {
                !matches!(multimem.kind, MultimemKind::LoadReduce(_)) && multimem.access.ordering.is_strong()
            }
            _ => false,
        }
    }
}

/// `bar.red` operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BarrierReduction {
    And,
    Or,
    Popc,
}

/// `cp.async`.
#[derive(Debug)]
pub(crate) struct CopyAsync {
    pub(crate) shared: Address,
    pub(crate) global: Address,
    pub(crate) bytes: u32,
    /// Slot with the bytes to read; the rest is zero.
    pub(crate) source_bytes: Option<u32>,
    /// Predicate under which nothing is read, with its inversion.
    pub(crate) ignore: Option<(u32, u32)>,
}

/// `mma.sync`.
#[derive(Debug)]
pub(crate) struct Mma {
    pub(crate) spec: MmaSpec,
    pub(crate) d: Vec<Target>,
    pub(crate) a: Vec<Target>,
    pub(crate) b: Vec<Target>,
    pub(crate) c: Vec<Target>,
    /// Scale registers and their byte and thread selectors (slots).
    pub(crate) scales: Option<[Scale; 2]>,
}

/// `wgmma.mma_async`.
#[derive(Debug)]
pub(crate) struct Wgmma {
    pub(crate) spec: WgmmaSpec,
    pub(crate) d: Vec<Target>,
    pub(crate) a: WgmmaOperand,
    /// Slot of B's descriptor.
    pub(crate) b: u32,
    /// Predicate and inversion of `scale-d`.
    pub(crate) scale_d: (u32, u32),
    /// The literal operands.
    pub(crate) control: WgmmaControl,
}

/// Operand A of `wgmma`.
#[derive(Debug)]
pub(crate) enum WgmmaOperand {
    Registers(Vec<Target>),
    /// Slot of the descriptor.
    Descriptor(u32),
}

/// A `tcgen05` instruction.
#[derive(Debug)]
pub(crate) enum Tensor {
    Allocate {
        address: Address,
        columns: u32,
    },
    /// Address in `a`.
    Deallocate {
        columns: u32,
    },
    Relinquish,
    Load {
        access: TensorMemoryAccess,
        address: Address,
        half_offset: u32,
        registers: Vec<u32>,
    },
    Store {
        access: TensorMemoryAccess,
        address: Address,
        half_offset: u32,
        registers: Vec<u32>,
    },
    Copy {
        copy: TensorMemoryCopy,
        address: Address,
        descriptor: u32,
    },
    Multiply {
        spec: Tcgen05MmaSpec,
        d: Address,
        a: TensorA,
        b: u32,
        instruction: u32,
        scales: Option<[Address; 2]>,
        accumulate: (u32, u32),
    },
    Commit {
        address: Address,
        /// `.multicast::cluster` mask, 16 bits.
        multicast: Option<u32>,
    },
}

/// Operand A of `tcgen05.mma`.
#[derive(Debug)]
pub(crate) enum TensorA {
    /// Slot of the descriptor.
    Descriptor(u32),
    Memory(Address),
}

/// A block-scale operand.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    pub(crate) register: u32,
    pub(crate) byte: u32,
    pub(crate) thread: u32,
}
