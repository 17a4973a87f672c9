//! A jinja environment that behaves like the one in which `transformers` renders chat templates.
//!
//! Differences of minijinja are removed: block trimming, Python's methods, `%`, changing lists and
//! namespaces without bounds, Python's JSON, the set of iterables, and the text of none. The extensions that templates expect are
//! added: generation tags, `raise_exception`, `strftime_now`. Instructions, recursion, output, and what lists and
//! namespaces grow to in loops are bounded; what one statement makes of a value is not, so that a template
//! is trusted as far as the checkpoint it comes with. None comes with a request.

use std::fmt;
use std::io::{self, Write};

use super::{python_containers, python_source, python_values};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, UndefinedBehavior, escape_formatter};

/// Most instructions per rendering. A long conversation needs some ten thousand; this many take
/// about a second.
const FUEL: u64 = 20_000_000;
/// Deepest nesting of macro calls and blocks.
const MAX_RECURSION: usize = 100;
/// Most bytes of output.
const MAX_OUTPUT: usize = 64 << 20;

/// Variable with the sentinel that must pass through `tojson` unescaped; no template can spell its
/// name.
pub(super) const SENTINEL_VARIABLE: &str = "perigee sentinel";
/// Variable with the time for `strftime_now`, seconds since 1970 UTC.
pub(super) const NOW_VARIABLE: &str = "perigee now";

/// The message of a `raise_exception` call, found in the source chain of the error.
#[derive(Debug)]
pub(super) struct Raised(pub(super) String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// The environment, without any template.
pub(super) fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    let mut syntax = SyntaxConfig::builder();
    syntax.trim_blocks(true).lstrip_blocks(true);
    env.set_syntax(syntax.build().expect("default delimiters are valid"));
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_undefined_behavior(UndefinedBehavior::Lenient);
    env.set_unknown_method_callback(python_values::unknown_method);
    env.add_function(python_source::PERCENT, python_values::percent);
    env.add_function(python_source::LIST, python_containers::list);
    env.add_function(python_source::DICT, python_containers::dict);
    env.add_function(python_source::ASSIGN, python_containers::assign);
    env.add_function("namespace", python_containers::namespace);
    env.set_formatter(|out, state, value| match value.is_none() {
        true => out.write_str("None").map_err(Error::from),
        false => escape_formatter(out, state, value),
    });
    env.set_fuel(Some(FUEL));
    env.set_recursion_limit(MAX_RECURSION);
    minijinja_contrib::add_to_environment(&mut env);
    // Jinja's takes its items one by one.
    env.add_function("cycler", |items: Rest<Value>| minijinja_contrib::globals::cycler(items.0));
    env.add_filter("center", python_values::center);
    env.add_filter("tojson", to_json);
    env.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    env.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Raised(message)))
    });
    env.add_function("strftime_now", strftime_now);
    env
}

/// Renders `source` with `context`; output beyond the limit is an error.
pub(super) fn render(env: &Environment<'_>, source: &str, context: Value) -> Result<String, Error> {
    let mut output = Bounded(Vec::new());
    env.template_from_named_str("chat_template", source)?.render_captured_to(context, &mut output)?;
    String::from_utf8(output.0).map_err(|_| Error::new(ErrorKind::WriteFailure, "output is not UTF-8"))
}

struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_OUTPUT {
            return Err(io::Error::other(format!("output exceeds {MAX_OUTPUT} bytes")));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Removes `{% generation %}` tags, which mark assistant text for training; rendering always takes
/// the block.
pub(super) fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}") else { break };
        let inside = &rest[start + 2..start + length];
        let word = inside.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        out.push_str(&rest[..start]);
        let sign = |c: Option<char>| c.filter(|c| "-+".contains(*c)).map(String::from).unwrap_or_default();
        match word {
            "generation" | "endgeneration" => {
                let tag = if word == "generation" { "if true" } else { "endif" };
                let (open, close) = (sign(inside.chars().next()), sign(inside.chars().next_back()));
                out.push_str(&format!("{{%{open} {tag} {close}%}}"));
            }
            _ => out.push_str(&rest[start..start + length + 2]),
        }
        rest = &rest[start + length + 2..];
    }
    out.push_str(rest);
    out
}

