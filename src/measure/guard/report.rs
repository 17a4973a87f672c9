//! The figures, as tables and as JSON.

use serde::Serialize;

use super::end_to_end::EndToEnd;
use crate::guard::Kind;

/// Everything that was measured.
#[derive(Debug, Clone, Serialize)]
pub struct GuardReport {
    /// Tokens of the vocabulary that was used.
    pub vocabulary: usize,
    /// Loops by class.
    pub classes: Vec<ClassFigures>,
    /// Real files by kind.
    pub files: Vec<FileFigures>,
    /// Repetition that was asked for.
    pub requested: Vec<RequestedFigures>,
    /// Recorded replies, by file.
    pub transcripts: Vec<RequestedFigures>,
    /// Loops that nobody asked for.
    pub ordinary: OrdinaryFigures,
    /// Nanoseconds per token by text.
    pub cost_ns: Vec<(String, f64)>,
    /// Replies of a model.
    pub end_to_end: Option<EndToEnd>,
}

/// One class of loops.
#[derive(Debug, Clone, Serialize)]
pub struct ClassFigures {
    /// Its name.
    pub class: String,
    /// Whether every copy is the same.
    pub exact: bool,
    /// Loops.
    pub streams: usize,
    /// Those that something was done about.
    pub found: usize,
    /// Those that the exact tier alone finds.
    pub exact_tier: usize,
    /// Those that low novelty reports.
    pub novelty_tier: usize,
    /// Tokens of the loop until then, ascending.
    pub delays: Vec<usize>,
    /// Tokens of the loop that a client got, ascending.
    pub delivered: Vec<usize>,
    /// Found as noise.
    pub as_noise: usize,
}

impl ClassFigures {
    pub(super) fn new(class: String, exact: bool, streams: usize) -> Self {
        let (delays, delivered) = (Vec::new(), Vec::new());
        Self {
            class,
            exact,
            streams,
            found: 0,
            exact_tier: 0,
            novelty_tier: 0,
            delays,
            delivered,
            as_noise: 0,
        }
    }

    pub(super) fn note(&mut self, delay: usize, delivered: usize, kind: Kind) {
        self.found += 1;
        self.as_noise += usize::from(kind == Kind::NoisyLoop);
        insert(&mut self.delays, delay);
        insert(&mut self.delivered, delivered);
    }
}

fn insert(sorted: &mut Vec<usize>, value: usize) {
    let at = sorted.partition_point(|other| *other < value);
    sorted.insert(at, value);
}

fn middle(sorted: &[usize]) -> String {
    sorted.get(sorted.len() / 2).map_or("-".into(), ToString::to_string)
}

/// Real files of one kind.
#[derive(Debug, Clone, Serialize)]
pub struct FileFigures {
    /// The kind.
    pub category: &'static str,
    /// Files.
    pub files: usize,
    /// Tokens in them.
    pub tokens: usize,
    /// Files that the exact tier reports.
    pub exact: usize,
    /// Files that the noisy tier reports.
    pub noisy: usize,
    /// Files that low novelty reports.
    pub novelty: usize,
    /// Files in which something would be done, with the switches as they are.
    pub acted: usize,
    /// The same where they stand in a fence.
    pub fenced: usize,
    /// Tokens that would not leave at once.
    pub held: usize,
    /// Longest stretch of them.
    pub longest_hold: usize,
    /// Where something would be done.
    pub examples: Vec<String>,
}

impl FileFigures {
    pub(super) fn new(category: &'static str) -> Self {
        let (exact, noisy, novelty, acted, fenced) = (0, 0, 0, 0, 0);
        let examples = Vec::new();
        Self {
            category,
            files: 0,
            tokens: 0,
            exact,
            noisy,
            novelty,
            acted,
            fenced,
            held: 0,
            longest_hold: 0,
            examples,
        }
    }

    pub(super) fn note(
        &mut self,
        tokens: usize,
        kinds: &[Kind],
        [acted, fenced]: [bool; 2],
        held: usize,
        longest: usize,
    ) {
        self.files += 1;
        self.tokens += tokens;
        self.exact += usize::from(kinds.contains(&Kind::Loop) || kinds.contains(&Kind::NumericSuspect));
        self.noisy += usize::from(kinds.contains(&Kind::NoisyLoop));
        self.novelty += usize::from(kinds.contains(&Kind::LowNovelty));
        self.acted += usize::from(acted);
        self.fenced += usize::from(fenced);
        self.held += held;
        self.longest_hold = self.longest_hold.max(longest);
    }
}

/// Replies to requests.
#[derive(Debug, Clone, Default, Serialize)]
pub struct RequestedFigures {
    /// Which requests.
    pub set: String,
    /// Requests.
    pub total: usize,
    /// Replies that would be stopped if nobody had asked for them.
    pub unlicensed: usize,
    /// Replies that are stopped.
    pub stopped: Vec<String>,
}

