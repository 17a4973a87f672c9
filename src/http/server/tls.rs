//! TLS of the listener: the certificate chain, its key and the CA of clients, read from PEM files as one.
//!
//! A value is complete: the key belongs to the certificate. A reload replaces it as a whole, for connections that begin
//! later. HTTP is unknown here, and so is the settings' origin.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::client::verify_server_cert_signed_by_trust_anchor;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::{Error as PemError, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use tokio_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio_rustls::rustls::{CertificateError, Error, RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;

use super::Config;
use perigee_text::civil;

/// A certificate that ends within this time is worth a warning: renewals are due at a third of 90 days.
const SOON: Duration = Duration::from_secs(14 * 86_400);
/// The year 10000, which no certificate reaches.
const END_OF_TIME: Duration = Duration::from_secs(253_402_300_800);

/// Certificate chain, key and CA of clients, ready for handshakes. Cheap to clone.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ServerConfig>,
    chain: Arc<[CertificateDer<'static>]>,
    file: Arc<Path>,
    valid_until: Option<UnixTime>,
    demands_certificate: bool,
}

/// A file of TLS that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("server.{key} = {}: {problem}", path.display())]
pub struct TlsError {
    /// Of the section `server`.
    pub key: &'static str,
    path: PathBuf,
    /// What is wrong with the file, and the remedy.
    pub problem: String,
}

impl Tls {
    /// Reads the files that the settings name; `None` where they name none. Errors: a file that cannot be read, has
    /// nothing of its kind or cannot be used, a key that is not the certificate's.
    pub fn read(settings: &Config) -> Result<Option<Self>, TlsError> {
        let (Some(file), Some(key_file)) = (settings.tls_certificate.as_deref(), settings.tls_key.as_deref())
        else {
            return Ok(None);
        };
        let provider = ring::default_provider();
        let chain = read_certificates(file).map_err(|problem| error("tls_certificate", file, problem))?;
        let leaf = ParsedCertificate::try_from(&chain[0]).map_err(|fault| {
            error("tls_certificate", file, format!("the certificate is damaged: {fault}"))
        })?;
        let valid_until = valid_until(&leaf, &provider);
        let key = read_key(key_file).map_err(|problem| error("tls_key", key_file, problem))?;
        let identity = CertifiedKey::from_der(chain.clone(), key, &provider).map_err(|fault| {
            error(
                "tls_key",
                key_file,
                match fault {
                    Error::InconsistentKeys(_) => format!(
                        "the key does not belong to the first certificate of server.tls_certificate ({}): give both \
                         files of one issuance, the server's own certificate first",
                        file.display()
                    ),
                    fault => format!(
                        "the key cannot be used: {fault}; RSA from 2048 bits, ECDSA P-256 or P-384, or Ed25519 can"
                    ),
                },
            )
        })?;
        let ca = settings.tls_client_ca.as_deref();
        let clients = match ca {
            Some(ca) => {
                client_verifier(ca, &provider).map_err(|problem| error("tls_client_ca", ca, problem))?
            }
            None => WebPkiClientVerifier::no_client_auth(),
        };
        let mut config = ServerConfig::builder_with_provider(Arc::new(provider))
            .with_safe_default_protocol_versions()
            .expect("the provider has cipher suites of both protocol versions")
            .with_client_cert_verifier(clients)
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(identity)));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Some(Self {
            config: Arc::new(config),
            chain: chain.into(),
            file: file.into(),
            valid_until,
            demands_certificate: ca.is_some(),
        }))
    }

    /// Whether both have the same certificates.
    pub fn is_same(&self, other: &Self) -> bool {
        self.chain == other.chain
    }

    /// Logs which certificate clients see from now on; a warning if it is out of date, or nearly.
    pub(super) fn announce(&self) {
        if !self.warn_of_end() {
            let (file, valid_until) = (self.file.display(), self.valid_until_s().map(date));
            tracing::info!(%file, valid_until, "TLS: certificate and key read");
        }
    }

    /// Warns of a certificate that is out of date, or nearly. Whether it is.
    pub(super) fn warn_of_end(&self) -> bool {
        let (file, now) = (self.file.display(), UnixTime::now().as_secs());
        let Some(end) = self.valid_until_s().filter(|end| *end < now + SOON.as_secs()) else { return false };
        let valid_until = date(end);
        if end < now {
            tracing::warn!(
                %file,
                valid_until,
                "TLS: the certificate has expired, and clients refuse it: renew it (server.tls_certificate), then reload"
            );
        } else {
            tracing::warn!(
                %file,
                valid_until,
                "TLS: the certificate expires soon: renew it (server.tls_certificate), then reload"
            );
        }
        true
    }

    /// Unix time at which the certificate ends, if it says so.
    pub(super) fn valid_until_s(&self) -> Option<u64> {
        self.valid_until.map(|end| end.as_secs())
    }

    /// The server's side of a handshake, without a limit in time.
    pub(super) async fn handshake<S>(&self, socket: S) -> io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        TlsAcceptor::from(self.config.clone()).accept(socket).await
    }

    /// Whether the client of a connection shows no certificate where one is demanded. Health routes answer such clients
    /// too: orchestrators' probes have no certificate.
    pub(super) fn is_stranger<S>(&self, stream: &TlsStream<S>) -> bool {
        self.demands_certificate && stream.get_ref().1.peer_certificates().is_none()
    }
}

