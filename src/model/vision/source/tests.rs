use super::*;

fn decoded(url: &str) -> Result<Vec<u8>, SourceError> {
    match ImageSource::parse_url(url)? {
        ImageSource::Base64(payload) => decode_base64(payload, 100),
        ImageSource::Remote(url) => panic!("{url} is remote"),
    }
}

#[test]
fn data_urls() {
    for url in [
        "data:image/png;base64,aGVsbG8=",
        "DATA:image/png;BASE64,aGVsbG8=",
        "data:;base64,aGVsbG8=",
        "data:text/html;charset=utf-8;base64,aGVsbG8=",
        "data:image/png;base64, aGVs\r\n\tbG8=\n",
        "  data:image/png;base64,aGVsbG8= ",
        "data:image/png;base64,aGVsbG8%3D",
        "data:image/png;base64,%61GVsbG8%3d",
        "data:image/png;base64,aGVsbG8",
        "data:image/png; base64,aGVsbG8=",
    ] {
        assert_eq!(decoded(url).as_deref(), Ok(&b"hello"[..]), "{url}");
    }
    assert_eq!(decode_base64("+/+/", 100).unwrap(), [0xfb, 0xff, 0xbf]);
    // Bits after the last byte.
    assert_eq!(decode_base64("aGVsbG9=", 100).unwrap(), b"hello");
}

#[test]
fn remote_urls_are_kept() {
    for url in ["http://example.org/a.png", "HTTPS://example.org/a.png?b=c"] {
        assert_eq!(ImageSource::parse_url(url), Ok(ImageSource::Remote(url)));
    }
}

#[test]
fn refused_urls() {
    use SourceError::*;
    for (url, expected) in [
        ("", Empty),
        (" \n", Empty),
        ("file:///etc/passwd", File),
        ("FILE:/etc/passwd", File),
        ("ms://abc", Uploaded),
        ("/etc/passwd", NoScheme),
        ("picture.png", NoScheme),
        ("C:\\picture.png", NoScheme),
        ("iVBORw0KGgo=", NoScheme),
        ("ftp://example.org/a.png", UnknownScheme { scheme: "ftp".into() }),
        ("averyveryverylongscheme://x", UnknownScheme { scheme: "averyveryverylon".into() }),
        ("data:image/png;base64", NoComma),
        ("data:image/png,hello", NotBase64),
        ("data:,hello", NotBase64),
        ("data:image/png;base65,aGVsbG8=", NotBase64),
        ("data:image/png;base64,", EmptyPayload),
        ("data:image/png;base64, \n ", EmptyPayload),
        ("data:image/png;base64,====", InvalidLength),
        ("data:image/png;base64,a", InvalidLength),
        ("data:image/png;base64,aGVsb", InvalidLength),
        ("data:image/png;base64,aGVs=bG8=", InvalidLength),
        ("data:image/png;base64,aGVsbG8===", InvalidLength),
        ("data:image/png;base64,aGV!bG8=", InvalidCharacter { position: 3 }),
        ("data:image/png;base64,a G V_bG8=", InvalidCharacter { position: 3 }),
        ("data:image/png;base64,aGVs%zzbG8=", InvalidCharacter { position: 4 }),
        ("data:image/png;base64,aGVs\u{e9}G8=", InvalidCharacter { position: 4 }),
    ] {
        assert_eq!(decoded(url), Err(expected), "{url}");
    }
}

#[test]
fn length_is_checked_first() {
    let text = "A".repeat(1 << 20);
    assert_eq!(decode_base64(&text, 1000), Err(SourceError::TooManyBytes { bytes: 786_432, limit: 1000 }));
    assert_eq!(decode_base64("aGVsbG8=", 5).unwrap(), b"hello");
    assert_eq!(decode_base64("aGVsbG8=", 4), Err(SourceError::TooManyBytes { bytes: 5, limit: 4 }));
    // The text of an error has nothing of the payload.
    let error = decode_base64("secret!secret", 100).unwrap_err().to_string();
    assert!(!error.contains("secret"), "{error}");
}
