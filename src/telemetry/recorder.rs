//! Registers the families of the table and records values.
//!
//! A metric has the handles of its own family and of its aliases, so that an event is recorded once.
//! Handles of listed label values are resolved at registration: recording is a few atomic operations
//! without a lookup. A metric whose names are not registered records nothing.

use prometheus::core::Collector;
use prometheus::proto::{LabelPair, MetricFamily};
use prometheus::{
    Counter, CounterVec, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, Opts, Registry,
};

use super::families::{FAMILIES, Family, Kind, Metric, Names};

/// The registry of one process.
pub(super) struct Recorder {
    pub(super) registry: Registry,
    /// By metric.
    entries: Vec<Entry>,
}

/// Registered names of one metric.
#[derive(Default)]
struct Entry {
    families: Vec<Registered>,
    /// By label value, in the order of the table; one row without labels. Within a row by family.
    handles: Vec<Vec<Handle>>,
}

enum Registered {
    Counter(CounterVec),
    Gauge(GaugeVec),
    Histogram(HistogramVec),
}

enum Handle {
    Counter(Counter),
    Gauge(Gauge),
    Histogram(Histogram),
}

impl Recorder {
    pub(super) fn new() -> Self {
        let num_metrics = FAMILIES.iter().map(|family| family.metric as usize + 1).max().unwrap_or(0);
        Self { registry: Registry::new(), entries: (0..num_metrics).map(|_| Entry::default()).collect() }
    }

    /// Registers the families of some names. Names and labels are constants, so a failure is a
    /// mistake in the table.
    pub(super) fn register(&mut self, names: Names, model_name: &str) {
        for family in FAMILIES.iter().filter(|family| family.names == names) {
            let registered = Registered::new(family, model_name);
            registered.register(&self.registry).expect("every metric is registered once");
            let entry = &mut self.entries[family.metric as usize];
            let listed = match family.labels {
                // Behind rows of another family with a label: the sum of them.
                [] => vec![vec![]; entry.handles.len().max(1)],
                [(_, values)] => values.iter().map(|value| vec![*value]).collect(),
                _ => vec![],
            };
            for (index, values) in listed.iter().enumerate() {
                if entry.handles.len() == index {
                    entry.handles.push(Vec::new());
                }
                entry.handles[index].push(registered.handle(values));
            }
            entry.families.push(registered);
        }
    }

    /// Adds to a counter, sets a gauge, or observes with a histogram.
    pub(super) fn record(&self, metric: Metric, value: f64) {
        self.record_at(metric, 0, value);
    }

    /// The same of the label's value at `index` in the table.
    pub(super) fn record_at(&self, metric: Metric, index: usize, value: f64) {
        self.handles(metric, index).iter().for_each(|handle| handle.record(value));
    }

    /// The same of label values that the table does not list; for metrics without aliases.
    pub(super) fn record_with(&self, metric: Metric, labels: &[&str], value: f64) {
        self.entries[metric as usize].families.iter().for_each(|family| family.handle(labels).record(value));
    }

    /// Removes every series of a metric whose label values the table does not list.
    pub(super) fn clear(&self, metric: Metric) {
        self.entries[metric as usize].families.iter().for_each(Registered::clear);
    }

    /// Adds to a gauge.
    pub(super) fn add(&self, metric: Metric, difference: f64) {
        for handle in self.handles(metric, 0) {
            match handle {
                Handle::Gauge(gauge) => gauge.add(difference),
                Handle::Counter(_) | Handle::Histogram(_) => unreachable!("{metric:?} is not a gauge"),
            }
        }
    }

    /// Value of a counter or gauge, or sum of a histogram, and number of observations.
    pub(super) fn value_at(&self, metric: Metric, index: usize) -> (f64, u64) {
        match self.handles(metric, index).first() {
            Some(Handle::Counter(counter)) => (counter.get(), 0),
            Some(Handle::Gauge(gauge)) => (gauge.get(), 0),
            Some(Handle::Histogram(histogram)) => (histogram.get_sample_sum(), histogram.get_sample_count()),
            None => (0.0, 0),
        }
    }

    /// Shows every series of a counter: its labels, sorted by name, and its value.
    pub(super) fn each(&self, metric: Metric, mut show: impl FnMut(&[LabelPair], f64)) {
        for family in self.entries[metric as usize].families.first().map(Registered::collect).iter().flatten()
        {
            for series in family.get_metric() {
                show(series.get_label(), series.get_counter().get_value());
            }
        }
    }

    /// Upper edges of a histogram without labels, with the number of observations up to each.
    pub(super) fn buckets(&self, metric: Metric) -> Vec<(f64, u64)> {
        let families = self.entries[metric as usize].families.first().map(Registered::collect);
        let series = families.iter().flatten().flat_map(MetricFamily::get_metric).next();
        let Some(histogram) = series.map(|series| series.get_histogram()) else { return Vec::new() };
        let edges = histogram.get_bucket().iter();
        let edges = edges.map(|bucket| (bucket.upper_bound(), bucket.cumulative_count()));
        edges.chain([(f64::INFINITY, histogram.get_sample_count())]).collect()
    }

    fn handles(&self, metric: Metric, index: usize) -> &[Handle] {
        self.entries[metric as usize].handles.get(index).map_or(&[], Vec::as_slice)
    }
}

impl Registered {
    fn new(family: &Family, model_name: &str) -> Self {
        let mut opts = Opts::new(family.name, family.help);
        if family.names != Names::Perigee {
            opts = opts.const_label("model_name", model_name);
        }
        if matches!(family.names, Names::Vllm | Names::Legacy) {
            opts = opts.const_label("engine", "0"); // A process has one engine.
        }
        let labels: Vec<&str> = family.labels.iter().map(|(label, _)| *label).collect();
        let registered = match family.kind {
            Kind::Counter => CounterVec::new(opts, &labels).map(Self::Counter),
            Kind::Gauge => GaugeVec::new(opts, &labels).map(Self::Gauge),
            Kind::Histogram(buckets) => {
                HistogramVec::new(HistogramOpts::from(opts).buckets(buckets.to_vec()), &labels)
                    .map(Self::Histogram)
            }
        };
        registered.expect("constant metric names and buckets are valid")
    }

    fn register(&self, registry: &Registry) -> prometheus::Result<()> {
        match self {
            Self::Counter(family) => registry.register(Box::new(family.clone())),
            Self::Gauge(family) => registry.register(Box::new(family.clone())),
            Self::Histogram(family) => registry.register(Box::new(family.clone())),
        }
    }

    fn collect(&self) -> Vec<MetricFamily> {
        match self {
            Self::Counter(family) => family.collect(),
            Self::Gauge(family) => family.collect(),
            Self::Histogram(family) => family.collect(),
        }
    }

    fn clear(&self) {
        match self {
            Self::Counter(family) => family.reset(),
            Self::Gauge(family) => family.reset(),
            Self::Histogram(family) => family.reset(),
        }
    }

    fn handle(&self, labels: &[&str]) -> Handle {
        match self {
            Self::Counter(family) => Handle::Counter(family.with_label_values(labels)),
            Self::Gauge(family) => Handle::Gauge(family.with_label_values(labels)),
            Self::Histogram(family) => Handle::Histogram(family.with_label_values(labels)),
        }
    }
}

impl Handle {
    fn record(&self, value: f64) {
        match self {
            Self::Counter(counter) => counter.inc_by(value),
            Self::Gauge(gauge) => gauge.set(value),
            Self::Histogram(histogram) => histogram.observe(value),
        }
    }
}
