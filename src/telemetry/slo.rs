//! Service level objectives: how long a request may take, judged at its end.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What customers are promised. Requests are counted by objective in `perigee_slo_requests_total`, and the alerts of
/// `config/monitoring` warn when too many miss one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SloConfig {
    /// Longest time to the first token, milliseconds; 0 = none is promised.
    pub ttft_ms: f64,
    /// Longest mean time from a token of a reply to the next one, milliseconds; 0 = none is promised.
    pub token_ms: f64,
    /// Longest time of a whole request, milliseconds; 0 = none is promised.
    pub request_ms: f64,
}

impl Default for SloConfig {
    fn default() -> Self {
        Self { ttft_ms: 0.0, token_ms: 0.0, request_ms: 0.0 }
    }
}

/// What meets every objective: what load tests call goodput.
const GOOD: &str = "good";

impl SloConfig {
    /// Problems as (key, limit).
    pub fn validate(&self) -> Vec<(&'static str, String)> {
        let values =
            [("ttft_ms", self.ttft_ms), ("token_ms", self.token_ms), ("request_ms", self.request_ms)];
        let wrong = values.into_iter().filter(|(_, value)| !(0.0..=1e9).contains(value));
        wrong
            .map(|(key, _)| (key, "must be from 0 to 1000000000 milliseconds, 0 = no objective".into()))
            .collect()
    }

    /// The objectives that are set, with their thresholds in seconds, and the one of all together.
    pub(super) fn objectives(&self) -> Vec<(&'static str, Option<f64>)> {
        let set = [("ttft", self.ttft_ms), ("token", self.token_ms), ("request", self.request_ms)];
        let set = set.into_iter().filter(|(_, ms)| *ms > 0.0).map(|(name, ms)| (name, Some(ms / 1e3)));
        set.chain([(GOOD, None)]).collect()
    }

    /// Objectives that a request can be judged by, and whether it met them. What the client did wrong, or gave up before it could
    /// be late, says nothing; an error of the server's misses all together.
    pub(super) fn judge(
        &self,
        status: u16,
        ttft: Option<Duration>,
        took: Duration,
        tokens: usize,
    ) -> Vec<(&'static str, bool)> {
        let is_fault = status >= 500;
        if (400..500).contains(&status) && status != CLIENT_LEFT {
            return Vec::new();
        }
        let mut judged = Vec::new();
        for (name, threshold) in self.objectives() {
            let Some(threshold) = threshold else { continue };
            let seconds = match name {
                // Still without a token, the time so far: who leaves after it was late has not met it.
                "ttft" => {
                    ttft.or_else(|| (status == CLIENT_LEFT).then_some(took)).map(|time| time.as_secs_f64())
                }
                "token" => ttft
                    .filter(|_| tokens > 1)
                    .map(|first| took.saturating_sub(first).as_secs_f64() / (tokens - 1) as f64),
                _ => (!is_fault).then_some(took.as_secs_f64()),
            };
            let Some(seconds) = seconds else { continue };
            let met = seconds <= threshold;
            // Of a request that was given up only what it has missed is known, and the first token that came.
            if status != CLIENT_LEFT || !met || (name == "ttft" && ttft.is_some()) {
                judged.push((name, met));
            }
        }
        let all = !is_fault && judged.iter().all(|(_, met)| *met);
        if status != CLIENT_LEFT || !all {
            judged.push((GOOD, all));
        }
        judged
    }
}

/// Status recorded for a client that disconnected before its answer was complete.
const CLIENT_LEFT: u16 = 499;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_judged_by_what_is_set() {
        let slo = SloConfig { ttft_ms: 500.0, token_ms: 50.0, request_ms: 0.0 };
        let ms = Duration::from_millis;
        let judge =
            |status, ttft: Option<u64>, took, tokens| slo.judge(status, ttft.map(ms), ms(took), tokens);
        assert_eq!(judge(200, Some(500), 550, 2), [("ttft", true), ("token", true), ("good", true)]);
        assert_eq!(judge(200, Some(501), 551, 2), [("ttft", false), ("token", true), ("good", false)]);
        assert_eq!(judge(200, Some(100), 151, 2), [("ttft", true), ("token", false), ("good", false)]);
        // One token has no next one.
        assert_eq!(judge(200, Some(100), 9000, 1), [("ttft", true), ("good", true)]);
        assert_eq!(judge(503, None, 1, 0), [("good", false)]);
        assert_eq!(judge(400, None, 1, 0), []);
        assert_eq!(judge(429, None, 1, 0), []);
        // Clients that left: early, too late, in the middle.
        assert_eq!(judge(499, None, 100, 0), []);
        assert_eq!(judge(499, None, 501, 0), [("ttft", false), ("good", false)]);
        assert_eq!(judge(499, Some(100), 110, 2), [("ttft", true)]);
        assert_eq!(SloConfig::default().judge(200, Some(ms(1)), ms(2), 3), [("good", true)]);
        let wrong = SloConfig { ttft_ms: -1.0, token_ms: f64::NAN, request_ms: 1.0 };
        assert_eq!(wrong.validate().iter().map(|(key, _)| *key).collect::<Vec<_>>(), ["ttft_ms", "token_ms"]);
    }
}
