//! From a request's constraint to the source that the grammar compiler reads, with the landmarks of
//! its ends.

mod tags;

use std::fmt::Write;

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::Value;

use super::closing::{Landmarks, Special};
use super::notation::{quoted, spelled};
use super::schema::{self, Shared, Unenforced};
use super::{
    AnswerFormat, Config, GrammarError, JsonStyle, Reasoning, StructuralTags, ToolCalls, ToolMode, gbnf,
};
use crate::{Tokenizer, markers};

/// Most texts to choose from.
const MAX_CHOICES: usize = 10_000;

/// Most rules and terminals of a request's own grammar. A chain of this length fits on the stack of
/// a compilation.
const MAX_RULES: usize = 10_000;
/// Most work of character classes for the pattern reader: 8 for a large class such as `\p{L}`,
/// which takes 5 kB, and 4 times as much where a pattern ignores case.
const MAX_CLASS_WORK: usize = 32_000;

/// Upper bound on the work of the character classes in a grammar's patterns, from their notation.
fn class_work(text: &str) -> usize {
    let ignores_case = text.match_indices("(?").any(|(at, _)| {
        let flags = text[at + 2..].bytes().take_while(|byte| byte.is_ascii_alphabetic() || *byte == b'-');
        flags.clone().any(|flag| flag == b'i')
    });
    let classes: usize = text
        .as_bytes()
        .windows(2)
        .map(|pair| match pair {
            [b'\\', b'p' | b'P' | b'w' | b'W'] => 8,
            [b'\\', b'd' | b'D' | b's' | b'S'] => 1,
            [b'[', _] if ignores_case => 2,
            _ => 0,
        })
        .sum();
    if ignores_case { classes.saturating_mul(4) } else { classes }
}

/// A grammar under construction.
pub(super) struct Source<'a> {
    pub(super) lark: String,
    pub(super) marks: Landmarks,
    /// The request's own grammar, named `@own` in the rules.
    own: Option<String>,
    tokenizer: &'a Tokenizer,
    config: &'a Config,
    jsons: usize,
    /// Rules of structural tags written so far.
    parts: usize,
    /// Bytes of the schemas written so far, as text.
    schema_bytes: usize,
    /// What the schemas written so far have used of the bounds of a request.
    shared: Shared,
    /// Places of the rules of schemas that are not enforced.
    pub(super) advice: Vec<String>,
    /// For each tool that may be called, whether its schema is enforced: the compiler may do without others.
    enforced: Vec<u8>,
}

impl<'a> Source<'a> {
    /// The source of replies in this format after this reasoning; a reply ends with one of `ends`.
    pub(super) fn write(
        format: &AnswerFormat,
        reasoning: Reasoning,
        tokenizer: &'a Tokenizer,
        ends: &[u32],
        config: &'a Config,
    ) -> Result<Self, GrammarError> {
        let mut source = Self {
            lark: String::new(),
            marks: Landmarks::default(),
            own: None,
            tokenizer,
            config,
            jsons: 0,
            parts: 0,
            schema_bytes: 0,
            shared: Shared::default(),
            advice: Vec::new(),
            enforced: Vec::new(),
        };
        source.marks.ends = ends.iter().map(|&id| spelled(id)).collect();
        let ends: Vec<String> = ends.iter().map(u32::to_string).collect();
        let ends = ends.join(",");
        let prefix = source.reasoning(reasoning, format)?;
        writeln!(source.lark, "start: {prefix} body <[{ends}]>").expect("writing to memory");
        source.body(format)?;
        source.bounded()?;
        Ok(source)
    }

    /// Refuses sources that would take too long before the first checkpoint of a compilation.
    fn bounded(&self) -> Result<(), GrammarError> {
        let texts = [Some(&self.lark), self.own.as_ref()];
        let classes = texts.into_iter().flatten().map(|text| class_work(text)).sum();
        bounded("Unicode classes in its patterns, counted by their size", classes, MAX_CLASS_WORK)?;
        // Every definition is at most one level of recursion in the compiler, and has a colon.
        let rules = self.own.as_ref().map_or(0, |own| own.matches(':').count().min(own.lines().count()));
        bounded("rules", rules, MAX_RULES)
    }

    /// Writes the part before the answer; the end marker of a thought is a landmark.
    fn reasoning(&mut self, reasoning: Reasoning, format: &AnswerFormat) -> Result<String, GrammarError> {
        let is_json = matches!(format, AnswerFormat::Json { .. });
        if reasoning == Reasoning::None {
            self.marks.starts_with_json = is_json;
            return Ok(String::new());
        }
        let end = self.marker(markers::THINK_END)?;
        let spelled = self.spelled(markers::THINK_END)?;
        self.marks.specials.push(Special { spelled, opens_json: is_json });
        writeln!(self.lark, "thought: THOUGHT? {end}\nTHOUGHT: /(.|\\n)+/").expect("writing to memory");
        if reasoning == Reasoning::Open {
            return Ok("thought".into());
        }
        // The answer may begin at once, or after a thought.
        self.marks.starts_with_json = is_json;
        Ok(format!("({} thought)?", self.marker(markers::THINK)?))
    }

