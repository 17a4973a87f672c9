//! TLS towards a running server: which certificates are trusted.

use std::path::Path;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    ClientConfig, DigitallySignedStruct, Error, InvalidMessage, RootCertStore, SignatureScheme,
};

use perigee_http::server;

/// The certificates that a server may show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Trust {
    /// Those of Mozilla's root programme, for the name in the URL.
    Public,
    /// Those that one of these has signed, for the name in the URL; and these themselves, whatever their names and dates are.
    Listed(Vec<CertificateDer<'static>>),
    /// Any: the server is on this machine.
    Anyone,
}

impl Trust {
    /// `ca`: a PEM file, in place of the public roots.
    pub(super) fn of(ca: Option<&Path>) -> Result<Self, String> {
        match ca {
            None => Ok(Self::Public),
            Some(file) => server::read_certificates(file)
                .map(Self::Listed)
                .map_err(|problem| format!("--ca {}: {problem}", file.display())),
        }
    }

    /// A handshake with `host`, a name or an address.
    pub(super) async fn connect(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> Result<TlsStream<TcpStream>, String> {
        let name = ServerName::try_from(host.to_owned()).map_err(|error| format!("{host}: {error}"))?;
        let provider = Arc::new(ring::default_provider());
        let verifier =
            Verifier { trust: self.clone(), roots: self.roots(&provider)?, provider: provider.clone() };
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        let connector = TlsConnector::from(Arc::new(config));
        connector.connect(name, stream).await.map_err(|error| {
            let remedy = match error.get_ref().and_then(|cause| cause.downcast_ref::<Error>()) {
                Some(Error::InvalidCertificate(_)) => {
                    "; give the certificate of its CA, or its own, with --ca FILE"
                }
                Some(Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
                    "; it may speak HTTP without TLS: try http://"
                }
                _ => "",
            };
            format!("TLS: {error}{remedy}")
        })
    }

    /// The verifier of what is not trusted for itself.
    fn roots(&self, provider: &Arc<CryptoProvider>) -> Result<Option<Arc<WebPkiServerVerifier>>, String> {
        let mut roots = RootCertStore::empty();
        match self {
            Self::Public => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
            Self::Listed(listed) => {
                for certificate in listed {
                    roots.add(certificate.clone()).map_err(|error| format!("--ca: {error}"))?;
                }
            }
            Self::Anyone => return Ok(None),
        }
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
        verifier.map(Some).map_err(|error| error.to_string())
    }
}

/// [`Trust`], as rustls asks for it.
#[derive(Debug)]
struct Verifier {
    trust: Trust,
    /// `None` = any certificate.
    roots: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match (&self.trust, &self.roots) {
            (Trust::Listed(listed), _) if listed.iter().any(|one| one == certificate) => {
                Ok(ServerCertVerified::assertion())
            }
            (_, Some(roots)) => roots.verify_server_cert(certificate, intermediates, name, ocsp, now),
            (_, None) => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
