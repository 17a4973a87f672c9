//! Rewrites what the template engine lacks of Python, before a template is compiled.
//!
//! `a % b` becomes a call that knows strings (the engine's operator knows numbers). In a template that changes lists or
//! maps in place (`x.append(y)`), literals become ones that can change. An assignment to an attribute of a namespace
//! becomes a call that bounds what a namespace holds. A tag without any of them keeps its text, and one that this reader
//! does not understand too: the engine then says what is wrong with it.

use std::borrow::Cow;

/// Function that `%` becomes. No template can spell it by accident.
pub(super) const PERCENT: &str = "perigee_python_percent";
/// Functions that make a list and a map that can change.
pub(super) const LIST: &str = "perigee_python_list";
pub(super) const DICT: &str = "perigee_python_dict";
/// Function that assigns to an attribute of a namespace.
pub(super) const ASSIGN: &str = "perigee_python_assign";
/// Variable with the text of a block that is assigned so.
const BLOCK: &str = "perigee_python_block";

/// Methods of lists that change them, and those of maps.
const LIST_CHANGES: [&str; 8] = ["append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"];
const DICT_CHANGES: [&str; 4] = ["clear", "pop", "setdefault", "update"];

/// Most brackets inside one another that are read.
const MAX_DEPTH: usize = 64;

/// The source with calls in place of what the engine lacks.
pub(super) fn rewrite(source: &str) -> Cow<'_, str> {
    let calls = |methods: &[&str]| methods.iter().any(|method| source.contains(&format!(".{method}(")));
    let (changes_lists, changes_dicts) = (calls(&LIST_CHANGES), calls(&DICT_CHANGES));
    let mut out = String::new();
    let mut copied = 0;
    let mut at = 0;
    // The blocks that are open and assigned at their end, each with the attribute that this reader assigns.
    let mut blocks: Vec<Option<Attribute>> = Vec::new();
    while let Some(start) = source[at..].find('{').map(|found| at + found) {
        let end = match source[start..].get(..2) {
            Some("{#") => {
                at = source[start..].find("#}").map_or(source.len(), |length| start + length + 2);
                continue;
            }
            Some("{%") => "%}",
            Some("{{") => "}}",
            _ => {
                at = start + 1;
                continue;
            }
        };
        let mut reader = Reader {
            source,
            at: start + 2,
            end,
            changes_lists,
            changes_dicts,
            blocks: &mut blocks,
            changed: false,
        };
        let Some(text) = reader.tag() else {
            at = start + 2;
            continue;
        };
        at = reader.at;
        if reader.changed {
            out.push_str(&source[copied..start + 2]);
            out.push_str(&text);
            copied = at;
        }
        let word = text.trim_end_matches(end).trim_matches(|c: char| "-+".contains(c) || c.is_whitespace());
        if end == "%}" && word == "raw" {
            at = source[at..].find("endraw").map_or(source.len(), |length| at + length);
        }
    }
    if copied == 0 {
        return Cow::Borrowed(source);
    }
    out.push_str(&source[copied..]);
    Cow::Owned(out)
}

/// What a piece of an expression is to its neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A value with its attributes, calls, subscripts and filters.
    Operand,
    /// `*`, `/`, `//`, `%`: as tight as `%`, from left to right.
    Times,
    /// `**`, which is tighter.
    Power,
    /// `+` and `-`, also as signs.
    Sign,
    /// Joins an operand with the next name: `.`, `|`.
    Link,
    /// Words and operators that are looser, and separators.
    Other,
}

struct Piece {
    kind: Kind,
    /// With the white space in front.
    text: String,
}

/// An attribute that is assigned to.
#[derive(Debug)]
struct Attribute {
    object: String,
    name: String,
}

impl Attribute {
    /// The target of an assignment, if it is one.
    fn of(target: &str) -> Option<Self> {
        let (object, name) = target.rsplit_once('.')?;
        Some(Self { object: object.trim().to_owned(), name: name.trim().to_owned() })
    }

    fn assigned(&self, value: &str) -> String {
        format!("do {ASSIGN}({}, '{}', {value})", self.object, self.name)
    }
}

/// Reads one tag.
struct Reader<'s> {
    source: &'s str,
    at: usize,
    /// `}}` or `%}`.
    end: &'static str,
    changes_lists: bool,
    changes_dicts: bool,
    blocks: &'s mut Vec<Option<Attribute>>,
    /// Whether the text is other than it was.
    changed: bool,
}

