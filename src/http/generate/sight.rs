//! Images of requests: from what clients send to pictures in a prompt.
//!
//! A prompt's tokens need an image's header alone: its size decides how many there are. Pixels are decoded
//! after the prompt was found to fit, on threads of their own, within bounds on memory and time, and no longer
//! than the client waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::GenerateError;
use super::fetching::FetchImages;
use perigee_engine::scheduler::MediaHash;
use perigee_engine::{Media, VisionFacts};
use perigee_model::vision::{
    self, Grid, Header, ImageError, ImageSource, Limits, Preprocessor, SourceError, content_hash,
    decode_base64,
};
use perigee_ops::Picture;
use perigee_telemetry::{ImageRefusal, Metrics};

/// An image of a conversation, as it was sent.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageInput {
    /// Its place in the request's body, for errors.
    pub place: String,
    /// What the client sent.
    pub data: ImageData,
}

/// Where an image's bytes are.
#[derive(Debug, Clone, PartialEq)]
pub enum ImageData {
    /// A URL; most are `data:` URLs.
    Url(String),
    /// Base64 alone.
    Base64(String),
    /// Bytes that were fetched.
    Bytes(Vec<u8>),
}

impl ImageInput {
    /// Bytes of what was sent.
    pub(super) fn len(&self) -> usize {
        match &self.data {
            ImageData::Url(text) | ImageData::Base64(text) => text.len(),
            ImageData::Bytes(bytes) => bytes.len(),
        }
    }

    fn refused(&self, refusal: ImageRefusal, reason: impl ToString) -> GenerateError {
        GenerateError::Image { place: self.place.clone(), reason: reason.to_string(), refusal }
    }
}

/// An image whose header was read.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageFile {
    place: String,
    bytes: Vec<u8>,
    header: Header,
    grid: Grid,
}

impl ImageFile {
    /// Tokens of the image.
    pub fn tokens(&self) -> usize {
        self.grid.tokens()
    }

    fn refused(&self, refusal: ImageRefusal, reason: impl ToString) -> GenerateError {
        GenerateError::Image { place: self.place.clone(), reason: reason.to_string(), refusal }
    }
}

/// An image among the tokens of a prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct PlacedImage {
    /// Position of its first token.
    pub start: usize,
    /// Number of its tokens.
    pub tokens: usize,
    /// The image, until it was decoded.
    pub file: Option<Arc<ImageFile>>,
}

/// How a model sees.
#[derive(Debug, Clone)]
pub struct Sight {
    preprocessor: Preprocessor,
    config: vision::Config,
    media_token_id: u32,
}

impl Sight {
    /// That of a checkpoint's preprocessor under the operator's limits.
    pub fn new(preprocessor: Preprocessor, config: vision::Config, media_token_id: u32) -> Self {
        Self { preprocessor, config, media_token_id }
    }

    /// Id of the token that stands for a row of an image.
    pub fn media_token_id(&self) -> u32 {
        self.media_token_id
    }

    fn limits(&self) -> Limits {
        self.config.limits()
    }

    /// Reads the headers of a conversation's images.
    ///
    /// Errors: an image that cannot be read, by its header, or is more than the limits allow.
    pub fn open(&self, images: Vec<ImageInput>) -> Result<Vec<Arc<ImageFile>>, GenerateError> {
        if let Some(image) = images.get(self.config.max_images) {
            let (count, limit) = (images.len(), self.config.max_images);
            let reason =
                format!("{count} images are more than the limit of {limit} a request (vision.max_images)");
            return Err(image.refused(ImageRefusal::Limit, reason));
        }
        let mut pixels = 0;
        images
            .into_iter()
            .map(|mut image| {
                let bytes = self.bytes(&mut image)?;
                let header = vision::read_header(&bytes, &self.limits());
                let header = header.map_err(|error| image.refused(kind_of(&error), error))?;
                pixels += u64::from(header.width) * u64::from(header.height);
                let limit = self.config.max_request_pixels;
                if pixels > limit {
                    let reason = format!(
                        "the images up to this one have {pixels} pixels, more than the limit of {limit} a request \
                         (vision.max_request_pixels)"
                    );
                    return Err(image.refused(ImageRefusal::Limit, reason));
                }
                let (width, height) = header.size(self.config.compositing);
                let grid = self.preprocessor.grid(width as usize, height as usize);
                let grid = grid.map_err(|error| image.refused(ImageRefusal::Limit, error))?;
                Ok(Arc::new(ImageFile { place: image.place, bytes, header, grid }))
            })
            .collect()
    }

