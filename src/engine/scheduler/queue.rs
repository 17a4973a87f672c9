//! The queue: sequences that wait for a place, in a lane for each client.
//!
//! Within a lane the first rank is first. Between lanes the one that has received the least service is
//! first, so that a client's burst delays its own requests only: the virtual token counter of
//! "Fairness in Serving Large Language Models" (arXiv 2401.00588, section 4), with weights. A lane that
//! comes back after a pause begins at the counter of the waiting lanes: unused service is not saved up.
//! A lane with nothing running is before all that run something: a client's first place comes before
//! another's second. Without clients there is one lane, and the order is that of the ranks.

use std::collections::{BTreeMap, HashMap};

use super::sequence::Rank;

/// Service of a computed prompt token.
const PROMPT_TOKEN: f64 = 1.0;
/// Service of a reply token: the paper's weight, and close to what providers charge for one.
const REPLY_TOKEN: f64 = 2.0;

/// A client's claim to service.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share {
    /// Number of the client.
    pub client: u32,
    /// Service beside that of other clients, above 0.
    pub weight: f64,
}

/// Sequences that wait, those that may be admitted and those that are held.
#[derive(Debug, Default)]
pub(super) struct Queue {
    lanes: Vec<Lane>,
    by_client: HashMap<Option<u32>, usize, ahash::RandomState>,
    waiting: usize,
    held: usize,
    /// The lane that was served last.
    last: usize,
}

/// A sequence whose turn it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) rank: Rank,
    pub(super) slot: usize,
    /// Whether its lane runs nothing.
    pub(super) is_newcomer: bool,
}

#[derive(Debug, Default)]
struct Lane {
    /// Weighted service so far.
    served: f64,
    /// Sequences that run.
    running: usize,
    waiting: BTreeMap<Rank, usize>,
    held: BTreeMap<Rank, usize>,
}

impl Queue {
    /// Number of the lane of a share.
    pub(super) fn lane(&mut self, share: Option<Share>) -> usize {
        let new = self.lanes.len();
        let lane = *self.by_client.entry(share.map(|share| share.client)).or_insert(new);
        if lane == new {
            self.lanes.push(Lane::default());
        }
        lane
    }

    /// Lanes so far; their numbers are below.
    pub(super) fn num_lanes(&self) -> usize {
        self.lanes.len()
    }

    /// Sequences in the queue.
    pub(super) fn len(&self) -> usize {
        self.waiting + self.held
    }

    /// Adds a sequence that may be admitted.
    pub(super) fn wait(&mut self, lane: usize, rank: Rank, slot: usize) {
        if self.lanes[lane].waiting.is_empty() {
            let waiting = self.lanes.iter().filter(|lane| !lane.waiting.is_empty());
            let least = waiting.map(|lane| lane.served).min_by(f64::total_cmp);
            let level = least.unwrap_or(self.lanes[self.last].served);
            let served = &mut self.lanes[lane].served;
            *served = served.max(level);
        }
        self.waiting += usize::from(self.lanes[lane].waiting.insert(rank, slot).is_none());
    }

    /// Adds a sequence that may not be admitted until [`Queue::release`].
    pub(super) fn hold(&mut self, lane: usize, rank: Rank, slot: usize) {
        self.held += usize::from(self.lanes[lane].held.insert(rank, slot).is_none());
    }

    /// Lets a held sequence be admitted.
    pub(super) fn release(&mut self, lane: usize, rank: Rank) {
        if let Some(slot) = self.lanes[lane].held.remove(&rank) {
            self.held -= 1;
            self.wait(lane, rank, slot);
        }
    }

    /// Takes a sequence out of the queue.
    pub(super) fn remove(&mut self, lane: usize, rank: Rank) {
        let lane = &mut self.lanes[lane];
        self.waiting -= usize::from(lane.waiting.remove(&rank).is_some());
        self.held -= usize::from(lane.held.remove(&rank).is_some());
    }