impl Reader<'_> {
    /// The text of the tag after its opening, closing included; `None` if it cannot be read.
    fn tag(&mut self) -> Option<String> {
        // Controls white space; it is no sign of what follows.
        let control = self.rest().chars().next().filter(|c| "-+".contains(*c));
        self.at += usize::from(control.is_some());
        let text = self.level(None, 0)?;
        Some(control.map(String::from).unwrap_or_default() + &text + self.end)
    }

    fn rest(&self) -> &str {
        &self.source[self.at..]
    }

    /// An expression up to `closing`, which is passed over, or up to the end of the tag.
    fn level(&mut self, closing: Option<char>, depth: usize) -> Option<String> {
        let mut pieces: Vec<Piece> = Vec::new();
        loop {
            let blank = self.rest().len() - self.rest().trim_start().len();
            let space = self.rest()[..blank].to_owned();
            self.at += blank;
            if closing.is_none() && self.rest().starts_with(self.end) {
                self.at += self.end.len();
                return Some(self.statement(pieces)? + &space);
            }
            let first = self.rest().chars().next()?;
            if Some(first) == closing {
                self.at += 1;
                return Some(self.percents(pieces)? + &space);
            }
            let piece = self.piece(first, &pieces, depth)?;
            let joins = match (pieces.last().map(|piece| piece.kind), piece.kind) {
                (Some(Kind::Operand), Kind::Link) => Some(Kind::Link),
                (Some(Kind::Link), Kind::Operand | Kind::Other) => Some(Kind::Operand),
                (Some(Kind::Operand), Kind::Operand) if "([".contains(first) => Some(Kind::Operand),
                _ => None,
            };
            match (joins, pieces.last_mut()) {
                (Some(kind), Some(last)) => {
                    last.text.push_str(&space);
                    last.text.push_str(&piece.text);
                    last.kind = kind;
                }
                _ => pieces.push(Piece { text: space + &piece.text, ..piece }),
            }
        }
    }

    /// The next piece, which begins with `first`, without white space.
    fn piece(&mut self, first: char, before: &[Piece], depth: usize) -> Option<Piece> {
        let whole = |kind, text: &str| Some(Piece { kind, text: text.to_owned() });
        if let Some(closing) = [('(', ')'), ('[', ']'), ('{', '}')].into_iter().find(|pair| pair.0 == first) {
            if depth == MAX_DEPTH {
                return None;
            }
            self.at += 1;
            let inside = self.level(Some(closing.1), depth + 1)?;
            let follows = before.last().is_some_and(|piece| piece.kind == Kind::Operand);
            let text = format!("{first}{inside}{}", closing.1);
            let function = match first {
                '[' if !follows && self.changes_lists => LIST,
                '{' if self.changes_dicts => DICT,
                _ => return whole(Kind::Operand, &text),
            };
            self.changed = true;
            return whole(Kind::Operand, &format!("{function}({text})"));
        }
        let length = match first {
            '\'' | '"' => {
                let mut escaped = false;
                let close = self.rest().char_indices().skip(1).find(|(_, c)| {
                    let closes = *c == first && !escaped;
                    escaped = *c == '\\' && !escaped;
                    closes
                });
                close?.0 + 1
            }
            _ if is_word(first) => self.rest().find(|c| !is_word(c)).unwrap_or(self.rest().len()),
            _ => {
                let pairs = ["**", "//", "==", "!=", "<=", ">="];
                pairs
                    .into_iter()
                    .find(|pair| self.rest().starts_with(pair))
                    .map_or(first.len_utf8(), str::len)
            }
        };
        let text = self.rest()[..length].to_owned();
        self.at += length;
        let is_attribute = before.last().is_some_and(|piece| piece.kind == Kind::Link);
        let kind = match &*text {
            "*" | "/" | "//" | "%" => Kind::Times,
            "**" => Kind::Power,
            "+" | "-" => Kind::Sign,
            "." | "|" => Kind::Link,
            word if is_word(first) && (is_attribute || !WORDS.contains(&word)) => Kind::Operand,
            _ if "'\"".contains(first) => Kind::Operand,
            // What closes without having been opened.
            _ if ")]}".contains(first) => return None,
            _ => Kind::Other,
        };
        Some(Piece { kind, text })
    }

    /// The text of a tag.
    fn statement(&mut self, mut pieces: Vec<Piece>) -> Option<String> {
        let word =
            |piece: Option<&Piece>| piece.map(|piece| piece.text.trim().to_owned()).unwrap_or_default();
        // Controls white space, as nothing ends in a sign.
        let control = pieces.pop_if(|last| last.kind == Kind::Sign).map(|last| last.text).unwrap_or_default();
        let statement = match (&*word(pieces.first()), &*word(pieces.get(2))) {
            ("set", "=") => match Attribute::of(&word(pieces.get(1))) {
                Some(attribute) => {
                    let space = pieces[0].text.replace("set", "");
                    let value = self.percents(pieces.split_off(3))?;
                    self.changed = true;
                    format!("{space}{}", attribute.assigned(&format!("({})", value.trim())))
                }
                None => self.percents(pieces)?,
            },
            ("set", "") if pieces.len() == 2 => {
                let target = word(pieces.get(1));
                let name = target.split('|').next().unwrap_or_default();
                let attribute = Attribute::of(name);
                if attribute.is_some() {
                    self.changed = true;
                    pieces[1].text = format!(" {BLOCK} {}", &target[name.len()..]);
                }
                self.blocks.push(attribute);
                self.percents(pieces)?
            }
            ("endset", "") => match self.blocks.pop().flatten() {
                Some(attribute) => {
                    self.changed = true;
                    format!("{} %}}{{% {}", pieces[0].text, attribute.assigned(BLOCK))
                }
                None => self.percents(pieces)?,
            },
            _ => self.percents(pieces)?,
        };
        Some(statement + &control)
    }

    /// The text of a level, every `a % b` a call.
    fn percents(&mut self, mut pieces: Vec<Piece>) -> Option<String> {
        let mut from = 0;
        while let Some(at) = pieces[from..].iter().position(|piece| piece.text.trim_start() == "%") {
            let at = from + at;
            // The chain of products before it is its left operand, a sign before that too.
            let in_chain = |piece: &Piece| matches!(piece.kind, Kind::Operand | Kind::Times | Kind::Power);
            let chain = pieces[..at].iter().rev().take_while(|piece| in_chain(piece)).count();
            let mut first = at - chain;
            if chain == 0 {
                return None;
            }
            let is_value = |piece: &Piece| piece.kind == Kind::Operand;
            if first > 0
                && pieces[first - 1].kind == Kind::Sign
                && !pieces[..first - 1].last().is_some_and(is_value)
            {
                first -= 1;
            }
            let mut last = at + 1;
            loop {
                last += pieces[last..].iter().take_while(|piece| piece.kind == Kind::Sign).count();
                if !pieces.get(last).is_some_and(is_value) {
                    return None;
                }
                last += 1;
                if !pieces.get(last).is_some_and(|piece| piece.kind == Kind::Power) {
                    break;
                }
                last += 1;
            }
            let text = |pieces: &[Piece]| pieces.iter().map(|piece| &*piece.text).collect::<String>();
            let (left, right) = (text(&pieces[first..at]), text(&pieces[at + 1..last]));
            let space = &left[..left.len() - left.trim_start().len()];
            let call = Piece {
                kind: Kind::Operand,
                text: format!("{space}{PERCENT}({}, {})", left.trim(), right.trim()),
            };
            pieces.splice(first..last, [call]);
            self.changed = true;
            from = first;
        }
        Some(pieces.into_iter().map(|piece| piece.text).collect())
    }
}

