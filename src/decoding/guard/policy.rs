//! One verdict per committed token: deliver, hold back, rescue, or stop.
//!
//! Tokens are held back from the moment one copy and at least twelve tokens have repeated. They are
//! delivered when the repetition breaks off and never delivered when the repetition is a loop.
//! Delivered tokens are never taken back, so streamed and whole replies are the same.
//!
//! The state is a function of the tokens, apart from two irreversible facts: the delivered tokens,
//! and rescues at or before the point of a rewind.

use super::nudge::Nudge;
use super::thresholds::{LEAST_RUN, LONGEST_RECORD, noisy_threshold, structured_threshold};
use super::{
    Action, AllPeriods, Event, Kind, Mode, Options, PatternRule, Periods, Permit, Phase, PhaseTracker,
    Repeat, exact_threshold, hold_start,
};

/// A repetition that begins within this many tokens of an answer's start counts as all of the
/// answer; before it stand an introduction or an opening fence.
const OPENING: usize = 48;
/// Tokens of a loop with noise whose phrases are forbidden after a rescue.
const NOISY_FORMS: usize = 256;
/// Most events of one reply.
const MAX_EVENTS: u32 = 16;
/// Longest stretch in which a period's unit is reduced to its primitive one.
const MAX_PRIMITIVE: usize = 1 << 16;

/// The action due on a reply after a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The first `upto` tokens may be delivered.
    Deliver {
        /// Tokens of the reply; never decreases.
        upto: usize,
        /// A finding to report.
        event: Option<Event>,
    },
    /// Cut the reply back to `keep` tokens (all that was delivered) and go on.
    Rescue {
        /// Tokens of the reply that remain.
        keep: usize,
        /// The finding behind the rescue.
        event: Event,
    },
    /// End the reply with its first `keep` tokens.
    Stop {
        /// Tokens of the reply that remain.
        keep: usize,
        /// The finding behind the stop.
        event: Event,
    },
}

/// The guard's judgement of a repetition under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Judgement {
    /// The shortest unit that makes the same stretch.
    unit: u32,
    /// Length of the reply at the judgement, in tokens.
    at: usize,
    permit: Permit,
    /// At least a quarter of the unit is numbers and marks of code.
    code: bool,
    /// The copies form one word without an end.
    endless: bool,
    /// The hold ran out once; tokens of this repetition are delivered from then on.
    released: bool,
    /// The repetition was reported and continues.
    reported: bool,
}

/// The state of one repetition after a token.
#[derive(Debug, Clone, Copy)]
struct Standing {
    /// The kind of loop, if the repetition is one.
    found: Option<Kind>,
    holds: bool,
    /// The copies form one word without an end.
    endless: bool,
    /// The repetition is permitted, has almost used up its permit, and a copy ends at this token.
    may_end: bool,
}

/// The guard of one reply.
#[derive(Debug, Clone)]
pub struct Guard {
    options: Options,
    tokens: Vec<u32>,
    periods: Periods,
    phase: PhaseTracker,
    pattern: Option<(PatternRule, AllPeriods)>,
    /// Tokens that may have been delivered.
    delivered: usize,
    nudges: Vec<Nudge>,
    may_end: bool,
    num_events: u32,
}

impl Guard {
    /// A guard at the start of a reply of at most `max_tokens` tokens.
    pub fn new(options: Options, max_tokens: usize) -> Self {
        Self {
            tokens: Vec::new(),
            periods: Periods::new(max_tokens),
            phase: PhaseTracker::new(options.structured, options.starts_thinking),
            pattern: options.pattern.map(|rule| (rule, AllPeriods::new(rule.max_size))),
            delivered: 0,
            nudges: Vec::new(),
            may_end: false,
            num_events: 0,
            options,
        }
    }

    /// Judges the next token of the reply.
    pub fn observe(&mut self, token: u32) -> Verdict {
        let verdict = self.look(token);
        match &verdict {
            Verdict::Deliver { upto, event } => {
                self.delivered = self.delivered.max(*upto);
                self.num_events += u32::from(event.is_some());
            }
            Verdict::Rescue { .. } | Verdict::Stop { .. } => self.num_events += 1,
        }
        verdict
    }

