//! The pages at `/` and `/docs`: files in the binary, which ask this server alone for everything they show.

mod load;

use hyper::header::HeaderName;

pub(super) use load::Load;

/// The header by which the page's requests for its own figures are told from those of clients.
pub(super) const HEADER: HeaderName = HeaderName::from_static("x-perigee-page");

/// A file of a page.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct File {
    name: &'static str,
    pub(super) media_type: &'static str,
    pub(super) text: &'static str,
}

/// What a page may load and ask: its own files and this server. Images are those that a person
/// attaches.
pub(super) const CONTENT_SECURITY_POLICY: &str = "default-src 'self'; img-src 'self' data: blob:; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// The document, at `/`.
pub(super) static INDEX: File =
    File { name: "index.html", media_type: HTML, text: include_str!("index.html") };

/// The reference of the API, at `/docs`.
pub(super) static REFERENCE: File =
    File { name: "reference.html", media_type: HTML, text: include_str!("reference.html") };

/// The files beside them, below `/page/`.
static FILES: [File; 19] = [
    File { name: "style.css", media_type: CSS, text: include_str!("style.css") },
    File { name: "app.js", media_type: SCRIPT, text: include_str!("app.js") },
    File { name: "attachments.js", media_type: SCRIPT, text: include_str!("attachments.js") },
    File { name: "chart.js", media_type: SCRIPT, text: include_str!("chart.js") },
    File { name: "clients.js", media_type: SCRIPT, text: include_str!("clients.js") },
    File { name: "conversations.js", media_type: SCRIPT, text: include_str!("conversations.js") },
    File { name: "gpus.js", media_type: SCRIPT, text: include_str!("gpus.js") },
    File { name: "history.js", media_type: SCRIPT, text: include_str!("history.js") },
    File { name: "markdown.js", media_type: SCRIPT, text: include_str!("markdown.js") },
    File { name: "metrics.js", media_type: SCRIPT, text: include_str!("metrics.js") },
    File { name: "operator.js", media_type: SCRIPT, text: include_str!("operator.js") },
    File { name: "panels.js", media_type: SCRIPT, text: include_str!("panels.js") },
    File { name: "playground.js", media_type: SCRIPT, text: include_str!("playground.js") },
    File { name: "reference.css", media_type: CSS, text: include_str!("reference.css") },
    File { name: "reference.js", media_type: SCRIPT, text: include_str!("reference.js") },
    File { name: "reply.js", media_type: SCRIPT, text: include_str!("reply.js") },
    File { name: "request.js", media_type: SCRIPT, text: include_str!("request.js") },
    File { name: "server.js", media_type: SCRIPT, text: include_str!("server.js") },
    File { name: "settings.js", media_type: SCRIPT, text: include_str!("settings.js") },
];

/// A file below `/page/`.
pub(super) fn file(name: &str) -> Option<&'static File> {
    FILES.iter().find(|file| file.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_name_each_other_and_nothing_outside() {
        for file in FILES.iter().chain([&INDEX, &REFERENCE]) {
            for outside in ["http://", "https://", "//cdn"] {
                let lines = file.text.lines().filter(|line| line.contains(outside));
                // The namespace of SVG is a name, not an address.
                let lines: Vec<_> =
                    lines.filter(|line| !line.contains("http://www.w3.org/2000/svg")).collect();
                assert_eq!(lines, [""; 0], "{}", file.name);
            }
            for imported in file.text.split("from './").skip(1).filter_map(|rest| rest.split('\'').next()) {
                assert!(super::file(imported).is_some(), "{} imports {imported}", file.name);
            }
        }
        assert_eq!(file("nothing"), None);
    }

    /// The charts name the alerts that watch them.
    #[test]
    fn alerts_that_charts_name_exist() {
        let charts = file("panels.js").expect("the charts").text;
        let documented = include_str!("../../../../docs/alerts.md");
        let named: Vec<&str> =
            charts.split("'Perigee").skip(1).filter_map(|rest| rest.split('\'').next()).collect();
        assert!(named.len() > 8, "{named:?}");
        for name in named {
            assert!(documented.contains(&format!("\n## Perigee{name}\n")), "Perigee{name}");
        }
    }

    /// The history's series are those that the charts read.
    #[test]
    fn charts_read_series_that_the_server_has() {
        let charts = file("panels.js").expect("the charts").text;
        let metrics = perigee_telemetry::Metrics::new("m", false);
        let report = serde_json::to_value(metrics.history(metrics.age(), 0)).expect("numbers");
        let series = report["series"].as_object().expect("by name");
        for name in series.keys() {
            let stem = name.strip_suffix("_p50").or(name.strip_suffix("_p99")).unwrap_or(name);
            let stem = stem.strip_prefix("finished_").or(stem.strip_prefix("guard_")).unwrap_or(stem);
            assert!(charts.contains(&format!("'{stem}'")), "{name} is not shown");
        }
    }

    /// What a model writes becomes text nodes: nothing on the page parses HTML or runs text.
    #[test]
    fn no_script_parses_markup() {
        for file in FILES.iter().filter(|file| file.media_type == SCRIPT) {
            for sink in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "new Function",
                "srcdoc",
                "setHTML",
            ] {
                assert!(!file.text.contains(sink), "{} uses {sink}", file.name);
            }
        }
    }
}