/// Python's `json.dumps` with the arguments that templates use.
fn to_json(state: &State, value: Value, kwargs: Kwargs) -> Result<Value, Error> {
    let indent = match kwargs.get::<Option<Value>>("indent")? {
        None => None,
        Some(indent) if indent.is_none() => None,
        Some(indent) => Some(match usize::try_from(indent.clone()) {
            Ok(width) => " ".repeat(width.min(16)),
            Err(_) => indent.as_str().unwrap_or_default().to_owned(),
        }),
    };
    let separators = kwargs.get::<Option<Value>>("separators")?.filter(|value| !value.is_none());
    let (item, key) = match separators {
        None => ((if indent.is_some() { "," } else { ", " }).to_owned(), ": ".to_owned()),
        Some(pair) => {
            let pair: Vec<String> = pair.try_iter()?.map(|part| part.to_string()).collect();
            <[String; 2]>::try_from(pair)
                .map(|[item, key]| (item, key))
                .map_err(|_| Error::new(ErrorKind::InvalidOperation, "tojson: separators must be a pair"))?
        }
    };
    let flag = |name| kwargs.get::<Option<bool>>(name).map(Option::unwrap_or_default);
    let ascii = flag("ensure_ascii")?;
    let sort_keys = flag("sort_keys")?;
    kwargs.assert_all_used()?;
    let sentinel = state.lookup(SENTINEL_VARIABLE).and_then(|value| value.as_str()?.chars().next());
    let json = serde_json::to_value(&value)
        .map_err(|error| Error::new(ErrorKind::BadSerialization, "tojson").with_source(error))?;
    let mut dumper = Dumper { item, key, indent, ascii, sort_keys, sentinel, out: String::new() };
    dumper.value(&json, 0);
    Ok(Value::from(dumper.out))
}

struct Dumper {
    item: String,
    key: String,
    indent: Option<String>,
    ascii: bool,
    sort_keys: bool,
    sentinel: Option<char>,
    out: String,
}

impl Dumper {
    fn value(&mut self, value: &serde_json::Value, depth: usize) {
        match value {
            serde_json::Value::Null => self.out.push_str("null"),
            serde_json::Value::Bool(value) => self.out.push_str(if *value { "true" } else { "false" }),
            serde_json::Value::Number(number) => match number.as_f64() {
                Some(float) if number.is_f64() => self.out.push_str(&python_float(float)),
                _ => self.out.push_str(&number.to_string()),
            },
            serde_json::Value::String(text) => self.string(text),
            serde_json::Value::Array(items) => {
                self.out.push('[');
                for (index, item) in items.iter().enumerate() {
                    self.separate(index, depth);
                    self.value(item, depth + 1);
                }
                self.close(']', items.is_empty(), depth);
            }
            serde_json::Value::Object(entries) => {
                let mut entries: Vec<_> = entries.iter().collect();
                if self.sort_keys {
                    entries.sort_by_key(|entry| entry.0);
                }
                self.out.push('{');
                for (index, (key, value)) in entries.iter().enumerate() {
                    self.separate(index, depth);
                    self.string(key);
                    self.out.push_str(&self.key);
                    self.value(value, depth + 1);
                }
                self.close('}', entries.is_empty(), depth);
            }
        }
    }

    fn separate(&mut self, index: usize, depth: usize) {
        if index > 0 {
            self.out.push_str(&self.item);
        }
        self.new_line(depth + 1);
    }

