use std::cell::Cell;

use image::codecs::{
    bmp::BmpEncoder, gif::GifEncoder, jpeg::JpegEncoder, png::PngEncoder, webp::WebPEncoder,
};
use image::{ExtendedColorType, ImageEncoder};

use super::*;
use crate::vision::test_data::{Noise, golden};

pub(super) const UPRIGHT: Compositing = Compositing::Upright;

/// A file of noise in each format that can be written, with its pixels if it is lossless.
pub(super) fn encoded(format: Format, width: u32, height: u32) -> (Vec<u8>, Vec<u8>) {
    let pixels = Noise(width * 31 + height).bytes((width * height * 3) as usize);
    let mut file = Vec::new();
    let color = ExtendedColorType::Rgb8;
    match format {
        Format::Png => PngEncoder::new(&mut file).write_image(&pixels, width, height, color),
        Format::Jpeg => JpegEncoder::new(&mut file).write_image(&pixels, width, height, color),
        Format::WebP => WebPEncoder::new_lossless(&mut file).write_image(&pixels, width, height, color),
        Format::Bmp => BmpEncoder::new(&mut file).write_image(&pixels, width, height, color),
        Format::Gif => GifEncoder::new(&mut file).encode(&pixels, width, height, color),
    }
    .unwrap();
    (file, pixels)
}

pub(super) fn read(file: &[u8]) -> Result<Rgb, ImageError> {
    let limits = Limits::default();
    let header = read_header(file, &limits)?;
    let rgb = decode(file, &header, &limits, UPRIGHT, &|| false)?;
    assert_eq!((rgb.width() as u32, rgb.height() as u32), (header.width, header.height));
    Ok(rgb)
}

#[test]
fn lossless_files_give_their_pixels() {
    for format in [Format::Png, Format::WebP, Format::Bmp] {
        for (width, height) in [(1, 1), (17, 5), (64, 64)] {
            let (file, pixels) = encoded(format, width, height);
            assert_eq!(read_header(&file, &Limits::default()).unwrap().format, format);
            assert!(read(&file).unwrap().pixels() == pixels, "{format} of {width}x{height}");
        }
    }
}

