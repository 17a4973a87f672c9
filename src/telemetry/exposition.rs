//! The page of metrics, in Prometheus' text format 0.0.4 and in that of OpenMetrics 1.0.0, which has exemplars.
//!
//! Sources: the exposition formats of Prometheus, "Text-based format"; the specification of OpenMetrics 1.0.0, "Text format" and
//! "Metric types". The registry's crate does not know the second, and is slower at the first.

use std::borrow::Cow;
use std::fmt::Write;

use prometheus::proto::{Histogram, LabelPair, MetricFamily, MetricType};

use super::exemplars::Exemplars;

/// A form of the page of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exposition {
    /// Prometheus' text format 0.0.4.
    Text,
    /// OpenMetrics 1.0.0: the same figures, with exemplars.
    OpenMetrics,
}

impl Exposition {
    /// Media type of the page.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// The page of some families, in their order.
    pub(super) fn page(self, families: &[MetricFamily], exemplars: &Exemplars) -> String {
        let mut page = Page { text: String::with_capacity(96 << 10), form: self, labels: String::new() };
        for family in families {
            page.family(family, exemplars);
        }
        if self == Self::OpenMetrics {
            page.text.push_str("# EOF\n");
        }
        page.text
    }
}

/// A page, as far as it is written.
struct Page {
    text: String,
    form: Exposition,
    /// Labels of the metric at hand, `name="value",...` without braces.
    labels: String,
}

impl Page {
    fn family(&mut self, family: &MetricFamily, exemplars: &Exemplars) {
        let (name, kind) = (family.name(), family.get_field_type());
        // The name of a counter's family lacks, in OpenMetrics, what its samples end in.
        let (family_name, kind_name) = match (kind, self.form) {
            (MetricType::COUNTER, Exposition::OpenMetrics) => {
                (name.strip_suffix("_total").unwrap_or(name), "counter")
            }
            (MetricType::COUNTER, Exposition::Text) => (name, "counter"),
            (MetricType::HISTOGRAM, _) => (name, "histogram"),
            _ => (name, "gauge"),
        };
        let help = match self.form {
            Exposition::Text => escape(family.help(), b"\\\n"),
            Exposition::OpenMetrics => escape(family.help(), b"\\\n\""),
        };
        self.put(&["# HELP ", family_name, " ", &help, "\n# TYPE ", family_name, " ", kind_name, "\n"]);
        for metric in family.get_metric() {
            self.labels.clear();
            for label in metric.get_label() {
                let comma = if self.labels.is_empty() { "" } else { "," };
                let value = escape(label.value(), b"\\\n\"");
                [comma, label.name(), "=\"", &value, "\""].iter().for_each(|part| self.labels.push_str(part));
            }
            match kind {
                MetricType::COUNTER => {
                    let end = if self.form == Exposition::OpenMetrics { "_total" } else { "" };
                    self.sample(family_name, end, metric.get_counter().get_value());
                }
                MetricType::HISTOGRAM => {
                    self.histogram(name, metric.get_label(), metric.get_histogram(), exemplars);
                }
                _ => self.sample(name, "", metric.get_gauge().get_value()),
            }
        }
    }

    fn histogram(&mut self, name: &str, labels: &[LabelPair], histogram: &Histogram, exemplars: &Exemplars) {
        let exemplars = match (self.form, labels) {
            (Exposition::Text, _) => Vec::new(),
            (Exposition::OpenMetrics, [label]) => exemplars.of(name, label.value()),
            (Exposition::OpenMetrics, _) => exemplars.of(name, ""),
        };
        let bounds =
            histogram.get_bucket().iter().map(|bucket| (bucket.upper_bound(), bucket.cumulative_count()));
        let mut low = f64::NEG_INFINITY;
        for (bound, count) in bounds.chain([(f64::INFINITY, histogram.get_sample_count())]) {
            // The registry leaves the last bucket out unless it was asked for.
            if low == f64::INFINITY {
                break;
            }
            self.put(&[name, "_bucket{"]);
            self.text.push_str(&self.labels);
            self.put(&[if self.labels.is_empty() { "le=\"" } else { ",le=\"" }]);
            self.number(bound);
            let is_whole = bound.is_finite() && bound.fract() == 0.0;
            self.put(&[if is_whole && self.form == Exposition::OpenMetrics { ".0" } else { "" }, "\"} "]);
            self.whole_number(count);
            if let Some(exemplar) = exemplars.iter().find(|exemplar| exemplar.is_within(low, bound)) {
                exemplar.write(&mut self.text);
            }
            self.text.push('\n');
            low = bound;
        }
        self.sample(name, "_sum", histogram.get_sample_sum());
        self.sample(name, "_count", histogram.get_sample_count() as f64);
    }

    /// A line: the name in two parts, the labels, the value.
    fn sample(&mut self, name: &str, suffix: &str, value: f64) {
        self.put(&[name, suffix]);
        if !self.labels.is_empty() {
            self.text.push('{');
            self.text.push_str(&self.labels);
            self.text.push('}');
        }
        self.text.push(' ');
        self.number(value);
        self.text.push('\n');
    }