/// What is wrong with the client's certificate, where a handshake failed for it: the client learns no more than that it was
/// refused.
pub(super) fn certificate_problem(failure: &io::Error) -> Option<String> {
    let fault = failure.get_ref()?.downcast_ref::<Error>()?;
    let Error::InvalidCertificate(reason) = fault else { return None };
    let text = reason.to_string();
    // The verifier's own errors are of a crate below rustls, and have no type here.
    let remedy = if text.contains("UnsupportedCertVersion") {
        "it is of X.509 version 1: issue it with extensions (`openssl x509 -req` needs -extfile)"
    } else if text.contains("CaUsedAsEndEntity") {
        "it is a CA's own: issue one for the client"
    } else {
        "server.tls_client_ca must have signed it, and its dates must be right"
    };
    Some(format!("{text}; {remedy}"))
}

/// The certificates of a PEM file, at least one. Errors: the problem and its remedy.
pub fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let text = read(path)?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match certificates {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        Ok(_) => Err(
            "the file has no certificate (a section BEGIN CERTIFICATE of PEM): give the certificate, followed by its \
             intermediates, such as fullchain.pem"
                .into(),
        ),
        Err(fault) => Err(format!("the file is no intact PEM: {fault}")),
    }
}

fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    let text = read(path)?;
    match PrivateKeyDer::from_pem_slice(&text) {
        Ok(key) => Ok(key),
        Err(_) if text.windows(9).any(|word| word == b"ENCRYPTED") => {
            Err("the key is encrypted: decrypt it with `openssl pkey -in FILE -out PLAIN`".into())
        }
        Err(PemError::NoItemsFound) => {
            Err("the file has no private key (a section BEGIN PRIVATE KEY, RSA PRIVATE KEY or EC PRIVATE KEY of PEM)"
                .into())
        }
        // The words of this error could quote the key.
        Err(_) => Err("the file is no intact PEM".into()),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|fault| match fault.kind() {
        io::ErrorKind::NotFound => {
            "there is no such file; in a container it must be mounted at this path".to_owned()
        }
        io::ErrorKind::PermissionDenied => {
            "the server's user may not read the file: change its owner or its permissions".to_owned()
        }
        _ => format!("cannot be read: {fault}"),
    })
}

/// Verifies the certificates of clients; clients without one are [strangers](Tls::is_stranger).
fn client_verifier(path: &Path, provider: &CryptoProvider) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(path)? {
        roots.add(certificate).map_err(|fault| format!("a certificate is damaged: {fault}"))?;
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::new(provider.clone()))
        .allow_unauthenticated()
        .build()
        .map_err(|fault| fault.to_string())
}

/// The end of a certificate's validity. The verifier reads the dates of a certificate before it looks for an issuer, and
/// says in its refusal when the certificate ended.
fn valid_until(leaf: &ParsedCertificate<'_>, provider: &CryptoProvider) -> Option<UnixTime> {
    let (late, algorithms) =
        (UnixTime::since_unix_epoch(END_OF_TIME), provider.signature_verification_algorithms.all);
    match verify_server_cert_signed_by_trust_anchor(leaf, &RootCertStore::empty(), &[], late, algorithms) {
        Err(Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. })) => Some(not_after),
        _ => None,
    }
}

