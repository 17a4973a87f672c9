//! The listening socket: a TCP address or a Unix socket.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::process::umask;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use super::Config;

/// A connection, plain or TLS, read and written as bytes.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A bound socket.
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A connected socket.
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Address of a bound socket.
#[derive(Debug)]
pub(super) enum Address {
    Tcp(SocketAddr),
    Unix(SocketFile),
}

/// The file of a bound Unix socket. Dropping it removes the file, unless another socket has taken
/// its place.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    /// Device and inode numbers of the file.
    identity: (u64, u64),
}

impl Listener {
    /// Binds the socket that the settings name.
    pub(super) async fn bind(config: &Config) -> io::Result<(Self, Address)> {
        if let Some(path) = &config.unix_socket {
            let (listener, file) = bind_unix(path, config.socket_mode().unwrap_or(0o600)).await?;
            return Ok((Self::Unix(listener), Address::Unix(file)));
        }
        let listener = TcpListener::bind((config.host.as_str(), config.port)).await?;
        let addr = listener.local_addr()?;
        Ok((Self::Tcp(listener), Address::Tcp(addr)))
    }

    /// The next connection.
    pub(super) async fn accept(&self) -> io::Result<Socket> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Tokens are sent as they come, without waiting for a full packet.
                let _ = stream.set_nodelay(true);
                Ok(Socket::Tcp(stream))
            }
            Self::Unix(listener) => Ok(Socket::Unix(listener.accept().await?.0)),
        }
    }
}

impl Socket {
    /// Address of the other end; `None` for a Unix socket, or one that has gone.
    pub(super) fn peer(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(socket) => socket.peer_addr().ok().map(|address| address.ip()),
            Self::Unix(_) => None,
        }
    }
}

impl Address {
    /// Whether the socket can be reached by IP from this machine only.
    pub(super) fn is_loopback(&self) -> bool {
        matches!(self, Self::Tcp(addr) if addr.ip().to_canonical().is_loopback())
    }

    /// The address as operators write it: `http://ADDRESS:PORT`, `https://` with TLS, or `unix:PATH`.
    pub(super) fn url(&self, tls: bool) -> String {
        match self {
            Self::Tcp(addr) if tls => format!("https://{addr}"),
            Self::Tcp(addr) => format!("http://{addr}"),
            Self::Unix(file) => format!("unix:{}", file.path.display()),
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|m| (m.dev(), m.ino()) == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

async fn bind_unix(path: &Path, mode: u32) -> io::Result<(UnixListener, SocketFile)> {
    remove_stale(path).await?;
    // The kernel creates the file with the permissions that the umask leaves; a later chmod would
    // leave a moment in which any user could connect.
    let before = umask(Mode::from_bits_truncate(!mode & 0o777));
    let bound = UnixListener::bind(path);
    umask(before);
    let listener = bound?;
    let metadata = fs::symlink_metadata(path)?;
    let file = SocketFile { path: path.to_owned(), identity: (metadata.dev(), metadata.ino()) };
    Ok((listener, file))
}

/// Removes a socket file without a listener; refuses to remove any other file.
async fn remove_stale(path: &Path) -> io::Result<()> {
    let refused = |what: &str| Err(io::Error::new(io::ErrorKind::AddrInUse, what.to_owned()));
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(metadata) if !metadata.file_type().is_socket() => refused("the file exists and is not a socket"),
        Ok(_) => match UnixStream::connect(path).await {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
            // A full backlog or a missing permission also indicates a listener.
            _ => refused("another process listens on it"),
        },
    }
}
