//! One scrape: the values of a metrics page that are shown, by what they are.

use std::collections::BTreeMap;

use super::exposition::{Page, Sample};
use super::histogram::Histogram;

/// Values by the value of a label.
pub(super) type ByLabel = BTreeMap<String, f64>;

/// The values of one scrape. A counter that the page does not have is zero.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct Reading {
    pub(super) facts: Facts,
    /// Unix time by the server's clock where the page tells it, by ours otherwise, seconds.
    pub(super) server_time: f64,

    pub(super) running: f64,
    pub(super) waiting: f64,
    /// Prompt tokens that wait.
    pub(super) waiting_tokens: f64,
    /// KV blocks.
    pub(super) blocks_used: f64,
    pub(super) blocks_cached: f64,
    pub(super) blocks_free: f64,
    /// Time since the engine's last step, seconds.
    pub(super) since_last_step: f64,
    pub(super) connections: f64,
    pub(super) resident_bytes: f64,
    pub(super) threads: f64,
    /// Estimate of the engine's time that drafts saved, seconds.
    pub(super) seconds_saved: f64,

    pub(super) prompt_tokens: f64,
    pub(super) reply_tokens: f64,
    pub(super) finished: ByLabel,
    /// Answers of routes other than health and metrics, by status.
    pub(super) http: ByLabel,
    /// Requests refused at the queue, by limit.
    pub(super) rejected: ByLabel,
    pub(super) refused_connections: f64,
    pub(super) preemptions: f64,
    pub(super) prefix_queried: f64,
    pub(super) prefix_hit: f64,
    pub(super) drafted: f64,
    pub(super) accepted: f64,
    /// Drafts that a step checked.
    pub(super) drafts: f64,
    /// Findings of the guard, by action.
    pub(super) guard_actions: ByLabel,
    pub(super) guard_discarded: f64,
    pub(super) guard_rescued: f64,
    pub(super) numeric_faults: f64,
    pub(super) cpu_seconds: f64,
    /// Seconds by part of a step.
    pub(super) step_parts: ByLabel,

    pub(super) first_token: Histogram,
    pub(super) inter_token: Histogram,
    pub(super) step: Histogram,
}

/// What does not change while a server runs.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct Facts {
    pub(super) model: Option<String>,
    pub(super) version: Option<String>,
    /// Known once the engine is.
    pub(super) backend: Option<String>,
    pub(super) cache_dtype: Option<String>,
    pub(super) max_model_len: Option<f64>,
    pub(super) block_size: Option<f64>,
    /// Unix time, seconds.
    pub(super) started: Option<f64>,
}

impl Reading {
    /// `clock`: our Unix time, seconds.
    ///
    /// Errors: a page without metrics of Perigee.
    pub(super) fn of(page: &Page, clock: f64) -> Result<Self, String> {
        if !page.has_prefix("perigee_") {
            return Err("the page has no metrics of Perigee".into());
        }
        // A value that is no number would make every rate one that is none.
        let value = |name: &str| page.value(name).filter(|value| value.is_finite()).unwrap_or(0.0);
        let by = |name: &str, label: &str| page.by_label(name, label, |_| true);
        let blocks = |state: &str| page.value_where("perigee_kv_blocks", "state", state).unwrap_or(0.0);
        let last_step = value("perigee_last_step_timestamp_seconds");
        let since_last_step = value("perigee_since_last_step_seconds");
        let beyond_probes = |sample: &Sample| {
            sample.label("route").is_some_and(|route| !route.starts_with("/health") && route != "/metrics")
        };
        Ok(Self {
            facts: Facts::of(page),
            server_time: if last_step > 0.0 { last_step + since_last_step } else { clock },
            running: value("perigee_running_sequences"),
            waiting: value("perigee_queue_sequences"),
            waiting_tokens: value("perigee_queue_tokens"),
            blocks_used: blocks("used"),
            blocks_cached: blocks("cached"),
            blocks_free: blocks("free"),
            since_last_step,
            connections: value("perigee_http_connections"),
            resident_bytes: value("process_resident_memory_bytes"),
            threads: value("process_threads"),
            seconds_saved: value("perigee_speculation_seconds_saved"),
            prompt_tokens: value("perigee_prompt_tokens_total"),
            reply_tokens: value("perigee_generation_tokens_total"),
            finished: by("perigee_finished_sequences_total", "reason"),
            http: page.by_label("perigee_http_requests_total", "status", beyond_probes),
            rejected: by("perigee_rejected_requests_total", "limit"),
            refused_connections: value("perigee_http_refused_connections_total"),
            preemptions: value("perigee_preemptions_total"),
            prefix_queried: value("perigee_prefix_query_tokens_total"),
            prefix_hit: value("perigee_prefix_hit_tokens_total"),
            drafted: value("perigee_speculation_drafted_tokens_total"),
            accepted: value("perigee_speculation_accepted_tokens_total"),
            drafts: value("perigee_speculation_draft_length_tokens_count"),
            guard_actions: by("perigee_guard_events_total", "action"),
            guard_discarded: value("perigee_guard_discarded_tokens_total"),
            guard_rescued: value("perigee_guard_rescue_success_total"),
            numeric_faults: value("perigee_guard_numeric_faults_total"),
            cpu_seconds: value("process_cpu_seconds_total"),
            step_parts: by("perigee_step_part_seconds_sum", "part"),
            first_token: page.histogram("perigee_time_to_first_token_seconds"),
            inter_token: page.histogram("perigee_inter_token_latency_seconds"),
            step: page.histogram("perigee_step_seconds"),
        })
    }

