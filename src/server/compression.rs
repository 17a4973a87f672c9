//! Compressed answers: pages of text that are asked for many times a second.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::HeaderMap;
use hyper::header;

/// Whether the client takes gzip (RFC 9110, section 12.5.3).
pub(super) fn accepts_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let named = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip"));
        let weight = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
        named && weight.is_none_or(|q| q.trim().parse::<f32>().is_ok_and(|q| q > 0.0))
    })
}

/// `body` in gzip's format, by its fastest level: metrics shrink to a tenth by it already.
pub(super) fn gzip(body: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(body.len() / 4), Compression::fast());
    encoder.write_all(body).and_then(|()| encoder.finish()).expect("writing to memory does not fail")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_taken_by_who_says_so() {
        for (given, takes) in [
            (&["gzip"][..], true),
            (&["deflate, GZIP;q=0.5, br"], true),
            (&["br", "gzip; q=1"], true),
            (&["gzip;q=0"], false),
            (&["gzip;q=0.0, identity"], false),
            (&["identity"], false),
            (&["x-gzip-not"], false),
            (&[], false),
        ] {
            let mut headers = HeaderMap::new();
            for value in given {
                headers.append(header::ACCEPT_ENCODING, value.parse().unwrap());
            }
            assert_eq!(accepts_gzip(&headers), takes, "{given:?}");
        }
    }
}
