//! Speed of images on this machine's processor: from a file to the encoder's pixels, and the vision tower at the released sizes with random weights.

use std::fmt::Write as _;
use std::time::Instant;

use image::codecs::jpeg::JpegEncoder;
use serde::Serialize;

use perigee_cpu::CpuBackend;
use perigee_model::vision::{Compositing, Limits, Preprocessor, Rgb, decode, read_header, resize};
use perigee_numbers::quant::StoredMatrix;
use perigee_numbers::tensor::{Dtype, TensorView};
use perigee_ops::{
    BiasedMatrix, NormVectors, OpError, PATCH_VALUES, Picture, TowerBlockMatrices, TowerCapacity,
    TowerMatrices, TowerOps, TowerShape,
};

/// Blocks with weights of their own: more than a processor's caches hold, and a seventh of the memory of all of them.
const LOADED_BLOCKS: usize = 4;
/// Blocks of the released tower.
const BLOCKS: usize = 27;

/// The tower of the K2.5 line.
const SHAPE: TowerShape = TowerShape {
    hidden_size: 1152,
    num_layers: LOADED_BLOCKS,
    num_heads: 16,
    intermediate_size: 4304,
    table_rows: 64,
    table_cols: 64,
    out_size: 7168,
    projector_eps: 1e-5,
};

/// Size of the file that is decoded.
const FILE_SIZE: [u32; 2] = [4000, 3000];
/// The image processor of the K2.5 line.
const IMAGE_PROCESSOR: &[u8] = br#"{"media_proc_cfg": {"in_patch_limit": 16384, "patch_limit_on_one_side": 512, "patch_size": 14,
    "merge_kernel_size": 2, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "fixed_output_tokens": null}}"#;

/// Times from a JPEG to the encoder's pixels, on one core.
#[derive(Debug, Clone, Serialize)]
pub struct FileTime {
    /// Pixels, width and height.
    pub size: [u32; 2],
    /// Bytes of the file.
    pub bytes: usize,
    /// The same after scaling.
    pub resized: [usize; 2],
    /// Median seconds of header and decoding.
    pub decode_seconds: f64,
    /// Median seconds of scaling.
    pub resize_seconds: f64,
}

/// Times of one picture in the tower.
#[derive(Debug, Clone, Serialize)]
pub struct PictureTime {
    /// Pixels of a side.
    pub side: usize,
    /// Patches of 14 x 14 pixels, padding included.
    pub patches: usize,
    /// Tokens of a prompt, one of four patches.
    pub tokens: usize,
    /// Median seconds, and the fastest and slowest run.
    pub seconds: [f64; 3],
    /// Of products and attention.
    pub flop: f64,
}

/// Times of pictures of several sizes.
#[derive(Debug, Clone, Serialize)]
pub struct VisionReport {
    /// Threads that computed.
    pub threads: usize,
    /// Instruction set of the products.
    pub isa: String,
    /// What comes before the tower.
    pub file: FileTime,
    /// A line per size.
    pub pictures: Vec<PictureTime>,
}

impl VisionReport {
    /// As a table.
    pub fn table(&self) -> String {
        let FileTime { size: [width, height], bytes, resized, decode_seconds, resize_seconds } = &self.file;
        let [to_width, to_height] = resized;
        let (decoding, scaling) = (1e3 * decode_seconds, 1e3 * resize_seconds);
        let mut text = format!(
            "JPEG of {width}x{height}, {bytes} bytes, one thread: decoded in {decoding:.1} ms, scaled to {to_width}x{to_height} in {scaling:.1} ms\n\n\
             vision tower of the K2.5 line, random weights; {} threads, {}\n\n",
            self.threads, self.isa
        );
        let _ = writeln!(
            text,
            "{:>9}  {:>7}  {:>6}  {:>9}  {:>17}  {:>8}",
            "picture", "patches", "tokens", "s", "", "GFLOP/s"
        );
        for picture in &self.pictures {
            let [median, low, high] = picture.seconds;
            let size = format!("{0}x{0}", picture.side);
            let spread = format!("({low:.3}-{high:.3})");
            let (patches, tokens, rate) = (picture.patches, picture.tokens, picture.flop / median / 1e9);
            let _ = writeln!(
                text,
                "{size:>9}  {patches:>7}  {tokens:>6}  {median:>9.3}  {spread:>17}  {rate:>8.0}"
            );
        }
        text
    }
}

