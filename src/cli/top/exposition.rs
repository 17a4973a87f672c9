//! Reads a metrics page: Prometheus text, version 0.0.4.
//!
//! A page is what a server sent, so every text is bounded and free of control characters: terminals
//! obey those. Format: <https://prometheus.io/docs/instrumenting/exposition_formats/>.

use std::collections::BTreeMap;

/// Values by the value of a label.
pub(super) type ByLabel = BTreeMap<String, f64>;

/// Longest name or label value that is kept, bytes.
const MAX_TEXT_BYTES: usize = 200;

/// The samples of Perigee and its process on one page. A metric that the page lacks is zero.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct Page {
    samples: Vec<Sample>,
    /// Unix time of the scrape by our clock, seconds.
    clock: f64,
}

/// The value of one series.
#[derive(Debug, Clone, PartialEq)]
struct Sample {
    name: String,
    labels: Vec<(String, String)>,
    value: f64,
}

impl Page {
    /// `clock`: our Unix time, seconds.
    ///
    /// Errors: the first line that is no sample and no comment; a page without metrics of Perigee.
    pub(super) fn parse(text: &str, clock: f64) -> Result<Self, String> {
        let mut samples = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let sample = Sample::parse(line)
                .ok_or_else(|| format!("line {} is not a metric: {}", index + 1, printable(line, 60)))?;
            if ["perigee_", "process_"].iter().any(|p| sample.name.starts_with(p)) && !sample.is_of_probe() {
                samples.push(sample);
            }
        }
        if !samples.iter().any(|sample| sample.name.starts_with("perigee_")) {
            return Err("the page has no metrics of Perigee".into());
        }
        Ok(Self { samples, clock })
    }

    fn named(&self, name: &str) -> impl Iterator<Item = &Sample> {
        self.samples.iter().filter(move |sample| sample.name == name)
    }

    /// The value of a metric, added over its labels.
    pub(super) fn value(&self, name: &str) -> f64 {
        self.named(name).map(|sample| sample.value).sum()
    }

    /// The values of a metric by one of its labels, added over the others.
    pub(super) fn by_label(&self, name: &str, label: &str) -> ByLabel {
        let mut sums = ByLabel::new();
        for sample in self.named(name) {
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

    /// The values of a label, of the series above 0 that have another label with a value.
    pub(super) fn holding(&self, name: &str, (other, value): (&str, &str), label: &str) -> Vec<&str> {
        let holding =
            self.named(name).filter(|sample| sample.value > 0.0 && sample.label(other) == Some(value));
        holding.filter_map(|sample| sample.label(label)).collect()
    }

    /// KV blocks in all, and the shares of them that sequences use and that the prefix cache keeps.
    pub(super) fn blocks(&self) -> (f64, f64, f64) {
        let blocks = self.by_label("perigee_kv_blocks", "state");
        let all: f64 = blocks.values().sum();
        let share = |state: &str| blocks.get(state).map_or(0.0, |blocks| blocks / all.max(1.0));
        (all, share("used"), share("cached"))
    }

    /// Seconds since the start of the server's process, by the server's clock where the page has it.
    pub(super) fn uptime(&self) -> Option<f64> {
        let started = Some(self.value("process_start_time_seconds")).filter(|time| *time > 0.0)?;
        let last_step = self.value("perigee_last_step_timestamp_seconds");
        let since = self.value("perigee_since_last_step_seconds");
        let now = if last_step > 0.0 { last_step + since } else { self.clock };
        Some((now - started).max(0.0))
    }

    /// Whether this is of another process than `earlier`, or its counters have begun again.
    pub(super) fn began_after(&self, earlier: &Self) -> bool {
        let fell = |name: &str| self.value(name) < earlier.value(name);
        self.value("process_start_time_seconds") != earlier.value("process_start_time_seconds")
            || fell("perigee_prompt_tokens_total")
            || fell("perigee_generation_tokens_total")
            || fell("perigee_step_seconds_count")
            || fell("perigee_prefix_query_tokens_total")
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
        let value: f64 = rest.split_whitespace().next()?.parse().ok()?;
        // A NaN sample counts as 0: it would turn every derived rate into NaN.
        let value = if value.is_finite() { value } else { 0.0 };
        Some(Self { name: printable(name, MAX_TEXT_BYTES), labels, value })
    }

    fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(label, _)| label == name).map(|(_, value)| value.as_str())
    }

    /// Requests for the server's health and metrics are no load, whoever asks.
    fn is_of_probe(&self) -> bool {
        self.label("route").is_some_and(|route| {
            route.starts_with("/health") || ["/metrics", perigee_telemetry::PAGE_ROUTE].contains(&route)
        })
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

    fn page(text: &str) -> Page {
        Page::parse(text, 1000.0).unwrap()
    }

    #[test]
    fn pages() {
        let page = page(
            "# HELP a b\n# TYPE a counter\n\na 1\n\
             perigee_build_info{model_name=\"m\",version=\"q\\\"\\\\\\n\"} 2 1700000000\n\
             perigee_queue_tokens{} 1e-3\nperigee_running_sequences NaN\n\
             perigee_guard_events_total{action=\"1\",} 4\n\
             perigee_guard_events_total{action=\"1\",kind=\"z\"} 3 # {trace_id=\"1\"} 1\n\
             perigee_guard_events_total{kind=\"z\"} 1\n\
             perigee_http_requests_total{route=\"/health/ready\",status=\"503\"} 9\n\
             perigee_http_requests_total{route=\"page\",status=\"401\"} 9\n\
             perigee_http_requests_total{route=\"/v1/models\",status=\"200\"} 1\n\
             perigee_http_requests_total{route=\"/v1/completions\",status=\"200\"} 2\n\
             perigee_kv_blocks{state=\"cached\"} 1\nperigee_kv_blocks{state=\"free\"} 5\n\
             perigee_kv_blocks{state=\"used\"} 2\n# EOF\n",
        );
        assert_eq!(page.label("perigee_build_info", "version"), Some("q\"\\ "));
        assert_eq!(
            (page.value("perigee_queue_tokens"), page.value("perigee_running_sequences")),
            (0.001, 0.0)
        );
        assert_eq!((page.value("perigee_build_info"), page.value("perigee_preemptions_total")), (2.0, 0.0));
        let by = |name: &str, label: &str| page.by_label(name, label);
        assert_eq!(by("perigee_guard_events_total", "action"), ByLabel::from([("1".into(), 7.0)]));
        assert_eq!(by("perigee_http_requests_total", "status"), ByLabel::from([("200".into(), 3.0)]));
        assert_eq!(page.blocks(), (8.0, 0.25, 0.125));
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
            ("go_goroutines 7\n", "the page has no metrics of Perigee"),
        ] {
            assert_eq!(Page::parse(text, 0.0).unwrap_err(), expected);
        }
        let error = Page::parse(&"é".repeat(1000), 0.0).unwrap_err();
        assert!(error.ends_with('…') && error.len() < 120, "{error}");
    }

    #[test]
    fn texts_are_bounded_and_printable() {
        let line = format!("perigee_build_info{{model_name=\"\u{1b}[31m{}\"}} 1", "x".repeat(10_000));
        let page = page(&line);
        let value = page.label("perigee_build_info", "model_name").unwrap();
        assert!(value.starts_with(" [31mxxx") && value.len() < MAX_TEXT_BYTES + 5);
    }

    #[test]
    fn the_servers_clock_counts_where_it_is_known() {
        let last_step = "perigee_last_step_timestamp_seconds 500\nperigee_since_last_step_seconds 20\n";
        let text = format!("{last_step}process_start_time_seconds 400\n");
        assert_eq!(page(&text).uptime(), Some(120.0));
        assert_eq!(page("perigee_ready 1\nprocess_start_time_seconds 900\n").uptime(), Some(100.0));
        assert_eq!(page("perigee_ready 1\nprocess_start_time_seconds 2000\n").uptime(), Some(0.0));
        assert_eq!(page("perigee_ready 1\n").uptime(), None);
    }

    #[test]
    fn a_new_process_is_noticed() {
        let before = page("process_start_time_seconds 1\nperigee_prompt_tokens_total 5\n");
        for (started, tokens, expected) in [(1, 5, false), (1, 6, false), (1, 4, true), (2, 5, true)] {
            let text =
                format!("process_start_time_seconds {started}\nperigee_prompt_tokens_total {tokens}\n");
            assert_eq!(page(&text).began_after(&before), expected, "{text}");
        }
    }
}
