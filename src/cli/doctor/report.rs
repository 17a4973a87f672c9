//! Findings, and their two forms: lines for people, JSON for programs.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::{Value, json};

/// Lines of an error that a finding shows: what it is about, and the first fault.
const MAX_LINES: usize = 2;

/// Weight of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    /// As it should be.
    Ok,
    /// Works, with a loss.
    Warning,
    /// Does not work.
    Problem,
}

impl Level {
    /// As lines show it; the width of the column is four.
    fn mark(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warn",
            Self::Problem => "FAIL",
        }
    }
}

/// One finding.
#[derive(Debug, Serialize)]
struct Finding {
    level: Level,
    /// The part of the machine or of the configuration.
    part: String,
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

/// All findings, in the order of the examination.
#[derive(Debug, Default)]
pub(super) struct Report(Vec<Finding>);

impl Report {
    pub(super) fn ok(&mut self, part: &str, text: impl Into<String>) {
        self.add(Level::Ok, part, text.into(), "");
    }

    pub(super) fn warning(&mut self, part: &str, text: impl Into<String>, remedy: &str) {
        self.add(Level::Warning, part, text.into(), remedy);
    }

    pub(super) fn problem(&mut self, part: &str, text: impl Into<String>, remedy: &str) {
        self.add(Level::Problem, part, text.into(), remedy);
    }

    /// `remedy` is empty where the text has it. A finding is one line; of an error of many lines, one per fault, it has the
    /// first.
    fn add(&mut self, level: Level, part: &str, text: String, remedy: &str) {
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let mut text = lines[..lines.len().min(MAX_LINES)].join(" ");
        if lines.len() > MAX_LINES {
            let _ = write!(text, "; and {} more", lines.len() - MAX_LINES);
        }
        let remedy = (!remedy.is_empty()).then(|| remedy.into());
        self.0.push(Finding { level, part: part.into(), text, remedy });
    }

    pub(super) fn count(&self, level: Level) -> usize {
        self.0.iter().filter(|finding| finding.level == level).count()
    }

    /// A line per finding in columns, one below it for its remedy, and the sum.
    pub(super) fn lines(&self) -> String {
        let width = self.0.iter().map(|finding| finding.part.len()).max().unwrap_or(0);
        let mut text = String::new();
        for Finding { level, part, text: finding, remedy } in &self.0 {
            let _ = writeln!(text, "{:<4}  {part:<width$}  {finding}", level.mark());
            if let Some(remedy) = remedy {
                let _ = writeln!(text, "{:<4}  {:<width$}  -> {remedy}", "", "");
            }
        }
        let counted = |count: usize, name: &str| match count {
            1 => format!("1 {name}"),
            count => format!("{count} {name}s"),
        };
        let (problems, warnings) = (self.count(Level::Problem), self.count(Level::Warning));
        let problems = if problems == 0 { "nothing is broken".into() } else { counted(problems, "failure") };
        let warnings =
            if warnings == 0 { String::new() } else { format!(", {}", counted(warnings, "warning")) };
        let _ = writeln!(text, "\n{problems}{warnings}");
        text
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "problems": self.count(Level::Problem),
            "warnings": self.count(Level::Warning),
            "findings": self.0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_remedies_stand_below() {
        let mut report = Report::default();
        report.ok("cpu", "2 cores");
        report.warning("open files", "at most 256", "raise it");
        report.problem("model", "two\n  lines", "");
        let expected = "ok    cpu         2 cores\n\
                        warn  open files  at most 256\n                  -> raise it\n\
                        FAIL  model       two lines\n\n\
                        1 failure, 1 warning\n";
        assert_eq!(report.lines(), expected);
        let json = report.json();
        assert_eq!((&json["problems"], &json["warnings"]), (&json!(1), &json!(1)));
        assert_eq!(json["findings"][2], json!({"level": "problem", "part": "model", "text": "two lines"}));
        let mut report = Report::default();
        report.problem("model", "3 problems:\n  a\n  b\n  c", "");
        assert!(report.lines().starts_with("FAIL  model  3 problems: a; and 2 more\n"), "{}", report.lines());
        let mut report = Report::default();
        report.ok("cpu", "2 cores");
        assert!(report.lines().ends_with("\n\nnothing is broken\n"));
    }
}