    /// The next sequence: of the lanes with nothing running, or of all if there are none, the first
    /// of the lane with the least service, of equal ones that with the first rank.
    pub(super) fn first(&self) -> Option<Head> {
        self.first_without(&[])
    }

    /// [`Queue::first`], were these lanes empty.
    pub(super) fn first_without(&self, lanes: &[usize]) -> Option<Head> {
        let others = self.lanes.iter().enumerate().filter(|(lane, _)| !lanes.contains(lane));
        let heads = others.filter_map(|(_, lane)| {
            let (&rank, &slot) = lane.waiting.first_key_value()?;
            Some((lane.served, Head { rank, slot, is_newcomer: lane.running == 0 }))
        });
        let next = heads.min_by(|(a_served, a), (b_served, b)| {
            let newcomers_first = b.is_newcomer.cmp(&a.is_newcomer);
            newcomers_first.then(a_served.total_cmp(b_served)).then(a.rank.cmp(&b.rank))
        });
        next.map(|(_, head)| head)
    }

    /// The first sequences of the queue, `most` of them: of the lanes with the least service first, of each in its order.
    pub(super) fn first_few(&self, most: usize) -> Vec<Head> {
        let mut lanes: Vec<&Lane> = self.lanes.iter().filter(|lane| !lane.waiting.is_empty()).collect();
        lanes.sort_by(|a, b| a.served.total_cmp(&b.served));
        let heads = lanes.into_iter().flat_map(|lane| {
            let is_newcomer = lane.running == 0;
            lane.waiting.iter().map(move |(&rank, &slot)| Head { rank, slot, is_newcomer })
        });
        heads.take(most).collect()
    }

    /// Notes that a sequence of the lane runs.
    pub(super) fn begin(&mut self, lane: usize) {
        self.lanes[lane].running += 1;
    }

    /// Notes that a sequence of the lane runs no more.
    pub(super) fn end(&mut self, lane: usize) {
        self.lanes[lane].running -= 1;
    }

    /// Sequences of the lane that run.
    pub(super) fn running(&self, lane: usize) -> usize {
        self.lanes[lane].running
    }