    fn body(&mut self, format: &AnswerFormat) -> Result<(), GrammarError> {
        let max_bytes = self.config.max_source_bytes as usize;
        match format {
            AnswerFormat::Json { schema, style } => {
                let json = self.json(schema, style, Unenforced::Refused, "")?;
                writeln!(self.lark, "body: {json}").expect("writing to memory");
            }
            AnswerFormat::Regex(regex) => {
                bounded(
                    "bytes in the regular expression (structured_output.max_source_bytes)",
                    regex.len(),
                    max_bytes,
                )?;
                let regex = llguidance::regex_to_lark(unanchored(regex), "");
                writeln!(self.lark, "body: /{regex}/").expect("writing to memory");
            }
            AnswerFormat::Choice(choices) => {
                bounded("choices", choices.len(), MAX_CHOICES)?;
                bounded(
                    "bytes in the choices (structured_output.max_source_bytes)",
                    choices.iter().map(String::len).sum(),
                    max_bytes,
                )?;
                if choices.is_empty() || choices.iter().any(String::is_empty) {
                    return Err(GrammarError::Syntax(
                        "choices need at least one text, and none may be empty".into(),
                    ));
                }
                let choices: Vec<String> = choices.iter().map(|choice| quoted(choice)).collect();
                writeln!(self.lark, "body: CHOICE\nCHOICE: {}", choices.join(" | "))
                    .expect("writing to memory");
            }
            AnswerFormat::Grammar(grammar) => {
                bounded(
                    "bytes in the grammar (structured_output.max_source_bytes)",
                    grammar.len(),
                    max_bytes,
                )?;
                let is_gbnf = gbnf::is_gbnf(grammar);
                // The limits on schemas are checked where a field of the request holds the schema.
                if !is_gbnf && grammar.contains("%json") {
                    return Err(GrammarError::Syntax(
                        "`%json` is not allowed in a grammar: send a schema as `response_format`".into(),
                    ));
                }
                self.own = Some(if is_gbnf { gbnf::to_lark(grammar)? } else { grammar.clone() });
                self.lark.push_str("body: @own\n");
            }
            AnswerFormat::Tags(tags) => self.tags(tags)?,
            AnswerFormat::Tools(tools) => self.tools(tools)?,
        }
        Ok(())
    }

    /// Writes structural tags.
    fn tags(&mut self, tags: &StructuralTags) -> Result<(), GrammarError> {
        let body = self.structure(&tags.0, None)?;
        writeln!(self.lark, "body: {body}\nFREE_TEXT: /(.|\\n)*/").expect("writing to memory");
        Ok(())
    }

    /// Writes the calls of tools; their markers are landmarks.
    fn tools(&mut self, tools: &ToolCalls) -> Result<(), GrammarError> {
        let section_begin = self.marker(markers::TOOL_CALLS_SECTION_BEGIN)?;
        let section_end = self.marker(markers::TOOL_CALLS_SECTION_END)?;
        let begin = self.marker(markers::TOOL_CALL_BEGIN)?;
        let arguments = self.marker(markers::TOOL_CALL_ARGUMENT_BEGIN)?;
        let end = self.marker(markers::TOOL_CALL_END)?;
        let once = !tools.parallel || matches!(tools.mode, ToolMode::Named(_));
        let mut calls = Vec::new();
        // Schemas that are enforced have the room of a request before those that it can do without.
        let (enforced, others): (Vec<_>, Vec<_>) = tools.chosen().partition(|tool| tools.enforces(tool));
        for (number, tool) in enforced.into_iter().chain(others).enumerate() {
            self.enforced.push(tools.enforces(tool).into());
            let style = JsonStyle::default();
            let rules = if tools.enforces(tool) { Unenforced::Refused } else { Unenforced::Advice };
            let json = match self.json(&tool.schema(), &style, rules, &tool.name) {
                Err(refusal) if tools.enforces(tool) => return Err(refusal.of_tool(&tool.name)),
                Err(_) => {
                    self.advice.push(tool.name.clone());
                    self.json(&schema::of_arguments(None), &style, rules, &tool.name)?
                }
                Ok(json) => json,
            };
            let name = quoted(&format!("functions.{}:", tool.name));
            writeln!(self.lark, "call_{number}: {begin} {name} INDEX {arguments} {json} {end}")
                .expect("writing to memory");
            calls.push(format!("call_{number}"));
            let mut head = format!("functions.{}:0", tool.name).into_bytes();
            head.extend(self.spelled(markers::TOOL_CALL_ARGUMENT_BEGIN)?);
            self.marks.heads.push(head);
        }
        let calls = calls.join(" | ");
        let times = if once { "" } else { "+" };
        writeln!(self.lark, "section: {section_begin} ({calls}){times} {section_end}")
            .expect("writing to memory");
        self.lark.push_str("INDEX: /[0-9]{1,4}/\n");
        self.lark.push_str(match tools.mode {
            ToolMode::Auto => "body: FREE_TEXT? section?\nFREE_TEXT: /(.|\\n)+/\n",
            _ => "body: section\n",
        });
        // Closing markers come first. The opener of a call comes last: it is only taken where no
        // other way is left.
        for (marker, opens_json) in [
            (markers::TOOL_CALL_END, false),
            (markers::TOOL_CALLS_SECTION_END, false),
            (markers::TOOL_CALL_ARGUMENT_BEGIN, true),
            (markers::TOOL_CALLS_SECTION_BEGIN, false),
            (markers::TOOL_CALL_BEGIN, false),
        ] {
            let spelled = self.spelled(marker)?;
            self.marks.specials.push(Special { spelled, opens_json });
        }
        Ok(())
    }

