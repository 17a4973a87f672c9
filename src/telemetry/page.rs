//! A small checker of the text exposition format, for tests.
//!
//! Format: <https://prometheus.io/docs/instrumenting/exposition_formats/>, text version 0.0.4.

use std::collections::{BTreeMap, BTreeSet};

/// Labels of a sample, sorted by name.
pub(super) type Labels = BTreeMap<String, String>;

/// A page that passed the check: values by (sample name, labels).
pub(super) struct Page {
    pub(super) samples: BTreeMap<(String, Labels), f64>,
    pub(super) types: BTreeMap<String, String>,
}

impl Page {
    /// Checks a page: every family has HELP then TYPE then its samples in one group, names and labels are well formed,
    /// values parse, no sample occurs twice, histograms are cumulative and end at +Inf = count.
    pub(super) fn parse(text: &str) -> Result<Page, String> {
        let mut page = Page { samples: BTreeMap::new(), types: BTreeMap::new() };
        let (mut helped, mut family) = (BTreeSet::new(), String::new());
        if !text.ends_with('\n') {
            return Err("the last line does not end".into());
        }
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let name = rest.split(' ').next().unwrap_or_default();
                if !helped.insert(name.to_owned()) {
                    return Err(format!("{name}: second HELP"));
                }
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').ok_or_else(|| format!("bad TYPE: {line}"))?;
                if !helped.contains(name) || !["counter", "gauge", "histogram"].contains(&kind) {
                    return Err(format!("bad TYPE: {line}"));
                }
                if page.types.insert(name.into(), kind.into()).is_some() {
                    return Err(format!("{name}: second TYPE"));
                }
                family = name.to_owned();
            } else {
                page.sample(line, &family)?;
            }
        }
        page.check_histograms()?;
        Ok(page)
    }

    fn sample(&mut self, line: &str, family: &str) -> Result<(), String> {
        let error = |what: &str| Err(format!("{what}: {line}"));
        let name_end = line.find(['{', ' ']).unwrap_or(line.len());
        let (name, rest) = line.split_at(name_end);
        let good = |c: char, first: bool| {
            c.is_ascii_alphabetic() || "_:".contains(c) || (!first && c.is_ascii_digit())
        };
        if name.is_empty() || !name.char_indices().all(|(i, c)| good(c, i == 0)) {
            return error("bad name");
        }
        let histogram = self.types.get(family).is_some_and(|t| t == "histogram");
        let suffix = name.strip_prefix(family);
        let belongs = if histogram {
            suffix.is_some_and(|s| ["_bucket", "_sum", "_count"].contains(&s))
        } else {
            suffix == Some("")
        };
        if !belongs {
            return error("sample outside its family");
        }
        let (labels, rest) = parse_labels(rest)?;
        let Ok(value) = rest.trim().parse::<f64>() else { return error("bad value") };
        if self.types.get(family).is_some_and(|t| t == "counter")
            && !(name.ends_with("_total") && value >= 0.0)
        {
            return error("a counter is named _total and not negative");
        }
        if self.samples.insert((name.into(), labels), value).is_some() {
            return error("second sample");
        }
        Ok(())
    }

    fn check_histograms(&self) -> Result<(), String> {
        for (family, _) in self.types.iter().filter(|(_, kind)| *kind == "histogram") {
            let mut series: BTreeMap<Labels, Vec<(f64, f64)>> = BTreeMap::new();
            for ((name, labels), value) in &self.samples {
                if *name == format!("{family}_bucket") {
                    let mut labels = labels.clone();
                    let le = labels.remove("le").ok_or_else(|| format!("{family}: bucket without le"))?;
                    let le = le.parse::<f64>().map_err(|_| format!("{family}: le {le}"))?;
                    series.entry(labels).or_default().push((le, *value));
                }
            }
            for (labels, mut buckets) in series {
                buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
                if !buckets.windows(2).all(|w| w[0].0 < w[1].0 && w[0].1 <= w[1].1) {
                    return Err(format!("{family}{labels:?}: buckets are not cumulative"));
                }
                let count = self.samples.get(&(format!("{family}_count"), labels.clone()));
                let last = buckets.last().filter(|b| b.0 == f64::INFINITY).map(|b| &b.1);
                if count.is_none()
                    || last != count
                    || !self.samples.contains_key(&(format!("{family}_sum"), labels))
                {
                    return Err(format!("{family}: +Inf bucket, count and sum do not agree"));
                }
            }
        }
        Ok(())
    }

    /// The value of a sample whose labels include `labels`; exactly one must.
    pub(super) fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let found: Vec<_> = self
            .samples
            .iter()
            .filter(|((n, l), _)| n == name && labels.iter().all(|(k, v)| l.get(*k).is_some_and(|x| x == v)))
            .collect();
        assert_eq!(found.len(), 1, "{name}{labels:?}: {found:?}");
        *found[0].1
    }
}

/// `{a="b",...}` if there is one, and the rest of the line.
fn parse_labels(text: &str) -> Result<(Labels, &str), String> {
    let mut labels = Labels::new();
    let Some(mut rest) = text.strip_prefix('{') else { return Ok((labels, text)) };
    loop {
        if let Some(rest) = rest.strip_prefix('}') {
            return Ok((labels, rest));
        }
        let (name, after) = rest.split_once("=\"").ok_or_else(|| format!("bad labels: {text}"))?;
        let mut value = String::new();
        let mut chars = after.char_indices();
        let end = loop {
            match chars.next().ok_or_else(|| format!("label does not end: {text}"))? {
                (at, '"') => break at + 1,
                (_, '\\') => match chars.next().map(|(_, c)| c) {
                    Some('n') => value.push('\n'),
                    Some(c @ ('\\' | '"')) => value.push(c),
                    other => return Err(format!("bad escape {other:?}: {text}")),
                },
                (_, c) => value.push(c),
            }
        };
        if labels.insert(name.to_owned(), value).is_some() {
            return Err(format!("label {name} twice: {text}"));
        }
        rest = after[end..].strip_prefix(',').unwrap_or(&after[end..]);
    }
}

#[test]
fn the_checker_finds_faults() {
    let head = "# HELP x_total h\n# TYPE x_total counter\n";
    assert!(Page::parse(&format!("{head}x_total{{a=\"b\\n\\\"\"}} 1\n")).is_ok());
    for bad in [
        format!("{head}x_total 1"),
        format!("{head}x_total -1\n"),
        format!("{head}x_total 1\nx_total 2\n"),
        format!("{head}y_total 1\n"),
        format!("{head}x_total{{a=\"\\q\"}} 1\n"),
        format!("{head}x_total one\n"),
        "# TYPE x_total counter\nx_total 1\n".into(),
        "# HELP h h\n# TYPE h histogram\nh_bucket{le=\"1\"} 2\nh_bucket{le=\"+Inf\"} 1\nh_sum 1\nh_count 1\n"
            .into(),
        "# HELP h h\n# TYPE h histogram\nh_bucket{le=\"1\"} 1\nh_sum 1\nh_count 1\n".into(),
    ] {
        assert!(Page::parse(&bad).is_err(), "{bad}");
    }
}
