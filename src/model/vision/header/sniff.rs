//! The format of a file by its first bytes.

use crate::vision::Format;

/// The format of a supported file.
pub(super) fn format(bytes: &[u8]) -> Option<Format> {
    match bytes {
        [0x89, b'P', b'N', b'G', 0x0d, 0x0a, 0x1a, 0x0a, ..] => Some(Format::Png),
        [0xff, 0xd8, 0xff, ..] => Some(Format::Jpeg),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(Format::WebP),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some(Format::Gif),
        [b'B', b'M', ..] => Some(Format::Bmp),
        _ => None,
    }
}

/// What an unsupported file is, with its article, for an error's text.
pub(super) fn describe(bytes: &[u8]) -> &'static str {
    if let [_, _, _, _, b'f', b't', b'y', b'p', brand @ ..] = bytes {
        return match brand.get(..4).unwrap_or_default() {
            b"avif" | b"avis" | b"heic" | b"heix" | b"heim" | b"heis" | b"hevc" | b"hevx" | b"mif1"
            | b"msf1" => "an AVIF or HEIC image",
            _ => "an MP4 video",
        };
    }
    const MAGIC: &[(&[u8], &str)] = &[
        (b"II*\0", "a TIFF image"),
        (b"MM\0*", "a TIFF image"),
        (b"II+\0", "a TIFF image"),
        (b"MM\0+", "a TIFF image"),
        (b"\0\0\x01\0", "an ICO image"),
        (b"\0\0\x02\0", "a cursor image"),
        (b"\xff\x0a", "a JPEG XL image"),
        (b"\0\0\0\x0cJXL ", "a JPEG XL image"),
        (b"\0\0\0\x0cjP  ", "a JPEG 2000 image"),
        (b"\xff\x4f\xff\x51", "a JPEG 2000 image"),
        (b"8BPS", "a Photoshop file"),
        (b"%PDF", "a PDF document"),
        (b"%!PS", "a PostScript document"),
        (b"\x1a\x45\xdf\xa3", "a WebM or Matroska video"),
        (b"RIFF", "a RIFF file other than WebP"),
        (b"PK\x03\x04", "a ZIP archive"),
        (b"\x1f\x8b", "a gzip file"),
        (b"data:", "a data URL inside a data URL"),
    ];
    if let Some((_, found)) = MAGIC.iter().find(|(magic, _)| bytes.starts_with(magic)) {
        return found;
    }
    // The start of a cut signature, as a truncated file has it.
    if b"\x89PNG\r\n\x1a\n".starts_with(bytes) || b"\xff\xd8\xff".starts_with(bytes) {
        return "the truncated start of an image";
    }
    describe_text(bytes).unwrap_or("in an unknown format")
}

/// Bytes of the start in which markup is looked for.
const TEXT_BYTES: usize = 1024;

fn describe_text(bytes: &[u8]) -> Option<&'static str> {
    let start = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes).trim_ascii_start();
    let start = &start[..start.len().min(TEXT_BYTES)];
    let contains = |text: &[u8]| start.windows(text.len()).any(|window| window.eq_ignore_ascii_case(text));
    if start.starts_with(b"<") {
        return Some(match () {
            () if contains(b"<svg") => "an SVG drawing",
            () if contains(b"<!doctype html") || contains(b"<html") => "an HTML page",
            () => "an XML document",
        });
    }
    let is_text = |&byte: &u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace();
    match start.first()? {
        b'{' | b'[' if start.iter().all(is_text) => Some("a JSON document"),
        _ if start.iter().all(is_text) => Some("plain text"),
        _ => None,
    }
}