    /// Adds a rule for JSON of this schema and returns its name. `of` is the tool whose schema it is.
    fn json(
        &mut self,
        schema: &Value,
        style: &JsonStyle,
        rules: Unenforced,
        of: &str,
    ) -> Result<String, GrammarError> {
        let limit = self.config.max_schema_bytes as usize;
        let what = "bytes in the schemas (structured_output.max_schema_bytes)";
        // Before the schema is rewritten, and after.
        bounded(what, self.schema_bytes + schema.to_string().len(), limit)?;
        let mut shared = self.shared;
        let max_values = self.config.max_schema_values as usize;
        let ready = schema::ready(schema, style, max_values, rules, &mut shared);
        // Steps are used up by schemas that are refused, too.
        self.shared.use_steps_of(&shared);
        let ready = ready?;
        let text = ready.schema.to_string();
        let bytes = self.schema_bytes + text.len();
        bounded(what, bytes, limit)?;
        (self.schema_bytes, self.shared) = (bytes, shared);
        let dot = if of.is_empty() { "" } else { "." };
        self.advice.extend(ready.advice.iter().map(|place| format!("{of}{dot}{place}")));
        schema::required_keys(&ready.schema, &mut self.marks.keys);
        let name = format!("json_{}", self.jsons);
        self.jsons += 1;
        writeln!(self.lark, "{name}: %json {text}").expect("writing to memory");
        Ok(name)
    }

    /// A marker in the notation of a grammar.
    fn marker(&self, name: &'static str) -> Result<String, GrammarError> {
        self.tokenizer.special_id(name).map(|id| format!("<[{id}]>")).ok_or(GrammarError::NoMarker(name))
    }

    /// A marker in the bytes that the parser reads.
    fn spelled(&self, name: &'static str) -> Result<Vec<u8>, GrammarError> {
        self.tokenizer.special_id(name).map(spelled).ok_or(GrammarError::NoMarker(name))
    }

    /// The key of this grammar in the cache.
    pub(super) fn fingerprint(&self) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        let texts = [Some(&self.lark), self.own.as_ref()].into_iter().flatten();
        for part in texts.map(String::as_bytes).chain([&self.enforced[..]]) {
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
        }
        for place in &self.advice {
            hasher.update(&(place.len() as u64).to_le_bytes()).update(place.as_bytes());
        }
        hasher.finalize()
    }

    /// The input of the compiler.
    pub(super) fn grammar(&self) -> TopLevelGrammar {
        let mut top = TopLevelGrammar::from_lark(self.lark.clone());
        if let Some(own) = &self.own {
            let mut own = GrammarWithLexer::from_lark(own.clone());
            own.name = Some("own".into());
            top.grammars.push(own);
        }
        top
    }
}

/// Removes anchors at the ends of a regular expression, which are redundant: the whole answer must
/// match.
fn unanchored(regex: &str) -> &str {
    let regex = regex.strip_prefix('^').unwrap_or(regex);
    match regex.strip_suffix('$') {
        Some(inner) if inner.bytes().rev().take_while(|&b| b == b'\\').count() % 2 == 0 => inner,
        _ => regex,
    }
}

fn bounded(what: &'static str, value: usize, limit: usize) -> Result<(), GrammarError> {
    if value > limit { Err(GrammarError::Limit { what, limit }) } else { Ok(()) }
}
