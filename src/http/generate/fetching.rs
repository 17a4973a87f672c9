//! Images of http and https URLs, as the request walk asks for them.

use std::future::Future;
use std::pin::Pin;

/// Bytes of an image, or why they cannot be had.
pub type Fetched<'a> = Pin<Box<dyn Future<Output = Result<Vec<u8>, String>> + Send + 'a>>;

/// Fetches images from hosts that the operator allows.
pub trait FetchImages: Send + Sync {
    /// Bytes of the image at `url`. The error is for the client: it names no address and holds nothing of an answer.
    fn fetch(&self, url: String) -> Fetched<'_>;
}