    fn close(&mut self, bracket: char, empty: bool, depth: usize) {
        if !empty {
            self.new_line(depth);
        }
        self.out.push(bracket);
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            self.out.push_str(&indent.repeat(depth));
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' => self.out.push_str(&format!("\\u{:04x}", c as u32)),
                c if self.ascii && !c.is_ascii() && Some(c) != self.sentinel => {
                    let mut units = [0; 2];
                    for unit in c.encode_utf16(&mut units) {
                        self.out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                // Python never escapes DEL, whatever `ensure_ascii` is.
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

/// Python's `json.dumps(value, ensure_ascii=False)`.
pub(super) fn python_json(value: &serde_json::Value) -> String {
    let (item, key) = (", ".to_owned(), ": ".to_owned());
    let mut dumper = Dumper {
        item,
        key,
        indent: None,
        ascii: false,
        sort_keys: false,
        sentinel: None,
        out: String::new(),
    };
    dumper.value(value, 0);
    dumper.out
}

/// Python's `repr` of a float: shortest digits, exponent form below 1e-4 and from 1e16.
pub(super) fn python_float(float: f64) -> String {
    let scientific = format!("{float:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = format!("{float}");
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// The time of the request in a `strftime` format, UTC.
fn strftime_now(state: &State, format: &str) -> Result<String, Error> {
    let now = state
        .lookup(NOW_VARIABLE)
        .filter(|now| now.kind() == ValueKind::Number)
        .and_then(|now| i64::try_from(now).ok())
        .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "strftime_now: no time was given"))?;
    Ok(strftime(format, now))
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// `strftime` for the C locale; an unknown directive stays unchanged.
fn strftime(format: &str, unix_s: i64) -> String {
    let (days, seconds) = (unix_s.div_euclid(86_400), unix_s.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let weekday = DAYS[days.rem_euclid(7) as usize];
    let month_name = MONTHS[month as usize - 1];
    let hour12 = (hour + 11) % 12 + 1;
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = chars.next();
        let unpadded = directive == Some('-');
        if unpadded {
            directive = chars.next();
        }
        let two = |value: i64| if unpadded { value.to_string() } else { format!("{value:02}") };
        match directive {
            Some('Y') => out.push_str(&year.to_string()),
            Some('y') => out.push_str(&two(year.rem_euclid(100))),
            Some('m') => out.push_str(&two(month)),
            Some('d') => out.push_str(&two(day)),
            Some('e') => out.push_str(&format!("{day:2}")),
            Some('H') => out.push_str(&two(hour)),
            Some('I') => out.push_str(&two(hour12)),
            Some('M') => out.push_str(&two(minute)),
            Some('S') => out.push_str(&two(second)),
            Some('p') => out.push_str(if hour < 12 { "AM" } else { "PM" }),
            Some('B') => out.push_str(month_name),
            Some('b' | 'h') => out.push_str(&month_name[..3]),
            Some('A') => out.push_str(weekday),
            Some('a') => out.push_str(&weekday[..3]),
            Some('j') => {
                let of_year = days - days_from_civil(year, 1, 1) + 1;
                out.push_str(&if unpadded { of_year.to_string() } else { format!("{of_year:03}") });
            }
            Some('F') => out.push_str(&format!("{year}-{month:02}-{day:02}")),
            Some('T') => out.push_str(&format!("{hour:02}:{minute:02}:{second:02}")),
            Some('Z') => out.push_str("UTC"),
            Some('z') => out.push_str("+0000"),
            Some('s') => out.push_str(&unix_s.to_string()),
            Some('%') => out.push('%'),
            other => {
                out.push('%');
                out.extend(unpadded.then_some('-').into_iter().chain(other));
            }
        }
    }
    out
}

/// Days since 1970-01-01 of a Gregorian date; Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms".
pub fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year - era * 400;
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// The inverse: (year, month, day).
pub fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days - era * 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = (shifted + 2) % 12 + 1;
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use minijinja::context;

    fn data() -> Value {
        Value::from_pairs([
            ("b", Value::from(vec![Value::from(1), Value::from(2.0), Value::from("é<\u{7f}\n")])),
            ("a", Value::from(())),
            ("c", Value::from_pairs([("", 0); 0])),
            ("d", Value::from(Vec::<Value>::new())),
        ])
    }

    fn check(source: &str, expected: &str) {
        let context = context! {
            none_value => Value::from(()),
            data => data(),
        };
        let source = python_source::rewrite(&without_generation_tags(source)).into_owned();
        assert_eq!(render(&environment(), &source, context).unwrap(), expected, "{source}");
    }

    #[test]
    fn python_ways() {
        check("{{ none_value }}|{{ true }}|{{ 1.0 }}", "None|True|1.0");
        check(
            "{{ none_value is iterable }}{{ [] is iterable }}{{ 'x' is iterable }}{{ 3 is iterable }}",
            "FalseTrueTrueFalse",
        );
        check("{{ ' a '.strip() }}{{ 'a,b'.split(',')[1] }}{{ data.get('x') is none }}", "abTrue");
        check(
            "{% for x in [1, 2, 3] %}\n  {% if x == 2 %}{% break %}{% endif %}\n{{ x }}\n{% endfor %}",
            "1\n",
        );
        check("a{%- generation -%} b {%- endgeneration %} c{% generation %}d{% endgeneration %}", "ab cd");
        check("<{{ '<&\\'>' }}>", "<<&'>>");
    }

    /// Regression: `%` on a string and `append` failed where other engines render.
    #[test]
    fn python_operators_and_lists() {
        check(
            "{% set d = {'a': 1} %}{% do d.update({'b': 2}) %}{{ d }}{{ d.pop('a') }}{{ d.pop('z', 0) }}{{ d.setdefault('c', 5) }}\
             {% do d.update(e=6) %}{{ d|tojson }}{{ d.e }}{{ d|length }}{{ 'a' in d }}{% for k, v in d.items() %}{{ k }}{{ v }}{% endfor %}",
            "{'a': 1, 'b': 2}105{\"b\": 2, \"c\": 5, \"e\": 6}63Falseb2c5e6",
        );
        check(
            "{% set d = {} %}{% do d.update({'d': d, 'l': [d]}) %}{% do d.update({'e': d}) %}{{ d|tojson }}{{ d[d] }}",
            r#"{"d": {}, "l": [{}], "e": {"d": {}, "l": [{}]}}"#,
        );
        check(
            "{{ '%d of %s' % (3, 'x') }}|{{ '%s' % none_value }}|{{ '%(a)s' % {'a': 1} }}",
            "3 of x|None|1",
        );
        check("{{ 7 % 3 }}|{{ -7 % 3 }}|{{ 7 % -3 }}|{{ 7.5 % 2 }}", "1|2|-2|1.5");
        check("{% for i in [0, 1, 2] %}{{ 'ab'[i % 2] }}{% endfor %}", "aba");
        check(
            "{%- set q = namespace(a=[]) -%}{%- for m in [1, 2] -%}{%- set _ = q.a.append(m) -%}{%- endfor -%}{{ q.a|join(',') }}",
            "1,2",
        );
        check(
            "{% set x = [3, 1] %}{% do x.extend([2]) %}{% do x.insert(0, 9) %}{{ x.pop() }}{{ x.pop(0) }}{% do x.sort() %}\
             {% do x.reverse() %}{{ x }}{% do x.remove(3) %}{{ x[-1] }}{{ x|length }}{{ x + [5] }}{% do x.clear() %}{{ not x }}",
            "29[3, 1]11[1, 5]True",
        );
        check(
            "{% set x = [1, 2] %}{{ x is sequence }}{{ x == [1, 2] }}{{ 2 in x }}{{ x[1:] }}{{ x.index(2) }}{% do x.pop() %}",
            "TrueTrueTrue[2]1",
        );
    }

    fn fails(source: &str, message: &str) {
        let source = python_source::rewrite(source);
        let error = render(&environment(), &source, context! { data => data() }).unwrap_err();
        assert!(format!("{error:#}").contains(message), "{source}: {error:#}");
    }

    /// Regression: a namespace that held itself, or ever deeper lists, ended the process.
    #[test]
    fn namespaces_are_bounded() {
        check(
            "{%- set ns = namespace(n=1, m={'a': 2}) -%}{% for x in range(3) %}{% set ns.n = ns.n, x %}{% endfor %}
             {%- set ns.m = data -%}{{ ns.n }}{{ ns.m.b[0] }}{{ namespace({'a': 1}).a }}{{ namespace().x is defined }}",
            "(((1, 0), 1), 2)11False"
        );
        check(
            "{% set ns = namespace() %}{% set ns.t | upper %}\n{% set x %}b{% endset %}a{{ x }}\n{% endset %}\n{{ ns.t }}|",
            "AB\n|",
        );
        check(
            "{% set ns = namespace(a=1) %}{% set ns.me = ns %}{% set ns.a = 2 %}{{ ns.me }}{{ ns.a }}",
            "{'a': 1}2",
        );
        check("{% set ns = namespace(l=[]) %}{% do ns.l.append(ns) %}{{ ns.l }}", "[{'l': []}]");
        let nested =
            "{% set ns = namespace(x=1) %}{% for i in range(N) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns }}";
        check(&nested.replace('N', "2"), "{'x': [[1]]}");
        fails(&nested.replace('N', "100000"), "deeper than 100");
        let wide = "{% set ns = namespace(x=range(9999)) %}{% for i in range(9999) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}";
        fails(wide, "take more than 20000000 values");
        fails("{% set x = {} %}{% set x.a = 1 %}", "can only assign to namespaces, not map");
        fails("{% set x = namespace([1]) %}", "a map or arguments by name are expected, not sequence");
    }

    #[test]
    fn python_methods() {
        check(
            "{{ 'abcb'.find('b', 2) }}{{ 'abc'.startswith('b', 1) }}{{ 'abc'.find('a', 1) }}{{ 'aaa'.count('a', 1, 2) }}",
            "3True-11",
        );
        check(
            "{{ 'hello'|truncate(length=3, killwords=true, end='.', leeway=0) }}{{ '<b>x</b>'|striptags }}|{{ 'a'|center(3) }}|",
            "he.x| a |",
        );
        check(
            "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{% set j = joiner('-') %}{{ j() }}{{ j() }}",
            "ab-",
        );
        check("{{ 'a-b-c'.rsplit('-', 1) }}{{ 'a b  c'.rsplit(maxsplit=1) }}", "['a-b', 'c']['a b', 'c']");
        check("{{ 'a-b-c'.split('-', maxsplit=1) }}{{ 'a-b'.split(sep='-')[1] }}", "['a', 'b-c']b");
        check(
            "{{ 'a-b'.partition('-')[2] }}{{ 'ab'.partition('-')[0] }}{{ 'ab'.rpartition('-')[2] }}",
            "babab",
        );
        check(
            "{{ 'xay'.removeprefix('x').removesuffix('y') }}{{ 'aB'.swapcase() }}{{ 'AB'.casefold() }}",
            "aAbab",
        );
        check(
            "{{ '7'.zfill(3) }}|{{ '-7'.zfill(3) }}|{{ 'a'.ljust(3, '.') }}|{{ 'a'.rjust(3) }}|{{ 'a'.center(4, '.') }}",
            "007|-07|a..|  a|.a..",
        );
        check(
            "{{ 'abc'.index('c') }}{{ [1, 2].index(2) }}{{ {'items': 1}.items()|list }}",
            "21[('items', 1)]",
        );
    }

    #[test]
    fn python_json() {
        check("{{ data|tojson }}", "{\"b\": [1, 2.0, \"é<\u{7f}\\n\"], \"a\": null, \"c\": {}, \"d\": []}");
        check(
            "{{ data|tojson(separators=(',', ':'), sort_keys=true, ensure_ascii=True) }}",
            "{\"a\":null,\"b\":[1,2.0,\"\\u00e9<\u{7f}\\n\"],\"c\":{},\"d\":[]}",
        );
        check("{{ [1, {'a': 2}, []]|tojson(indent=2) }}", "[\n  1,\n  {\n    \"a\": 2\n  },\n  []\n]");
        check("{{ '🙂'|tojson(ensure_ascii=true) }}", "\"\\ud83d\\ude42\"");
    }

    #[test]
    fn python_floats() {
        for (float, expected) in [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-2.5, "-2.5"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e-5, "1.5e-05"),
            (0.0001, "0.0001"),
            (1e100, "1e+100"),
            (-0.0, "-0.0"),
        ] {
            assert_eq!(python_float(float), expected);
        }
    }

    #[test]
    fn dates() {
        let date = |format| strftime(format, 1_709_210_096);
        assert_eq!(date("%Y-%m-%d %H:%M:%S"), "2024-02-29 12:34:56");
        assert_eq!(
            date("%A %-d %B %y, %I %p, %j %b %a 100%% %Q"),
            "Thursday 29 February 24, 12 PM, 060 Feb Thu 100% %Q"
        );
        assert_eq!(strftime("%F %T", -1), "1969-12-31 23:59:59");
        for days in (-800_000..800_000).step_by(97) {
            let (year, month, day) = civil(days);
            assert_eq!(days_from_civil(year, month, day), days);
        }
        let env = environment();
        assert!(render(&env, "{{ strftime_now('%Y') }}", context! {}).is_err());
        let context = Value::from_pairs([(NOW_VARIABLE, Value::from(0))]);
        assert_eq!(render(&env, "{{ strftime_now('%Y') }}", context).unwrap(), "1970");
    }

    #[test]
    fn hostile_templates_end_with_an_error() {
        for source in [
            "{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}",
            "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
            "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(100) %}{% set ns.s = ns.s ~ ns.s %}{{ ns.s }}{% endfor %}",
            "{{ 'x' * 4000000000 }}",
            "{{ [1] * 4000000000 }}",
            "{{ raise_exception('no') }}",
            "{{ 1 / 0 }}",
            "{% if %}",
            "{{ 'a'|tojson(nonsense=1) }}",
            "{{ 1 % 0 }}",
            "{% set x = [1] %}{% for i in range(100) %}{% do x.extend(x) %}{% endfor %}",
            "{% set x = [1] %}{% for i in range(100000) %}{% do x.insert(0, i) %}{% endfor %}",
            "{% set n = namespace(x=[]) %}{% for i in range(10000) %}{% set n.x = [n.x] %}{% endfor %}{% do n.x.append(1) %}",
            "{{ 'x'.ljust(1000000000000) }}",
            "{% do [].pop() %}",
            "{% do messages.append(1) %}",
            "{% do {}.pop('a') %}",
            "{% set d = {} %}{% for i in range(10000) %}{% do d.update({'d': {'d': d}}) %}{% endfor %}",
        ] {
            let source = python_source::rewrite(source);
            assert!(render(&environment(), &source, context! {}).is_err(), "{source}");
        }
        // A list that is put into itself holds what it held.
        check(
            "{% set x = [1] %}{% do x.append(x) %}{% do x.append({'x': x}) %}{{ x|tojson }}",
            r#"[1, [1], {"x": [1, [1]]}]"#,
        );
        check(
            "{% set x = [1, 2] %}{% do x.append(x[::-1]) %}{% do x.extend(x) %}{{ x|tojson }}",
            "[1, 2, [2, 1], 1, 2, [2, 1]]",
        );
    }
}
