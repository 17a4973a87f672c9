//! Metrics of pictures, `perigee_vision_*`.

use std::time::Duration;

use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, Opts, Registry};

use super::native::register;

/// Seconds; from a small picture to a large one on a few cores.
const SECONDS: &[f64] = &[
    0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0,
    300.0,
];

/// Reason why an image was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageRefusal {
    /// A kind of source that is not read.
    Source,
    /// Bytes that are no whole image of a known format.
    Format,
    /// More images, bytes or pixels than allowed.
    Limit,
    /// A remote image that could not be had.
    Remote,
    /// Time was up.
    Timeout,
}

const REFUSALS: [&str; 5] = ["source", "format", "limit", "remote", "timeout"];

/// Registered handles.
pub(super) struct VisionMetrics {
    encoded: IntCounter,
    kept: IntCounter,
    prefix: IntCounter,
    patches: IntCounter,
    encoder: Histogram,
    encoder_wait: Histogram,
    decode: Histogram,
    preprocess: Histogram,
    refused: [IntCounter; 5],
}

impl VisionMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        let histogram = |name: &str, help: &str| {
            register(registry, Histogram::with_opts(HistogramOpts::new(name, help).buckets(SECONDS.to_vec())))
        };
        let counters = |name: &str, help: &str, label: &str| {
            register(registry, IntCounterVec::new(Opts::new(name, help), &[label]))
        };
        let images = counters(
            "perigee_vision_images_total",
            "Images of prompts, by where their embeddings came from: the encoder, rows kept of an earlier image, a cached prefix.",
            "source",
        );
        let refused = counters(
            "perigee_vision_refused_images_total",
            "Requests refused for an image, by reason.",
            "reason",
        );
        Self {
            encoded: images.with_label_values(&["encoder"]),
            kept: images.with_label_values(&["kept"]),
            prefix: images.with_label_values(&["prefix"]),
            patches: register(
                registry,
                IntCounter::new("perigee_vision_patches_total", "Patches that went through the encoder."),
            ),
            encoder: histogram(
                "perigee_vision_encoder_seconds",
                "Time that the encoder computed for the images of one batch.",
            ),
            encoder_wait: histogram(
                "perigee_vision_encoder_wait_seconds",
                "Time from the start of a batch of images to its end, steps of the model between its parts included.",
            ),
            decode: histogram("perigee_vision_decode_seconds", "Time to decode one image."),
            preprocess: histogram(
                "perigee_vision_preprocess_seconds",
                "Time to resize one image and cut it to patches.",
            ),
            refused: REFUSALS.map(|reason| refused.with_label_values(&[reason])),
        }
    }

    pub(super) fn record_encoded(&self, patches: usize, computed: Duration, waited: Duration) {
        self.patches.inc_by(patches as u64);
        self.encoder.observe(computed.as_secs_f64());
        self.encoder_wait.observe(waited.as_secs_f64());
    }

    pub(super) fn record_uses(&self, kept: usize, encoded: usize, prefix: usize) {
        self.kept.inc_by(kept as u64);
        self.encoded.inc_by(encoded as u64);
        self.prefix.inc_by(prefix as u64);
    }

    pub(super) fn record_preprocessed(&self, decode: Duration, preprocess: Duration) {
        self.decode.observe(decode.as_secs_f64());
        self.preprocess.observe(preprocess.as_secs_f64());
    }

    pub(super) fn record_refused(&self, reason: ImageRefusal) {
        self.refused[reason as usize].inc();
    }
}
