//! What a client takes: codings and forms of the answers that have several (RFC 9110, section 12.5).

use hyper::HeaderMap;
use hyper::header::{self, HeaderName};

use perigee_telemetry::Exposition;

/// Whether the client takes gzip.
pub(super) fn gzip(headers: &HeaderMap) -> bool {
    ranges(headers, header::ACCEPT_ENCODING)
        .any(|range| range.name.eq_ignore_ascii_case("gzip") && range.weight > 0.0)
}

/// The form of the page of metrics that the client prefers: OpenMetrics if it says so and puts nothing above it.
pub(super) fn exposition(headers: &HeaderMap) -> Exposition {
    let (mut open, mut text) = (0.0_f32, 0.0_f32);
    for range in ranges(headers, header::ACCEPT) {
        let version = range.version.unwrap_or("1.0.0");
        if range.name.eq_ignore_ascii_case("application/openmetrics-text") && version == "1.0.0" {
            open = open.max(range.weight);
        } else if range.name.eq_ignore_ascii_case("text/plain") {
            text = text.max(range.weight);
        }
    }
    if open > 0.0 && open >= text { Exposition::OpenMetrics } else { Exposition::Text }
}

/// One alternative of a header.
struct Range<'a> {
    name: &'a str,
    version: Option<&'a str>,
    /// 0 to 1; 0 for one that is malformed.
    weight: f32,
}

fn ranges(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = Range<'_>> {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(|alternative| {
        let mut parts = alternative.split(';').map(str::trim);
        let mut range = Range { name: parts.next().unwrap_or_default(), version: None, weight: 1.0 };
        for (key, value) in parts.filter_map(|part| part.split_once('=')) {
            match key.trim() {
                "q" | "Q" => {
                    range.weight =
                        value.trim().parse().ok().filter(|q| (0.0..=1.0).contains(q)).unwrap_or(0.0)
                }
                "version" => range.version = Some(value.trim().trim_matches('"')),
                _ => {}
            }
        }
        range
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: HeaderName, values: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(&name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn gzip_is_taken_by_who_says_so() {
        for (given, takes) in [
            (&["gzip"][..], true),
            (&["deflate, GZIP;q=0.5, br"], true),
            (&["br", "gzip; q=1"], true),
            (&["gzip;q=0"], false),
            (&["gzip;q=0.0, identity"], false),
            (&["gzip;q=one"], false),
            (&["identity"], false),
            (&["x-gzip-not"], false),
            (&[], false),
        ] {
            assert_eq!(gzip(&headers(header::ACCEPT_ENCODING, given)), takes, "{given:?}");
        }
    }

    #[test]
    fn openmetrics_is_for_who_prefers_it() {
        use Exposition::{OpenMetrics, Text};
        for (given, form) in [
            // Prometheus 2 and 3.
            (
                "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                OpenMetrics,
            ),
            (
                "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,*/*;q=0.2",
                OpenMetrics,
            ),
            ("text/plain;version=0.0.4;q=0.5,application/openmetrics-text;q=0.3", Text),
            ("application/openmetrics-text", OpenMetrics),
            ("application/openmetrics-text;version=0.0.1", Text),
            ("application/openmetrics-text;version=2.0.0,text/plain;q=0.5", Text),
            ("application/openmetrics-text;q=0", Text),
            ("text/plain", Text),
            ("*/*", Text),
        ] {
            assert_eq!(exposition(&headers(header::ACCEPT, &[given])), form, "{given}");
        }
        assert_eq!(exposition(&HeaderMap::new()), Text);
    }
}
