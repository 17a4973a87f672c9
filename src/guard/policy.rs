//! One verdict per committed token: deliver, hold back, take back and go on, or end.
//!
//! Tokens are held back from the moment one copy and at least twelve tokens have repeated, until the repetition breaks off (they are
//! delivered) or is a loop (they never are). What was delivered is never taken back, so streamed and whole replies are the same.
//!
//! The state is a function of the tokens, apart from two things that cannot be undone: what has been delivered, and rescues at or
//! before the point that is rewound to.

use super::period::run_at;
use super::places::Places;
use super::tiers::{noisy_hold_start, noisy_multiplier};
use super::watch::{Answers, Watched};
use super::{
    Action, AllPeriods, Event, Kind, Mode, Novelty, Nudge, Options, PatternRule, Periods, Permit, Phase,
    PhaseTracker, Repeat, TierAction, hard_threshold, hold_start, noisy_threshold, phase_multiplier,
};

/// Least run of anything that is acted on or held.
const LEAST: u32 = 12;
/// A run of the padding token this long is a fault; no text has it.
const PADDING_RUN: u32 = 32;
/// White space in a structure, tokens in a row, before something else is asked for.
const MAX_BLANKS: u32 = 64;
/// Rescues may throw away a quarter of the reply's limit, and at least this much.
const LEAST_DISCARD: usize = 512;
/// Mean probability of the last `SURE_TOKENS` tokens above which a model is nearly certain of everything.
const SURE: f32 = 0.97;
const SURE_TOKENS: usize = 128;
/// Longest unit that is judged with noise: records of data are longer, and alike.
const LONGEST_NOISY: u32 = 256;
/// Tokens after a rescue in which noise is not judged.
const SETTLE_TOKENS: usize = 64;
/// Most events of one reply.
const MAX_EVENTS: u32 = 16;
/// Longest stretch in which a period's unit is reduced to its primitive one.
const MAX_PRIMITIVE: usize = 1 << 16;

/// What is to be done with a reply after a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The first `upto` tokens may be delivered.
    Deliver {
        /// Tokens of the reply; never less than before.
        upto: usize,
        /// Something to report.
        event: Option<Event>,
    },
    /// Cut the reply back to `keep` tokens (all that was delivered) and go on.
    Rescue {
        /// Tokens of the reply.
        keep: usize,
        /// What happened.
        event: Event,
    },
    /// End the reply with its first `keep` tokens.
    Stop {
        /// Tokens of the reply.
        keep: usize,
        /// What happened.
        event: Event,
    },
}

/// What the repetitions under way add up to.
#[derive(Debug, Default)]
struct Findings {
    /// A loop, and its kind.
    found: Option<(Kind, Repeat)>,
    /// One that should be watched and is not, with its place.
    unwatched: Option<(usize, Repeat)>,
    /// Something is to be held.
    hold: bool,
}

/// How far the beginning of an answer goes: so many tokens that are no repetition of earlier ones.
#[derive(Debug, Clone, Copy, Default)]
struct Opening {
    new: usize,
    /// Where it ended, if it has.
    end: Option<usize>,
}

impl Opening {
    /// An introduction and the first copies of what is repeated, tokens.
    const LENGTH: usize = 48;

    fn push(&mut self, is_new: bool, position: usize) {
        self.new += usize::from(is_new);
        if self.new > Self::LENGTH && self.end.is_none() {
            self.end = Some(position);
        }
    }

    fn holds(&self, position: usize) -> bool {
        self.end.is_none_or(|end| position < end)
    }
}

/// The guard of one reply.
#[derive(Debug, Clone)]
pub struct Guard {
    options: Options,
    max_tokens: usize,
    tokens: Vec<u32>,
    periods: Periods,
    novelty: Novelty,
    opening: Opening,
    phase: PhaseTracker,
    pattern: Option<(PatternRule, AllPeriods)>,
    /// By the place of the distance.
    watched: Places<Watched>,
    answers: Answers,
    /// White space tokens in a row.
    blanks: u32,
    low_novelty_said: bool,
    /// Tokens that may have been delivered.
    delivered: usize,
    nudges: Vec<Nudge>,
    discarded: usize,
    num_events: u32,
    /// Probability of tokens, as far as they were asked for: (position, probability).
    sure: Vec<(u32, f32)>,
}

