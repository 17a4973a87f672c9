//! The launches whose warps are watched, and the threads behind the agents of their warps.

use std::sync::Arc;

use super::clock::IN_FLIGHT;
use crate::case::LaunchShape;
use crate::program::{Program, Scope};

/// Where a thread runs, as far as scopes tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Home {
    pub(crate) device: usize,
    /// Index among the launches.
    pub(crate) launch: usize,
    /// Cluster and block in the launch.
    pub(crate) cluster: u32,
    pub(crate) block: u32,
}

impl Home {
    /// The narrowest scope of a thread here that includes a thread there.
    pub(crate) fn distance(self, other: Self) -> Scope {
        match () {
            () if self.device != other.device => Scope::System,
            () if self.launch != other.launch || self.cluster != other.cluster => Scope::Device,
            () if self.block != other.block => Scope::Cluster,
            () => Scope::Block,
        }
    }
}

/// A launch and the agents of its warps: `first` and those that follow, in the order of blocks.
#[derive(Debug)]
struct Launch {
    device: usize,
    first: u32,
    shape: LaunchShape,
    program: Arc<Program>,
}

impl Launch {
    fn warps_of_block(&self) -> u32 {
        self.shape.block.iter().product::<u32>().div_ceil(32).max(1)
    }

    fn block(&self, number: u32) -> [u32; 3] {
        let [x, y, _] = self.shape.grid;
        [number % x, number / x % y, number / x / y]
    }
}

/// All launches that share one clock.
#[derive(Debug, Default)]
pub(super) struct Launches {
    /// By first agent.
    all: Vec<Launch>,
    /// The next agent: of a warp, an mbarrier, or the products of a warp.
    next_agent: u32,
}

impl Launches {
    /// Adds a launch of so many warps; its index and the agent of its first warp. `None` if the warps cannot be told apart.
    pub(super) fn add(
        &mut self,
        device: usize,
        program: &Arc<Program>,
        shape: LaunchShape,
        warps: u64,
    ) -> Option<(usize, u32)> {
        let first = self.next_agent;
        let next = u64::from(first) + warps;
        self.next_agent = u32::try_from(next).ok().filter(|&next| next < IN_FLIGHT)?;
        self.all.push(Launch { device, first, shape, program: program.clone() });
        Some((self.all.len() - 1, first))
    }

    pub(super) fn new_agent(&mut self) -> u32 {
        self.next_agent += 1;
        self.next_agent - 1
    }

    fn of(&self, agent: u32) -> Option<(usize, &Launch)> {
        let index = self.all.partition_point(|launch| launch.first <= agent).checked_sub(1)?;
        Some((index, &self.all[index]))
    }

    /// Where a warp runs.
    pub(super) fn home(&self, agent: u32) -> Home {
        let Some((index, launch)) = self.of(agent) else {
            return Home { device: 0, launch: 0, cluster: 0, block: 0 };
        };
        let block = (agent - launch.first) / launch.warps_of_block();
        let [cx, cy, cz] = launch.shape.cluster.map(|size| size.max(1));
        let [x, y, z] = launch.block(block);
        let [wide, high] = [launch.shape.grid[0] / cx, launch.shape.grid[1] / cy];
        let cluster = x / cx + wide * (y / cy + high * (z / cz));
        Home { device: launch.device, launch: index, cluster, block }
    }

    /// A thread and the instruction that it is at, in words.
    pub(super) fn describe(&self, agent: u32, lane: u8, pc: u32) -> String {
        let Some((index, launch)) = self.of(agent) else { return "an unknown thread".to_string() };
        let (warps, size) = (launch.warps_of_block(), launch.shape.block);
        let number = agent - launch.first;
        let block = launch.block(number / warps);
        let thread = number % warps * 32 + u32::from(lane);
        let thread = [thread % size[0], thread / size[0] % size[1], thread / size[0] / size[1]];
        let Program { code, opcodes, name, .. } = &*launch.program;
        let line = code.get(pc as usize).map_or(0, |inst| inst.line);
        let opcode = opcodes.get(pc as usize).map_or("", String::as_str);
        let place = match self.all.len() {
            1 => String::new(),
            _ => {
                let earlier = self.all[..index].iter().filter(|other| other.device == launch.device).count();
                format!("device {}, launch {earlier} `{name}`, ", launch.device)
            }
        };
        format!(
            "{place}block {block:?}, thread {thread:?} (warp {}) at line {line} `{opcode}`",
            number % warps
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_reach_as_far_as_threads_are_apart() {
        let home = |device, launch, cluster, block| Home { device, launch, cluster, block };
        let here = home(1, 3, 2, 5);
        for (there, want) in [
            (here, Scope::Block),
            (home(1, 3, 2, 4), Scope::Cluster),
            (home(1, 3, 1, 5), Scope::Device),
            (home(1, 2, 2, 5), Scope::Device),
            (home(0, 3, 2, 5), Scope::System),
        ] {
            assert_eq!((here.distance(there), there.distance(here)), (want, want), "{there:?}");
        }
    }
}
