//! Structural tags as rules of a grammar.
//!
//! Free text is a lazy token that ends with the text that ends it, so a rule is written together
//! with the text that follows it.

use std::fmt::Write;

use super::super::notation::quoted;
use super::super::schema::Unenforced;
use super::super::structural_tag::{StructuralFormat, StructuralTag};
use super::{GrammarError, JsonStyle, Source};

impl Source<'_> {
    /// Writes a format, and the text that follows it, as a rule. Returns the rule's name.
    pub(super) fn structure(
        &mut self,
        format: &StructuralFormat,
        then: Option<&str>,
    ) -> Result<String, GrammarError> {
        let after = then.map(quoted).unwrap_or_default();
        let expression = match format {
            StructuralFormat::Text(text) => format!("{} {after}", quoted(text)),
            StructuralFormat::Json(schema) => {
                format!("{} {after}", self.json(schema, &JsonStyle::default(), Unenforced::Refused, "")?)
            }
            StructuralFormat::Regex(regex) => {
                let regex = llguidance::regex_to_lark(super::unanchored(regex), "");
                format!("/{regex}/ {after}")
            }
            StructuralFormat::AnyText => return Ok(self.free_text(then)),
            StructuralFormat::Sequence(parts) => self.sequence(parts, then)?,
            StructuralFormat::Choice(parts) => {
                let parts: Result<Vec<String>, GrammarError> =
                    parts.iter().map(|part| self.structure(part, then)).collect();
                parts?.join(" | ")
            }
            StructuralFormat::Tag(tag) => {
                format!("{} {} {after}", quoted(&tag.begin), self.structure(&tag.content, Some(&tag.end))?)
            }
            StructuralFormat::Triggered { triggers, tags, at_least_one, stop_after_first } => {
                let end = then.unwrap_or_default();
                if let Some(trigger) = triggers.iter().find(|trigger| end.contains(trigger.as_str())) {
                    return Err(GrammarError::Syntax(format!(
                        "the trigger {trigger:?} stands in {end:?}, which ends the text around its tags"
                    )));
                }
                let tags = self.triggered(triggers, tags)?;
                match (at_least_one, stop_after_first) {
                    (true, true) => format!("({tags}) {after}"),
                    (false, true) => format!("({tags}) {after} | {}", self.free_text(then)),
                    (true, false) => format!("({tags})+ {}", self.free_text(then)),
                    (false, false) => format!("({tags})* {}", self.free_text(then)),
                }
            }
            StructuralFormat::Separated { tags, separator, at_least_one, stop_after_first } => {
                let tags: Result<Vec<String>, GrammarError> = tags.iter().map(|tag| self.tag(tag)).collect();
                let one = format!("({})", tags?.join(" | "));
                let separator = if separator.is_empty() { String::new() } else { quoted(separator) };
                let all = if *stop_after_first { one } else { format!("({one} ({separator} {one})*)") };
                format!("{all}{} {after}", if *at_least_one { "" } else { "?" })
            }
        };
        Ok(self.rule("", &expression))
    }

    /// Parts one after the other; free text takes the constant text behind it with it.
    fn sequence(&mut self, parts: &[StructuralFormat], then: Option<&str>) -> Result<String, GrammarError> {
        let mut names = Vec::new();
        let mut rest = parts;
        while let [part, more @ ..] = rest {
            let (name, left) = match more {
                [StructuralFormat::Text(text), left @ ..] if part.is_open() => {
                    let is_last = left.is_empty();
                    let name = self.structure(part, Some(text))?;
                    let after = then.filter(|_| is_last).map(quoted).unwrap_or_default();
                    (format!("{name} {after}"), left)
                }
                [] => (self.structure(part, then)?, more),
                _ => (self.structure(part, None)?, more),
            };
            names.push(name);
            rest = left;
        }
        Ok(names.join(" "))
    }

    /// Free text up to the text that follows, or the end.
    fn free_text(&mut self, then: Option<&str>) -> String {
        match then {
            Some(text) => self.rule("[lazy]", &format!("FREE_TEXT {}", quoted(text))),
            None => self.rule("", "FREE_TEXT"),
        }
    }

    /// Tags behind free text, each as an alternative.
    fn triggered(&mut self, triggers: &[String], tags: &[StructuralTag]) -> Result<String, GrammarError> {
        let mut names = Vec::new();
        for tag in tags {
            // The longest matching trigger leaves the fewest tags open.
            let matching = triggers.iter().filter(|trigger| tag.begin.starts_with(*trigger));
            let trigger = matching.max_by_key(|trigger| trigger.len()).map_or("", String::as_str);
            let rest = &tag.begin[trigger.len()..];
            let rest = if rest.is_empty() { String::new() } else { quoted(rest) };
            let head = self.rule("[lazy]", &format!("FREE_TEXT {}", quoted(trigger)));
            let content = self.structure(&tag.content, Some(&tag.end))?;
            names.push(self.rule("", &format!("{head} {rest} {content}")));
            self.marks.openers.push(tag.begin.clone().into_bytes());
        }
        Ok(names.join(" | "))
    }

    fn tag(&mut self, tag: &StructuralTag) -> Result<String, GrammarError> {
        let content = self.structure(&tag.content, Some(&tag.end))?;
        Ok(self.rule("", &format!("{} {content}", quoted(&tag.begin))))
    }

    /// Writes a rule and returns its name.
    fn rule(&mut self, attribute: &str, expression: &str) -> String {
        let name = format!("part_{}", self.parts);
        self.parts += 1;
        writeln!(self.lark, "{name}{attribute}: {expression}").expect("writing to memory");
        name
    }
}