/// EXIF with an orientation alone, of either byte order.
fn exif(orientation: u8, big_endian: bool) -> Vec<u8> {
    if big_endian {
        [&b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0"[..], &[orientation], b"\0\0\0\0\0\0"].concat()
    } else {
        [&b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0"[..], &[orientation], b"\0\0\0\0\0\0\0"].concat()
    }
}

fn png_chunk(name: &[u8; 4], body: &[u8]) -> Vec<u8> {
    let mut crc = !0u32;
    for &byte in name.iter().chain(body) {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
        }
    }
    [&(body.len() as u32).to_be_bytes(), &name[..], body, &(!crc).to_be_bytes()].concat()
}

/// The PNG with another chunk after its header.
pub(super) fn with_png_chunk(png: &[u8], name: &[u8; 4], body: &[u8]) -> Vec<u8> {
    [&png[..33], &png_chunk(name, body), &png[33..]].concat()
}

/// The eight orientations of a picture of 3x2 pixels as the EXIF standard draws them (the letter is the
/// pixel's value).
const TURNED: [(u8, u32, &str); 8] = [
    (1, 3, "abcdef"),
    (2, 3, "cbafed"),
    (3, 3, "fedcba"),
    (4, 3, "defabc"),
    (5, 2, "adbecf"),
    (6, 2, "daebfc"),
    (7, 2, "fcebda"),
    (8, 2, "cfbead"),
];

#[test]
fn orientations() {
    let pixels: Vec<u8> = b"abcdef".iter().flat_map(|&value| [value; 3]).collect();
    let mut png = Vec::new();
    PngEncoder::new(&mut png).write_image(&pixels, 3, 2, ExtendedColorType::Rgb8).unwrap();
    for (orientation, width, expected) in TURNED {
        for big_endian in [false, true] {
            let file = with_png_chunk(&png, b"eXIf", &exif(orientation, big_endian));
            let limits = Limits::default();
            let header = read_header(&file, &limits).unwrap();
            assert_eq!((header.width, header.height), (width, 6 / width), "orientation {orientation}");
            let upright = read(&file).unwrap();
            let letters: Vec<u8> = upright.pixels().as_chunks::<3>().0.iter().map(|pixel| pixel[0]).collect();
            assert_eq!(String::from_utf8(letters).unwrap(), expected, "orientation {orientation}");
            let stored = decode(&file, &header, &limits, Compositing::Released, &|| false).unwrap();
            assert_eq!((stored.width(), stored.pixels()), (3, &pixels[..]));
        }
    }
    // Values outside the standard are no orientation.
    for orientation in [0, 9, 255] {
        let file = with_png_chunk(&png, b"eXIf", &exif(orientation, false));
        assert_eq!(read(&file).unwrap().pixels(), pixels);
    }
}

#[test]
fn orientation_of_jpeg_and_webp() {
    let (jpeg, _) = encoded(Format::Jpeg, 40, 20);
    let body = [b"Exif\0\0", &exif(6, true)[..]].concat();
    let segment = [&[0xff, 0xe1], &(body.len() as u16 + 2).to_be_bytes()[..], &body].concat();
    let file = [&jpeg[..2], &segment, &jpeg[2..]].concat();
    let upright = read(&file).unwrap();
    assert_eq!((upright.width(), upright.height()), (20, 40));
    assert_eq!(upright, read(&jpeg).unwrap().turned(image::metadata::Orientation::Rotate90));

    let mut webp = Vec::new();
    let mut encoder = WebPEncoder::new_lossless(&mut webp);
    encoder.set_exif_metadata(exif(8, false)).unwrap();
    let pixels = Noise(3).bytes(40 * 20 * 3);
    encoder.write_image(&pixels, 40, 20, ExtendedColorType::Rgb8).unwrap();
    let upright = read(&webp).unwrap();
    assert_eq!((upright.width(), upright.height()), (20, 40));
}

#[test]
fn large_turns_equal_small_ones() {
    use image::metadata::Orientation::*;
    let picture = Rgb::new(101, 67, Noise(1).bytes(101 * 67 * 3));
    let twice = |a, b| picture.clone().turned(a).turned(b);
    assert_eq!(twice(Rotate90, Rotate270), picture);
    assert_eq!(twice(Rotate180, Rotate180), picture);
    assert_eq!(twice(Rotate90, Rotate90), picture.clone().turned(Rotate180));
    assert_eq!(twice(FlipHorizontal, FlipVertical), picture.clone().turned(Rotate180));
    assert_eq!(twice(Rotate90FlipH, Rotate90FlipH), picture);
    assert_eq!(twice(Rotate270FlipH, Rotate270FlipH), picture);
}

#[test]
fn transparency_over_white() {
    assert_eq!(
        [over_white(10, 255), over_white(10, 0), over_white(0, 128), over_white(255, 7)],
        [10, 255, 127, 255]
    );
    for alpha in 0..=255 {
        for value in 0..=255 {
            let exact = f64::from(value) * f64::from(alpha) / 255.0 + 255.0 - f64::from(alpha);
            assert!((f64::from(over_white(value, alpha)) - exact).abs() <= 0.51, "{value} {alpha}");
        }
    }
}

#[test]
fn sixteen_bits_and_alpha() {
    let color = |color, samples: &[u8], compositing| to_rgb(samples.to_vec(), color, compositing);
    let native = |values: &[u16]| values.iter().flat_map(|value| value.to_ne_bytes()).collect::<Vec<u8>>();
    use ColorType::*;
    use Compositing::{Released, Upright};
    assert_eq!(color(L16, &native(&[0x12ff, 0x00fe]), Upright), [0x12, 0x12, 0x12, 0, 0, 0]);
    assert_eq!(color(L16, &native(&[0x12ff, 0x00fe]), Released), [255, 255, 255, 254, 254, 254]);
    assert_eq!(color(La16, &native(&[0x12ff, 0]), Upright), [255; 3]);
    assert_eq!(color(La16, &native(&[0x12ff, 0]), Released), [0x12; 3]);
    assert_eq!(
        color(Rgb16, &native(&[0x12ff, 0x34ff, 0x5600, 1, 2, 3]), Upright),
        [0x12, 0x34, 0x56, 0, 0, 0]
    );
    assert_eq!(color(Rgba16, &native(&[0x12ff, 0x34ff, 0x5600, 0xffff]), Upright), [0x12, 0x34, 0x56]);
    assert_eq!(color(Rgba8, &[1, 2, 3, 0, 4, 5, 6, 255], Upright), [255, 255, 255, 4, 5, 6]);
    assert_eq!(color(Rgba8, &[1, 2, 3, 0, 4, 5, 6, 255], Released), [1, 2, 3, 4, 5, 6]);
    assert_eq!(color(La8, &[1, 0, 2, 255], Upright), [255, 255, 255, 2, 2, 2]);
}

#[test]
fn decoding_stops_when_cancelled() {
    for name in ["rgb.png", "progressive.jpg", "lossy.webp", "animated.gif"] {
        let file = golden(&format!("images/{name}"));
        let limits = Limits::default();
        let header = read_header(&file, &limits).unwrap();
        let result = decode(&file, &header, &limits, UPRIGHT, &|| true);
        assert!(matches!(result, Err(ImageError::Cancelled)), "{name}: {result:?}");
    }
    // In the middle of a file: the flag is looked at often enough.
    for format in [Format::Png, Format::Jpeg] {
        let (file, _) = encoded(format, 600, 500);
        let limits = Limits::default();
        let header = read_header(&file, &limits).unwrap();
        let looks = Cell::new(0);
        let count = || {
            looks.set(looks.get() + 1);
            looks.get() > 5
        };
        let result = decode(&file, &header, &limits, UPRIGHT, &count);
        assert!(matches!(result, Err(ImageError::Cancelled)), "{format}: {result:?}");
        assert!(looks.get() < 20, "{format}: {} looks", looks.get());
    }
}

#[test]
fn a_header_of_another_file_is_an_error() {
    let limits = Limits::default();
    let header = read_header(&golden("images/rgb.png"), &limits).unwrap();
    let result = decode(&golden("images/square.png"), &header, &limits, UPRIGHT, &|| false);
    assert!(matches!(result, Err(ImageError::Damaged { .. })), "{result:?}");
}
