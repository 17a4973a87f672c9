//! URLs that try to reach another host than the allowed one. All are refused by their text alone:
//! no name is resolved and no connection is made.

use super::super::FetchError;
use super::server::{TestServer, ok};

/// Fetches every URL in a fetcher that would reach a server for any host.
async fn check(expected: FetchError, urls: &[&str]) {
    let server = TestServer::start(|_| ok("secret")).await;
    let fetcher = server.plain_fetcher();
    for url in urls {
        let error = fetcher.fetch(url).await.expect_err(url);
        assert_eq!(error.to_string(), expected.to_string(), "{url:?}");
    }
    assert_eq!(server.contacts(), (0, 0));
    // The same fetcher reaches the server by the allowed name.
    assert_eq!(fetcher.fetch("http://img.example.com/").await.unwrap(), b"secret");
    assert_eq!(server.contacts(), (1, 1));
}

#[tokio::test]
async fn hosts_that_are_no_full_dns_names_are_refused() {
    let urls = [
        "http://127.0.0.1/",
        "http://127.0.0.1:80/",
        "http://127.0.0.1./",
        "http://127.1/",
        "http://127.0.1/",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://0x7f.0.0.1/",
        "http://0X7F.0x0.0x0.0x1/",
        "http://0177.0.0.1/",
        "http://017700000001/",
        "http://0/",
        "http://0.0.0.0/",
        "http://169.254.169.254/latest/meta-data/",
        "http://2852039166/",
        "http://0xa9fea9fe/",
        "http://0251.0376.0251.0376/",
        "http://169.254.43518/",
        "http://8.8.8.8/",
        "http://[::1]/",
        "http://[::]/",
        "http://[::1]:80/",
        "http://[::ffff:127.0.0.1]/",
        "http://[::ffff:7f00:1]/",
        "http://[0:0:0:0:0:ffff:127.0.0.1]:80/",
        "http://[::127.0.0.1]/",
        "http://[64:ff9b::7f00:1]/",
        "http://[2002:7f00:1::]/",
        "http://[fe80::1%25eth0]/",
        "http://[fd00:ec2::254]/latest/meta-data/",
        "http://[v1.img.example.com]/",
        "http://[img.example.com]/",
        "http://::1/",
        "http://localhost/",
        "http://LOCALHOST:80/",
        "http://img.example.com./",
        "http://img..example.com/",
        "http://.img.example.com/",
        "http://./",
        "http://img.example.com.1/",
        "http://img%2eexample.com/",
        "http://%69mg.example.com/",
        "http://%31%32%37.0.0.1/",
        "http://img.example.com%00.evil.com/",
        "http://img.example.com%2f.evil.com/",
        "http://img.example.com%5c.evil.com/",
        "http://img.example.com%40evil.com/",
        "http://img.example.com%23.evil.com/",
        "http://xn--img-0ma.example.com/",
        "http://img.example.com,evil.com/",
        "http://img.example.com;evil.com/",
        "http://img.example.com&evil.com/",
        "http://img.example.com|evil.com/",
        "http://img_example.com/",
        "http://-img.example.com/",
        "http://img-.example.com/",
        "http://*.example.com/",
        "http://~/",
        "http:///img.example.com/",
        "http:////img.example.com/",
        "http://",
        "http://?img.example.com",
        "http://#img.example.com",
        "http://:80/",
        "http://http://img.example.com/",
    ];
    check(FetchError::HostForm, &urls).await;
    let long_label = format!("http://{}.example.com/", "a".repeat(64));
    let long_name = format!("http://{}com/", "a.".repeat(126));
    check(FetchError::HostForm, &[&long_label, &long_name]).await;
}

#[tokio::test]
async fn user_names_and_passwords_are_refused() {
    let urls = [
        "http://img.example.com@evil.com/",
        "http://evil.com@img.example.com/",
        "http://user:password@img.example.com/",
        "http://img.example.com:80@evil.com/",
        "http://@img.example.com/",
        "http://:@img.example.com/",
        "http://img.example.com%20@127.0.0.1/",
        "http://img.example.com%5c@evil.com/",
        "http://img.example.com%23@evil.com/",
        "http://evil.com@img.example.com@127.0.0.1/",
        "http://img.example.com&@evil.com/",
        "http://img.example.com:@127.0.0.1:80/",
    ];
    check(FetchError::Userinfo, &urls).await;
}

