//! Reads a metrics page: Prometheus text, version 0.0.4.
//!
//! A page is what a server sent, so every text is bounded and free of control characters: terminals obey those.
//! Format: <https://prometheus.io/docs/instrumenting/exposition_formats/>.

use std::collections::BTreeMap;

use super::histogram::Histogram;

/// Longest name or label value that is kept, bytes.
const MAX_TEXT_BYTES: usize = 200;

/// The samples of one page.
#[derive(Debug, Default, Clone)]
pub(super) struct Page {
    samples: Vec<Sample>,
}

/// The value of one series.
#[derive(Debug, Clone)]
pub(super) struct Sample {
    name: String,
    labels: Vec<(String, String)>,
    value: f64,
}

impl Page {
    /// Errors: the first line that is no sample and no comment.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut samples = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let sample = Sample::parse(line)
                .ok_or_else(|| format!("line {} is not a metric: {}", index + 1, printable(line, 60)))?;
            samples.push(sample);
        }
        Ok(Self { samples })
    }

    fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Sample> {
        self.samples.iter().filter(move |sample| sample.name == name)
    }

    /// Whether a sample has a name that begins so.
    pub(super) fn has_prefix(&self, prefix: &str) -> bool {
        self.samples.iter().any(|sample| sample.name.starts_with(prefix))
    }

    /// The value of a metric, added over its labels; `None` if the page does not have it.
    pub(super) fn value(&self, name: &str) -> Option<f64> {
        self.named(name).map(|sample| sample.value).reduce(|a, b| a + b)
    }

    /// The value of one series.
    pub(super) fn value_where(&self, name: &str, label: &str, value: &str) -> Option<f64> {
        self.named(name).find(|sample| sample.label(label) == Some(value)).map(|sample| sample.value)
    }

    /// The values of a metric by one of its labels, added over the others. Series that `keep` drops do not count.
    pub(super) fn by_label(
        &self,
        name: &str,
        label: &str,
        keep: impl Fn(&Sample) -> bool,
    ) -> BTreeMap<String, f64> {
        let mut sums = BTreeMap::new();
        for sample in self.named(name).filter(|sample| keep(sample)) {
            if let Some(key) = sample.label(label) {
                *sums.entry(key.to_owned()).or_insert(0.0) += sample.value;
            }
        }
        sums
    }

    /// The value of a label, of the first series that has it.
    pub(super) fn label(&self, name: &str, label: &str) -> Option<&str> {
        self.samples.iter().filter(|sample| sample.name == name).find_map(|sample| sample.label(label))
    }

    /// A histogram, added over its labels; empty if the page does not have it.
    pub(super) fn histogram(&self, name: &str) -> Histogram {
        let buckets = format!("{name}_bucket");
        let mut cumulative: Vec<(f64, f64)> = Vec::new();
        for sample in self.named(&buckets) {
            let Some(edge) = sample.label("le").and_then(number) else { continue };
            match cumulative.iter_mut().find(|(known, _)| *known == edge) {
                Some((_, count)) => *count += sample.value,
                None => cumulative.push((edge, sample.value)),
            }
        }
        Histogram::new(cumulative, self.value(&format!("{name}_sum")).unwrap_or(0.0))
    }
}

impl Sample {
    fn parse(line: &str) -> Option<Self> {
        let name_end = line.find(|c: char| !is_name(c)).filter(|end| *end > 0)?;
        let (name, rest) = line.split_at(name_end);
        let (labels, rest) = match rest.strip_prefix('{') {
            Some(rest) => labels(rest)?,
            None => (Vec::new(), rest),
        };
        // A timestamp may follow the value, and in OpenMetrics an exemplar.
        let value = number(rest.split_whitespace().next()?)?;
        Some(Self { name: printable(name, MAX_TEXT_BYTES), labels, value })
    }

    /// The value of a label.
    pub(super) fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(label, _)| label == name).map(|(_, value)| value.as_str())
    }
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == ':'
}

