//! Which rows of the tower's memory hold which picture.
//!
//! Rows are given out in runs of equal length, so that there is nothing to be scattered. A picture stays until its rows are needed: the
//! one that was not used for the longest time goes first, and none that is in use.

use std::collections::HashMap;

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
    /// First rows of its runs.
    runs: Vec<u32>,
    users: usize,
    last_use: u64,
    /// Whether the tower has written the rows.
    ready: bool,
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

    /// Uses pictures together: those that are here stay, the others get rows. Returns the ones that got rows, in order; `None`, and no
    /// change, if the rows that are free or out of use are too few.
    pub(super) fn take(&mut self, pictures: &[(MediaHash, usize)]) -> Option<Vec<MediaHash>> {
        let mut missing: Vec<(MediaHash, usize)> = Vec::new();
        for &(hash, tokens) in pictures {
            if !self.contains(&hash) && missing.iter().all(|(known, _)| *known != hash) {
                missing.push((hash, tokens.div_ceil(RUN)));
            }
        }
        let needed: usize = missing.iter().map(|(_, runs)| runs).sum();
        let wanted = |hash: &MediaHash| pictures.iter().any(|(wanted, _)| wanted == hash);
        let idle = self.pictures.iter().filter(|(hash, kept)| kept.users == 0 && !wanted(hash));
        if needed > self.free.len() + idle.map(|(_, kept)| kept.runs.len()).sum::<usize>() {
            return None;
        }
        for (hash, _) in pictures {
            self.touch(hash);
        }
        while self.free.len() < needed {
            let oldest = self
                .pictures
                .iter()
                .filter(|(_, kept)| kept.users == 0)
                .min_by_key(|(_, kept)| kept.last_use);
            let (hash, _) = oldest.expect("enough rows are out of use");
            let hash = *hash;
            self.remove(&hash);
        }
        for (hash, runs) in &missing {
            let runs = self.free.split_off(self.free.len() - runs);
            self.pictures.insert(*hash, Kept { runs, users: 0, last_use: 0, ready: false });
            // A picture that stands several times in `pictures` has a use for each.
            pictures.iter().filter(|(picture, _)| picture == hash).for_each(|_| self.touch(hash));
        }
        Some(missing.into_iter().map(|(hash, _)| hash).collect())
    }

    fn touch(&mut self, picture: &MediaHash) {
        self.clock += 1;
        if let Some(kept) = self.pictures.get_mut(picture) {
            kept.users += 1;
            kept.last_use = self.clock;
        }
    }

    /// Ends one use of a picture.
    pub(super) fn release(&mut self, picture: &MediaHash) {
        if let Some(kept) = self.pictures.get_mut(picture) {
            kept.users -= 1;
        }
    }

    /// The tower has written the picture's rows.
    pub(super) fn set_ready(&mut self, picture: &MediaHash) {
        if let Some(kept) = self.pictures.get_mut(picture) {
            kept.ready = true;
        }
    }

    /// Forgets a picture that is not in use.
    pub(super) fn remove_unused(&mut self, picture: &MediaHash) {
        if self.pictures.get(picture).is_some_and(|kept| kept.users == 0) {
            self.remove(picture);
        }
    }

    /// Forgets a picture; its rows are free.
    fn remove(&mut self, picture: &MediaHash) {
        if let Some(kept) = self.pictures.remove(picture) {
            self.free.extend(kept.runs);
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
        assert_eq!(kept.take(&[a, b, a]), Some(vec![a.0, b.0]));
        assert!(kept.contains(&a.0) && !kept.is_ready(&a.0));
        kept.set_ready(&a.0);
        let rows: std::collections::HashSet<_> =
            (0..a.1).map(|token| kept.row(&a.0, token).unwrap()).chain(kept.row(&b.0, 0)).collect();
        assert_eq!(rows.len(), a.1 + 1);
        assert_eq!(kept.row(&a.0, a.1), None);
        // All but three runs are in use.
        assert_eq!(kept.take(&[picture(4, 4 * RUN)]), None);
        assert_eq!(kept.take(&[c]), Some(vec![c.0]));
        kept.release(&a.0);
        assert_eq!(kept.take(&[picture(4, 2 * RUN)]), None);
        kept.release(&a.0);
        kept.release(&c.0);
        assert_eq!(kept.take(&[a]), Some(vec![]));
        // The picture that is out of use goes, not the one that is wanted again.
        assert_eq!(kept.take(&[picture(4, 2 * RUN)]), Some(vec![[4; 32]]));
        assert!(!kept.contains(&c.0) && kept.is_ready(&a.0));
    }
}