    fn bytes(&self, image: &mut ImageInput) -> Result<Vec<u8>, GenerateError> {
        let limit = self.config.max_image_bytes;
        let payload = match &mut image.data {
            ImageData::Bytes(bytes) => return Ok(std::mem::take(bytes)),
            ImageData::Base64(payload) => payload.as_str(),
            ImageData::Url(url) => match ImageSource::parse_url(url) {
                Ok(ImageSource::Base64(payload)) => payload,
                Ok(ImageSource::Remote(_)) => return Err(image.refused(ImageRefusal::Source, NOT_FETCHED)),
                Err(error) => return Err(image.refused(ImageRefusal::Source, error)),
            },
        };
        decode_base64(payload, limit).map_err(|error| {
            let too_large = matches!(error, SourceError::TooManyBytes { .. });
            image.refused(if too_large { ImageRefusal::Limit } else { ImageRefusal::Format }, error)
        })
    }

    /// Decodes, resizes and cuts an image; also the times of both parts.
    fn picture(
        &self,
        file: &ImageFile,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<(Picture, [Duration; 2]), GenerateError> {
        let begun = Instant::now();
        let rgb =
            vision::decode(&file.bytes, &file.header, &self.limits(), self.config.compositing, cancelled);
        let rgb = rgb.map_err(|error| match error {
            ImageError::Cancelled => {
                let limit = self.config.decode_timeout_s;
                let reason =
                    format!("decoding the image takes longer than {limit} s (vision.decode_timeout_s)");
                file.refused(ImageRefusal::Timeout, reason)
            }
            error => file.refused(kind_of(&error), error),
        })?;
        let decoded = begun.elapsed();
        let picture = vision::picture(&self.preprocessor, &rgb);
        let picture = picture.map_err(|error| file.refused(ImageRefusal::Limit, error))?;
        Ok((picture, [decoded, begun.elapsed() - decoded]))
    }

    /// Name of an image's rows: of all that decides them, and of the tenant, because a hit shows in the time it takes.
    fn name(&self, file: &ImageFile, salt: Option<&str>) -> MediaHash {
        let content = content_hash(&file.bytes, &self.preprocessor, self.config.compositing);
        let Some(salt) = salt else { return content };
        let mut hasher = blake3::Hasher::new_keyed(&content);
        hasher.update(salt.as_bytes());
        *hasher.finalize().as_bytes()
    }
}

/// Answer to an http or https URL where none may be fetched.
const NOT_FETCHED: &str = "images of http and https URLs are not fetched; send the image as a data: URL, or allow the host in \
                           vision.remote_hosts";

fn kind_of(error: &ImageError) -> ImageRefusal {
    match error {
        ImageError::TooManyBytes { .. }
        | ImageError::TooManyPixels { .. }
        | ImageError::SideTooLong { .. }
        | ImageError::TooManyScans { .. } => ImageRefusal::Limit,
        ImageError::Cancelled => ImageRefusal::Timeout,
        _ => ImageRefusal::Format,
    }
}

/// Permits are of this many bytes: their number is 32 bits.
const PERMIT_BYTES: u64 = 4096;

fn permits(bytes: u64) -> u32 {
    bytes.div_ceil(PERMIT_BYTES).min(u64::from(u32::MAX)) as u32
}

/// Decodes the images of requests. Clones share their memory.
#[derive(Clone)]
pub(super) struct Seeing {
    sight: Arc<Sight>,
    facts: VisionFacts,
    fetch: Option<Arc<dyn FetchImages>>,
    /// Threads that decode.
    threads: Arc<Semaphore>,
    /// Memory of the files being decoded.
    decoding: Arc<Semaphore>,
    /// Memory of the pictures that wait for the encoder, or run.
    waiting: Arc<Semaphore>,
}

/// Tells decoders that nobody waits for them any more.
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Seeing {
    pub(super) fn new(sight: Arc<Sight>, facts: VisionFacts, fetch: Option<Arc<dyn FetchImages>>) -> Self {
        let config = &sight.config;
        let memory = permits(config.decode_memory_bytes) as usize;
        Self {
            threads: Arc::new(Semaphore::new(config.decode_threads)),
            decoding: Arc::new(Semaphore::new(memory)),
            waiting: Arc::new(Semaphore::new(memory)),
            sight,
            facts,
            fetch,
        }
    }

    /// Fetches the remote images among `images`.
    pub(super) async fn fetch(&self, images: &mut [ImageInput]) -> Result<(), GenerateError> {
        let Some(fetch) = &self.fetch else { return Ok(()) };
        for image in images.iter_mut().take(self.sight.config.max_images) {
            let url = match &image.data {
                ImageData::Url(url) => match ImageSource::parse_url(url) {
                    Ok(ImageSource::Remote(url)) => url.to_owned(),
                    _ => continue,
                },
                ImageData::Base64(_) | ImageData::Bytes(_) => continue,
            };
            let bytes =
                fetch.fetch(url).await.map_err(|reason| image.refused(ImageRefusal::Remote, reason))?;
            image.data = ImageData::Bytes(bytes);
        }
        Ok(())
    }

    /// The pictures of a prompt. Dropping the future stops the decoders.
    pub(super) async fn see(
        &self,
        images: &mut [PlacedImage],
        salt: Option<&str>,
        metrics: &Arc<Metrics>,
    ) -> Result<Vec<Media>, GenerateError> {
        // The files are in memory no longer than they are decoded.
        let files: Vec<_> =
            images.iter_mut().filter_map(|image| Some((image.start, image.file.take()?))).collect();
        let Some((_, first)) = files.first() else { return Ok(Vec::new()) };
        if !self.facts.hold(files.iter().map(|(_, file)| file.tokens())) {
            let tokens: usize = files.iter().map(|(_, file)| file.tokens()).sum();
            let reason = format!(
                "the images of this request take {tokens} tokens, and room is for {} at a time: send fewer or smaller images, \
                 or raise vision.cache_bytes",
                self.facts.num_rows
            );
            return Err(first.refused(ImageRefusal::Limit, reason));
        }
        // For the whole request at once: requests that each hold a part would wait for each other.
        let pixels = |file: &ImageFile| (file.grid.patches() * perigee_ops::PATCH_VALUES) as u64;
        let needed = files.iter().map(|(_, file)| pixels(file)).sum();
        let mut held = self.reserve(&self.waiting, needed, first).await?;
        let mut seen = Vec::with_capacity(files.len());
        for (start, file) in &files {
            let hold = held.split(permits(pixels(file)) as usize);
            let picture = self.decode(file.clone(), metrics).await?;
            let picture = match hold {
                Some(hold) => picture.holding(Box::new(hold)),
                // The last one: the sum was rounded up once.
                None => picture,
            };
            let hash = self.sight.name(file, salt);
            seen.push(Media { start: *start, hash, picture: Arc::new(picture) });
        }
        Ok(seen)
    }

    async fn decode(&self, file: Arc<ImageFile>, metrics: &Arc<Metrics>) -> Result<Picture, GenerateError> {
        let memory = self.reserve(&self.decoding, file.header.memory_bytes(), &file).await?;
        let Ok(thread) = self.threads.clone().acquire_owned().await else {
            return Err(GenerateError::Draining);
        };
        let limit = Duration::from_secs_f64(self.sight.config.decode_timeout_s);
        let given_up = Arc::new(AtomicBool::new(false));
        let _cancel = CancelOnDrop(given_up.clone());
        let (sight, metrics, decoded) = (self.sight.clone(), metrics.clone(), file.clone());
        let work = tokio::task::spawn_blocking(move || {
            let _held = (memory, thread);
            let end = Instant::now() + limit;
            let cancelled = || given_up.load(Ordering::Relaxed) || Instant::now() >= end;
            let (picture, [decode, preprocess]) = sight.picture(&decoded, &cancelled)?;
            metrics.record_preprocessed(decode, preprocess);
            Ok(picture)
        });
        match work.await {
            Ok(outcome) => outcome,
            Err(error) => {
                Err(file.refused(ImageRefusal::Format, format!("the image cannot be decoded: {error}")))
            }
        }
    }

    /// Waits for memory, no longer than an image may take.
    async fn reserve(
        &self,
        memory: &Arc<Semaphore>,
        bytes: u64,
        file: &ImageFile,
    ) -> Result<OwnedSemaphorePermit, GenerateError> {
        let config = &self.sight.config;
        if bytes > config.decode_memory_bytes {
            let limit = config.decode_memory_bytes;
            let reason = format!(
                "{bytes} bytes of pixels are more than there is room for: {limit} (vision.decode_memory_bytes)"
            );
            return Err(file.refused(ImageRefusal::Limit, reason));
        }
        let limit = Duration::from_secs_f64(config.decode_timeout_s);
        match tokio::time::timeout(limit, memory.clone().acquire_many_owned(permits(bytes))).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) => Err(GenerateError::Draining),
            Err(_) => Err(GenerateError::ImagesWait { limit_s: config.decode_timeout_s }),
        }
    }
}
