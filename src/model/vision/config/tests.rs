use super::*;

#[test]
fn defaults_are_valid() {
    assert_eq!(Config::default().validate(), []);
    let limits = Config::default().limits();
    assert_eq!((limits.max_bytes, limits.max_pixels), (20_000_000, 64_000_000));
}

#[test]
fn keys_outside_their_limits() {
    let check = |change: &dyn Fn(&mut Config), key: &str| {
        let mut config = Config::default();
        change(&mut config);
        let problems = config.validate();
        assert_eq!(problems.iter().map(|(key, _)| *key).collect::<Vec<_>>(), [key], "{problems:?}");
    };
    check(&|config| config.max_images = 0, "max_images");
    check(&|config| config.max_request_pixels = 1_000_000, "max_request_pixels");
    check(&|config| config.decode_threads = 0, "decode_threads");
    check(&|config| config.decode_timeout_s = f64::NAN, "decode_timeout_s");
    check(&|config| config.remote_timeout_s = 0.0, "remote_timeout_s");
    check(&|config| config.decode_memory_bytes = 100 << 20, "decode_memory_bytes");
    for host in ["https://example.org", "example.org:443", "", "a..b", "user@example.org", "-a.org"] {
        check(&|config| config.remote_hosts = vec!["example.org".into(), host.into()], "remote_hosts");
    }
}

#[test]
fn words_of_the_file() {
    let config: Config =
        serde_json::from_str(r#"{"compositing": "released", "remote_hosts": ["a.example.org"]}"#).unwrap();
    assert_eq!(config.compositing, Compositing::Released);
    assert_eq!(config.max_images, 16);
    assert!(serde_json::from_str::<Config>(r#"{"max_picture": 1}"#).is_err());
}
