//! Settings of pictures in requests.

#[cfg(test)]
mod tests;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Limits;

/// Pictures in requests to a model that sees: what is taken, and what reading it may cost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Most images of a request; more are answered 400. Larger: more memory and encoder time for one request.
    pub max_images: usize,
    /// Most bytes of a request's body where the model sees images, in place of a smaller server.max_body_bytes.
    /// Larger: more memory per request in flight.
    pub max_body_bytes: usize,
    /// Most bytes of an image's file, after base64. Larger: bigger bodies, which vision.max_body_bytes must
    /// allow too.
    pub max_image_bytes: usize,
    /// Most pixels of an image, width times height, checked before it is decoded. Larger: up to 15 bytes of
    /// memory and 20 ns of a processor core for each pixel.
    pub max_image_pixels: u64,
    /// Most pixels of all images of a request. Larger: one request holds the decoding threads longer.
    pub max_request_pixels: u64,
    /// Most patches of an image before padding, 0 = the checkpoint's limit (16384 in the K2.5 line); larger
    /// images are scaled down to it. Four patches are a token. Lower: fewer tokens and less encoder time for
    /// large images, and fewer details.
    pub patch_limit: usize,
    /// What the model sees of a file: "upright" = turned as its EXIF tag says, transparency over white, the
    /// high byte of 16-bit samples, as people see it; "released" = as the released image processor reads it,
    /// without all of these.
    pub compositing: Compositing,
    /// Threads that decode and resize images. Larger: less wait where many images come at once, and fewer
    /// cores for other work.
    pub decode_threads: usize,
    /// Longest time for decoding an image, seconds; one that takes longer is answered 400. Larger: a file
    /// made to be slow holds a thread longer.
    pub decode_timeout_s: f64,
    /// Most bytes of pixels of images that are being decoded or wait for the encoder; an image that finds no
    /// room waits. Must hold one image of max_image_pixels. Larger: more images at once.
    pub decode_memory_bytes: u64,
    /// Most bytes of encoder outputs kept for images that come again, 0 = none; 14336 bytes a token in the
    /// K2.5 line. Larger: images of more conversations are not encoded again.
    pub cache_bytes: u64,
    /// Host names from which images of http and https URLs are fetched, without scheme and port; none = such
    /// URLs are answered 400. Every host is one that a client can make the server send requests to.
    pub remote_hosts: Vec<String>,
    /// Whether images are fetched over http too. true = they can be read and changed on their way.
    pub remote_http: bool,
    /// Longest time for fetching an image, seconds, redirects included. Larger: slow hosts hold requests
    /// longer.
    pub remote_timeout_s: f64,
}

/// What the model sees of a file's pixels.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Compositing {
    /// Turned by the EXIF orientation, transparency over white, the high byte of 16-bit samples.
    #[default]
    Upright,
    /// As the released image processor reads files with Pillow: in stored position, the colour under
    /// transparent pixels, 16-bit gray clipped at 255.
    Released,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_images: 16,
            max_body_bytes: 100 << 20,
            max_image_bytes: 20_000_000,
            max_image_pixels: 64_000_000,
            max_request_pixels: 128_000_000,
            patch_limit: 0,
            compositing: Compositing::Upright,
            decode_threads: 2,
            decode_timeout_s: 10.0,
            decode_memory_bytes: 1 << 30,
            cache_bytes: 256 << 20,
            remote_hosts: Vec::new(),
            remote_http: false,
            remote_timeout_s: 5.0,
        }
    }
}

impl Config {
    /// Largest `max_images`.
    pub const MAX_IMAGES: usize = 1024;
    /// Largest number of pixels: 65535x65535, what headers can state.
    pub const MAX_PIXELS: u64 = 65_535 * 65_535;
    /// Bytes of memory for a pixel that a decoder takes at most, its result included.
    pub const MEMORY_BYTES_PER_PIXEL: u64 = 15;

    /// Limits of one image.
    pub fn limits(&self) -> Limits {
        Limits { max_bytes: self.max_image_bytes, max_pixels: self.max_image_pixels, ..Limits::default() }
    }

    /// Keys outside their limits, with the limit.
    pub fn validate(&self) -> Vec<(&'static str, String)> {
        let mut problems = Vec::new();
        for (key, value, low, high) in [
            ("max_images", self.max_images as u64, 1, Self::MAX_IMAGES as u64),
            ("max_body_bytes", self.max_body_bytes as u64, 1024, 1 << 30),
            ("max_image_bytes", self.max_image_bytes as u64, 1, 1 << 32),
            ("max_image_pixels", self.max_image_pixels, 1, Self::MAX_PIXELS),
            ("max_request_pixels", self.max_request_pixels, self.max_image_pixels, u64::MAX),
            ("patch_limit", self.patch_limit as u64, 0, 1 << 25),
            ("decode_threads", self.decode_threads as u64, 1, 256),
        ] {
            if !(low..=high).contains(&value) {
                problems.push((key, format!("must be from {low} to {high}")));
            }
        }
        for (key, seconds) in
            [("decode_timeout_s", self.decode_timeout_s), ("remote_timeout_s", self.remote_timeout_s)]
        {
            if !(seconds > 0.0 && seconds <= 600.0) {
                problems.push((key, "must be above 0 and at most 600".into()));
            }
        }
        let largest_image = self.max_image_pixels.saturating_mul(Self::MEMORY_BYTES_PER_PIXEL);
        if self.decode_memory_bytes < largest_image {
            problems.push((
                "decode_memory_bytes",
                format!("must be at least {largest_image}, 15 bytes for each of max_image_pixels"),
            ));
        }
        if let Some(host) = self.remote_hosts.iter().find(|host| !is_host_name(host)) {
            problems
                .push(("remote_hosts", format!("\"{host}\" is not a host name, such as images.example.org")));
        }
        problems
    }
}

/// Letters, digits, hyphens and dots, nothing else: no scheme, port, user or path.
fn is_host_name(host: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    host.len() <= 253 && host.split('.').all(is_label)
}