/// Activations of a picture: products, attention, projector.
fn flop(shape: &TowerShape, patches: usize) -> f64 {
    let (w, inner, merged) = (shape.hidden_size, shape.intermediate_size, shape.merged_size());
    let block = 2 * patches * (4 * w * w + 2 * w * inner) + 4 * patches * patches * w;
    let projector = 2 * patches / 4 * (merged * merged + merged * shape.out_size);
    (BLOCKS * block + 2 * patches * PATCH_VALUES * w + projector) as f64
}

/// Random bytes of bf16 values of about -1/16 to 1/16.
fn weights(count: usize, rng: &mut fastrand::Rng) -> Vec<u8> {
    let value = |rng: &mut fastrand::Rng| half::bf16::from_f32((rng.f32() - 0.5) / 8.0).to_le_bytes();
    std::iter::repeat_with(|| value(rng)).take(count).flatten().collect()
}

/// A JPEG with smooth areas, edges and noise.
fn file(rng: &mut fastrand::Rng) -> Vec<u8> {
    let [width, height] = FILE_SIZE;
    let mut pixels = Vec::with_capacity((width * height * 3) as usize);
    for (y, x) in (0..height).flat_map(|y| (0..width).map(move |x| (y, x))) {
        let noise = rng.u32(..16);
        let tile = if (x / 97 + y / 61) % 5 == 0 { 60 } else { 0 };
        let values = [x * 180 / width + noise, y * 180 / height + tile, 120 + tile + noise];
        pixels.extend(values.map(|value| value as u8));
    }
    let mut bytes = Vec::new();
    JpegEncoder::new_with_quality(&mut bytes, 90)
        .encode(&pixels, width, height, image::ExtendedColorType::Rgb8)
        .expect("the pixels are those of the size, and memory takes every byte");
    bytes
}