/// Labels up to the closing brace, and the text behind it.
fn labels(mut rest: &str) -> Option<(Vec<(String, String)>, &str)> {
    let mut labels = Vec::new();
    loop {
        rest = rest.trim_start_matches([' ', ',']);
        if let Some(rest) = rest.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, quoted) = rest.split_once('=')?;
        let quoted = quoted.trim_start().strip_prefix('"')?;
        let mut value = String::new();
        let mut chars = quoted.char_indices();
        let end = loop {
            match chars.next()? {
                (at, '"') => break at,
                (_, '\\') => match chars.next()?.1 {
                    'n' => value.push('\n'),
                    escaped => value.push(escaped),
                },
                (_, c) => value.push(c),
            }
        };
        labels.push((printable(name.trim(), MAX_TEXT_BYTES), printable(&value, MAX_TEXT_BYTES)));
        rest = &quoted[end + 1..];
    }
}

/// A value; NaN and infinities are written in words.
fn number(text: &str) -> Option<f64> {
    match text {
        "+Inf" | "Inf" => Some(f64::INFINITY),
        "-Inf" => Some(f64::NEG_INFINITY),
        text => text.parse().ok(),
    }
}

/// The text without control characters, at most `max_bytes` long.
pub(super) fn printable(text: &str, max_bytes: usize) -> String {
    let mut kept = String::new();
    for c in text.chars() {
        let c = if c.is_control() { ' ' } else { c };
        if kept.len() + c.len_utf8() > max_bytes {
            kept.push('…');
            break;
        }
        kept.push(c);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages() {
        let page = Page::parse(
            "# HELP a b\n# TYPE a counter\n\na 1\nb{x=\"1\",y=\"q\\\"\\\\\\n\"} 2 1700000000\nb{x=\"2\"} +Inf\nc{} 1e-3\n\
             d{x=\"1\",} 4\nd{x=\"1\",y=\"z\"} 3 # {trace_id=\"1\"} 1\nd{y=\"z\"} 1\n# EOF\n",
        )
        .unwrap();
        assert_eq!(page.value("a"), Some(1.0));
        assert_eq!(page.value("b"), Some(f64::INFINITY));
        assert_eq!(page.value_where("b", "x", "1"), Some(2.0));
        assert_eq!(page.label("b", "y"), Some("q\"\\ "));
        assert_eq!(page.value("c"), Some(0.001));
        assert_eq!(page.value("e"), None);
        assert_eq!(page.by_label("d", "x", |_| true), BTreeMap::from([("1".into(), 7.0)]));
        assert_eq!(
            page.by_label("d", "x", |sample| sample.label("y").is_none()),
            BTreeMap::from([("1".into(), 4.0)])
        );
        assert!(page.has_prefix("b") && !page.has_prefix("perigee_"));
    }

    #[test]
    fn faults_are_named() {
        for (text, expected) in [
            ("<!doctype html>", "line 1 is not a metric: <!doctype html>"),
            ("a 1\na{b=\"c} 1", "line 2 is not a metric: a{b=\"c} 1"),
            ("a", "line 1 is not a metric: a"),
            ("a x", "line 1 is not a metric: a x"),
            ("a{b} 1", "line 1 is not a metric: a{b} 1"),
            ("{\u{1b}[2J}", "line 1 is not a metric: { [2J}"),
        ] {
            assert_eq!(Page::parse(text).unwrap_err(), expected);
        }
        let error = Page::parse(&"é".repeat(1000)).unwrap_err();
        assert!(error.ends_with('…') && error.len() < 120, "{error}");
    }

    #[test]
    fn texts_are_bounded_and_printable() {
        let line = format!("a{{b=\"\u{1b}[31m{}\"}} 1", "x".repeat(10_000));
        let page = Page::parse(&line).unwrap();
        let value = page.label("a", "b").unwrap();
        assert!(value.starts_with(" [31mxxx") && value.len() < MAX_TEXT_BYTES + 5);
    }

    #[test]
    fn histograms_are_added_over_their_labels() {
        let page = Page::parse(
            "h_bucket{r=\"a\",le=\"1\"} 1\nh_bucket{r=\"a\",le=\"+Inf\"} 2\nh_sum{r=\"a\"} 3\nh_count{r=\"a\"} 2\n\
             h_bucket{r=\"b\",le=\"1\"} 4\nh_bucket{r=\"b\",le=\"+Inf\"} 4\nh_sum{r=\"b\"} 2\nh_count{r=\"b\"} 4\n",
        )
        .unwrap();
        let histogram = page.histogram("h");
        assert_eq!((histogram.count(), histogram.mean()), (6.0, Some(5.0 / 6.0)));
        assert_eq!(page.histogram("g"), Histogram::default());
    }
}
