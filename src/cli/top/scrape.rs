//! Asks a server for its state and its metrics.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use serde_json::Value;

use super::exposition::{Page, printable};
use super::notice::{Notice, Weight};
use crate::cli::client::{self, Address, Answer};
use crate::cli::trust::Trust;

/// Longest wait for the answers of one scrape.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most bytes of an answer. A page has 100 KiB.
const MAX_ANSWER_BYTES: usize = 4 << 20;
/// Most boot stages that are kept.
const MAX_STAGES: usize = 32;
/// Longest text of a server that is shown, bytes.
const MAX_TEXT_BYTES: usize = 300;

/// Where to ask.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) address: Address,
    /// Path in front of all routes, without a slash at its end.
    pub(super) prefix: String,
    /// Sent to a server that asks for one.
    pub(super) key: Option<String>,
}

/// What a server answered.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Scrape {
    pub(super) state: State,
    pub(super) page: Page,
}

/// Where a server is in its life.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct State {
    /// A word or two.
    pub(super) word: String,
    pub(super) notice: Option<Notice>,
    /// Of a server that boots.
    pub(super) boot: Option<Boot>,
}

/// Progress of a boot.
#[derive(Debug, Default, Clone, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Boot {
    pub(super) seconds: f64,
    pub(super) stages: Vec<Stage>,
}

/// One boot stage.
#[derive(Debug, Default, Clone, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Stage {
    #[serde(rename = "stage")]
    pub(super) name: String,
    pub(super) done: bool,
    pub(super) percent: u8,
    pub(super) seconds: f64,
}

/// Why there is no scrape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    /// A word or two.
    pub(super) kind: &'static str,
    pub(super) text: String,
}

impl Target {
    /// Takes a URL apart. `http://` may be left out, and so may what stands behind the server's own root: the base URL of a client ends in `/v1`.
    pub(super) fn of_url(url: &str, key: Option<String>, trust: Trust) -> Result<Self, String> {
        let with_scheme = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let (address, path) = Address::of_url(&with_scheme, trust)?;
        let mut prefix = path.as_str();
        for route in ["/", "/metrics", "/v1", "/"] {
            prefix = prefix.strip_suffix(route).unwrap_or(prefix);
        }
        Ok(Self { address, prefix: prefix.to_owned(), key })
    }

    /// The URL, for people.
    pub(super) fn url(&self) -> String {
        self.address.url(&self.prefix)
    }

    /// Asks once.
    pub(super) async fn scrape(&self) -> Result<Scrape, Problem> {
        let both = async {
            let state = self.get("/health/ready", None).await?;
            let metrics = self.metrics().await?;
            Ok((state, metrics))
        };
        let (state, metrics) = client::in_time(PATIENCE, both).await.map_err(Problem::unreachable)?;
        let state = State::of(&state)?;
        let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        Ok(Scrape { state, page: self.read(&metrics, clock)? })
    }

    async fn get(&self, route: &str, key: Option<&str>) -> Result<Answer, String> {
        let path = format!("{}{route}", self.prefix);
        self.address.get(&path, "perigee-top", key, MAX_ANSWER_BYTES).await
    }

    /// The key is sent to a server that asks for one, and to no other.
    async fn metrics(&self) -> Result<Answer, String> {
        let answer = self.get("/metrics", None).await?;
        match &self.key {
            Some(key) if answer.status == 401 => self.get("/metrics", Some(key)).await,
            _ => Ok(answer),
        }
    }

    fn read(&self, metrics: &Answer, clock: f64) -> Result<Page, Problem> {
        match metrics.status {
            200 if metrics.cut => {
                Err(Problem::strange(format!("/metrics is larger than {} MiB", MAX_ANSWER_BYTES >> 20)))
            }
            200 => Page::parse(&metrics.body, clock)
                .map_err(|problem| Problem::strange(format!("/metrics: {problem}"))),
            401 if self.key.is_some() => {
                Err(Problem { kind: "key refused", text: "the server does not know the key".into() })
            }
            401 => Err(Problem {
                kind: "key needed",
                text: "the server asks for a key: give --key-file, or set PERIGEE_SERVER__API_KEYS".into(),
            }),
            _ => Err(Problem::strange(format!("/metrics {}", said(metrics)))),
        }
    }
}

impl State {
    /// The state that `/health/ready` tells.
    fn of(answer: &Answer) -> Result<Self, Problem> {
        let strange = || Problem::strange(format!("/health/ready {}", said(answer)));
        if !matches!(answer.status, 200 | 503) {
            return Err(strange());
        }
        let body: Value = serde_json::from_str(&answer.body).map_err(|_| strange())?;
        let text = |name: &str| printable(body[name].as_str().unwrap_or_default(), MAX_TEXT_BYTES);
        let status = text("status");
        let notice = match status.as_str() {
            "" => return Err(strange()),
            "ready" | "starting" => None,
            "leaving" => Some(Weight::Warning.says("the server leaves: routers are told to send no more")),
            "draining" => {
                Some(Weight::Warning.says("the server ends: running requests go on, new ones are refused"))
            }
            "failed" => Some(Weight::Problem.says(format!("the boot failed: {}", text("reason")))),
            "engine_stopped" => Some(Weight::Problem.says("the engine has stopped")),
            "engine_stuck" => Some(Weight::Problem.says("the engine is stuck in a step")),
            other => Some(Weight::Warning.says(format!("the server says: {other}"))),
        };
        let boot = (status == "starting").then(|| Boot::of(body));
        let word = if boot.is_some() { "booting".into() } else { status.replace('_', " ") };
        Ok(Self { word, notice, boot })
    }
}