/// The result of the last run and the median of the seconds.
fn timed<T>(repeat: usize, mut run: impl FnMut() -> T) -> (T, f64) {
    let mut last = run();
    let mut seconds: Vec<f64> = (0..repeat)
        .map(|_| {
            let began = Instant::now();
            last = run();
            began.elapsed().as_secs_f64()
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    (last, seconds.get(repeat / 2).copied().unwrap_or_default())
}

/// Times a file's way to the tower, `repeat` times after one warm-up.
fn file_time(rng: &mut fastrand::Rng, repeat: usize) -> FileTime {
    let (bytes, limits) = (file(rng), Limits::default());
    let decoded = || -> Rgb {
        let header = read_header(&bytes, &limits).expect("the file is within the limits");
        decode(&bytes, &header, &limits, Compositing::Upright, &|| false).expect("the file is whole")
    };
    let processor = Preprocessor::parse(IMAGE_PROCESSOR, "kimi_k25").expect("the released settings");
    let [width, height] = FILE_SIZE;
    let grid = processor.grid(width as usize, height as usize).expect("a size that the model takes");
    let resized = grid.resized;
    let (rgb, decode_seconds) = timed(repeat, decoded);
    let (_, resize_seconds) = timed(repeat, || resize(&rgb, resized[0], resized[1]));
    FileTime { size: FILE_SIZE, bytes: bytes.len(), resized, decode_seconds, resize_seconds }
}

/// Times a file's way to the tower, and square pictures of these sides in it, `repeat` times each after one warm-up.
pub fn encode_times(
    backend: &mut CpuBackend,
    sides: &[usize],
    repeat: usize,
    progress: &mut dyn FnMut(&str),
) -> Result<VisionReport, OpError> {
    let shape = SHAPE;
    let (w, inner, merged) = (shape.hidden_size, shape.intermediate_size, shape.merged_size());
    let mut rng = fastrand::Rng::with_seed(1);
    progress("decoding and scaling");
    let file = file_time(&mut rng, repeat);
    progress("making weights");
    // The largest matrix; the others begin as it does.
    let bytes = weights(merged * shape.out_size, &mut rng);
    let sizes = [
        [w, PATCH_VALUES],
        [3 * w, w],
        [w, w],
        [inner, w],
        [w, inner],
        [merged, merged],
        [shape.out_size, merged],
    ];
    let lens = sizes.map(|[out, _]| [out]);
    let table = [shape.table_rows, shape.table_cols, w];
    let view = |shape| {
        let mut view = TensorView { dtype: Dtype::BF16, shape, bytes: &bytes };
        view.bytes = &bytes[..2 * view.len()];
        view
    };
    let linear =
        |i: usize| BiasedMatrix { weight: StoredMatrix::Plain(view(&sizes[i])), bias: view(&lens[i]) };
    let norm = || NormVectors { gain: view(&lens[2]), bias: view(&lens[2]) };
    let block = || TowerBlockMatrices {
        norm0: norm(),
        wqkv: linear(1),
        wo: linear(2),
        norm1: norm(),
        fc0: linear(3),
        fc1: linear(4),
    };
    let host = TowerMatrices {
        levels: [std::array::from_fn(|level| level as f32 / 127.5 - 1.0); 3],
        patch_embed: linear(0),
        positions: view(&table),
        blocks: (0..LOADED_BLOCKS).map(|_| block()).collect(),
        final_norm: norm(),
        pre_norm: norm(),
        linear_1: linear(5),
        linear_2: linear(6),
    };
    let patches_of = |side: usize| side.div_ceil(28) * 2;
    let max_patches = sides.iter().map(|side| patches_of(*side).pow(2)).max().unwrap_or(4);
    let capacity = TowerCapacity { max_patches, num_rows: max_patches / 4 };
    progress("loading");
    let mut tower = backend.load_tower(&host, &shape, &capacity)?;
    let mut pictures = Vec::new();
    for &side in sides {
        let rows = patches_of(side);
        let pixels = std::iter::repeat_with(|| rng.u8(..)).take(rows * rows * PATCH_VALUES).collect();
        let Some(picture) = Picture::new(rows, rows, pixels) else { continue };
        let to: Vec<u32> = (0..picture.num_tokens() as u32).collect();
        let mut seconds = Vec::with_capacity(repeat);
        for run in 0..=repeat {
            progress(&format!("{side}x{side}, run {run} of {repeat}"));
            let began = Instant::now();
            backend.begin_pictures(&[&picture], &mut tower)?;
            for block in 0..BLOCKS {
                backend.tower_block(block % LOADED_BLOCKS, &mut tower)?;
            }
            backend.project_pictures(&to, &mut tower)?;
            if run > 0 {
                seconds.push(began.elapsed().as_secs_f64());
            }
        }
        seconds.sort_by(f64::total_cmp);
        pictures.push(PictureTime {
            side,
            patches: picture.num_patches(),
            tokens: picture.num_tokens(),
            seconds: [seconds[seconds.len() / 2], seconds[0], seconds[seconds.len() - 1]],
            flop: flop(&shape, picture.num_patches()),
        });
    }
    Ok(VisionReport { threads: backend.num_threads(), isa: backend.isa().to_string(), file, pictures })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_of_the_released_tower() {
        for (patches, tflop) in [(256, 0.23), (1024, 1.00), (5476, 8.39), (16900, 49.9)] {
            let counted = flop(&SHAPE, patches) / 1e12;
            assert!((counted - tflop).abs() < 0.02 * tflop.max(0.3), "{patches} patches: {counted}");
        }
    }
}
