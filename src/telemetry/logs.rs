//! The subscriber: one line per event on stderr, readable on a terminal, JSON for collectors.
//!
//! Does not read the environment: `config/` turns RUST_LOG and NO_COLOR into settings.

use std::io::IsTerminal;

use tracing::Subscriber;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::{self, MakeWriter};
use tracing_subscriber::util::SubscriberInitExt;

use super::config::{Config, LogColor, LogFormat};

/// Errors of setting up logging.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter does not parse.
    #[error(
        "{directives:?} is no log filter: {reason}; use a level (error, warn, info, debug, trace) or module=level, ..."
    )]
    Filter {
        /// The directives as given.
        directives: String,
        /// The parser's message.
        reason: String,
    },
    /// The process has a subscriber already.
    #[error("logging is set up already")]
    AlreadySet,
}

/// Changes the log's filter while it is written.
pub struct LogControl(SetFilter);

type SetFilter = Box<dyn Fn(EnvFilter) -> Result<(), String> + Send + Sync>;

impl LogControl {
    /// Replaces the level or directives. Errors: they do not parse, and the old ones stay.
    pub fn set_level(&self, directives: &str) -> Result<(), LogError> {
        let filter = parse_filter(directives)?;
        let error = |reason| LogError::Filter { directives: directives.into(), reason };
        (self.0)(filter).map_err(error)
    }
}

/// Sets up logging for the process. Call once, early.
pub fn init(config: &Config) -> Result<LogControl, LogError> {
    let terminal = std::io::stderr().is_terminal();
    let (subscriber, control) = subscriber(config, terminal, std::io::stderr)?;
    subscriber.try_init().map_err(|_| LogError::AlreadySet)?;
    Ok(control)
}

/// Parses a level or directives. Errors: an empty filter, which would silence all logs by accident.
pub(super) fn parse_filter(directives: &str) -> Result<EnvFilter, LogError> {
    let error = |reason: String| LogError::Filter { directives: directives.into(), reason };
    if directives.trim().is_empty() {
        return Err(error("it is empty".into()));
    }
    // The crate accepts any word as a module name: "inof" would silence all logs but those of a
    // module with that name.
    for directive in directives.split(',').map(str::trim).filter(|d| !d.contains(['=', ':', '['])) {
        let level = directive.parse::<tracing::level_filters::LevelFilter>();
        if level.is_err() {
            return Err(error(format!("{directive:?} is no level")));
        }
    }
    for directive in directives.split(',').map(str::trim) {
        let target = directive.split(['=', '[']).next().unwrap_or_default();
        let part = target.strip_prefix("perigee::").and_then(|rest| rest.split("::").next());
        if part.is_some_and(|part| !ROOT_PARTS.contains(&part)) {
            let parts = "perigee_engine, perigee_http, perigee_model, perigee::boot, ...";
            return Err(error(format!(
                "{target:?} logs nothing: the parts of Perigee are crates, such as {parts}"
            )));
        }
    }
    EnvFilter::builder().parse(directives).map_err(|e| error(e.to_string()))
}

/// Modules of the crate `perigee` itself. Targets of the other crates begin with the name of their crate.
const ROOT_PARTS: &[&str] = &["boot", "cli", "config", "measure", "nano"];

