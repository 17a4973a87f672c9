//! Races: accesses of different warps that nothing orders.
//!
//! Every warp has a vector clock. Barriers, mbarriers, atomics with an ordering, fences and waits for
//! copies pass knowledge from clock to clock; two accesses to the same bytes race if neither is known
//! to the other's warp, at least one writes, and not both are strong (atomic, relaxed or volatile).
//! What is found does not depend on the order in which warps run, nor on when copies happen.
//!
//! - The lanes of a warp share a clock: they are ordered by the text.
//! - A bulk copy into shared memory is an action of the mbarrier that it reports to, in the phase that
//!   runs when it is issued. Other copies are in flight until their thread waits for their group.
//! - `wgmma` and `tcgen05` read shared memory until their group is waited for, or until the phase ends of
//!   the mbarrier that their commit arrives on. Tensor memory and registers are not watched.
//! - Two writes of one value to one place do not race with each other: compilers let warps with the
//!   same value store it.
//! - Scopes are not told apart, nor is the asynchronous proxy.

mod accesses;
mod clock;
mod copies;
mod shadow;
mod synchronize;

use std::collections::HashMap;

use super::pending::Groups;
use clock::{Clock, Epoch, IN_FLIGHT, Known};
use shadow::Shadow;
pub(crate) use shadow::WRITE;

/// Concurrent accesses to a word of global memory that are kept, beside two.
const GLOBAL_LIMIT: usize = 14;
/// The same for shared memory: no less than a cluster has warps.
const SHARED_LIMIT: usize = 512;

/// Race detection of a launch.
#[derive(Debug)]
pub(crate) struct Races {
    /// Global memory.
    shadow: Shadow,
    /// What releases have left at an address of global memory.
    locks: HashMap<u64, Clock>,
    /// The next agent of an mbarrier or of products; those of the warps are below.
    next_agent: u32,
}

impl Races {
    /// Detection for a grid of so many warps; `None` if they cannot be told apart.
    pub(crate) fn new(warps: u64) -> Option<Self> {
        let next_agent = u32::try_from(warps).ok().filter(|&warps| warps < IN_FLIGHT)?;
        Some(Self { shadow: Shadow::new(GLOBAL_LIMIT), locks: HashMap::new(), next_agent })
    }

    fn new_agent(&mut self) -> u32 {
        self.next_agent += 1;
        self.next_agent - 1
    }
}

/// What race detection knows of a block.
#[derive(Debug)]
pub(crate) struct BlockWatch {
    /// Shared memory.
    shadow: Shadow,
    /// What releases have left at an address of shared memory.
    locks: HashMap<u32, Clock>,
    /// Arrivals at the named barriers.
    barriers: [Known; 16],
    mbarriers: HashMap<u32, MbarrierWatch>,
    /// Arrivals at the cluster's barrier by phase, modulo 2; used in the first block of a cluster.
    cluster: [(u64, Known); 2],
}

impl BlockWatch {
    pub(crate) fn new() -> Box<Self> {
        Box::new(Self {
            shadow: Shadow::new(SHARED_LIMIT),
            locks: HashMap::new(),
            barriers: Default::default(),
            mbarriers: HashMap::new(),
            cluster: Default::default(),
        })
    }
}

impl BlockWatch {
    /// The arrivals at a named barrier that is complete.
    pub(crate) fn take_barrier(&mut self, number: u32) -> Known {
        std::mem::take(&mut self.barriers[number as usize])
    }
}

#[derive(Debug)]
struct MbarrierWatch {
    /// The agent of the copies that report to it. Its time is the number of phases that ended.
    agent: u32,
    phases: u32,
    /// Arrivals of the running phase.
    running: Known,
    /// Arrivals of the phases that ended.
    ended: Known,
}

/// What race detection knows of a warp.
#[derive(Debug)]
pub(crate) struct WarpWatch {
    agent: u32,
    known: Known,
    /// What relaxed reads have met; known from the next fence on.
    relaxed: Clock,
    /// Agent of the products, from the first on, and how many groups of them ended with a commit.
    products: Option<u32>,
    groups: u32,
    /// Copies in flight that were issued so far.
    issued: u32,
    /// `cp.async`.
    copies: Groups<Open>,
    /// Sources and destinations of bulk stores.
    sources: Groups<Open>,
    results: Groups<Open>,
}

impl WarpWatch {
    pub(crate) fn new(agent: u32) -> Box<Self> {
        let mut known = Known::default();
        known.seen.learn(Epoch { agent, time: 1 });
        Box::new(Self {
            agent,
            known,
            relaxed: Clock::default(),
            products: None,
            groups: 0,
            issued: 0,
            copies: Groups::default(),
            sources: Groups::default(),
            results: Groups::default(),
        })
    }

    /// The present.
    fn now(&self) -> Epoch {
        Epoch { agent: self.agent, time: self.known.seen.get(self.agent) }
    }

    /// Ends the present after a release: what follows is not part of it.
    fn tick(&mut self) {
        let now = self.now();
        self.known.seen.learn(Epoch { time: now.time + 1, ..now });
    }

    /// The epoch of a new copy in flight.
    fn in_flight(&mut self) -> Epoch {
        self.issued = (self.issued + 1) % IN_FLIGHT;
        Epoch { agent: self.agent, time: IN_FLIGHT + self.issued }
    }

    /// `fence`.
    pub(crate) fn fence(&mut self) {
        self.known.seen.join(&self.relaxed);
        self.known.fenced.join(&self.known.seen);
        self.tick();
    }

    /// Passes on what is known.
    fn release(&mut self, to: &mut Known) {
        to.join(&self.known);
        self.tick();
    }

    /// Learns what was passed on.
    pub(crate) fn acquire(&mut self, from: &Known) {
        self.known.join(from);
    }
}

/// A place in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Global(u64),
    /// Rank of the block in the cluster, offset in its shared memory.
    Shared(usize, u32),
}

/// Bytes of a copy in flight.
#[derive(Debug, Clone, Copy)]
struct Open {
    lane: u32,
    place: Place,
    bytes: u32,
    epoch: Epoch,
}