impl Guard {
    /// A guard at the start of a reply of at most `max_tokens` tokens.
    pub fn new(options: Options, max_tokens: usize) -> Self {
        Self {
            max_tokens,
            tokens: Vec::new(),
            periods: Periods::new(max_tokens),
            novelty: Novelty::default(),
            opening: Opening::default(),
            phase: PhaseTracker::new(options.starts_thinking),
            pattern: options.pattern.map(|rule| (rule, AllPeriods::new(rule.max_size))),
            watched: Places::default(),
            answers: Answers::default(),
            blanks: 0,
            low_novelty_said: false,
            delivered: 0,
            nudges: Vec::new(),
            discarded: 0,
            num_events: 0,
            sure: Vec::new(),
            options,
        }
    }

    /// Takes the next token of the reply.
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

    /// Cuts the reply back to its first `keep` tokens; a guard that never went further is in the same state.
    pub fn rewind(&mut self, keep: usize) {
        if keep >= self.tokens.len() {
            return;
        }
        let mut kept = std::mem::take(&mut self.tokens);
        kept.truncate(keep);
        let delivered = self.delivered.min(keep);
        self.nudges.retain(|nudge| nudge.at() <= keep);
        self.sure.retain(|&(position, _)| (position as usize) < keep);
        self.periods.clear();
        self.novelty.clear();
        self.opening = Opening::default();
        self.phase = PhaseTracker::new(self.options.starts_thinking);
        if let Some((_, runs)) = &mut self.pattern {
            runs.clear();
        }
        self.watched = Places::default();
        (self.blanks, self.low_novelty_said, self.delivered) = (0, false, 0);
        self.tokens.reserve(keep);
        for &token in &kept {
            // What was reported then is not reported again; what was licensed or warned of then still is.
            if let Verdict::Deliver { upto, .. } = self.look(token) {
                self.delivered = self.delivered.max(upto);
            }
        }
        self.delivered = self.delivered.max(delivered);
    }

    /// The token that must come next, whatever the model says: thinking is being closed.
    pub fn forced(&self) -> Option<u32> {
        let at = self.nudges.iter().rev().find_map(Nudge::closes_at)?;
        self.options.close_thinking.get(self.tokens.len() - at).copied()
    }

    /// Appends the tokens that may not come next.
    pub fn forbidden(&self, out: &mut Vec<u32>) {
        if self.phase.phase().is_open() {
            self.nudges.iter().for_each(|nudge| out.extend(nudge.forbidden_after(&self.tokens)));
        }
        if self.endless_blanks() {
            out.extend(self.options.shapes.blank_ids());
        }
    }

    /// The temperature of the next token.
    pub fn heated(&self, temperature: f32) -> f32 {
        self.nudges.last().map_or(temperature, |nudge| nudge.heated(temperature, self.tokens.len()))
    }

    /// Whether the reply should end here if the model thinks of it at all.
    pub fn may_end(&self) -> bool {
        let ends = |token: &u32| self.options.shapes.of(*token).ends_sentence();
        let position = self.tokens.len();
        self.nudges.last().is_some_and(|nudge| nudge.may_end(position)) && self.tokens.last().is_none_or(ends)
    }

    /// Rescues so far: part of the key of random draws, so that the same draw does not lead back into the loop.
    pub fn num_rescues(&self) -> usize {
        self.nudges.len()
    }

    /// Whether [`Guard::note_probability`] is of use for the next token.
    pub fn wants_probability(&self) -> bool {
        self.options.novelty == TierAction::Act && self.novelty.is_falling()
    }