    fn number(&mut self, value: f64) {
        match value {
            f64::INFINITY => self.text.push_str("+Inf"),
            f64::NEG_INFINITY => self.text.push_str("-Inf"),
            // Nearly all figures are counts, which are written faster as what they are. Zero may be negative.
            _ if value == value.trunc() && (1.0..1e15).contains(&value) => self.whole_number(value as u64),
            _ => write!(self.text, "{value}").expect("writing to memory does not fail"),
        }
    }

    fn whole_number(&mut self, value: u64) {
        write!(self.text, "{value}").expect("writing to memory does not fail");
    }

    fn put(&mut self, parts: &[&str]) {
        parts.iter().for_each(|part| self.text.push_str(part));
    }
}

/// `text` with a backslash before some ASCII characters, a line feed as `\n`.
fn escape<'a>(text: &'a str, special: &[u8]) -> Cow<'a, str> {
    if !text.bytes().any(|byte| special.contains(&byte)) {
        return text.into();
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        match character {
            '\n' => escaped.push_str("\\n"),
            _ if u8::try_from(character).is_ok_and(|byte| special.contains(&byte)) => {
                escaped.extend(['\\', character]);
            }
            _ => escaped.push(character),
        }
    }
    escaped.into()
}

#[cfg(test)]
mod tests {
    use prometheus::{
        Gauge, Histogram, HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry, TextEncoder,
    };

    use super::*;

    /// Every kind of metric, with characters that are escaped.
    fn registry() -> Registry {
        let registry = Registry::new();
        let counter = IntCounterVec::new(Opts::new("a_total", "Says \"a\\b\"."), &["by", "of"]).unwrap();
        counter.with_label_values(&["x\n\"", "y"]).inc_by(3);
        let gauge = Gauge::new("b_ratio", "A share.").unwrap();
        gauge.set(0.25);
        let seconds =
            Histogram::with_opts(HistogramOpts::new("c_seconds", "Time.").buckets(vec![0.5, 10.0])).unwrap();
        [0.25, 0.5, 0.75].into_iter().for_each(|time| seconds.observe(time));
        let routes = HistogramOpts::new("d_seconds", "Time by route.").buckets(vec![1.0]);
        let routes = HistogramVec::new(routes, &["route"]).unwrap();
        routes.with_label_values(&["/a"]).observe(2.0);
        registry.register(Box::new(counter)).unwrap();
        registry.register(Box::new(gauge)).unwrap();
        registry.register(Box::new(seconds)).unwrap();
        registry.register(Box::new(routes)).unwrap();
        registry
    }

    #[test]
    fn the_text_format_is_what_the_registry_writes() {
        let registry = registry();
        for value in [0.0, -0.0, 1.0, -7.0, 0.1, 1e-9, 123_456_789.0, 1e15, 1e300, f64::MAX, f64::NAN] {
            let gauge = Gauge::new(format!("v{}", registry.gather().len()), "A\\b\n\"c\" é.").unwrap();
            gauge.set(value);
            registry.register(Box::new(gauge)).unwrap();
        }
        let families = registry.gather();
        let expected = TextEncoder::new().encode_to_string(&families).unwrap();
        assert_eq!(Exposition::Text.page(&families, &Exemplars::default()), expected);
    }

    #[test]
    fn openmetrics_has_its_form_of_every_kind() {
        let exemplars = Exemplars::default();
        exemplars.note(("c_seconds", ""), &[0.5, 10.0], 0xab, 0.75);
        exemplars.note(("d_seconds", "/a"), &[1.0], 0xcd, 2.0);
        let page = Exposition::OpenMetrics.page(&registry().gather(), &exemplars);
        // Times of exemplars are the moment's.
        let lines: Vec<&str> = page
            .lines()
            .map(|line| match line.split_once(" # ") {
                Some((_, exemplar)) => {
                    let (rest, at) = line.rsplit_once(' ').unwrap();
                    assert!(at.parse::<f64>().is_ok_and(|at| at > 1e9), "{exemplar}");
                    rest
                }
                None => line,
            })
            .collect();
        let expected = [
            r#"# HELP a Says \"a\\b\"."#,
            "# TYPE a counter",
            r#"a_total{by="x\n\"",of="y"} 3"#,
            "# HELP b_ratio A share.",
            "# TYPE b_ratio gauge",
            "b_ratio 0.25",
            "# HELP c_seconds Time.",
            "# TYPE c_seconds histogram",
            r#"c_seconds_bucket{le="0.5"} 2"#,
            r#"c_seconds_bucket{le="10.0"} 3 # {trace_id="000000000000000000000000000000ab"} 0.75"#,
            r#"c_seconds_bucket{le="+Inf"} 3"#,
            "c_seconds_sum 1.5",
            "c_seconds_count 3",
            "# HELP d_seconds Time by route.",
            "# TYPE d_seconds histogram",
            r#"d_seconds_bucket{route="/a",le="1.0"} 0"#,
            r#"d_seconds_bucket{route="/a",le="+Inf"} 1 # {trace_id="000000000000000000000000000000cd"} 2"#,
            r#"d_seconds_sum{route="/a"} 2"#,
            r#"d_seconds_count{route="/a"} 1"#,
            "# EOF",
        ];
        assert_eq!(lines, expected);
    }
}