    /// Cuts the reply back to its first `keep` tokens. The state equals that of a guard that saw
    /// only those.
    pub fn rewind(&mut self, keep: usize) {
        if keep >= self.tokens.len() {
            return;
        }
        let mut kept = std::mem::take(&mut self.tokens);
        kept.truncate(keep);
        let delivered = self.delivered.min(keep);
        self.nudges.retain(|nudge| nudge.at <= keep);
        self.periods.clear();
        self.phase = PhaseTracker::new(self.options.structured, self.options.starts_thinking);
        if let Some((_, runs)) = &mut self.pattern {
            runs.clear();
        }
        (self.delivered, self.may_end) = (0, false);
        self.tokens.reserve(keep);
        for &token in &kept {
            // Findings before the cut were reported already.
            if let Verdict::Deliver { upto, .. } = self.look(token) {
                self.delivered = self.delivered.max(upto);
            }
        }
        self.delivered = self.delivered.max(delivered);
    }

    /// The token that must come next while thinking is being closed; overrides sampling.
    pub fn forced(&self) -> Option<u32> {
        let closing = self.nudges.iter().rev().find(|nudge| nudge.closes_thinking)?;
        self.options.close_thinking.get(self.tokens.len() - closing.at).copied()
    }

    /// Appends the tokens that may not come next.
    pub fn forbidden(&self, out: &mut Vec<u32>) {
        if self.phase() == Phase::Text {
            self.nudges.iter().for_each(|nudge| out.extend(nudge.forbidden_after(&self.tokens)));
        }
    }

    /// Whether the reply should end here if an end token is among the likeliest tokens.
    pub fn may_end(&self) -> bool {
        self.may_end && self.options.mode != Mode::Warn
    }

    /// Rescues so far. Part of the key of random draws, so that the same draw does not repeat the
    /// loop.
    pub fn num_rescues(&self) -> usize {
        self.nudges.len()
    }

    /// Tokens generated and held back.
    pub fn num_held(&self) -> usize {
        self.tokens.len() - self.delivered
    }

    /// The phase at the end of the reply.
    pub fn phase(&self) -> Phase {
        self.phase.phase()
    }

    fn look(&mut self, token: u32) -> Verdict {
        if self.nudges.iter().any(|nudge| nudge.at == self.tokens.len()) {
            // The kept copies of a loop do not count against the text that replaces them.
            self.periods.forget_repeats();
        }
        self.tokens.push(token);
        let before = self.phase();
        self.phase.push(token, &self.options.vocabulary, &self.options.markers);
        self.periods.push(&self.tokens);
        if before == Phase::Structured && self.phase() == Phase::Text {
            // Matches with noise in structured text do not count against the text behind it.
            self.periods.repeats_mut().iter_mut().for_each(|repeat| repeat.score = repeat.run);
        }
        self.may_end = false;
        if let Some((rule, runs)) = &mut self.pattern {
            runs.push(&self.tokens);
            if let Some(period) = runs.meets(rule) {
                let run = runs.run(period);
                let event = self.event(Kind::Pattern, period, run, Action::Stopped);
                return Verdict::Stop { keep: self.tokens.len(), event };
            }
        }
        let all = Verdict::Deliver { upto: self.tokens.len(), event: None };
        if self.periods.repeats().iter().all(|repeat| repeat.score < LEAST_RUN) {
            return all;
        }
        let mut found: Option<(Kind, Repeat)> = None;
        let (mut holds, mut endless) = (false, false);
        for at in 0..self.periods.repeats().len() {
            let Some(standing) = self.stand(at) else { continue };
            let repeat = self.periods.repeats()[at];
            // The shortest unit decides.
            if let Some(kind) = standing.found.filter(|_| found.is_none_or(|(_, r)| repeat.period < r.period))
            {
                found = Some((kind, repeat));
            }
            holds |= standing.holds;
            endless |= standing.endless;
            self.may_end |= standing.may_end;
        }
        match found {
            Some((kind, repeat)) => self.act(kind, repeat),
            None if holds && self.options.hold_tokens > 0 && self.options.mode != Mode::Warn => {
                self.hold(endless)
            }
            None => all,
        }
    }