    /// The probability that the model gave to the token that is observed next.
    pub fn note_probability(&mut self, probability: f32) {
        self.sure.push((self.tokens.len() as u32, probability));
    }

    /// Tokens that were thrown away.
    pub fn num_discarded(&self) -> usize {
        self.discarded
    }

    /// Tokens of the reply that are held back.
    pub fn num_held(&self) -> usize {
        self.tokens.len() - self.delivered
    }

    /// The phase at the end of the reply.
    pub fn phase(&self) -> Phase {
        match self.phase.phase() {
            // Before the structure there may be a thought.
            Phase::Thinking => Phase::Thinking,
            _ if self.options.structured => Phase::Json,
            phase => phase,
        }
    }

    fn look(&mut self, token: u32) -> Verdict {
        self.tokens.push(token);
        let tokens = &self.tokens;
        let options = &self.options;
        self.phase.push(token, &options.shapes, &options.markers);
        let seen = self.periods.push(tokens);
        self.novelty.push(!seen);
        if options.markers.contains(token) {
            self.opening = Opening::default();
        } else {
            self.opening.push(!seen, tokens.len());
        }
        let blank = options.shapes.of(token).is_blank();
        self.blanks = if blank { self.blanks + 1 } else { 0 };
        if let Some((rule, runs)) = &mut self.pattern {
            runs.push(tokens);
            if let Some(period) = runs.meets(rule) {
                let run = runs.run(period);
                let event = self.event(Kind::Pattern, period, run, Action::Stopped);
                return Verdict::Stop { keep: self.tokens.len(), event };
            }
        }
        if self.is_quiet() {
            return Verdict::Deliver { upto: self.tokens.len(), event: None };
        }
        self.look_at_repeats().unwrap_or_else(|| self.look_at_the_rest())
    }

    /// Whether there is nothing to judge, as after most tokens.
    fn is_quiet(&self) -> bool {
        self.watched.is_empty()
            && self.blanks < MAX_BLANKS
            && self.periods.repeats().all(|(_, r)| r.score < LEAST)
            && !self.novelty.is_low()
    }

    /// Judges what repeats; `None` if nothing is worth a verdict of its own.
    fn look_at_repeats(&mut self) -> Option<Verdict> {
        let phase = self.phase();
        let periods = &self.periods;
        let is_there = |r: &Repeat, w: &Watched| r.period == w.period && r.score >= LEAST / 2;
        self.watched.retain(|place, w| periods.at(place).is_some_and(|r| is_there(r, w)));
        let mut findings = self.survey(phase);
        if let Some((place, repeat)) = findings.unwatched {
            self.watch(place, repeat);
            findings = self.survey(phase);
        }
        if let Some((kind, repeat)) = findings.found {
            return Some(self.judge(kind, repeat, phase));
        }
        if findings.hold && self.options.hold_tokens > 0 && self.options.mode != Mode::Warn {
            return Some(self.hold());
        }
        self.licensed_event()
    }

