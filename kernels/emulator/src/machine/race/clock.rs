//! Vector clocks over agents: the warps of all launches, and the mbarriers that copies report to.

use crate::program::Scope;

/// Clocks from here on are those of copies in flight: later than every time that is known.
pub(crate) const IN_FLIGHT: u32 = 1 << 31;

/// A moment of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Epoch {
    pub(crate) agent: u32,
    pub(crate) time: u32,
}

impl Epoch {
    pub(crate) fn is_in_flight(self) -> bool {
        self.time >= IN_FLIGHT
    }
}

/// The latest moment known of each agent. Agents that are not listed are at 0.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Clock {
    /// By agent.
    times: Vec<Epoch>,
}

impl Clock {
    fn position(&self, agent: u32) -> Result<usize, usize> {
        self.times.binary_search_by_key(&agent, |epoch| epoch.agent)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.times.is_empty()
    }

    /// The moment known of an agent.
    pub(crate) fn get(&self, agent: u32) -> u32 {
        self.position(agent).map_or(0, |at| self.times[at].time)
    }

    /// Whether the moment has passed.
    pub(crate) fn covers(&self, epoch: Epoch) -> bool {
        !epoch.is_in_flight() && epoch.time <= self.get(epoch.agent)
    }

    /// Learns of a moment.
    pub(crate) fn learn(&mut self, epoch: Epoch) {
        match self.position(epoch.agent) {
            Ok(at) => self.times[at].time = self.times[at].time.max(epoch.time),
            Err(at) => self.times.insert(at, epoch),
        }
    }

    /// Learns all that another clock knows.
    pub(crate) fn join(&mut self, other: &Self) {
        let same = self.times.len() == other.times.len()
            && self.times.iter().zip(&other.times).all(|(a, b)| a.agent == b.agent);
        if same {
            for (a, b) in self.times.iter_mut().zip(&other.times) {
                a.time = a.time.max(b.time);
            }
            return;
        }
        let mut merged = Vec::with_capacity(self.times.len().max(other.times.len()));
        let (mut a, mut b) = (self.times.iter().peekable(), other.times.iter().peekable());
        while let (Some(&&x), Some(&&y)) = (a.peek(), b.peek()) {
            if x.agent <= y.agent {
                a.next();
            }
            if y.agent <= x.agent {
                b.next();
            }
            merged.push(match x.agent.cmp(&y.agent) {
                std::cmp::Ordering::Less => x,
                std::cmp::Ordering::Greater => y,
                std::cmp::Ordering::Equal => Epoch { agent: x.agent, time: x.time.max(y.time) },
            });
        }
        merged.extend(a.chain(b));
        self.times = merged;
    }
}

/// What one agent passes to another.
#[derive(Debug, Clone, Default)]
pub(crate) struct Known {
    /// Moments before the present one.
    pub(crate) seen: Clock,
    /// By scope: moments that a fence of this scope or a wider one stands after.
    pub(crate) fenced: [Clock; Scope::ALL.len()],
}

impl Known {
    pub(crate) fn join(&mut self, other: &Self) {
        self.seen.join(&other.seen);
        for (fenced, other) in self.fenced.iter_mut().zip(&other.fenced) {
            fenced.join(other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock(times: &[(u32, u32)]) -> Clock {
        let mut clock = Clock::default();
        times.iter().for_each(|&(agent, time)| clock.learn(Epoch { agent, time }));
        clock
    }

    #[test]
    fn clocks_join_by_agent() {
        for (a, b, want) in [
            (&[][..], &[][..], &[][..]),
            (&[(1, 5)], &[], &[(1, 5)]),
            (&[(1, 5), (3, 1)], &[(3, 4), (1, 2)], &[(1, 5), (3, 4)]),
            (&[(1, 5), (7, 1)], &[(0, 2), (7, 9), (8, 1)], &[(0, 2), (1, 5), (7, 9), (8, 1)]),
        ] {
            for (a, b) in [(a, b), (b, a)] {
                let mut joined = clock(a);
                joined.join(&clock(b));
                assert_eq!(joined, clock(want));
            }
        }
    }

    #[test]
    fn a_copy_in_flight_is_never_in_the_past() {
        let known = clock(&[(4, 3)]);
        for (agent, time, want) in
            [(4, 3, true), (4, 4, false), (5, 0, true), (5, 1, false), (4, IN_FLIGHT, false)]
        {
            assert_eq!(known.covers(Epoch { agent, time }), want, "{agent} {time}");
        }
    }
}