#[tokio::test]
async fn characters_that_parsers_disagree_on_are_refused() {
    let urls = [
        "http://img.example.com\\@evil.com/",
        "http://img.example.com\\\\@evil.com/",
        "http://evil.com\\@img.example.com/",
        "http://evil.com\\.img.example.com/",
        "http:\\\\img.example.com\\",
        "http:/\\img.example.com/",
        "http://img.example.com/\\..\\",
        "http://img.example.com/#\\@evil.com",
        " http://img.example.com/",
        "http://img.example.com/ ",
        "http:// img.example.com/",
        "\thttp://img.example.com/",
        "ht\ntp://img.example.com/",
        "http://img.exa\tmple.com/",
        "http://img.example.com /",
        "http://img.example.com\n.evil.com/",
        "http://img.example.com/ HTTP/1.1\r\nhost: evil.com\r\n\r\n",
        "http://img.example.com/\r\nx: y",
        "http://img.example.com/\0",
        "\0http://img.example.com/",
        "http://img.example.com\u{7f}/",
        "http://img.example.com\u{85}/",
        "http://img.example.com\u{2028}/",
        "\u{feff}http://img.example.com/",
        "http://\u{131}mg.example.com/",
        "http://img\u{3002}example\u{ff0e}com/",
        "http://\u{2460}\u{2461}\u{2466}.0.0.1/",
        "http://\u{ff11}27.0.0.1/",
        "http://im\u{ad}g.example.com/",
        "http://img.example.com\u{2044}.evil.com/",
        "http://img.example.com\u{ff20}evil.com/",
        "http://img.example.com/\u{e9}.png",
        "http://img.example.com/<x>",
        "http://img.example.com/\"",
        "http://{img.example.com}/",
        "http://img.example.com/%",
        "http://img.example.com/%4",
        "http://img.example.com/%zz",
        "http://img.example.com/?%u0041",
    ];
    check(FetchError::Characters, &urls).await;
}

#[tokio::test]
async fn other_schemes_are_refused() {
    let urls = [
        "",
        "img.example.com/a.png",
        "//img.example.com/",
        "/etc/passwd",
        "://img.example.com/",
        "file:///etc/passwd",
        "file://img.example.com/etc/passwd",
        "ftp://img.example.com/",
        "gopher://img.example.com/_x",
        "dict://img.example.com/",
        "ws://img.example.com/",
        "httpx://img.example.com/",
        "http+unix://img.example.com/",
        "unix:///run/docker.sock",
        "data:image/png;base64,AAAA",
        "javascript:alert(1)",
        "http:img.example.com/",
        "http:/img.example.com/",
        "http;//img.example.com/",
        "url:http://img.example.com/",
        "view-source:http://img.example.com/",
        "jar:http://img.example.com!/",
    ];
    check(FetchError::Scheme, &urls).await;
}

#[tokio::test]
async fn other_ports_are_refused() {
    let urls = [
        "http://img.example.com:22/",
        "http://img.example.com:8080/",
        "http://img.example.com:0/",
        "http://img.example.com:/",
        "http://img.example.com:080/",
        "http://img.example.com:0443/",
        "http://img.example.com:65616/",
        "http://img.example.com:+80/",
        "http://img.example.com:-80/",
        "http://img.example.com:0x50/",
        "http://img.example.com:80:80/",
        "http://img.example.com:80:evil.com/",
        "http://img.example.com:443.evil.com/",
        "http://img.example.com:80%00/",
    ];
    check(FetchError::Port, &urls).await;
}

#[tokio::test]
async fn other_hosts_are_refused() {
    let urls = [
        "http://evil.com/",
        "http://example.com/",
        "http://img.example.com.evil.com/",
        "http://evilimg.example.com/",
        "http://a.img.example.com/",
        "http://img.example.co/",
        "http://img-example.com/",
        "http://metadata.google.internal/",
        "http://localhost.localdomain/",
        "http://127.0.0.1.nip.io/",
        "http://evil.com/img.example.com",
        "http://evil.com?img.example.com",
        "http://evil.com#@img.example.com/",
        "http://evil.com/@img.example.com/",
        "http://evil.com:80/http://img.example.com/",
    ];
    check(FetchError::HostNotAllowed, &urls).await;
}