/// Loops in replies to requests that ask for no repetition.
#[derive(Debug, Clone, Default, Serialize)]
pub struct OrdinaryFigures {
    /// Loops.
    pub total: usize,
    /// Those that something was done about.
    pub found: usize,
    /// Those found at the same token as without a request.
    pub as_early: usize,
    /// The others.
    pub later: Vec<String>,
}

/// Upper end of the 95 % interval of a share (Wilson 1927), per cent.
fn upper(hits: usize, of: usize) -> f64 {
    if of == 0 {
        return 100.0;
    }
    let (n, p, z) = (of as f64, hits as f64 / of as f64, 1.96f64);
    let centre = p + z * z / (2.0 * n);
    let spread = z * (p * (1.0 - p) / n + z * z / (4.0 * n * n)).sqrt();
    100.0 * (centre + spread) / (1.0 + z * z / n)
}

fn share(hits: usize, of: usize) -> String {
    format!("{:.1} %", 100.0 * hits as f64 / of.max(1) as f64)
}

impl GuardReport {
    /// The figures as Markdown tables.
    pub fn table(&self) -> String {
        let mut lines = vec![format!("vocabulary of {} tokens", self.vocabulary), String::new()];
        lines.push("| loop | found | delay, median | largest | sent of it, median | largest | exact tier alone | low novelty |".into());
        lines.push("|---|---|---|---|---|---|---|---|".into());
        for c in &self.classes {
            let last = |list: &[usize]| list.last().map_or("-".into(), ToString::to_string);
            lines.push(format!(
                "| {} | {} | {} | {} | {} | {} | {} | {} |",
                c.class,
                share(c.found, c.streams),
                middle(&c.delays),
                last(&c.delays),
                middle(&c.delivered),
                last(&c.delivered),
                share(c.exact_tier, c.streams),
                share(c.novelty_tier, c.streams)
            ));
        }
        let exact = || self.classes.iter().filter(|c| c.exact);
        let (found, streams): (usize, usize) =
            (exact().map(|c| c.found).sum(), exact().map(|c| c.streams).sum());
        lines.push(format!("\nexact classes: {found} of {streams} found, {}", share(found, streams)));
        lines.push("\n| files | number | tokens | acted on | 95 % below | in a fence | exact | noisy | low novelty | held tokens | longest hold |".into());
        lines.push("|---|---|---|---|---|---|---|---|---|---|---|".into());
        let mut all = FileFigures::new("all");
        for f in &self.files {
            all.files += f.files;
            all.tokens += f.tokens;
            all.acted += f.acted;
            all.fenced += f.fenced;
            all.exact += f.exact;
            all.noisy += f.noisy;
            all.novelty += f.novelty;
            all.held += f.held;
            all.longest_hold = all.longest_hold.max(f.longest_hold);
        }
        for f in self.files.iter().chain([&all]) {
            lines.push(format!(
                "| {} | {} | {} | {} ({:.2} %) | {:.2} % | {} | {} | {} | {} | {:.3} % | {} |",
                f.category,
                f.files,
                f.tokens,
                f.acted,
                100.0 * f.acted as f64 / f.files.max(1) as f64,
                upper(f.acted, f.files),
                f.fenced,
                f.exact,
                f.noisy,
                f.novelty,
                100.0 * f.held as f64 / f.tokens.max(1) as f64,
                f.longest_hold
            ));
        }
        lines.extend(self.files.iter().flat_map(|f| &f.examples).map(|example| format!("  {example}")));
        for r in &self.requested {
            lines.push(format!(
                "\nrequested repetition, {}: {} of {} stopped ({} would be without a licence)",
                r.set,
                r.stopped.len(),
                r.total,
                r.unlicensed
            ));
            lines.extend(r.stopped.iter().map(|stopped| format!("  {stopped}")));
        }
        for r in &self.transcripts {
            lines.push(format!(
                "\nreplies of {}: {} of {} acted on ({} would be if their requests were not looked at)",
                r.set,
                r.stopped.len(),
                r.total,
                r.unlicensed
            ));
            lines.extend(r.stopped.iter().map(|stopped| format!("  {stopped}")));
        }
        let o = &self.ordinary;
        lines.push(format!(
            "\nloops in replies to ordinary requests: {} of {} found, {} as early as without a request",
            o.found, o.total, o.as_early
        ));
        lines.extend(o.later.iter().map(|later| format!("  later: {later}")));
        lines.push("\n| cost | ns per token |\n|---|---|".into());
        lines.extend(self.cost_ns.iter().map(|(name, ns)| format!("| {name} | {ns:.1} |")));
        if let Some(end_to_end) = &self.end_to_end {
            lines.push(end_to_end.table());
        }
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals() {
        assert!((upper(0, 1439) - 0.266).abs() < 0.01);
        assert!((upper(5, 100) - 11.2).abs() < 0.1);
        assert_eq!(upper(0, 0), 100.0);
    }
}
