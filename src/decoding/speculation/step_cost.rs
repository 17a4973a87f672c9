//! What a step costs by its rows, and how many drafted rows it should have.
//!
//! Measured at the warm-up at a few row counts, and corrected by every step that only decodes: a
//! warm-up sees neither long contexts nor a busy machine. A step of about as many rows as the one
//! before it says most about the machine of that moment, and moves all points alike, so that the
//! choice of a length does not change with the noise of a clock. A step of another row count says
//! what that count costs beside others, and moves the points near it alone. For that comparison a step
//! without drafts is due after many with them. Points that no step is near return to what was
//! measured first. That is the least they cost: a number of drafted rows that was given up is tried
//! again.

/// Row counts that are measured.
const ROWS: &[usize] = &[1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256];
/// Weight of a step in all points, and in that of its row count beside that, after a step like it.
const LIKE_WEIGHTS: (f64, f64) = (0.12, 0.03);
/// The same after a step unlike it.
const UNLIKE_WEIGHTS: (f64, f64) = (0.0, 0.15);
/// Steps with drafts after which one without is due: it costs a gain of a third one percent.
const DUE_AFTER: u32 = 24;
/// Binary orders of magnitude of the row count from which on a step says nothing of a point.
const FAR: f64 = 1.0;
/// Share of the way back that a point takes in a step that is far from it.
const RETURN: f64 = 1.0 / 1024.0;
/// Most that one step counts above or below the table: a step that was interrupted says nothing.
const MAX_RATIO: f64 = 2.0;
/// Gain in tokens per second that a draft must promise: below it, errors of the estimates decide.
const MIN_GAIN: f64 = 1.05;

/// Weight of a step with drafts in what they cost beside their rows.
const EXTRA_WEIGHT: f64 = 0.05;
/// Share of that which a step without drafts forgets, so that drafts are tried again.
const EXTRA_FORGOTTEN: f64 = 1.0 / 512.0;

/// Seconds of a step that decodes, by its rows.
#[derive(Debug, Clone, PartialEq)]
pub struct StepCost {
    /// Rows and seconds, ascending.
    points: Vec<(f64, f64)>,
    /// Seconds of the points as measured first.
    measured: Vec<f64>,
    /// Seconds that drafts add to a step beside their rows: rounds of sampling.
    extra: f64,
    /// Rows of the last step; 0 before the first.
    last_rows: f64,
    /// Steps with drafts since the last one without.
    with_drafts: u32,
}

impl Default for StepCost {
    /// Nothing measured: a step costs in proportion to its rows.
    fn default() -> Self {
        Self::new(&[])
    }
}

impl StepCost {
    /// Row counts to measure for steps of at most `max_rows`.
    pub fn rows_to_measure(max_rows: usize) -> impl Iterator<Item = usize> {
        ROWS.iter().copied().take_while(move |rows| *rows <= max_rows)
    }

    /// A table of measured (rows, seconds), ascending in rows. A step that took longer than one of more rows was
    /// interrupted.
    pub fn new(measured: &[(usize, f64)]) -> Self {
        let mut points: Vec<(f64, f64)> =
            measured.iter().map(|(rows, seconds)| (*rows as f64, seconds.max(1e-9))).collect();
        if points.is_empty() {
            points.push((1.0, 1e-9));
        }
        let mut least = f64::INFINITY;
        for (_, seconds) in points.iter_mut().rev() {
            least = least.min(*seconds);
            *seconds = least;
        }
        let measured = points.iter().map(|(_, seconds)| *seconds).collect();
        Self { points, measured, extra: 0.0, last_rows: 0.0, with_drafts: 0 }
    }

    /// The table with half of its times.
    pub fn halved(&self) -> Self {
        let half = |(rows, seconds): &(f64, f64)| (*rows, seconds / 2.0);
        let measured = self.measured.iter().map(|seconds| seconds / 2.0).collect();
        Self { points: self.points.iter().map(half).collect(), measured, ..*self }
    }

    /// Rows and milliseconds of the points, for the log.
    pub fn summary(&self) -> String {
        let points = self.points.iter().map(|(rows, seconds)| format!("{rows}: {:.2}", seconds * 1e3));
        points.collect::<Vec<_>>().join(", ")
    }

