//! Which rows of the tower's memory hold which picture.
//!
//! Rows are given out in runs of equal length, so that there is nothing to be scattered. A picture
//! stays until its rows are needed: the one that was not used for the longest time goes first, and none
//! that is in use.

use std::collections::HashMap;
use std::sync::Arc;

use crate::scheduler::MediaHash;

/// Rows of a run.
const RUN: usize = 16;

/// Pictures and their rows.
#[derive(Debug, Default)]
pub(super) struct KeptRows {
    /// First rows of the free runs.
    free: Vec<u32>,
    pictures: HashMap<MediaHash, Kept, ahash::RandomState>,
    /// Counts uses, to order pictures by their last one.
    clock: u64,
}

#[derive(Debug)]
struct Kept {
    /// First rows of its runs. The picture is in use while there are leases of them.
    runs: Arc<[u32]>,
    last_use: u64,
    /// Whether the tower has written the rows.
    ready: bool,
}

impl Kept {
    fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.runs) > 1
    }
}

/// A use of a picture, which ends when the lease is dropped: until then the picture stays.
#[derive(Debug, Clone)]
pub(super) struct Lease {
    _runs: Arc<[u32]>,
}

/// Pictures that were taken together.
#[derive(Debug)]
pub(super) struct Taken {
    /// A use of each, in order.
    pub(super) leases: Vec<Lease>,
    /// Those that were not here and got rows, in order.
    pub(super) missing: Vec<MediaHash>,
}

impl KeptRows {
    /// Memory of `num_rows` rows, all free.
    pub(super) fn new(num_rows: usize) -> Self {
        let free = (0..num_rows / RUN).rev().map(|run| (run * RUN) as u32).collect();
        Self { free, ..Self::default() }
    }

    /// Rows that pictures of `tokens` tokens each take, whole runs.
    pub(super) fn rows_of(tokens: impl Iterator<Item = usize>) -> usize {
        tokens.map(|tokens| tokens.next_multiple_of(RUN)).sum()
    }

    /// Whether a picture is here, written.
    pub(super) fn is_ready(&self, picture: &MediaHash) -> bool {
        self.pictures.get(picture).is_some_and(|kept| kept.ready)
    }

    /// Whether a picture is here, written or about to be.
    pub(super) fn contains(&self, picture: &MediaHash) -> bool {
        self.pictures.contains_key(picture)
    }

    /// Uses pictures together: those that are here stay, the others get rows. `None`, and no change, if
    /// the rows that are free or out of use are too few.
    pub(super) fn take(&mut self, pictures: &[(MediaHash, usize)]) -> Option<Taken> {
        let mut missing: Vec<(MediaHash, usize)> = Vec::new();
        for &(hash, tokens) in pictures {
            if !self.contains(&hash) && missing.iter().all(|(known, _)| *known != hash) {
                missing.push((hash, tokens.div_ceil(RUN)));
            }
        }
        let needed: usize = missing.iter().map(|(_, runs)| runs).sum();
        let wanted = |hash: &MediaHash| pictures.iter().any(|(wanted, _)| wanted == hash);
        let idle = self.pictures.iter().filter(|(hash, kept)| !kept.is_in_use() && !wanted(hash));
        if needed > self.free.len() + idle.map(|(_, kept)| kept.runs.len()).sum::<usize>() {
            return None;
        }
        let mut leases: Vec<Option<Lease>> = pictures.iter().map(|(hash, _)| self.lease(hash)).collect();
        while self.free.len() < needed {
            let idle = self.pictures.iter().filter(|(_, kept)| !kept.is_in_use());
            let (hash, _) = idle.min_by_key(|(_, kept)| kept.last_use).expect("enough rows are out of use");
            let hash = *hash;
            self.remove(&hash);
        }
        for (hash, runs) in &missing {
            let runs = self.free.split_off(self.free.len() - runs).into();
            self.pictures.insert(*hash, Kept { runs, last_use: 0, ready: false });
            // A picture that stands several times in `pictures` has a use for each.
            for (lease, _) in leases.iter_mut().zip(pictures).filter(|(_, (picture, _))| picture == hash) {
                *lease = self.lease(hash);
            }
        }
        let leases = leases.into_iter().flatten().collect();
        Some(Taken { leases, missing: missing.into_iter().map(|(hash, _)| hash).collect() })
    }

    /// Begins a use of a picture; `None` if it is not here.
    fn lease(&mut self, picture: &MediaHash) -> Option<Lease> {
        self.clock += 1;
        let kept = self.pictures.get_mut(picture)?;
        kept.last_use = self.clock;
        Some(Lease { _runs: kept.runs.clone() })
    }

    /// The tower has written the picture's rows.
    pub(super) fn set_ready(&mut self, picture: &MediaHash) {
        if let Some(kept) = self.pictures.get_mut(picture) {
            kept.ready = true;
        }
    }

    /// Forgets a picture that is not in use.
    pub(super) fn remove_unused(&mut self, picture: &MediaHash) {
        if self.pictures.get(picture).is_some_and(|kept| !kept.is_in_use()) {
            self.remove(picture);
        }
    }

    /// Forgets a picture; its rows are free.
    fn remove(&mut self, picture: &MediaHash) {
        if let Some(kept) = self.pictures.remove(picture) {
            self.free.extend(&*kept.runs);
        }
    }

    /// The row of token `token` of a picture that is here.
    pub(super) fn row(&self, picture: &MediaHash, token: usize) -> Option<u32> {
        let kept = self.pictures.get(picture)?;
        Some(kept.runs.get(token / RUN)? + (token % RUN) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(name: u8, tokens: usize) -> (MediaHash, usize) {
        ([name; 32], tokens)
    }

    #[test]
    fn rows_of_pictures_are_their_own_until_they_are_needed() {
        let mut kept = KeptRows::new(6 * RUN);
        let [a, b, c] = [picture(1, 2 * RUN), picture(2, 1), picture(3, 3 * RUN)];
        let mut first = kept.take(&[a, b, a]).unwrap();
        assert_eq!((first.leases.len(), first.missing), (3, vec![a.0, b.0]));
        assert!(kept.contains(&a.0) && !kept.is_ready(&a.0));
        kept.set_ready(&a.0);
        let rows: std::collections::HashSet<_> =
            (0..a.1).map(|token| kept.row(&a.0, token).unwrap()).chain(kept.row(&b.0, 0)).collect();
        assert_eq!(rows.len(), a.1 + 1);
        assert_eq!(kept.row(&a.0, a.1), None);
        // All but three runs are in use.
        assert!(kept.take(&[picture(4, 4 * RUN)]).is_none());
        let third = kept.take(&[c]).unwrap();
        assert_eq!(third.missing, [c.0]);
        drop(first.leases.remove(0));
        assert!(kept.take(&[picture(4, 2 * RUN)]).is_none());
        drop((first.leases.pop(), third));
        let again = kept.take(&[a]).unwrap();
        assert_eq!(again.missing, [[0; 32]; 0]);
        // The picture that is out of use goes, not the one that is wanted again.
        assert_eq!(kept.take(&[picture(4, 2 * RUN)]).unwrap().missing, [[4; 32]]);
        assert!(!kept.contains(&c.0) && kept.is_ready(&a.0));
    }
}