    /// Looks at every repetition that is under way.
    fn survey(&self, phase: Phase) -> Findings {
        let mut findings = Findings::default();
        let hold_tokens = self.options.hold_tokens;
        let judges_noise =
            self.options.noisy != TierAction::Off && phase != Phase::Json && !self.was_just_rescued();
        for (place, repeat) in self.periods.repeats().filter(|(_, r)| r.score >= LEAST) {
            let period = repeat.period;
            if repeat.run >= PADDING_RUN && period == 1 && self.tokens.last().copied() == self.options.padding
            {
                findings.found = Some((Kind::NumericSuspect, *repeat));
                return findings;
            }
            let watched = self.watched.at(place);
            let begun = self.tokens.len() - repeat.run as usize;
            if watched
                .is_some_and(|w| w.is_silent() && (w.asked_at >= begun || repeat.run < LEAST.max(period)))
            {
                continue;
            }
            let unit = watched.map_or(period, |w| w.unit);
            let times = watched.map_or_else(|| phase_multiplier(phase, unit), |w| w.multiplier(phase));
            let threshold = hard_threshold(unit).saturating_mul(times);
            let begins = hold_start(unit, hold_tokens).max(threshold.saturating_sub(hold_tokens.max(unit)));
            let asks = if phase.is_open() { begins } else { hold_start(unit, hold_tokens) };
            let run = watched.map_or(repeat.run, |w| w.run(repeat));
            let score = repeat.score.saturating_sub(watched.map_or(0, |w| w.licensed_score));
            let noisy_begins = noisy_hold_start(period, hold_tokens);
            // A run at p is also one at 2p, 3p and so on: only the shortest distance is judged.
            let repeats = run >= asks && !self.periods.is_explained(place, |r| r.run, 10);
            let noisy = score >= noisy_begins
                && judges_noise
                && period <= LONGEST_NOISY
                && !watched.is_some_and(|w| w.code)
                && !self.periods.is_explained(place, |r| r.score, 9);
            if !(repeats || noisy) {
                continue;
            }
            // What was permitted of one unit is not permitted of another that follows at the same distance.
            let asked = |w: &&Watched| !repeats || w.asked_at >= begun;
            let Some(watched) = watched.filter(asked) else {
                findings.unwatched = Some((place, *repeat));
                continue;
            };
            let exact = repeats && run >= watched.limit.max(threshold);
            let noisy_limit =
                watched.noisy_limit.max(noisy_threshold(period).saturating_mul(noisy_multiplier(phase)));
            if exact || (noisy && score >= noisy_limit) {
                let kind = if exact { Kind::Loop } else { Kind::NoisyLoop };
                if findings.found.is_none_or(|(_, best)| period < best.period) {
                    findings.found = Some((kind, *repeat));
                }
            }
            let held = (repeats && run >= begins && !watched.licensed) || (noisy && !watched.noisy_licensed);
            findings.hold |= held && phase.is_open() && !watched.unheld;
        }
        findings
    }

    /// Looks a repetition up in the licence, once.
    fn watch(&mut self, place: usize, repeat: Repeat) {
        let (unit, _) = self.primitive(repeat);
        let start = self.tokens.len() - (repeat.run + repeat.period).min(self.tokens.len() as u32) as usize;
        let first = &self.tokens[start..start + unit as usize];
        let mut permit = match &self.options.licence {
            Some(licence) => self.answers.permit(&**licence, first),
            None => Permit::NONE,
        };
        if self.is_all_of_it(repeat) {
            permit.raise_exact(permit.from_start, unit);
            permit.raise_varied(permit.from_start, repeat.period);
        }
        let (code, before) = (self.is_code(unit), self.watched.at(place));
        let watched = Watched::new(repeat, unit, permit, self.tokens.len(), code, before);
        self.watched.set(place, watched);
    }

    /// Whether the reply, or the answer behind a thought, is nothing but repetition since it began, an introduction aside.
    fn is_all_of_it(&self, repeat: Repeat) -> bool {
        let start = repeat.start as usize;
        let rescued = self.nudges.last().is_some_and(|nudge| start >= nudge.at());
        let answers = !self.phase.is_thinking() && self.phase() != Phase::Json;
        answers && !rescued && self.opening.holds(start)
    }

    /// A loop: what is done about it.
    fn judge(&mut self, kind: Kind, repeat: Repeat, phase: Phase) -> Verdict {
        let (period, run) = self.primitive(repeat);
        let token = self.tokens.last().copied();
        let broken = period == 1 && (token == Some(0) || token == self.options.padding);
        let kind = if broken { Kind::NumericSuspect } else { kind };
        let tier = if kind == Kind::NoisyLoop { self.options.noisy } else { TierAction::Act };
        let unlimited = self.watched.iter().any(|(_, w)| w.period == repeat.period && w.unlimited);
        if self.options.mode == Mode::Warn || tier != TierAction::Act || unlimited {
            return self.warn(kind, period, run);
        }
        self.act(kind, period, run, phase)
    }

