//! Places in the queue: counted from a submission to its admission, bounded.
//!
//! Where clients are told apart, one of them may have as many requests waiting as there are free
//! places: a burst fills half of the queue, and the places that are left are for the others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::request::SubmitError;
use crate::scheduler::Share;

/// The places of one engine.
#[derive(Debug)]
pub(super) struct Places {
    max_requests: usize,
    /// 0 = no limit.
    max_tokens: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    requests: usize,
    tokens: usize,
    by_client: HashMap<u32, usize, ahash::RandomState>,
}

/// Most sequences of one request that an empty queue takes; `shared`: where clients are told apart.
pub(super) fn most_of_one(max_requests: usize, shared: bool) -> usize {
    if shared { max_requests.div_ceil(2) } else { max_requests }
}

/// A place, given back by being dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    tokens: usize,
    client: Option<u32>,
}

impl Places {
    /// At most `max_requests` places, with at most `max_tokens` prompt tokens in them; 0 = no limit.
    pub(super) fn new(max_requests: usize, max_tokens: usize) -> Arc<Self> {
        Arc::new(Self { max_requests, max_tokens, taken: Mutex::default() })
    }

    /// Takes a place for a prompt of `tokens` tokens. Errors: there is none for this client.
    pub(super) fn take(
        self: &Arc<Self>,
        tokens: usize,
        share: Option<Share>,
        retry_after_s: impl Fn(usize) -> u32,
    ) -> Result<Place, SubmitError> {
        let mut taken = self.lock();
        let full = |waiting, limit| {
            let retry_after_s = retry_after_s(waiting);
            Err(SubmitError::QueueFull { waiting, limit, retry_after_s })
        };
        if taken.requests >= self.max_requests {
            return full(taken.requests, self.max_requests);
        }
        // A single prompt above the limit may wait alone.
        if self.max_tokens > 0 && taken.tokens > 0 && taken.tokens + tokens > self.max_tokens {
            return full(taken.requests, self.max_tokens);
        }
        let client = share.map(|share| share.client);
        if let Some(client) = client {
            let free = self.max_requests - taken.requests;
            let own = taken.by_client.entry(client).or_default();
            if *own >= free {
                let (waiting, retry_after_s) = (*own, retry_after_s(*own));
                return Err(SubmitError::ShareFull { waiting, free, retry_after_s });
            }
            *own += 1;
        }
        taken.requests += 1;
        taken.tokens += tokens;
        Ok(Place { places: self.clone(), tokens, client })
    }

    /// Requests and prompt tokens that wait.
    pub(super) fn taken(&self) -> (usize, usize) {
        let taken = self.lock();
        (taken.requests, taken.tokens)
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
        taken.requests -= 1;
        taken.tokens -= self.tokens;
        if let Some(client) = self.client
            && let Some(own) = taken.by_client.get_mut(&client)
        {
            *own -= 1;
            if *own == 0 {
                taken.by_client.remove(&client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(client: u32) -> Option<Share> {
        Some(Share { client, weight: 1.0 })
    }

    #[test]
    fn places_are_bounded_and_given_back() {
        let places = Places::new(2, 10);
        let first = places.take(11, None, |_| 1).expect("a prompt above the limit waits alone");
        let refused = places.take(1, None, |_| 7).unwrap_err();
        assert_eq!(refused, SubmitError::QueueFull { waiting: 1, limit: 10, retry_after_s: 7 });
        drop(first);
        let held = [places.take(5, None, |_| 1).unwrap(), places.take(5, None, |_| 1).unwrap()];
        let refused = places.take(0, None, |_| 1).unwrap_err();
        assert_eq!(refused, SubmitError::QueueFull { waiting: 2, limit: 2, retry_after_s: 1 });
        assert_eq!(places.taken(), (2, 10));
        drop(held);
        assert_eq!(places.taken(), (0, 0));
    }

    #[test]
    fn an_empty_queue_takes_so_many_of_one_client() {
        for max_requests in 1..9 {
            for share in [None, of(0)] {
                let places = Places::new(max_requests, 0);
                let held: Vec<Place> = (0..9).map_while(|_| places.take(1, share, |_| 1).ok()).collect();
                assert_eq!(
                    held.len(),
                    most_of_one(max_requests, share.is_some()),
                    "{max_requests} {share:?}"
                );
            }
        }
    }

    #[test]
    fn a_burst_leaves_places_for_other_clients() {
        let places = Places::new(16, 0);
        let fill = |client| {
            let mut held = Vec::new();
            while let Ok(place) = places.take(1, of(client), |_| 1) {
                held.push(place);
            }
            held
        };
        let (first, second, third) = (fill(0), fill(1), fill(2));
        assert_eq!([first.len(), second.len(), third.len()], [8, 4, 2]);
        let refused = places.take(1, of(0), |_| 3).unwrap_err();
        assert_eq!(refused, SubmitError::ShareFull { waiting: 8, free: 2, retry_after_s: 3 });
        drop(first);
        assert!(places.take(1, of(1), |_| 1).is_ok());
        assert_eq!(places.lock().by_client.get(&0), None);
    }
}