    /// Seconds of a step of `rows` rows: between two points on the line through them, beyond the
    /// last one in proportion to the rows.
    pub fn seconds(&self, rows: usize) -> f64 {
        let rows = rows as f64;
        let after = self.points.partition_point(|(at, _)| *at < rows);
        match (after.checked_sub(1).map(|i| self.points[i]), self.points.get(after)) {
            (Some((x0, y0)), Some(&(x1, y1))) => y0 + (y1 - y0) * (rows - x0) / (x1 - x0),
            (None, Some((_, y))) => *y,
            (Some((x, y)), None) => y * rows / x,
            (None, None) => 0.0,
        }
    }

    /// Corrects the table by a step of `rows` decoded rows, some of them drafted or none.
    pub fn observe(&mut self, rows: usize, drafts: bool, seconds: f64) {
        let expected = self.seconds(rows) + if drafts { self.extra } else { 0.0 };
        self.with_drafts = if drafts { self.with_drafts + 1 } else { 0 };
        let off = (seconds / expected).clamp(1.0 / MAX_RATIO, MAX_RATIO).ln();
        if !off.is_finite() {
            return;
        }
        if drafts {
            self.extra = (self.extra + EXTRA_WEIGHT * expected * off).max(0.0);
        } else {
            self.extra -= EXTRA_FORGOTTEN * self.extra;
        }
        // Beyond the last point the table is proportional to the rows.
        let last = self.points.last().map_or(1.0, |(at, _)| *at);
        let rows = (rows as f64).min(last);
        let like = self.last_rows > 0.0 && (rows / self.last_rows).log2().abs() < FAR;
        self.last_rows = rows;
        let (common_weight, own_weight) = if like { LIKE_WEIGHTS } else { UNLIKE_WEIGHTS };
        for ((at, seconds), measured) in self.points.iter_mut().zip(&self.measured) {
            let distance = (*at / rows).log2().abs();
            let own = (1.0 - distance / FAR).max(0.0) * own_weight;
            *seconds *= ((common_weight + own) * off).exp();
            if distance >= FAR {
                *seconds *= (measured / *seconds).powf(RETURN);
            }
        }
    }

    /// Whether a step without drafts is due, to compare those with drafts with.
    pub fn is_plain_due(&self) -> bool {
        self.with_drafts >= DUE_AFTER
    }

    /// Whether any draft could pay in a step of `base` rows without drafts and at most `max_rows` with
    /// them: [`StepCost::share_rows`] with certain drafts of `max_tokens` for each row.
    pub fn could_pay(&self, base: usize, max_rows: usize, max_tokens: usize) -> bool {
        let most = (base * (1 + max_tokens)).min(max_rows);
        let pays = |rows: usize| rows as f64 / (self.seconds(rows) + self.extra) > self.rate_worth(base);
        (base + 1..=most).any(pays)
    }

    /// Tokens per second above which a step with drafts is worth it.
    fn rate_worth(&self, base: usize) -> f64 {
        MIN_GAIN * base as f64 / self.seconds(base)
    }

    /// How many tokens a draft model should draft for each of `base` sequences, at most `max_tokens`:
    /// as many as give the most tokens per second if each token holds with `chance`, 0 where none
    /// promises a gain worth having. The model's first token costs a step of `draft` over the rows
    /// of the last step, each further one a step over one row of each sequence.
    pub fn model_draft_len(
        &self,
        base: usize,
        max_rows: usize,
        max_tokens: usize,
        chance: f64,
        draft: &StepCost,
    ) -> usize {
        let (mut tokens, mut hold, mut best, mut best_rate) = (1.0, 1.0, 0, self.rate_worth(base));
        for len in 1..=max_tokens.min((max_rows / base).saturating_sub(1)) {
            hold *= chance;
            tokens += hold;
            let read = (base as f64 * tokens).ceil() as usize;
            let drafting = draft.seconds(read) + (len - 1) as f64 * draft.seconds(base);
            let rate = base as f64 * tokens / (self.seconds(base * (1 + len)) + self.extra + drafting);
            if rate > best_rate {
                (best, best_rate) = (len, rate);
            }
        }
        best
    }

