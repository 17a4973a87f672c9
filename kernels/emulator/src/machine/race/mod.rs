//! Races: accesses of different warps that nothing orders.
//!
//! Every warp of every launch has a vector clock. Barriers, mbarriers, atomics with an ordering, fences,
//! waits for copies and the end of a launch before the next one of its device pass knowledge from clock to
//! clock; two accesses to the same bytes race if neither is known to the other's warp, at least one writes,
//! and not both are strong (atomic, relaxed or volatile) with scopes that include each other's thread.
//! What is found does not depend on the order in which warps run, nor on when copies happen, as long as
//! the same values are read.
//!
//! - The lanes of a warp share a clock: they are ordered by the text.
//! - A bulk copy into shared memory is an action of the mbarrier that it reports to, in the phase that
//!   runs when it is issued. Other copies are in flight until their thread waits for their group.
//! - `wgmma` and `tcgen05` read shared memory until their group is waited for, or until the phase ends of
//!   the mbarrier that their commit arrives on. Tensor memory and registers are not watched.
//! - Two writes of one value to one place do not race with each other: compilers let warps with the
//!   same value store it.
//! - Proxies are not told apart.

mod accesses;
mod clock;
mod copies;
mod launches;
mod release;
mod shadow;
mod synchronize;

use std::collections::HashMap;
use std::sync::Arc;

use super::pending::Groups;
use crate::case::LaunchShape;
use crate::program::{Fence, Ordering, Program, Scope};
pub(crate) use clock::Clock;
use clock::{Epoch, IN_FLIGHT, Known};
use launches::{Home, Launches};
use release::{Release, Releases};
use shadow::Shadow;
pub(crate) use shadow::WRITE;

/// Concurrent accesses to a word of global memory that are kept, beside two.
const GLOBAL_LIMIT: usize = 62;
/// The same for shared memory: no less than a cluster has warps.
const SHARED_LIMIT: usize = 512;

/// Race detection of launches that share one clock.
#[derive(Debug)]
pub(crate) struct Races {
    /// Global memory of all devices.
    shadow: Shadow,
    releases: Releases<u64>,
    launches: Launches,
}

/// What the warps of a launch begin with.
#[derive(Debug, Clone)]
pub(crate) struct LaunchWatch {
    /// Index of the launch, and the agent of its first warp.
    launch: usize,
    first: u32,
    /// Moments before the launch.
    begin: Clock,
}

impl Races {
    pub(crate) fn new() -> Self {
        Self {
            shadow: Shadow::new(GLOBAL_LIMIT),
            releases: Releases::default(),
            launches: Launches::default(),
        }
    }

    /// Begins a launch of so many warps after the moments of `begin`; `None` if its warps cannot be told apart.
    pub(crate) fn begin(
        &mut self,
        device: usize,
        program: &Arc<Program>,
        shape: LaunchShape,
        warps: u64,
        begin: Clock,
    ) -> Option<LaunchWatch> {
        let (launch, first) = self.launches.add(device, program, shape, warps)?;
        Some(LaunchWatch { launch, first, begin })
    }
}

impl LaunchWatch {
    /// The watch of a warp by its number in the launch.
    pub(crate) fn warp(&self, number: u32, device: usize, cluster: u32, block: u32) -> Box<WarpWatch> {
        let home = Home { device, launch: self.launch, cluster, block };
        WarpWatch::new(self.first + number, home, self.begin.clone())
    }
}

/// What race detection knows of a block.
#[derive(Debug)]
pub(crate) struct BlockWatch {
    /// Shared memory.
    shadow: Shadow,
    releases: Releases<u32>,
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
            releases: Releases::default(),
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
    home: Home,
    known: Known,
    /// What relaxed reads have met, by the distance of its thread; known from the next fence of such a scope on.
    relaxed: [Clock; Scope::ALL.len()],
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
    fn new(agent: u32, home: Home, begin: Clock) -> Box<Self> {
        let mut known = Known { seen: begin, ..Known::default() };
        known.seen.learn(Epoch { agent, time: 1 });
        Box::new(Self {
            agent,
            home,
            known,
            relaxed: Default::default(),
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

    pub(crate) fn fence(&mut self, fence: Fence) {
        let reach = 0..=fence.scope as usize;
        if fence.acquires {
            for met in &mut self.relaxed[reach.clone()] {
                self.known.seen.join(&std::mem::take(met));
            }
        }
        if fence.releases {
            for fenced in &mut self.known.fenced[reach] {
                fenced.join(&self.known.seen);
            }
            self.tick();
        }
    }

    /// What a strong write leaves at its address.
    fn leave(&self, ordering: Ordering, scope: Scope) -> Vec<Release> {
        let Known { seen, fenced } = &self.known;
        if ordering.releases() {
            return vec![Release::new(self.home, scope, seen.clone())];
        }
        // A fence and the write after it are a release that reaches as far as both do.
        let reach = &fenced[..=scope as usize];
        let wider = |at: usize| reach.get(at + 1);
        let told = |(at, clock): &(usize, &Clock)| !clock.is_empty() && wider(*at) != Some(clock);
        let of_scope = |(at, clock): (usize, &Clock)| Release::new(self.home, Scope::ALL[at], clock.clone());
        reach.iter().enumerate().filter(told).map(of_scope).collect()
    }

    /// A strong read of a value that carries a release.
    fn meet(&mut self, release: &Release, ordering: Ordering, scope: Scope) {
        match release.reaches(self.home, scope) {
            Some(_) if ordering.acquires() => self.known.seen.join(&release.clock),
            Some(distance) => self.relaxed[distance as usize].join(&release.clock),
            None => {}
        }
    }

    /// What is known at the end of the warp.
    pub(crate) fn end(&self) -> &Clock {
        &self.known.seen
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
