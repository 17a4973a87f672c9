//! Launches of several devices under one clock.
//!
//! The launches of a queue run one after the other; between queues nothing orders them. With a seed, queues
//! run at speeds of their own, and stand still now and then, above all after they wrote a flag: what a
//! kernel takes for granted about its peers shows then.

use super::fault::{DEADLOCK, Fault};
use super::grid::{Begin, Grid, Turned};
use super::memory::Memory;
use super::profile::Report;
use super::race::Races;
use super::random::Random;
use super::{Kernel, Options};
use crate::case::LaunchShape;

/// A launch of a queue.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'a> {
    /// A kernel of a module that is loaded on the device.
    pub kernel: &'a Kernel,
    /// Shape of the grid.
    pub shape: LaunchShape,
    /// The parameter block.
    pub parameters: &'a [u8],
}

/// Places that the report of a deadlock names, of each grid where there are several.
const MAX_PLACES: usize = 16;
const MAX_PLACES_OF_SEVERAL: usize = 4;

/// Launches that are still to run, and the one that runs.
struct Queue<'a> {
    launches: &'a [Launch<'a>],
    /// Index of the running launch.
    at: usize,
    grid: Option<Grid>,
    reports: Vec<Report>,
    /// What the launches so far have left for the next one.
    begin: Begin,
    /// One in so many rounds is a turn.
    slowness: u32,
    /// Rounds until the next turn.
    rest: u32,
    /// Changes of the machine when nothing could go on.
    idle_at: Option<u64>,
}

impl Queue<'_> {
    fn is_done(&self) -> bool {
        self.at == self.launches.len()
    }

    fn is_idle(&self, memory: &Memory) -> bool {
        self.is_done() || self.idle_at == Some(memory.changes)
    }

    /// A turn of the running launch, or of the next one.
    fn turn(
        &mut self,
        memory: &mut Memory,
        races: &mut Option<Races>,
        options: &Options,
        several: bool,
    ) -> Result<(), Fault> {
        let Launch { kernel, shape, parameters } = self.launches[self.at];
        if self.grid.is_none() {
            self.begin.keeps_end = self.at + 1 < self.launches.len();
            self.begin.several = several;
            self.begin.number = self.at;
            let begin = std::mem::take(&mut self.begin);
            self.grid =
                Some(Grid::new(&kernel.program, kernel.device, shape, parameters, options, races, begin)?);
        }
        let Some(grid) = &mut self.grid else { return Ok(()) };
        match grid.turn(memory, races)? {
            Turned::Moved => {}
            Turned::Idle => self.idle_at = Some(memory.changes),
            Turned::Ended => {
                memory.changes += 1;
                self.at += 1;
                if let Some(grid) = self.grid.take() {
                    let (report, begin) = grid.end();
                    self.reports.push(report);
                    self.begin = begin;
                }
            }
        }
        Ok(())
    }
}

/// Speeds of queues, and when they rest.
struct Pace(Random);

impl Pace {
    /// How slow each of some queues is.
    fn slowness(&mut self, queues: usize) -> Vec<u32> {
        let queues = queues as u32;
        let one = self.0.below(queues.max(1));
        let kind = self.0.below(4);
        let slow = |queue: u32| match kind {
            0 => 1,
            // One queue is ahead of all others, or behind them.
            1 => 1 + 63 * u32::from(queue != one),
            2 => 1 + 63 * u32::from(queue == one),
            _ => 1 << (2 * self.0.below(4)),
        };
        (0..queues).map(slow).collect()
    }

    /// Rounds that a queue stands still after a turn in which it wrote a flag, or not.
    fn rest(&mut self, signalled: bool) -> u32 {
        match self.0.below(if signalled { 4 } else { 64 }) {
            0 => 1 << self.0.below(12),
            _ => 0,
        }
    }
}

/// Runs all launches to their end.
pub(super) fn run(
    memory: &mut Memory,
    options: &Options,
    queues: &[&[Launch<'_>]],
) -> Result<Vec<Vec<Report>>, Fault> {
    let several = queues.len() > 1;
    let mut races = options.races.then(Races::new);
    let mut pace = options.shuffle.filter(|_| several).map(|seed| Pace(Random::new(!seed)));
    let slowness = match &mut pace {
        Some(pace) => pace.slowness(queues.len()),
        None => vec![1; queues.len()],
    };
    let queue = |(&launches, slowness): (&_, u32)| Queue {
        launches,
        at: 0,
        grid: None,
        reports: Vec::new(),
        begin: Begin::default(),
        slowness,
        rest: 0,
        idle_at: None,
    };
    let mut queues: Vec<Queue<'_>> = queues.iter().zip(slowness).map(queue).collect();
    let mut order: Vec<usize> = (0..queues.len()).collect();
    while !queues.iter().all(Queue::is_done) {
        if let Some(Pace(random)) = &mut pace {
            for at in (1..order.len()).rev() {
                order.swap(at, random.below(at as u32 + 1) as usize);
            }
        }
        for &at in &order {
            let queue = &mut queues[at];
            if queue.is_idle(memory) {
                continue;
            }
            if queue.rest > 0 {
                queue.rest -= 1;
                continue;
            }
            if let Some(Pace(random)) = &mut pace
                && random.below(queue.slowness) != 0
            {
                continue;
            }
            if let Some(Pace(random)) = &mut pace
                && random.below(4) == 0
            {
                memory.arrive_some(random);
            }
            let signals = memory.signals;
            queue.turn(memory, &mut races, options, several)?;
            if let Some(pace) = &mut pace {
                queue.rest = pace.rest(memory.signals != signals);
            }
        }
        if queues.iter().all(|queue| queue.rest > 0 || queue.is_idle(memory)) {
            // Only a queue that rests can go on, or what is on its way helps.
            if memory.arrive_all() {
                continue;
            }
            if queues.iter().all(|queue| queue.is_idle(memory)) && !queues.iter().all(Queue::is_done) {
                return Err(deadlock(memory, &mut queues));
            }
            queues.iter_mut().for_each(|queue| queue.rest = 0);
        }
    }
    memory.arrive_all();
    Ok(queues.into_iter().map(|queue| queue.reports).collect())
}

/// Where all warps wait that are left.
fn deadlock(memory: &mut Memory, queues: &mut [Queue<'_>]) -> Fault {
    let several = queues.len() > 1;
    let (mut first, mut places, mut executed) = (None, Vec::new(), 0);
    for (at, grid) in queues.iter_mut().filter_map(|queue| Some((queue.at, queue.grid.as_mut()?))) {
        executed += grid.executed();
        let mut waits = grid.waits(memory);
        waits.truncate(if several { MAX_PLACES_OF_SEVERAL } else { MAX_PLACES });
        if several {
            let place = format!("device {}, launch {at} `{}`: ", grid.device(), grid.kernel());
            waits.iter_mut().for_each(|wait| wait.insert_str(0, &place));
        }
        places.append(&mut waits);
        first.get_or_insert_with(|| grid.fault_of_first(String::new()));
    }
    let text = format!(
        "{DEADLOCK}nothing can go on, and no end after {executed} instructions: {}",
        places.join("; ")
    );
    match first {
        Some(fault) => Fault { text, ..fault },
        None => Fault {
            device: None,
            kernel: String::new(),
            line: 0,
            opcode: String::new(),
            block: [0; 3],
            thread: None,
            text,
        },
    }
}