    /// Reports a repetition and lets it go on; nothing more is said while it lasts.
    fn warn(&mut self, kind: Kind, period: u32, run: u32) -> Verdict {
        let same = |w: &Watched| w.period == period || w.unit == period;
        self.watched.iter_mut().filter(|(_, w)| same(w)).for_each(|(_, w)| w.silence());
        let event = (self.num_events < MAX_EVENTS).then(|| self.event(kind, period, run, Action::Warned));
        Verdict::Deliver { upto: self.tokens.len(), event }
    }

    /// Rescue or stop.
    fn act(&mut self, kind: Kind, period: u32, run: u32, phase: Phase) -> Verdict {
        let keep = self.delivered.min(self.tokens.len());
        let discards = self.tokens.len() - keep;
        let affordable = self.discarded + discards <= (self.max_tokens / 4).max(LEAST_DISCARD);
        let may_rescue = self.options.mode == Mode::Rescue
            && phase.is_open()
            && kind != Kind::NumericSuspect
            && self.nudges.len() < self.options.max_rescues as usize
            && affordable;
        self.discarded += discards;
        if !may_rescue {
            let mut event = self.event(kind, period, run, Action::Stopped);
            event.discarded = discards as u32;
            return Verdict::Stop { keep, event };
        }
        let closes = self.phase.is_thinking() && !self.options.close_thinking.is_empty();
        let action = if closes { Action::ClosedThinking } else { Action::Rescued };
        let mut event = self.event(kind, period, run, action);
        event.discarded = discards as u32;
        let unit = &self.tokens[self.tokens.len() - period as usize..];
        // A loop with noise has other forms than its last one; what has no unit has only forms.
        let said = if kind == Kind::Loop { self.tokens.len() } else { self.tokens.len().saturating_sub(256) };
        let ban = self.options.ban_tokens as usize;
        let nudge = Nudge::new(keep, ban, unit, &self.tokens[said..], closes, self.nudges.len());
        self.nudges.push(nudge);
        Verdict::Rescue { keep, event }
    }

    /// Keeps the newest token back, once the reply can be cut before it.
    fn hold(&mut self) -> Verdict {
        let len = self.tokens.len();
        let held = len - self.delivered;
        let longest =
            self.watched.iter().map(|(_, w)| w.period).max().unwrap_or(0).max(self.options.hold_tokens);
        let begins = held == 1;
        if held > longest as usize {
            // Held long enough for a loop to show, had it been one.
            self.watched.iter_mut().for_each(|(_, w)| w.unheld = true);
            return Verdict::Deliver { upto: len, event: None };
        }
        let upto = if begins && !self.is_cuttable() { len } else { self.delivered };
        Verdict::Deliver { upto, event: None }
    }

    /// Whether the reply can be cut before its newest token: between words, or anywhere between characters in a repetition that is one
    /// endless word.
    fn is_cuttable(&self) -> bool {
        let [.., before, after] = self.tokens[..] else { return true };
        let shapes = &self.options.shapes;
        let unit = self.watched.iter().map(|(_, w)| w.unit).min().unwrap_or(0) as usize;
        let copy = &self.tokens[self.tokens.len().saturating_sub(unit + 1)..];
        let is_endless_word = || unit > 0 && copy.windows(2).all(|pair| !shapes.parts(pair[0], pair[1]));
        shapes.parts(before, after) || (shapes.ends_character(before) && is_endless_word())
    }

    /// Says once that a licensed repetition has passed the threshold.
    fn licensed_event(&mut self) -> Option<Verdict> {
        let periods = &self.periods;
        let passed = self.watched.iter_mut().find_map(|(place, w)| {
            if w.said || !w.licensed {
                return None;
            }
            let run = w.run(periods.at(place)?);
            w.said = run >= hard_threshold(w.unit);
            w.said.then_some((w.unit, run))
        })?;
        let event = self.event(Kind::Loop, passed.0, passed.1, Action::Licensed);
        Some(Verdict::Deliver { upto: self.tokens.len(), event: Some(event) })
    }

