//! The choice of tokens by ranks that each have the logits of some ids.

use std::sync::{Mutex, PoisonError};

use super::rank::RankState;
use crate::OpError;
use crate::host::ops::HostOps;
use perigee_decoding::sampling::{Chosen, Shard, ShardedRow, Wanted};

/// Most rounds until every row has its token: a survey, sums, two selections, a race and a rank take at most 14.
const MAX_ROUNDS: usize = 32;

/// Scratch memory of the choice, one entry a row.
#[derive(Debug, Default)]
pub(super) struct Choice {
    rows: Vec<Mutex<(ShardedRow, Vec<u64>)>>,
    words: Vec<u64>,
}

impl<H: HostOps> RankState<H> {
    /// Chooses a token from each of `logits`, rows of this rank's ids. All ranks want the same and get the same.
    ///
    /// Errors: [`OpError::Device`], fatal, if ranks have computed different rows: their caches differ, and nothing that
    /// follows would be right.
    pub(in crate::host) fn choose(
        &mut self,
        ops: &mut H,
        logits: &[&[f32]],
        wanted: &[Wanted<'_>],
    ) -> Result<Vec<Chosen>, OpError> {
        let op = "sample";
        let Self { member, vocab, rows_sum, choice: Choice { rows, words }, .. } = self;
        let (share, first) = (member.share(), vocab.start as u32);
        rows.resize_with(wanted.len().max(rows.len()), Mutex::default);
        rows.iter().take(wanted.len()).for_each(|row| lock(row).0.begin());
        let mut chosen: Vec<Option<Chosen>> = vec![None; wanted.len()];
        for round in 0..MAX_ROUNDS {
            let open: Vec<usize> = (0..wanted.len()).filter(|row| chosen[*row].is_none()).collect();
            if open.is_empty() {
                break;
            }
            ops.for_each(open.len(), &|_, at| {
                let row = open[at];
                let (state, said) = &mut *lock(&rows[row]);
                said.clear();
                state.say(Shard { logits: logits[row], first }, &wanted[row], said);
            });
            words.clear();
            words.push(*rows_sum);
            for row in &open {
                let (_, said) = &*lock(&rows[*row]);
                words.push(said.len() as u64);
                words.extend_from_slice(said);
            }
            let mut heard: Vec<Vec<u64>> = Vec::with_capacity(share.world);
            member.exchange_words(op, words, |_, theirs| heard.push(theirs.to_vec()))?;
            if round == 0 {
                same_rows(op, &heard)?;
            }
            let mut places = vec![1; share.world];
            for row in open {
                let mut said: Vec<&[u64]> = Vec::with_capacity(share.world);
                for (words, place) in heard.iter().zip(&mut places) {
                    let len = words.get(*place).copied().unwrap_or_default() as usize;
                    said.push(words.get(*place + 1..*place + 1 + len).unwrap_or_default());
                    *place += 1 + len;
                }
                chosen[row] = lock(&rows[row]).0.hear(&said, share.rank, &wanted[row]);
            }
        }
        Ok(chosen.into_iter().flatten().collect())
    }
}

/// Whether all ranks have said the same sum of their rows.
fn same_rows(op: &'static str, heard: &[Vec<u64>]) -> Result<(), OpError> {
    let sum = |words: &Vec<u64>| words.first().copied();
    match heard.iter().position(|words| sum(words) != sum(&heard[0])) {
        None => Ok(()),
        Some(rank) => {
            let text = format!("rank {rank} has computed other rows than rank 0: the ranks have diverged");
            Err(OpError::Device { op, code: 0, text, fatal: true })
        }
    }
}

fn lock<T>(row: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    row.lock().unwrap_or_else(PoisonError::into_inner)
}