/// Words that are no values.
const WORDS: [&str; 22] = [
    "and",
    "or",
    "not",
    "in",
    "is",
    "if",
    "else",
    "elif",
    "for",
    "set",
    "do",
    "call",
    "filter",
    "macro",
    "recursive",
    "print",
    "with",
    "block",
    "include",
    "import",
    "from",
    "as",
];

/// Whether a character is of a name or a number. A number with a point is two of them and a link between.
fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(source: &str, expected: &str) {
        let expected = expected
            .replace("P(", &format!("{PERCENT}("))
            .replace("L(", &format!("{LIST}("))
            .replace("D(", &format!("{DICT}("))
            .replace("A(", &format!("{ASSIGN}("))
            .replace(" B ", &format!(" {BLOCK} "))
            .replace(" B)", &format!(" {BLOCK})"));
        assert_eq!(rewrite(source), expected, "{source}");
    }

    #[test]
    fn percent_takes_the_operands_that_python_gives_it() {
        check("{{ '%d of %s' % (3, 'x') }}", "{{ P('%d of %s', (3, 'x')) }}");
        check("{%- if loop.index0 % 2 == 0 -%}", "{%- if P(loop.index0, 2) == 0 -%}");
        check("{{ a + b * c % d ~ e }}", "{{ a + P(b * c, d) ~ e }}");
        check("{{ a % b % -c }}", "{{ P(P(a, b), -c) }}");
        check("{{ x - -a % b }}", "{{ x - P(-a, b) }}");
        check("{{ x - a % b }}", "{{ x - P(a, b) }}");
        check("{{- a % b -}}", "{{- P(a, b) -}}");
        check("{{ a % b ** 2 * c }}", "{{ P(a, b ** 2) * c }}");
        check("{{ f(k=a % m['x'].y|int) }}", "{{ f(k=P(a, m['x'].y|int)) }}");
        check("{{ {'a': 'b' % c, 'd': x[i % 2:]} }}", "{{ {'a': P('b', c), 'd': x[P(i, 2):]} }}");
        check("{% set x = 'a}}%}' % b if c % 2 else d %}", "{% set x = P('a}}%}', b) if P(c, 2) else d %}");
    }

    #[test]
    fn lists_can_change_where_a_template_changes_one() {
        check("{% set x = [] %}{% do x.append([1, 2]) %}", "{% set x = L([]) %}{% do x.append(L([1, 2])) %}");
        check("{{ x[0].append(y[1:]) }}{% for a in [b] %}", "{{ x[0].append(y[1:]) }}{% for a in L([b]) %}");
        check(
            "{{ (x)[0] }}{{ f()[0] }}{{ x.pop() }}{{ not [a] }}",
            "{{ (x)[0] }}{{ f()[0] }}{{ x.pop() }}{{ not L([a]) }}",
        );
        check("{% do {'a': [1]}.update({}) %}", "{% do D({'a': [1]}).update(D({})) %}");
        check("{% set x = [] %}{{ x|join('.append') }}", "{% set x = [] %}{{ x|join('.append') }}");
    }

    #[test]
    fn attributes_are_assigned_by_a_call() {
        check("{%- set ns.x = a, b -%}", "{%- do A(ns, 'x', (a, b)) -%}");
        check("{% set ns.x=a % b if c else -d %}", "{% do A(ns, 'x', (P(a, b) if c else -d)) %}");
        check("{% set a.b . c = {'=': 1}['='] %}", "{% do A(a.b, 'c', ({'=': 1}['='])) %}");
        check(
            "{% set ns.x %}{% set y %}z{% endset %}{{ y }}{%- endset -%}w",
            "{% set B  %}{% set y %}z{% endset %}{{ y }}{%- endset %}{% do A(ns, 'x', B) -%}w",
        );
        check(
            "{% set ns.x | replace('.', 'a') %}y{% endset %}",
            "{% set B | replace('.', 'a') %}y{% endset %}{% do A(ns, 'x', B) %}",
        );
        check(
            "{% set x = ns.y %}{% set x | replace('.', '') %}{% endset %}{{ ns.x == 1 }}",
            "{% set x = ns.y %}{% set x | replace('.', '') %}{% endset %}{{ ns.x == 1 }}",
        );
    }

    #[test]
    fn everything_else_keeps_its_text() {
        for source in [
            "",
            "100 % of {this}",
            "{# a % b #}{% raw %}{{ a % b }}{% endraw %}",
            "{{ '100 %' }}{{ \"a\\\" % b\" }}",
            "{%- for x in y -%}{{- x.z }}{%- endfor -%}",
            // What cannot be read is left to the engine.
            "{{ a % }}",
            "{{ % b }}",
            "{{ (a % b }}",
            "{{ 'a % b }}",
            "{{ a % b",
        ] {
            assert_eq!(rewrite(source), source);
        }
        let deep = format!("{{{{ {}a % b{} }}}}", "(".repeat(1000), ")".repeat(1000));
        assert_eq!(rewrite(&deep), deep);
    }
}
