//! The links between ranks before the first step: whether what ranks give one another arrives as it was, and which variant of a sum takes the
//! least time on this machine.

use super::rank::{Peers, failure};
use super::{CudaBackend, Workspace};
use crate::driver::Driver;
use crate::kernels::all_reduce::{self, Layout, LinkState, ONE_SHOT_ROWS, Operation, Variant, Wire};
use perigee_ops::OpError;

/// Most rows of the sums that links are verified with.
const VERIFIED_ROWS: usize = 64;
/// Rows of the sums that are timed; more rows take the variant of the largest.
const TIMED_ROWS: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

/// How often a sum of so many rows is timed, of which the shortest time counts, and the sums each time, behind the one in which the ranks
/// find together. Long ones differ less.
fn timings(rows: usize) -> (u32, u32) {
    if rows < VERIFIED_ROWS { (2, 2) } else { (1, 1) }
}

/// The variant of sums by their rows. Bits do not depend on it, but all ranks have the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Variants(Vec<(usize, Variant)>);

impl Variants {
    /// The variants before a measurement: one shot for few rows, two for more.
    pub(super) fn unmeasured(layout: &Layout) -> Self {
        let few = ONE_SHOT_ROWS.min(layout.most_rows(Variant::PushOneShot));
        Self(vec![(few, Variant::PushOneShot), (usize::MAX, Variant::PushTwoShot)])
    }

    /// The variant for `num_rows` rows: that of the next larger number of rows which was timed, or of the largest.
    pub(super) fn of(&self, num_rows: usize) -> Variant {
        let found = self.0.iter().find(|(rows, _)| num_rows <= *rows).or(self.0.last());
        found.map_or(Variant::PushOneShot, |(_, variant)| *variant)
    }
}

/// Microseconds of a sum of so many rows by variant, in the order of [`Variant::ALL`]; infinite: not to be used.
#[derive(Debug, Clone, Copy)]
struct Times {
    rows: usize,
    micros: [f64; Variant::ALL.len()],
}

impl Times {
    /// The place of the shortest time.
    fn shortest(&self) -> usize {
        let mut shortest = 0;
        for (at, micros) in self.micros.iter().enumerate() {
            if *micros < self.micros[shortest] {
                shortest = at;
            }
        }
        shortest
    }
}

/// The number that `rank` adds to element `at` of a verified sum: three bits of the sum, so that a wrong sum names the rank.
fn given(rank: usize, at: usize) -> u32 {
    (1 + (at * 5 + rank * 3) as u32 % 7) << (3 * rank)
}

impl<D: Driver> CudaBackend<D> {
    /// Verifies the links, and times the variants of sums of up to `rows` rows; `None` without other ranks. Errors: a link that loses or
    /// changes what a rank stores.
    pub(super) fn measure_links(
        &mut self,
        w: &Workspace<D>,
        rows: usize,
    ) -> Result<Option<Variants>, OpError> {
        let Some(peers) = &w.peers else { return Ok(None) };
        // Nobody waits for a rank that still allocates.
        peers.meet()?;
        let largest = peers.layout.most_rows(Variant::PushTwoShot).min(rows);
        self.stream.driver().zero(peers.partial.address, 4 * largest * w.shape.hidden_size)?;
        let mut works = [true; Variant::ALL.len()];
        for (works, variant) in works.iter_mut().zip(Variant::ALL) {
            *works = self.verify(variant, peers, rows.min(VERIFIED_ROWS), w)?;
        }
        let mut times = Vec::new();
        for rows in TIMED_ROWS.into_iter().filter(|timed| *timed <= largest) {
            let mut micros = [f64::INFINITY; Variant::ALL.len()];
            for ((micros, variant), works) in micros.iter_mut().zip(Variant::ALL).zip(works) {
                // In two shots each rank has a row to sum.
                let fits = rows <= peers.layout.most_rows(variant)
                    && (variant.is_one_shot() || rows >= self.share.world);
                let (times, sums) = timings(rows);
                for _ in 0..if works && fits { times } else { 0 } {
                    *micros = micros.min(self.time(variant, peers, (rows, sums), w)?);
                }
            }
            times.push(Times { rows, micros });
        }
        // As the first rank has measured it.
        let mut chosen: Vec<u64> = times.iter().map(|times| times.shortest() as u64).collect();
        let own = chosen.clone();
        peers.member.exchange_words("links", &own, |rank, of_rank| {
            if rank == 0 {
                chosen = of_rank.to_vec();
            }
        })?;
        let variant = |at: &u64| Variant::ALL.get(*at as usize).copied().unwrap_or(Variant::PushOneShot);
        let chosen: Vec<_> = times.iter().zip(&chosen).map(|(times, at)| (times.rows, variant(at))).collect();
        if self.share.rank == 0 {
            let micros = |times: &Times| {
                let [push_one, push_two, pull_one, pull_two] = times.micros;
                format!("{}: {push_one:.1} {push_two:.1} {pull_one:.1} {pull_two:.1}", times.rows)
            };
            let micros: Vec<_> = times.iter().map(micros).collect();
            let variants: Vec<_> =
                chosen.iter().map(|(rows, variant)| format!("{rows}: {}", variant.name())).collect();
            let (ranks, bytes) = (self.share.world, 4 * w.shape.hidden_size);
            let (micros, variants) = (micros.join(", "), variants.join(", "));
            tracing::info!(
                ranks,
                bytes,
                micros,
                variants,
                "links verified: sums of all ranks arrive whole; microseconds by rows, pushed in one shot, in two, pulled in one, in two"
            );
        }
        Ok(Some(Variants(chosen)))
    }