/// The subscriber for `config`, writing to `writer`; `terminal` says whether that is a terminal.
fn subscriber<W>(
    config: &Config,
    terminal: bool,
    writer: W,
) -> Result<(Box<dyn Subscriber + Send + Sync>, LogControl), LogError>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let filter = parse_filter(&config.log_level)?;
    let colors = match config.log_color {
        LogColor::Auto => terminal,
        LogColor::Always => true,
        LogColor::Never => false,
    };
    // A line that cannot be written (a closed pipe, a lost terminal) is dropped: the error message
    // would go to stderr as well and panic in the code that logs.
    let builder =
        fmt::Subscriber::builder().with_env_filter(filter).with_writer(writer).log_internal_errors(false);
    Ok(if config.log_format == LogFormat::Json {
        let builder = builder.json().flatten_event(true).with_span_list(false).with_filter_reloading();
        let handle = builder.reload_handle();
        let set: SetFilter = Box::new(move |filter| handle.reload(filter).map_err(|e| e.to_string()));
        (Box::new(builder.finish()), LogControl(set))
    } else {
        let builder = builder.with_ansi(colors).with_filter_reloading();
        let handle = builder.reload_handle();
        let set: SetFilter = Box::new(move |filter| handle.reload(filter).map_err(|e| e.to_string()));
        (Box::new(builder.finish()), LogControl(set))
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// The log of a fixed set of events under `config`.
    fn log(config: &Config, terminal: bool) -> String {
        let buffer = Buffer::default();
        let writer = buffer.clone();
        let (subscriber, _) = subscriber(config, terminal, move || writer.clone()).unwrap();
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(request_id = "req-1", tokens = 7, "done");
            tracing::debug!("detail");
        });
        let bytes = buffer.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn the_level_changes_while_it_is_written() {
        for log_format in [LogFormat::Json, LogFormat::Text] {
            let buffer = Buffer::default();
            let writer = buffer.clone();
            let config = Config { log_format, ..Config::default() };
            let (subscriber, control) = subscriber(&config, false, move || writer.clone()).unwrap();
            tracing::subscriber::with_default(subscriber, || {
                tracing::debug!("first");
                assert!(control.set_level("inof").is_err());
                control.set_level("debug").unwrap();
                tracing::debug!("second");
            });
            let text = String::from_utf8(buffer.0.lock().unwrap().clone()).unwrap();
            assert!(!text.contains("first") && text.contains("second"), "{text}");
        }
    }

    #[test]
    fn json_lines_have_fields_at_the_top() {
        let text = log(&Config { log_format: LogFormat::Json, ..Config::default() }, false);
        let lines: Vec<serde_json::Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        assert_eq!(lines.len(), 1, "{text}");
        assert_eq!(lines[0]["message"], "done");
        assert_eq!(lines[0]["request_id"], "req-1");
        assert_eq!(lines[0]["tokens"], 7);
        assert_eq!(lines[0]["level"], "INFO");
        assert!(lines[0]["timestamp"].is_string());
    }

    #[test]
    fn a_log_in_a_pipe_has_the_form_of_one_on_a_terminal() {
        let shape = |terminal| log(&Config { log_color: LogColor::Never, ..Config::default() }, terminal);
        let after_the_time = |text: String| text.split_once(' ').map(|(_, rest)| rest.to_owned());
        assert_eq!(after_the_time(shape(false)), after_the_time(shape(true)));
    }

    #[test]
    fn text_has_colours_on_a_terminal_only() {
        for (color, terminal, expected) in [
            (LogColor::Auto, true, true),
            (LogColor::Never, true, false),
            (LogColor::Auto, false, false),
            (LogColor::Always, false, true),
        ] {
            let config = Config { log_format: LogFormat::Text, log_color: color, ..Config::default() };
            let text = log(&config, terminal);
            assert_eq!(text.contains('\u{1b}'), expected, "{color:?} {terminal}: {text}");
            assert!(text.contains("done") && !text.contains("detail"), "{text}");
        }
    }

    #[test]
    fn filters_select_and_bad_ones_are_errors() {
        let at = |level: &str| Config { log_level: level.into(), ..Config::default() };
        assert!(log(&at("debug"), false).contains("detail"));
        assert_eq!(log(&at("warn"), false), "");
        assert!(log(&at("warn,perigee=debug"), false).contains("detail"));
        assert!(log(&at("perigee::boot=warn,perigee_telemetry=debug"), false).contains("detail"));
        for bad in ["", "inof", "perigee=loud", "info,inof", "info,perigee::engine=debug"] {
            let problems = at(bad).validate();
            assert!(problems.len() == 1 && problems[0].1.contains("is no log filter"), "{bad}: {problems:?}");
        }
    }
}