/// `YYYY-MM-DD`, UTC.
fn date(unix_s: u64) -> String {
    let (year, month, day) = civil((unix_s / 86_400) as i64);
    format!("{year:04}-{month:02}-{day:02}")
}

fn error(key: &'static str, path: &Path, problem: String) -> TlsError {
    TlsError { key, path: path.to_owned(), problem }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio_rustls::TlsConnector;
    use tokio_rustls::rustls::ClientConfig;
    use tokio_rustls::rustls::pki_types::ServerName;

    use super::*;
    use crate::server::test_certificate::{Made, issue, issue_v1, make, pem};
    use crate::server::timed::TimedWrites;

    /// The settings of files in a folder.
    fn settings(folder: &Path) -> Config {
        Config {
            tls_certificate: Some(folder.join("certificate")),
            tls_key: Some(folder.join("key")),
            ..Config::default()
        }
    }

    /// What becomes of two files.
    fn read_pem(certificate: &str, key: &str) -> Result<Tls, TlsError> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("certificate"), certificate).unwrap();
        std::fs::write(folder.path().join("key"), key).unwrap();
        Tls::read(&settings(folder.path())).map(|tls| tls.expect("the settings name files"))
    }

    fn read_made((certificate, key): &Made) -> Tls {
        read_pem(&pem("CERTIFICATE", certificate), &pem("PRIVATE KEY", key.secret_der())).unwrap()
    }

    #[test]
    fn files_that_cannot_be_used_are_named_with_the_remedy() {
        let (certificate, key) = make("a.example");
        let (certificate, key) = (pem("CERTIFICATE", &certificate), pem("PRIVATE KEY", key.secret_der()));
        let other = pem("PRIVATE KEY", make("b.example").1.secret_der());
        let check = |certificate: &str, key: &str, name: &str, words: &str| {
            let error = read_pem(certificate, key).err().expect(words);
            assert_eq!(error.key, name, "{error}");
            assert!(error.to_string().starts_with(&format!("server.{name} = /")), "{error}");
            assert!(error.problem.contains(words), "{error}");
        };
        check("", &key, "tls_certificate", "has no certificate (a section BEGIN CERTIFICATE");
        check(&key, &certificate, "tls_certificate", "has no certificate");
        check(&certificate[..certificate.len() - 20], &key, "tls_certificate", "no intact PEM");
        check(&pem("CERTIFICATE", b"x"), &key, "tls_certificate", "is damaged");
        check(&certificate, &certificate, "tls_key", "has no private key");
        check(&certificate, &key[..key.len() - 20], "tls_key", "no intact PEM");
        check(&certificate, &pem("PRIVATE KEY", b"x"), "tls_key", "cannot be used");
        check(&certificate, &pem("ENCRYPTED PRIVATE KEY", b"x"), "tls_key", "is encrypted: decrypt it");
        check(
            &certificate,
            &other,
            "tls_key",
            "does not belong to the first certificate of server.tls_certificate",
        );
        assert!(read_pem(&certificate, &key).is_ok());
    }

    #[test]
    fn files_that_are_not_there_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let check = |settings: &Config, name: &str| {
            let error = Tls::read(settings).err().expect(name);
            assert!(error.key == name && error.problem.contains("no such file"), "{error}");
        };
        let (certificate, key) = make("a.example");
        check(&settings(folder.path()), "tls_certificate");
        std::fs::write(folder.path().join("certificate"), pem("CERTIFICATE", &certificate)).unwrap();
        check(&settings(folder.path()), "tls_key");
        std::fs::write(folder.path().join("key"), pem("PRIVATE KEY", key.secret_der())).unwrap();
        let ca = Config { tls_client_ca: Some(folder.path().join("ca")), ..settings(folder.path()) };
        check(&ca, "tls_client_ca");
        assert!(Tls::read(&Config::default()).unwrap().is_none());
    }

    #[test]
    fn keys_of_sec1_and_chains_are_read() {
        let (certificate, key) = make("a.example");
        // The last value of PKCS#8 is the key of SEC 1: a sequence of a version, 32 bytes, and the public key.
        let der = key.secret_der();
        let version = der.windows(5).position(|bytes| bytes == [0x02, 1, 1, 0x04, 32]).unwrap();
        let sec1 = &der[version - 2..];
        let chain = pem("CERTIFICATE", &certificate) + &pem("CERTIFICATE", &make("ca.example").0);
        let tls = read_pem(&chain, &pem("EC PRIVATE KEY", sec1)).unwrap();
        assert_eq!(tls.chain.len(), 2);
    }

    #[test]
    fn the_end_of_a_certificate_is_read() {
        for (until, expected) in [("491231235959Z", "2049-12-31"), ("250304050607Z", "2025-03-04")] {
            let tls = read_made(&issue("a.example", until.as_bytes(), None));
            assert_eq!(date(tls.valid_until_s().unwrap()), expected);
            assert_eq!(tls.warn_of_end(), expected < "2026");
        }
    }

    /// The sides of a handshake with a client that trusts the server, and has a certificate of its `own`.
    async fn shake_hands(tls: &Tls, server: &Made, own: Made) -> io::Result<()> {
        let mut roots = RootCertStore::empty();
        roots.add(server.0.clone()).unwrap();
        // Not looked at on this side: what is wrong with it is for the server to see.
        let own = CertifiedKey::new(vec![own.0], ring::sign::any_supported_type(&own.1).unwrap());
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(own)));
        let (near, far) = tokio::io::duplex(64 << 10);
        let name = ServerName::try_from("a.example").unwrap();
        let connector = TlsConnector::from(Arc::new(config));
        let (served, _client) = tokio::join!(tls.handshake(near), connector.connect(name, far));
        served.map(drop)
    }

    /// Regression: a client learned nothing but that its certificate was refused, and the log had no line.
    #[tokio::test]
    async fn a_client_certificate_that_is_refused_is_a_problem_with_a_remedy() {
        const UNTIL: &[u8] = b"491231235959Z";
        let folder = tempfile::tempdir().unwrap();
        let (server, ca) = (make("a.example"), make("ca.example"));
        let write = |name: &str, text: String| std::fs::write(folder.path().join(name), text).unwrap();
        write("certificate", pem("CERTIFICATE", &server.0));
        write("key", pem("PRIVATE KEY", server.1.secret_der()));
        write("ca", pem("CERTIFICATE", &ca.0));
        let files = Config { tls_client_ca: Some(folder.path().join("ca")), ..settings(folder.path()) };
        let tls = Tls::read(&files).unwrap().unwrap();
        let signed = Some(("ca.example", &ca.1));
        shake_hands(&tls, &server, issue("team-a", UNTIL, signed)).await.unwrap();
        for (own, words) in [
            (issue_v1("team-a", UNTIL, signed), "X.509 version 1: issue it with extensions"),
            (issue("team-a", b"250301000000Z", signed), "expired"),
            (make("team-a"), "server.tls_client_ca must have signed it"),
        ] {
            let failure = shake_hands(&tls, &server, own).await.expect_err(words);
            let problem = certificate_problem(&failure).expect(words);
            assert!(problem.contains(words), "{problem}");
        }
        assert_eq!(certificate_problem(&io::Error::other("reset")), None);
    }

    /// A record that waits below a flush is what a client does not read.
    #[tokio::test]
    async fn a_client_that_stops_reading_is_let_go() {
        let made = make("a.example");
        let tls = read_made(&made);
        let mut roots = RootCertStore::empty();
        roots.add(made.0).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let (near, far) = tokio::io::duplex(1024);
        let patience = Duration::from_millis(50);
        let name = ServerName::try_from("a.example").unwrap();
        let connector = TlsConnector::from(Arc::new(config));
        let (server, client) =
            tokio::join!(tls.handshake(TimedWrites::new(near, patience)), connector.connect(name, far));
        let (mut server, client) = (server.unwrap(), client.unwrap());
        server.write_all(&[0; 8192]).await.unwrap();
        assert_eq!(server.flush().await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop(client);
    }
}