    /// Enqueues a sum of the rows of `partial`, of which nothing is kept.
    fn try_sum(
        &mut self,
        (variant, wire): (Variant, Wire),
        peers: &Peers,
        rows: usize,
        w: &Workspace<D>,
    ) -> Result<(), OpError> {
        let sum = all_reduce::Rows {
            partial: peers.partial.address,
            hidden: w.activations.hidden.address,
            adds: false,
            gain: 0,
            normed: 0,
            rounded: 0,
            eps: 0.0,
        };
        let (link, layout) = (&peers.link, &peers.layout);
        all_reduce::launch(&mut self.stream, link, layout, (variant, wire), Operation::Links, rows, &sum)
    }

    /// Whether a sum of known numbers arrives whole on all ranks. Errors: it does not though it is stored, as all that ranks say to one
    /// another. There are machines where loads across do not work and stores do: they do without what is pulled.
    fn verify(
        &mut self,
        variant: Variant,
        peers: &Peers,
        rows: usize,
        w: &Workspace<D>,
    ) -> Result<bool, OpError> {
        let (rank, columns, hidden) = (self.share.rank, w.shape.hidden_size, w.activations.hidden);
        let values: Vec<f32> = (0..rows * columns).map(|at| given(rank, at) as f32).collect();
        self.stream.upload(peers.partial.address, bytemuck::cast_slice(&values))?;
        self.stream.driver().zero(hidden.address, 4 * rows * columns)?;
        // Known numbers have more bits than bf16.
        self.try_sum((variant, Wire::F32), peers, rows, w)?;
        peers.meet()?;
        let sums = self.stream.read::<f32>(hidden.address, rows * columns)?;
        let state = self.stream.read::<LinkState>(peers.link.state, 1)?[0];
        let found = peers.ended(state).and_then(|()| self.check_sums(&sums));
        if matches!(variant, Variant::PushOneShot | Variant::PushTwoShot) {
            peers.meet()?;
            return found.map(|()| true);
        }
        let mut all_work = true;
        peers.member.exchange_words("links", &[u64::from(found.is_ok())], |_, works| {
            all_work &= works.first() == Some(&1);
        })?;
        if !all_work {
            let reason = found.err().map(|error| error.to_string());
            tracing::warn!(rank, variant = variant.name(), reason, "links do without this variant of sums");
            let state = LinkState { epoch: state.epoch, busy: state.busy, ..LinkState::default() };
            self.stream.upload(peers.link.state, bytemuck::bytes_of(&state))?;
            peers.meet()?;
        }
        Ok(all_work)
    }

    /// Errors: a sum of known numbers lacks those of a rank.
    fn check_sums(&self, sums: &[f32]) -> Result<(), OpError> {
        let (rank, world) = (self.share.rank, self.share.world);
        for (at, sum) in sums.iter().enumerate() {
            let digit = |rank: usize| *sum as u32 >> (3 * rank) & 7;
            if let Some(other) = (0..world).find(|other| digit(*other) != given(*other, at) >> (3 * other)) {
                return Err(failure(format!(
                    "what rank {other} has stored for rank {rank} has not arrived as it was: {sum} in place {at} of a sum of {world} \
                     ranks; an IOMMU or ACS between the GPUs does that, switch both off or start the kernel with iommu=pt"
                )));
            }
        }
        Ok(())
    }

    /// Microseconds of a sum on this rank, behind one in which the ranks find together.
    fn time(
        &mut self,
        variant: Variant,
        peers: &Peers,
        (rows, sums): (usize, u32),
        w: &Workspace<D>,
    ) -> Result<f64, OpError> {
        let sum = (variant, self.wire);
        peers.meet()?;
        self.try_sum(sum, peers, rows, w)?;
        self.stream.driver().begin_timing()?;
        (0..sums).try_for_each(|_| self.try_sum(sum, peers, rows, w))?;
        peers.meet()?;
        let seconds = self.stream.driver().end_timing()?.as_secs_f64();
        Ok(seconds * 1e6 / f64::from(sums))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_has_the_variant_of_the_next_timed_rows() {
        let variants =
            Variants(vec![(1, Variant::PushOneShot), (16, Variant::PullOneShot), (64, Variant::PullTwoShot)]);
        let of = |rows| variants.of(rows);
        assert_eq!([1, 2, 16].map(of), [Variant::PushOneShot, Variant::PullOneShot, Variant::PullOneShot]);
        assert_eq!([17, 64, 5000].map(of), [Variant::PullTwoShot; 3]);
    }

    #[test]
    fn the_shortest_time_is_the_first_of_equal_ones() {
        let shortest = |micros| Times { rows: 1, micros }.shortest();
        assert_eq!(shortest([2.0, f64::INFINITY, 2.0, f64::INFINITY]), 0);
        assert_eq!(shortest([f64::INFINITY, 4.0, 3.0, 3.0]), 2);
    }
}
