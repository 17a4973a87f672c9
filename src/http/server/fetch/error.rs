//! Reasons why an image is not fetched.
//!
//! Display is one clause that may be sent to the client. Addresses, header values and bytes of the
//! remote host are never part of it; sources are for logs only.

use std::io;
use std::time::Duration;

/// A reason why an image is not fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The URL is above the length limit.
    #[error("the URL is longer than {limit} bytes")]
    UrlTooLong {
        /// In bytes.
        limit: usize,
    },
    /// The URL holds a character that no URL may hold unencoded.
    #[error("the URL holds spaces, backslashes or other characters that must be percent-encoded")]
    Characters,
    /// The URL has no scheme of the two.
    #[error("the URL must begin with https://")]
    Scheme,
    /// The URL is plain http, which the rules do not allow.
    #[error("plain http is not enabled on this server, use an https URL")]
    PlainHttp,
    /// The URL has an `@` in its authority.
    #[error("the URL must not hold a user name or a password")]
    Userinfo,
    /// The host is an IP address in any notation, or not a DNS name of two labels and more.
    #[error("the host of the URL must be a full DNS name in ASCII, without a trailing dot")]
    HostForm,
    /// The host is not on the allow-list.
    #[error("the host of the URL is not in vision.remote_hosts")]
    HostNotAllowed,
    /// The port is neither 80 nor 443.
    #[error("the port of the URL must be 80 or 443")]
    Port,
    /// A redirect's location is refused for the reason inside.
    #[error("after a redirect, {0}")]
    Redirected(Box<FetchError>),
    /// A redirect has no location, several, or a relative one.
    #[error("the URL redirects to a location that is neither an absolute path nor an absolute URL")]
    Location,
    /// A redirect leads from https to http.
    #[error("the URL redirects from https to http")]
    Downgrade,
    /// More redirects than the limit.
    #[error("the URL redirects more than {limit} times")]
    TooManyRedirects {
        /// Redirects that are followed.
        limit: usize,
    },
    /// The host name does not resolve.
    #[error("the host of the URL has no address")]
    Resolve(#[source] io::Error),
    /// At least one address of the host is not on the public internet.
    #[error("the host of the URL must resolve to public addresses only")]
    NotPublic,
    /// No address of the host accepts a connection.
    #[error("the host of the URL accepts no connection")]
    Connect(#[source] io::Error),
    /// The TLS handshake fails, for example on a certificate that is not trusted.
    #[error("the host of the URL must offer TLS 1.2 or 1.3 with a publicly trusted certificate")]
    Tls(#[source] io::Error),
    /// The answer breaks HTTP, exceeds the limit of a head, or ends early.
    #[error("the host of the URL sent an incomplete or invalid HTTP answer")]
    Answer(#[source] hyper::Error),
    /// The answer is neither 200 nor a redirect.
    #[error("the host of the URL answered with status {0} instead of 200")]
    Status(u16),
    /// The answer is compressed although only identity is accepted.
    #[error("the host of the URL must send the image without a content-encoding")]
    Encoding,
    /// The body is above the size limit.
    #[error("the image at the URL is larger than {limit} bytes")]
    TooLarge {
        /// In bytes.
        limit: usize,
    },
    /// The fetch, redirects included, exceeds its time.
    #[error("the image at the URL did not arrive within {limit:?}")]
    Timeout {
        /// Of the whole fetch.
        limit: Duration,
    },
}

/// A rule that cannot be followed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RulesError {
    /// A host that no accepted URL can have.
    #[error("\"{0}\" is not a full DNS name in ASCII, for example \"images.example.com\"")]
    Host(String),
    /// The timeout is zero.
    #[error("the timeout of a fetch must be above zero")]
    Timeout,
    /// The size limit is zero.
    #[error("the size limit of a fetch must be above zero")]
    MaxBytes,
}