    /// The state of the followed repetition at an index; `None` if the repetition calls for
    /// nothing.
    fn stand(&mut self, at: usize) -> Option<Standing> {
        let repeat = self.periods.repeats()[at];
        let known = repeat.judgement;
        if repeat.score < LEAST_RUN {
            return None;
        }
        let (period, hold) = (repeat.period, self.options.hold_tokens);
        let unit = known.map_or(period, |known| known.unit);
        let run = unit_run(&repeat, unit);
        // A run at p is also one at 2p, 3p and so on: only the shortest distance is judged.
        let exact = run >= hold_start(unit, exact_threshold(unit), hold)
            && !self.periods.is_explained(&repeat, |r| r.run, 10);
        let in_text = self.phase() == Phase::Text;
        let noisy_hold = exact_threshold(period).max(hold_start(period, noisy_threshold(period), hold));
        let noisy = in_text
            && period <= LONGEST_RECORD
            && repeat.score >= noisy_hold
            && !self.periods.is_explained(&repeat, |r| r.score, 9);
        if !(exact || noisy) {
            return None;
        }
        let judgement = self.judgement(at, exact);
        if judgement.reported {
            return None;
        }
        let unit = judgement.unit;
        let repeat = self.periods.repeats()[at];
        let run = unit_run(&repeat, unit);
        let base =
            if in_text && !judgement.code { exact_threshold(unit) } else { structured_threshold(unit) };
        let limit = judgement.permit.limit(unit, base);
        let noisy = noisy && !judgement.code;
        let noisy_limit = judgement.permit.limit(period, noisy_threshold(period));
        let found = match () {
            () if exact && run >= limit => Some(Kind::Loop),
            () if noisy && repeat.score >= noisy_limit => Some(Kind::NoisyLoop),
            () => None,
        };
        let begins = hold_start(unit, base, hold);
        let (is_permitted, noise_is_permitted) = (limit > base, noisy_limit > noisy_threshold(period));
        let holds_exact = exact && !is_permitted && run >= begins;
        let holds_noisy = noisy && !noise_is_permitted && repeat.score >= noisy_hold;
        Some(Standing {
            found,
            holds: in_text && !judgement.released && (holds_exact || holds_noisy),
            endless: judgement.endless,
            may_end: in_text
                && exact
                && is_permitted
                && u64::from(run) * 5 >= u64::from(limit) * 4
                && run.is_multiple_of(unit),
        })
    }

    /// The judgement of a repetition. Made anew if there is none, or if another unit follows at the
    /// same distance.
    fn judgement(&mut self, at: usize, exact: bool) -> Judgement {
        let repeat = self.periods.repeats()[at];
        let begun = self.tokens.len() - repeat.run as usize;
        let mut judgement = match repeat.judgement {
            Some(known) if !exact || known.at >= begun => return known,
            Some(known) if self.is_same_unit(&repeat, known.at) => known,
            known => {
                let new = self.judge(&repeat);
                let was_permitted = known.is_some_and(|known| known.permit != Permit::NONE);
                if was_permitted && new.permit == Permit::NONE {
                    // Permitted copies do not count against the unit that follows.
                    self.periods.repeats_mut()[at].score = repeat.run;
                }
                new
            }
        };
        judgement.at = self.tokens.len();
        self.periods.repeats_mut()[at].judgement = Some(judgement);
        judgement
    }

    /// Whether at least half of the newest copy equals the copy that ended at most one distance
    /// before `then`, position by position.
    fn is_same_unit(&self, repeat: &Repeat, then: usize) -> bool {
        let (period, end) = (repeat.period as usize, self.tokens.len());
        let Some(back) = (end - then).checked_next_multiple_of(period) else { return false };
        let Some(from) = (end - period).checked_sub(back) else { return false };
        let (old, new) = (&self.tokens[from..from + period], &self.tokens[end - period..]);
        old.iter().zip(new).filter(|(old, new)| old == new).count() * 2 >= period
    }

    fn judge(&self, repeat: &Repeat) -> Judgement {
        let unit = self.primitive(repeat);
        let len = self.tokens.len();
        let first = len - ((repeat.run + repeat.period) as usize).min(len);
        let copy = &self.tokens[first..first + unit as usize];
        let answer = self.phase.answer_len().map(|answer| len - answer);
        let from_start = answer.is_some_and(|start| (repeat.start as usize) < start + OPENING);
        let permit = match &self.options.licence {
            Some(licence) => licence.permit(copy, from_start && self.nudges.is_empty()),
            None => Permit::NONE,
        };
        let vocabulary = &self.options.vocabulary;
        let code = copy.iter().filter(|token| vocabulary.is_code(**token)).count() * 4 >= copy.len();
        let mut ends = copy.iter().zip(copy.iter().cycle().skip(1));
        let endless = !ends.any(|(&before, &after)| vocabulary.parts(before, after));
        Judgement { unit, at: len, permit, code, endless, released: false, reported: false }
    }