impl Boot {
    fn of(body: Value) -> Self {
        let mut boot: Self = serde_json::from_value(body).unwrap_or_default();
        boot.stages.truncate(MAX_STAGES);
        boot.stages.iter_mut().for_each(|stage| stage.name = printable(&stage.name, 40));
        boot
    }

    /// The stage that runs.
    pub(super) fn current(&self) -> Option<&Stage> {
        self.stages.last().filter(|stage| !stage.done)
    }
}

impl Problem {
    fn unreachable(text: String) -> Self {
        Self { kind: "unreachable", text: printable(&text, MAX_TEXT_BYTES) }
    }

    fn strange(text: String) -> Self {
        Self { kind: "not understood", text }
    }
}

/// An answer that is not what was asked for.
fn said(answer: &Answer) -> String {
    let body: Value = serde_json::from_str(&answer.body).unwrap_or_default();
    let message = body["error"]["message"].as_str().unwrap_or(answer.body.trim());
    match (answer.status, printable(message, MAX_TEXT_BYTES)) {
        (status @ 300..400, _) => {
            format!("answered {status}: redirects are not followed, give the last address")
        }
        (404, _) => "answered 404: is a Perigee server there?".into(),
        (status, message) if message.is_empty() => format!("answered {status}"),
        (status, message) => format!("answered {status}: {message}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, body: &str) -> Answer {
        Answer { status, body: body.into(), cut: false }
    }

    #[test]
    fn urls() {
        let url = |url: &str| Target::of_url(url, None, Trust::Public).ok().map(|target| target.url());
        for text in ["http://a:1", "http://a:1/", "a:1", "http://a:1/v1", "http://a:1/v1/"] {
            assert_eq!(url(text).as_deref(), Some("http://a:1"), "{text}");
        }
        for text in ["http://a:1/llm/v1", "http://a:1/llm/metrics"] {
            assert_eq!(url(text).as_deref(), Some("http://a:1/llm"), "{text}");
        }
        assert_eq!(url("http://[::1]:2").as_deref(), Some("http://[::1]:2"));
        assert_eq!(url("https://a").as_deref(), Some("https://a:443"));
        assert_eq!((url("ftp://a"), url("")), (None, None));
    }

    #[test]
    fn states() {
        let check = |body: &str, word: &str, notice: &str| {
            let state = State::of(&answer(503, body)).unwrap();
            let said = state.notice.map_or(String::new(), |notice| notice.text);
            assert_eq!((state.word.as_str(), said.as_str()), (word, notice), "{body}");
        };
        check(r#"{"status":"ready"}"#, "ready", "");
        check(r#"{"status":"starting"}"#, "booting", "");
        check(r#"{"status":"failed","reason":"no\u001bmemory"}"#, "failed", "the boot failed: no memory");
        check(r#"{"status":"engine_stuck"}"#, "engine stuck", "the engine is stuck in a step");
        check(r#"{"status":"asleep"}"#, "asleep", "the server says: asleep");
        let boot = |stages: &str| {
            let body = format!(r#"{{"status":"starting","seconds":2.0,"stages":{stages}}}"#);
            State::of(&answer(503, &body)).unwrap().boot.unwrap()
        };
        let weights = Stage { name: "weights".into(), done: false, percent: 40, seconds: 1.5 };
        let stages = r#"[{"stage":"weights","done":false,"percent":40,"seconds":1.5}]"#;
        assert_eq!(boot(stages), Boot { seconds: 2.0, stages: vec![weights] });
        assert_eq!(boot("7"), Boot::default());
    }

    #[test]
    fn strange_answers_are_told() {
        let check = |status: u16, body: &str, expected: &str| {
            let problem = State::of(&answer(status, body)).unwrap_err();
            assert_eq!(problem.text, format!("/health/ready {expected}"));
        };
        check(404, "<html>", "answered 404: is a Perigee server there?");
        check(301, "", "answered 301: redirects are not followed, give the last address");
        check(421, r#"{"error":{"message":"not this host"}}"#, "answered 421: not this host");
        check(200, "OK", "answered 200: OK");
        check(200, "{}", "answered 200: {}");
        check(502, "", "answered 502");
    }

    #[test]
    fn metrics_pages() {
        let check = |key: Option<&str>, answer: Answer, expected: &str| {
            let target = Target::of_url("a", key.map(str::to_owned), Trust::Public).unwrap();
            let text = target.read(&answer, 0.0).map_or_else(|problem| problem.text, |_| "read".into());
            assert_eq!(text, expected);
        };
        check(None, answer(200, "perigee_ready 1\n"), "read");
        check(None, answer(200, "go_x 1\n"), "/metrics: the page has no metrics of Perigee");
        check(None, answer(200, "<p>"), "/metrics: line 1 is not a metric: <p>");
        check(None, Answer { cut: true, ..answer(200, "") }, "/metrics is larger than 4 MiB");
        check(Some("k"), answer(401, ""), "the server does not know the key");
        check(
            None,
            answer(401, ""),
            "the server asks for a key: give --key-file, or set PERIGEE_SERVER__API_KEYS",
        );
        check(None, answer(500, ""), "/metrics answered 500");
    }
}
