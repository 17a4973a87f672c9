//! The page of metrics in the text format of OpenMetrics 1.0.0, which has exemplars.
//!
//! Source: the specification of that version, "Text format" and "Metric types". The older format comes from the registry's crate, which
//! does not know this one.

use std::borrow::Cow;
use std::fmt::{Display, Write};

use prometheus::proto::{Histogram, LabelPair, MetricFamily, MetricType};

use super::exemplars::Exemplars;

/// Writes families, in their order, to the end of a page.
pub(super) fn write(page: &mut String, families: &[MetricFamily], exemplars: &Exemplars) {
    for family in families {
        let kind = family.get_field_type();
        let (name, kind_name) = match kind {
            // The name of a counter's family lacks what its samples end in.
            MetricType::COUNTER => (family.name().strip_suffix("_total").unwrap_or(family.name()), "counter"),
            MetricType::HISTOGRAM => (family.name(), "histogram"),
            _ => (family.name(), "gauge"),
        };
        put(page, format_args!("# HELP {name} {}\n# TYPE {name} {kind_name}\n", escape(family.help())));
        for metric in family.get_metric() {
            let labels = metric.get_label();
            match kind {
                MetricType::COUNTER => sample(page, name, "_total", labels, metric.get_counter().get_value()),
                MetricType::HISTOGRAM => histogram(page, name, labels, metric.get_histogram(), exemplars),
                _ => sample(page, name, "", labels, metric.get_gauge().get_value()),
            }
            page.push('\n');
        }
    }
    page.push_str("# EOF\n");
}

fn histogram(
    page: &mut String,
    name: &str,
    labels: &[LabelPair],
    histogram: &Histogram,
    exemplars: &Exemplars,
) {
    let label = match labels {
        [label] => label.value(),
        _ => "",
    };
    let exemplars = exemplars.of(name, label);
    let bounds =
        histogram.get_bucket().iter().map(|bucket| (bucket.upper_bound(), bucket.cumulative_count()));
    let mut low = f64::NEG_INFINITY;
    for (bound, count) in bounds.chain([(f64::INFINITY, histogram.get_sample_count())]) {
        // The registry leaves the last bucket out unless it was asked for.
        if low == f64::INFINITY {
            break;
        }
        put(page, format_args!("{name}_bucket"));
        let bound_text = if bound.is_finite() { format!("{bound:?}") } else { "+Inf".into() };
        write_labels(page, labels, Some(&bound_text));
        put(page, format_args!(" {count}"));
        if let Some(exemplar) = exemplars.iter().find(|exemplar| exemplar.is_within(low, bound)) {
            exemplar.write(page);
        }
        page.push('\n');
        low = bound;
    }
    sample(page, name, "_count", labels, histogram.get_sample_count());
    page.push('\n');
    sample(page, name, "_sum", labels, histogram.get_sample_sum());
}

fn sample(page: &mut String, name: &str, suffix: &str, labels: &[LabelPair], value: impl Display) {
    put(page, format_args!("{name}{suffix}"));
    write_labels(page, labels, None);
    put(page, format_args!(" {value}"));
}

/// `{name="value",le="bound"}`; nothing if there is neither.
fn write_labels(page: &mut String, labels: &[LabelPair], bound: Option<&str>) {
    let labels = labels.iter().map(|label| (label.name(), label.value()));
    let mut before = '{';
    for (name, value) in labels.chain(bound.map(|bound| ("le", bound))) {
        put(page, format_args!("{before}{name}=\"{}\"", escape(value)));
        before = ',';
    }
    if before == ',' {
        page.push('}');
    }
}

fn escape(text: &str) -> Cow<'_, str> {
    if !text.contains(['\\', '"', '\n']) {
        return text.into();
    }
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n").into()
}

fn put(page: &mut String, text: std::fmt::Arguments<'_>) {
    page.write_fmt(text).expect("writing to memory does not fail");
}

#[cfg(test)]
mod tests {
    use prometheus::{Gauge, Histogram, HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};

    use super::*;

    #[test]
    fn every_kind_has_its_form() {
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
        let exemplars = Exemplars::default();
        exemplars.note(("c_seconds", ""), &[0.5, 10.0], 0xab, 0.75);
        exemplars.note(("d_seconds", "/a"), &[1.0], 0xcd, 2.0);
        let mut page = String::new();
        write(&mut page, &registry.gather(), &exemplars);
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
            "c_seconds_count 3",
            "c_seconds_sum 1.5",
            "# HELP d_seconds Time by route.",
            "# TYPE d_seconds histogram",
            r#"d_seconds_bucket{route="/a",le="1.0"} 0"#,
            r#"d_seconds_bucket{route="/a",le="+Inf"} 1 # {trace_id="000000000000000000000000000000cd"} 2"#,
            r#"d_seconds_count{route="/a"} 1"#,
            r#"d_seconds_sum{route="/a"} 2"#,
            "# EOF",
        ];
        assert_eq!(lines, expected);
    }
}
