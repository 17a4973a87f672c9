//! Connections to remote hosts: a name is resolved once, every address is checked, and only a
//! checked address is connected to.
//!
//! A second resolution never happens, so a name server that changes its answer between check and
//! connection gains nothing. Proxy settings of the environment are not read.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::url::RemoteUrl;
use super::{FetchError, address};

/// Most addresses of a host that are tried.
const MAX_ATTEMPTS: usize = 4;

/// A connection, plain or TLS.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// Makes connections to remote hosts.
pub(super) struct Peers {
    tls: TlsConnector,
    /// Most time of the attempts at all addresses of a host.
    connect_time: Duration,
    #[cfg(test)]
    pub(super) seam: Option<Seam>,
}

/// A name service for tests: host and port to addresses.
#[cfg(test)]
pub(super) type Resolve = Box<dyn Fn(&str, u16) -> Vec<SocketAddr> + Send + Sync>;

/// Replaces the name service and the address policy in tests, which reach loopback servers only.
#[cfg(test)]
pub(super) struct Seam {
    pub(super) resolve: Resolve,
    pub(super) permits: fn(IpAddr) -> bool,
}

impl Peers {
    /// Trusts the certificates of Mozilla's root programme.
    pub(super) fn new(connect_time: Duration) -> Self {
        Self::trusting(webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect(), connect_time)
    }

    /// Trusts `roots`.
    pub(super) fn trusting(roots: RootCertStore, connect_time: Duration) -> Self {
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("the provider has cipher suites of both protocol versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        // A session ticket would tie one fetch to the next.
        config.resumption = Resumption::disabled();
        Self {
            tls: TlsConnector::from(Arc::new(config)),
            connect_time,
            #[cfg(test)]
            seam: None,
        }
    }

    /// Connects to the host of `url`, with TLS where the scheme asks for it.
    pub(super) async fn connect(&self, url: &RemoteUrl) -> Result<Box<dyn Stream>, FetchError> {
        let addresses = self.addresses(url).await?;
        let stream = self.reach(&addresses).await.map_err(FetchError::Connect)?;
        if !url.is_https() {
            return Ok(Box::new(stream));
        }
        let name = ServerName::try_from(url.host().to_owned()).map_err(|_| FetchError::HostForm)?;
        let stream = self.tls.connect(name, stream).await.map_err(FetchError::Tls)?;
        Ok(Box::new(stream))
    }

    /// The addresses of the URL's host, all of them checked.
    async fn addresses(&self, url: &RemoteUrl) -> Result<Vec<SocketAddr>, FetchError> {
        let addresses = self.resolve(url.host(), url.port()).await.map_err(FetchError::Resolve)?;
        if addresses.is_empty() {
            return Err(FetchError::Resolve(io::ErrorKind::NotFound.into()));
        }
        // A host that mixes public and other addresses is misconfigured or hostile.
        match addresses.iter().all(|address| self.permits(address.ip())) {
            true => Ok(addresses),
            false => Err(FetchError::NotPublic),
        }
    }

    /// Connects to the first address that accepts. Each has its share of the time, so that an
    /// address without a route leaves time for the next one.
    async fn reach(&self, addresses: &[SocketAddr]) -> io::Result<TcpStream> {
        let tried = &addresses[..addresses.len().min(MAX_ATTEMPTS)];
        let share = self.connect_time / tried.len().max(1) as u32;
        let mut failure = io::ErrorKind::TimedOut.into();
        for address in tried {
            match timeout(share, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => failure = error,
                Err(_) => {}
            }
        }
        Err(failure)
    }

    /// Asks the system's name service, on a thread of its own that outlives a fetch which ends
    /// before the name service answers.
    async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        #[cfg(test)]
        if let Some(seam) = &self.seam {
            return Ok((seam.resolve)(host, port));
        }
        Ok(tokio::net::lookup_host((host, port)).await?.collect())
    }

    fn permits(&self, address: IpAddr) -> bool {
        #[cfg(test)]
        if let Some(seam) = &self.seam {
            return (seam.permits)(address);
        }
        address::is_public(address)
    }
}