    /// Novelty and white space; then everything may be delivered.
    fn look_at_the_rest(&mut self) -> Verdict {
        let upto = self.tokens.len();
        if self.blanks == MAX_BLANKS && self.phase() == Phase::Json {
            let event = self.event(Kind::Whitespace, 0, 0, Action::Rescued);
            return Verdict::Deliver { upto, event: Some(event) };
        }
        let licensed = self.watched.iter().any(|(_, w)| w.said);
        if self.options.novelty == TierAction::Off
            || licensed
            || self.low_novelty_said
            || !self.novelty.is_low()
        {
            return Verdict::Deliver { upto, event: None };
        }
        self.low_novelty_said = true;
        let phase = self.phase();
        let acts = self.options.novelty == TierAction::Act && self.options.mode != Mode::Warn;
        if acts && phase.is_open() && self.is_sure() {
            return self.act(Kind::LowNovelty, 0, 0, phase);
        }
        let event = self.event(Kind::LowNovelty, 0, 0, Action::Warned);
        Verdict::Deliver { upto, event: Some(event) }
    }

    /// A score needs time to fall after a rescue that could not take all of it back.
    fn was_just_rescued(&self) -> bool {
        self.nudges.last().is_some_and(|nudge| self.tokens.len() < nudge.at() + SETTLE_TOKENS)
    }

    /// Whether a quarter of the newest unit's tokens are numbers or have brackets and operators in them.
    fn is_code(&self, period: u32) -> bool {
        let unit = &self.tokens[self.tokens.len() - (period as usize).min(self.tokens.len())..];
        let code = unit.iter().filter(|token| self.options.shapes.of(**token).is_code()).count();
        code * 4 >= unit.len()
    }

    fn is_sure(&self) -> bool {
        let Some(last) = self.sure.len().checked_sub(SURE_TOKENS).map(|from| &self.sure[from..]) else {
            return false;
        };
        last.iter().map(|(_, probability)| probability).sum::<f32>() >= SURE * SURE_TOKENS as f32
    }

    fn endless_blanks(&self) -> bool {
        self.blanks >= MAX_BLANKS && self.phase() == Phase::Json
    }

    /// The shortest unit whose copies make the same stretch, and its run: a run at p is also one at 2p, 3p and so on.
    fn primitive(&self, repeat: Repeat) -> (u32, u32) {
        if repeat.run < repeat.period {
            // With noise: the shortest distance that explains nine tenths as well.
            let explained = |r: &Repeat| {
                u64::from(r.score + r.period) * 10 >= u64::from(repeat.score + repeat.period) * 9
            };
            let repeats = self.periods.repeats().map(|(_, r)| r);
            let shorter = repeats.filter(|r| r.period < repeat.period && explained(r));
            let best = shorter.min_by_key(|r| r.period).unwrap_or(&repeat);
            return (best.period, best.run);
        }
        let stretch = (repeat.run + repeat.period) as usize;
        let from = self.tokens.len() - stretch.min(self.tokens.len()).min(MAX_PRIMITIVE);
        let shortest = smallest_period(&self.tokens[from..]) as u32;
        let period = if repeat.period.is_multiple_of(shortest) { shortest } else { repeat.period };
        (period, run_at(&self.tokens, period as usize))
    }

    fn event(&self, kind: Kind, period: u32, run: u32, action: Action) -> Event {
        let end = self.tokens.len() as u32;
        let start = end.saturating_sub(run + period);
        let unit = period.min(Event::MAX_UNIT as u32).min(end) as usize;
        Event {
            kind,
            phase: self.phase(),
            period,
            copies: run.checked_div(period).map_or(0, |copies| copies + 1),
            start,
            end,
            unit: self.tokens[start as usize..][..unit.min((end - start) as usize)].to_vec(),
            action,
            discarded: 0,
        }
    }
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