    /// How many tokens of each draft to check in a step of `base` rows without drafts and at most
    /// `max_rows` with them: as many as give the most tokens per second. `chances[i][j]` is the
    /// chance that the draft `i` holds up to its token `j`, which falls with `j`.
    ///
    /// Returns one length per draft; all 0 where no draft promises a gain worth having.
    pub fn share_rows(&self, base: usize, max_rows: usize, chances: &[Vec<f32>]) -> Vec<usize> {
        let mut lens = vec![0; chances.len()];
        let mut rows: Vec<(f32, usize, usize)> = Vec::new();
        for (draft, chances) in chances.iter().enumerate() {
            rows.extend(chances.iter().enumerate().map(|(depth, chance)| (*chance, depth, draft)));
        }
        // The likeliest rows first; a row never goes before the one that it depends on.
        rows.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        rows.truncate(max_rows.saturating_sub(base));
        let (mut tokens, mut best, mut best_rate) = (base as f64, 0, self.rate_worth(base));
        for (index, (chance, _, _)) in rows.iter().enumerate() {
            tokens += f64::from(*chance);
            let rate = tokens / (self.seconds(base + index + 1) + self.extra);
            if rate > best_rate {
                (best, best_rate) = (index + 1, rate);
            }
        }
        for (_, depth, draft) in &rows[..best] {
            lens[*draft] = lens[*draft].max(depth + 1);
        }
        lens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_lie_on_the_lines_between_the_points() {
        let cost = StepCost::new(&[(1, 1.0), (2, 1.5), (4, 3.5)]);
        assert_eq!([1, 2, 3, 4, 8].map(|rows| cost.seconds(rows)), [1.0, 1.5, 2.5, 3.5, 7.0]);
        assert_eq!(StepCost::rows_to_measure(5).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn an_interrupted_step_is_not_believed() {
        let cost = StepCost::new(&[(1, 1.0), (2, 9.0), (4, 1.5), (8, 3.0)]);
        assert_eq!([1, 2, 4, 8].map(|rows| cost.seconds(rows)), [1.0, 1.5, 1.5, 3.0]);
    }

    #[test]
    fn rows_go_to_the_likeliest_tokens_while_they_pay() {
        // Weights dominate: a row costs a tenth of a step.
        let cheap = StepCost::new(&[(1, 1.0), (11, 2.0)]);
        let sure = vec![0.9, 0.8, 0.7];
        assert_eq!(cheap.share_rows(1, 16, std::slice::from_ref(&sure)), [3]);
        assert_eq!(cheap.share_rows(2, 16, &[sure.clone(), vec![0.04, 0.01]]), [3, 0]);
        assert_eq!(cheap.share_rows(2, 4, &[sure.clone(), vec![0.85, 0.2]]), [1, 1], "room for two rows");
        assert_eq!(cheap.share_rows(1, 16, &[vec![0.05, 0.05, 0.05]]), [0]);
        // Activations dominates: a row costs what a step costs.
        let dear = StepCost::new(&[(1, 1.0), (8, 8.0)]);
        assert_eq!(dear.share_rows(1, 16, &[sure]), [0]);
        assert!(cheap.could_pay(1, 16, 3) && !cheap.could_pay(8, 8, 3) && !dear.could_pay(1, 16, 3));
        assert_eq!(dear.share_rows(1, 16, &[]), [0usize; 0]);
    }

    #[test]
    fn a_draft_model_drafts_as_long_as_it_pays() {
        let target = StepCost::new(&[(1, 1.0), (11, 2.0), (64, 7.3)]);
        let quick = StepCost::new(&[(1, 0.05), (16, 0.1)]);
        let len = |base, chance, draft: &StepCost| target.model_draft_len(base, 64, 8, chance, draft);
        assert!(len(1, 0.9, &quick) > len(1, 0.7, &quick) && len(1, 0.7, &quick) > len(1, 0.3, &quick));
        assert_eq!(len(1, 0.05, &quick), 0);
        assert_eq!(len(64, 1.0, &quick), 0, "no room for rows");
        assert_eq!(len(1, 1.0, &StepCost::new(&[(1, 1.2), (16, 2.0)])), 0, "slower than the target");
    }

    #[test]
    fn a_dear_second_row_does_not_hide_cheap_ones_behind_it() {
        let steep_then_flat = StepCost::new(&[(1, 1.0), (2, 1.9), (8, 2.0)]);
        assert_eq!(steep_then_flat.share_rows(1, 8, &[vec![0.9; 7]]), [7]);
    }

    #[test]
    fn the_table_learns_what_steps_cost() {
        let mut cost = StepCost::new(&[(1, 1.0), (4, 1.1)]);
        for _ in 0..200 {
            cost.observe(1, false, 3.0);
            cost.observe(4, false, 9.0);
        }
        assert!((cost.seconds(1) / 3.0 - 1.0).abs() < 0.2, "{}", cost.seconds(1));
        assert!((cost.seconds(4) / 9.0 - 1.0).abs() < 0.2, "{}", cost.seconds(4));
        cost.observe(1, false, f64::NAN);
        cost.observe(1, false, 0.0);
        assert!(cost.seconds(1) > 1.0);
    }

    #[test]
    fn drafts_that_cost_more_than_their_rows_are_given_up_and_tried_again() {
        let sure = vec![vec![0.9, 0.8, 0.7]];
        let mut cost = StepCost::new(&[(1, 1.0), (4, 1.1)]);
        assert_eq!(cost.share_rows(1, 8, &sure), [3]);
        let mut steps = 0;
        while cost.share_rows(1, 8, &sure) == [3] {
            cost.observe(4, true, 6.0);
            cost.observe(1, false, 1.0);
            steps += 1;
            assert!(steps < 200);
        }
        (0..2000).for_each(|_| cost.observe(1, false, 1.0));
        assert_eq!(cost.share_rows(1, 8, &sure), [3]);
    }

    /// Seconds and tokens of `steps` steps that decode one sequence, with drafts as `cost` chooses
    /// them; each drafted token holds with `chance`, and `truth` is what a step of so many rows takes.
    fn run(
        cost: &mut StepCost,
        steps: usize,
        chance: f32,
        rng: &mut fastrand::Rng,
        truth: impl Fn(usize, usize, &mut fastrand::Rng) -> f64,
    ) -> (f64, f64) {
        let chances: Vec<f32> = (1..=3).map(|depth| chance.powi(depth)).collect();
        let (mut seconds, mut tokens) = (0.0, 0.0);
        for step in 0..steps {
            let len = match cost.is_plain_due() || !cost.could_pay(1, 8, 3) {
                true => 0,
                false => cost.share_rows(1, 8, std::slice::from_ref(&chances))[0],
            };
            let held = (0..len).take_while(|_| rng.f32() < chance).count();
            let took = truth(step, 1 + len, rng);
            cost.observe(1 + len, len > 0, took);
            (seconds, tokens) = (seconds + took, tokens + 1.0 + held as f64);
        }
        (seconds, tokens)
    }

    #[test]
    fn drafts_that_only_look_good_are_given_up_though_nothing_else_is_tried() {
        // The warm-up was wrong: rows cost what steps cost.
        let mut cost = StepCost::new(&[(1, 1.0), (2, 1.05), (4, 1.1), (8, 1.2)]);
        let mut rng = fastrand::Rng::with_seed(1);
        let truth = |_, rows: usize, _: &mut fastrand::Rng| if rows == 1 { 1.0 } else { 1.5 * rows as f64 };
        let (learning, _) = run(&mut cost, 400, 0.7, &mut rng, truth);
        let (seconds, tokens) = run(&mut cost, 4000, 0.7, &mut rng, truth);
        let rate = tokens / seconds;
        assert!(rate > 0.97, "{rate:.3} tokens a second, 1 without drafts; {learning:.0} s to learn it");
    }

    #[test]
    fn a_machine_that_slows_down_and_recovers_does_not_shorten_drafts() {
        // One to three drafted tokens are worth nearly the same, and every step is off by up to a half.
        let rows_cost = |rows: usize| [1.0, 1.35, 1.65, 2.0][rows - 1];
        let machine = |step: usize| 1.0 + 0.4 * (step as f64 / 40.0).sin();
        let truth = |step: usize, rows: usize, rng: &mut fastrand::Rng| {
            rows_cost(rows) * machine(step) * (0.75 + 0.5 * rng.f64())
        };
        let mut cost = StepCost::new(&[(1, 1.0), (2, 1.35), (3, 1.65), (4, 2.0)]);
        let mut rng = fastrand::Rng::with_seed(2);
        let (seconds, tokens) = run(&mut cost, 20_000, 0.8, &mut rng, truth);
        let best: f64 = (1..=3)
            .map(|len| (0..=len).map(|i| 0.8f64.powi(i)).sum::<f64>() / rows_cost(1 + len as usize))
            .fold(0.0, f64::max);
        let rate = tokens / seconds;
        assert!(rate > 0.96 * best, "{rate:.3} of at most {best:.3} tokens a second");
    }
}