    /// Responds to a loop: report, rescue or stop.
    fn act(&mut self, kind: Kind, repeat: Repeat) -> Verdict {
        let unit = repeat.judgement.map_or(repeat.period, |judgement| judgement.unit);
        let run = unit_run(&repeat, unit);
        let newest = self.tokens.last().copied();
        let broken = unit == 1 && (newest == Some(0) || newest == self.options.padding);
        let kind = if broken { Kind::NumericSuspect } else { kind };
        if self.options.mode == Mode::Warn {
            let alike = |r: &&mut Repeat| r.judgement.is_some_and(|judgement| judgement.unit == unit);
            for other in self.periods.repeats_mut().iter_mut().filter(alike) {
                other.judgement.iter_mut().for_each(|judgement| judgement.reported = true);
            }
            let event = (self.num_events < MAX_EVENTS).then(|| self.event(kind, unit, run, Action::Warned));
            return Verdict::Deliver { upto: self.tokens.len(), event };
        }
        let keep = self.delivered.min(self.tokens.len());
        let rescues = self.options.mode == Mode::Rescue
            && self.phase() == Phase::Text
            && kind != Kind::NumericSuspect
            && self.nudges.len() < self.options.max_rescues as usize;
        let closes = rescues && self.phase.is_thinking() && !self.options.close_thinking.is_empty();
        let action = match (rescues, closes) {
            (false, _) => Action::Stopped,
            (true, false) => Action::Rescued,
            (true, true) => Action::ClosedThinking,
        };
        let mut event = self.event(kind, unit, run, action);
        event.discarded = (self.tokens.len() - keep) as u32;
        if !rescues {
            return Verdict::Stop { keep, event };
        }
        let copy = &self.tokens[self.tokens.len() - unit as usize..];
        // The last form of a noisy loop is not its only one.
        let forms = if kind == Kind::NoisyLoop { NOISY_FORMS } else { 0 };
        let said = &self.tokens[self.tokens.len().saturating_sub(forms)..];
        self.nudges.push(Nudge::new(keep, self.options.ban_tokens as usize, copy, said, closes));
        Verdict::Rescue { keep, event }
    }

    /// Holds the newest token back once the reply can be cut before it: between words, or between
    /// characters of an endless word.
    fn hold(&mut self, endless: bool) -> Verdict {
        let len = self.tokens.len();
        let held = len - self.delivered;
        let longest = self.periods.repeats().iter().filter(|r| r.judgement.is_some()).map(|r| r.period).max();
        if held > longest.unwrap_or(0).max(self.options.hold_tokens) as usize {
            // The hold was long enough for a loop to show.
            let judgements = self.periods.repeats_mut().iter_mut().filter_map(|r| r.judgement.as_mut());
            judgements.for_each(|judgement| judgement.released = true);
            return Verdict::Deliver { upto: len, event: None };
        }
        let upto = if held == 1 && !self.is_cuttable(endless) { len } else { self.delivered };
        Verdict::Deliver { upto, event: None }
    }

    fn is_cuttable(&self, endless: bool) -> bool {
        let [.., before, after] = self.tokens[..] else { return true };
        let vocabulary = &self.options.vocabulary;
        vocabulary.parts(before, after) || (endless && vocabulary.ends_character(before))
    }

    /// The shortest unit whose copies make the same stretch: a run at p is also one at 2p, 3p and
    /// so on.
    fn primitive(&self, repeat: &Repeat) -> u32 {
        if repeat.run < repeat.period {
            return repeat.period;
        }
        let stretch = (repeat.run + repeat.period) as usize;
        let from = self.tokens.len() - stretch.min(self.tokens.len()).min(MAX_PRIMITIVE);
        let shortest = smallest_period(&self.tokens[from..]) as u32;
        if repeat.period.is_multiple_of(shortest) { shortest } else { repeat.period }
    }

    fn event(&self, kind: Kind, period: u32, run: u32, action: Action) -> Event {
        let end = self.tokens.len() as u32;
        let start = end.saturating_sub(run + period);
        let unit = (period as usize).min(Event::MAX_UNIT).min((end - start) as usize);
        Event {
            kind,
            phase: self.phase(),
            period,
            copies: run.checked_div(period).map_or(0, |copies| copies + 1),
            start,
            end,
            unit: self.tokens[start as usize..][..unit].to_vec(),
            action,
            discarded: 0,
        }
    }
}

/// The run of a unit at a distance that is a multiple of it.
fn unit_run(repeat: &Repeat, unit: u32) -> u32 {
    if repeat.run < repeat.period { repeat.run } else { repeat.run + (repeat.period - unit) }
}

/// The smallest period of a text, by its prefix function (Knuth, Morris, Pratt 1977).
fn smallest_period(text: &[u32]) -> usize {
    let mut border = vec![0usize; text.len()];
    let mut length = 0;
    for at in 1..text.len() {
        while length > 0 && text[at] != text[length] {
            length = border[length - 1];
        }
        length += usize::from(text[at] == text[length]);
        border[at] = length;
    }
    text.len() - border.last().copied().unwrap_or(0)
}