    /// KV blocks in all.
    pub(super) fn blocks(&self) -> f64 {
        self.blocks_used + self.blocks_cached + self.blocks_free
    }

    /// Share of the KV blocks that sequences use; 0 of none.
    pub(super) fn cache_use(&self) -> f64 {
        if self.blocks() > 0.0 { self.blocks_used / self.blocks() } else { 0.0 }
    }

    /// Seconds since the start of the server's process.
    pub(super) fn uptime(&self) -> Option<f64> {
        self.facts.started.map(|started| (self.server_time - started).max(0.0))
    }

    /// Whether this is of another process than `earlier`, or its counters have begun again.
    pub(super) fn began_after(&self, earlier: &Self) -> bool {
        let counters = |reading: &Self| {
            [reading.prompt_tokens, reading.reply_tokens, reading.step.count(), reading.prefix_queried]
        };
        self.facts.started != earlier.facts.started
            || counters(self).iter().zip(counters(earlier)).any(|(now, before)| *now < before)
    }
}

impl Facts {
    fn of(page: &Page) -> Self {
        let label = |name: &str, label: &str| page.label(name, label).map(str::to_owned);
        let engine = |name: &str| label("perigee_engine_info", name);
        Self {
            model: label("perigee_build_info", "model_name"),
            version: label("perigee_build_info", "version"),
            backend: engine("backend"),
            cache_dtype: engine("cache_dtype"),
            max_model_len: engine("max_model_len").and_then(|text| text.parse().ok()),
            block_size: engine("block_size").and_then(|text| text.parse().ok()),
            started: page.value("process_start_time_seconds").filter(|time| time.is_finite()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(text: &str) -> Reading {
        Reading::of(&Page::parse(text).unwrap(), 1000.0).unwrap()
    }

    #[test]
    fn values_of_a_page() {
        let reading = reading(
            "perigee_build_info{model_name=\"m\",version=\"1\"} 1\nprocess_start_time_seconds 900\n\
             perigee_kv_blocks{state=\"cached\"} 1\nperigee_kv_blocks{state=\"free\"} 5\nperigee_kv_blocks{state=\"used\"} 2\n\
             perigee_http_requests_total{route=\"/health/ready\",status=\"503\"} 9\n\
             perigee_http_requests_total{route=\"/v1/models\",status=\"200\"} 1\n\
             perigee_http_requests_total{route=\"/v1/completions\",status=\"200\"} 2\n\
             perigee_running_sequences NaN\n",
        );
        assert_eq!(reading.facts.model.as_deref(), Some("m"));
        assert_eq!(reading.facts.backend, None);
        assert_eq!((reading.blocks(), reading.uptime()), (8.0, Some(100.0)));
        assert_eq!(reading.http, ByLabel::from([("200".into(), 3.0)]));
        assert_eq!(reading.running, 0.0);
    }

    #[test]
    fn the_servers_clock_counts_where_it_is_known() {
        let page = "perigee_last_step_timestamp_seconds 500\nperigee_since_last_step_seconds 20\nprocess_start_time_seconds 400\n";
        assert_eq!(reading(page).uptime(), Some(120.0));
        assert_eq!(reading("perigee_ready 1\nprocess_start_time_seconds 2000\n").uptime(), Some(0.0));
        assert_eq!(reading("perigee_ready 1\n").uptime(), None);
    }

    #[test]
    fn pages_of_others_are_refused() {
        let error = Reading::of(&Page::parse("go_goroutines 7\n").unwrap(), 0.0).unwrap_err();
        assert_eq!(error, "the page has no metrics of Perigee");
    }

    #[test]
    fn a_new_process_is_noticed() {
        let before = reading("process_start_time_seconds 1\nperigee_prompt_tokens_total 5\n");
        for (page, expected) in [
            ("process_start_time_seconds 1\nperigee_prompt_tokens_total 5\n", false),
            ("process_start_time_seconds 1\nperigee_prompt_tokens_total 6\n", false),
            ("process_start_time_seconds 1\nperigee_prompt_tokens_total 4\n", true),
            ("process_start_time_seconds 2\nperigee_prompt_tokens_total 5\n", true),
        ] {
            assert_eq!(reading(page).began_after(&before), expected, "{page}");
        }
    }
}