    /// Sequences that are held, in no particular order.
    pub(super) fn held(&self) -> impl Iterator<Item = usize> + '_ {
        self.lanes.iter().flat_map(|lane| lane.held.values().copied())
    }

    /// Counts the admission of a prompt of which `computed` tokens are not cached.
    pub(super) fn serve_prompt(&mut self, lane: usize, share: Option<Share>, computed: usize) {
        self.last = lane;
        self.serve(lane, share, computed as f64 * PROMPT_TOKEN);
    }

    /// Counts tokens of a reply.
    pub(super) fn serve_reply(&mut self, lane: usize, share: Option<Share>, tokens: usize) {
        self.serve(lane, share, tokens as f64 * REPLY_TOKEN);
    }

    fn serve(&mut self, lane: usize, share: Option<Share>, service: f64) {
        self.lanes[lane].served += service / share.map_or(1.0, |share| share.weight);
    }

    /// Whether a sequence is in the queue exactly once.
    pub(super) fn has(&self, lane: usize, rank: Rank, slot: usize) -> bool {
        let lane = &self.lanes[lane];
        [&lane.waiting, &lane.held].iter().filter(|queue| queue.get(&rank) == Some(&slot)).count() == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(client: u32, weight: f64) -> Option<Share> {
        Some(Share { client, weight })
    }

    /// Admits `count` sequences, each of `cost` prompt tokens, and returns their clients.
    fn admit(queue: &mut Queue, weights: &[f64], count: usize, cost: usize) -> Vec<u32> {
        let mut clients = Vec::new();
        for _ in 0..count {
            let Head { rank, slot: client, .. } = queue.first().unwrap();
            let share = share(client as u32, weights[client]);
            let lane = queue.lane(share);
            queue.remove(lane, rank);
            queue.serve_prompt(lane, share, cost);
            clients.push(client as u32);
        }
        clients
    }

    /// The client's number stands in for the slot.
    fn add(queue: &mut Queue, client: u32, weight: f64, arrivals: std::ops::Range<u64>) {
        let lane = queue.lane(share(client, weight));
        arrivals.for_each(|arrival| queue.wait(lane, (0, arrival, arrival), client as usize));
    }

    #[test]
    fn a_burst_does_not_delay_another_client() {
        let mut queue = Queue::default();
        add(&mut queue, 0, 1.0, 0..100);
        assert_eq!(admit(&mut queue, &[1.0; 2], 10, 500), [0; 10]);
        add(&mut queue, 1, 1.0, 100..102);
        let order = admit(&mut queue, &[1.0; 2], 4, 500);
        assert_eq!(order.iter().filter(|client| **client == 1).count(), 2, "{order:?}");
    }

    #[test]
    fn a_client_with_nothing_running_goes_first_whatever_it_was_served() {
        let mut queue = Queue::default();
        add(&mut queue, 0, 1.0, 0..10);
        add(&mut queue, 1, 1.0, 10..20);
        let lanes = [0, 1].map(|client| queue.lane(share(client, 1.0)));
        queue.serve_prompt(lanes[1], share(1, 1.0), 1000);
        queue.begin(lanes[0]);
        assert_eq!(queue.first().map(|head| (head.slot, head.is_newcomer)), Some((1, true)));
        queue.begin(lanes[1]);
        assert_eq!(queue.first().map(|head| (head.slot, head.is_newcomer)), Some((0, false)));
        queue.end(lanes[1]);
        assert_eq!(queue.first().map(|head| (head.slot, head.is_newcomer)), Some((1, true)));
    }

    #[test]
    fn service_goes_by_weight() {
        let mut queue = Queue::default();
        add(&mut queue, 0, 1.0, 0..200);
        add(&mut queue, 1, 3.0, 200..400);
        let order = admit(&mut queue, &[1.0, 3.0], 100, 10);
        let second = order.iter().filter(|client| **client == 1).count();
        assert!((74..=76).contains(&second), "{second} of 100");
    }

    #[test]
    fn a_pause_saves_nothing_up() {
        let mut queue = Queue::default();
        add(&mut queue, 0, 1.0, 0..100);
        add(&mut queue, 1, 1.0, 100..101);
        assert_eq!(admit(&mut queue, &[1.0; 2], 51, 10).len(), 51);
        add(&mut queue, 1, 1.0, 200..250);
        let order = admit(&mut queue, &[1.0; 2], 20, 10);
        let second = order.iter().filter(|client| **client == 1).count();
        assert!((9..=11).contains(&second), "{order:?}");
    }

    #[test]
    fn replies_count_while_they_grow() {
        let mut queue = Queue::default();
        add(&mut queue, 0, 1.0, 0..10);
        add(&mut queue, 1, 1.0, 10..20);
        assert_eq!(admit(&mut queue, &[1.0; 2], 2, 10), [0, 1]);
        let lane = queue.lane(share(0, 1.0));
        queue.serve_reply(lane, share(0, 1.0), 10);
        assert_eq!(admit(&mut queue, &[1.0; 2], 3, 10), [1, 1, 0], "20 tokens of service behind");
    }

    #[test]
    fn without_clients_ranks_decide() {
        let mut queue = Queue::default();
        let lane = queue.lane(None);
        for (rank, slot) in [((0, 5, 0), 1), ((0, 3, 1), 2), ((-1, 9, 2), 3)] {
            queue.wait(lane, rank, slot);
        }
        queue.hold(lane, (-2, 0, 3), 4);
        let mut order = Vec::new();
        while let Some(Head { rank, slot, .. }) = queue.first() {
            queue.remove(lane, rank);
            queue.serve_prompt(lane, None, 100);
            order.push(slot);
        }
        assert_eq!((order, queue.len(), queue.first()), (vec![3, 2, 1], 1, None));
        queue.release(lane, (-2, 0, 3));
        assert_eq!(queue.first(), Some(Head { rank: (-2, 0, 3), slot: 4, is_newcomer: true }));
    }
}
