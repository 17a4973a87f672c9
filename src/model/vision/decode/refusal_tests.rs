//! Files that are refused: each with an error that says why, none with a panic.

use super::tests::{encoded, read, with_png_chunk};
use super::*;
use crate::vision::test_data::{Noise, golden};

fn refusal(file: &[u8]) -> String {
    match read(file) {
        Ok(rgb) => panic!("a picture of {}x{}", rgb.width(), rgb.height()),
        Err(error @ ImageError::DecoderPanicked { .. }) => panic!("{error}"),
        Err(error) => error.to_string(),
    }
}

fn check(name: &str, file: &[u8], expected: &str) {
    let error = refusal(file);
    assert!(error.contains(expected), "{name}: {error}");
    assert!(error.starts_with(|c: char| c.is_lowercase()) && !error.ends_with('.'), "{name}: {error}");
}

#[test]
fn bad_files_of_the_oracle() {
    for (name, expected) in [
        ("bomb_20000x20000.png", "20000x20000 pixels, more than the limit of 64000000"),
        ("claims_65500x65500.jpg", "65500x65500 pixels, more than the limit of 64000000"),
        ("empty.png", "empty"),
        ("header_only_60000x60000.png", "60000x60000 pixels, more than the limit"),
        ("text.png", "an HTML page"),
        ("truncated.jpg", "the jpeg image is truncated"),
        ("truncated.png", "the png image is truncated"),
        ("vector.svg", "an SVG drawing"),
    ] {
        check(name, &golden(&format!("bad/{name}")), expected);
    }
}

#[test]
fn other_formats_are_named() {
    for (start, expected) in [
        (&b"<!DOCTYPE html><html><body>404</body></html>"[..], "an HTML page"),
        (b"  \n<html lang=en>", "an HTML page"),
        (b"\xef\xbb\xbf<?xml version='1.0'?><svg xmlns='x'/>", "an SVG drawing"),
        (b"<?xml version='1.0'?><note/>", "an XML document"),
        (b"\0\0\0\x1cftypavif\0\0\0\0", "an AVIF or HEIC image"),
        (b"\0\0\0\x18ftypheic\0\0\0\0", "an AVIF or HEIC image"),
        (b"\0\0\0\x18ftypisom\0\0\0\0", "an MP4 video"),
        (b"\0\0\0\x18ftyp", "an MP4 video"),
        (b"II*\0\x08\0\0\0", "a TIFF image"),
        (b"MM\0*\0\0\0\x08", "a TIFF image"),
        (b"\0\0\x01\0\x01\0", "an ICO image"),
        (b"\xff\x0a\x00", "a JPEG XL image"),
        (b"\0\0\0\x0cJXL \r\n", "a JPEG XL image"),
        (b"\0\0\0\x0cjP  \r\n", "a JPEG 2000 image"),
        (b"8BPS\0\x01", "a Photoshop file"),
        (b"%PDF-1.7", "a PDF document"),
        (b"%!PS-Adobe", "a PostScript document"),
        (b"\x1a\x45\xdf\xa3\x01", "a WebM or Matroska video"),
        (b"RIFF\0\0\0\0WAVEfmt ", "a RIFF file other than WebP"),
        (b"PK\x03\x04", "a ZIP archive"),
        (b"\x1f\x8b\x08", "a gzip file"),
        (b"{\"error\": 1}", "a JSON document"),
        (b"not found", "plain text"),
        (b"data:image/png;base64,", "a data URL inside a data URL"),
        (b"\x89PNG\r\n", "the truncated start of an image"),
        (b"\xff\xd8", "the truncated start of an image"),
        (b"\x01\x02\x03\x04", "in an unknown format"),
        (b"\0", "in an unknown format"),
    ] {
        check(&format!("{start:?}"), start, expected);
    }
}

/// A PNG of a size, gray, with `idat` as its pixels.
fn png(width: u32, height: u32, idat: &[u8]) -> Vec<u8> {
    let (one, _) = encoded(Format::Png, 1, 1);
    let header = [&width.to_be_bytes()[..], &height.to_be_bytes(), &[8, 0, 0, 0, 0]].concat();
    let file = with_png_chunk(&with_png_chunk(&one[..33], b"IDAT", idat), b"IHDR", &header);
    // The header that was there is cut out.
    [&file[..8], &file[33..]].concat()
}

fn jpeg_claiming(width: u16, height: u16) -> Vec<u8> {
    let mut file = golden("images/progressive.jpg");
    let at = file.windows(2).position(|bytes| bytes == [0xff, 0xc2]).unwrap() + 5;
    file[at..at + 2].copy_from_slice(&height.to_be_bytes());
    file[at + 2..at + 4].copy_from_slice(&width.to_be_bytes());
    file
}

fn gif(screen: [u16; 2], frame: [u16; 4]) -> Vec<u8> {
    let words = |words: &[u16]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    // Two colours and one code of a pixel.
    let screen = [b"GIF89a", &words(&screen)[..], b"\x80\0\0\0\0\0\xff\xff\xff"].concat();
    [&screen[..], b",", &words(&frame)[..], b"\0\x02\x02\x44\x01\0;"].concat()
}

fn webp_lossy(width: u16, height: u16) -> Vec<u8> {
    let size = [width.to_le_bytes(), height.to_le_bytes()].concat();
    riff(&[(b"VP8 ", [&b"\x10\0\0\x9d\x01\x2a"[..], &size].concat())])
}

fn webp_lossless(width: u32, height: u32) -> Vec<u8> {
    riff(&[(b"VP8L", [&b"\x2f"[..], &((width - 1) | (height - 1) << 14).to_le_bytes()].concat())])
}

fn riff(chunks: &[(&[u8; 4], Vec<u8>)]) -> Vec<u8> {
    let mut body = b"WEBP".to_vec();
    for (name, bytes) in chunks {
        body.extend_from_slice(*name);
        body.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        body.extend_from_slice(bytes);
        body.resize(body.len().next_multiple_of(2), 0);
    }
    [&b"RIFF"[..], &(body.len() as u32).to_le_bytes(), &body].concat()
}

/// A canvas, and the chunks in it.
fn webp_extended(flags: u8, width: u32, height: u32, chunks: &[(&[u8; 4], Vec<u8>)]) -> Vec<u8> {
    let canvas =
        [&[flags, 0, 0, 0], &(width - 1).to_le_bytes()[..3], &(height - 1).to_le_bytes()[..3]].concat();
    let mut all = vec![(b"VP8X", canvas)];
    all.extend(chunks.iter().cloned());
    riff(&all)
}

fn bmp(width: i32, height: i32) -> Vec<u8> {
    let mut file =
        [&b"BM\0\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0"[..], &width.to_le_bytes(), &height.to_le_bytes()]
            .concat();
    file.extend_from_slice(b"\x01\0\x18\0");
    file.resize(54, 0);
    file
}

#[test]
fn huge_sizes_in_every_format() {
    for (width, height) in
        [(60_000, 60_000), (65_535, 65_535), (8_001, 8_001), (65_535, 977), (16_383, 16_383)]
    {
        let expected = format!("{width}x{height} pixels, more than the limit of 64000000");
        check("png", &png(width, height, b"x"), &expected);
        check("jpeg", &jpeg_claiming(width as u16, height as u16), &expected);
        check("gif", &gif([width as u16, height as u16], [0, 0, 1, 1]), &expected);
        check("bmp", &bmp(width as i32, height as i32), &expected);
        check("bmp", &bmp(width as i32, -(height as i32)), &expected);
        check("webp", &webp_extended(0, width, height, &[]), &expected);
        if width <= 16_383 {
            check("webp", &webp_lossy(width as u16, height as u16), &expected);
            check("webp", &webp_lossless(width, height), &expected);
        }
    }
    for (width, height) in [(65_536, 1), (1, u32::MAX), (1 << 31, 1 << 31), (u32::MAX, u32::MAX)] {
        let expected = format!("{width}x{height} pixels, more than the limit of 65535 on a side");
        check("png", &png(width, height, b"x"), &expected);
    }
    check("bmp", &bmp(i32::MAX, i32::MIN), "on a side");
    check("bmp", &bmp(-5, 5), "negative width");
    check("webp", &webp_extended(0, 1 << 24, 1, &[]), "16777216x1 pixels");
    for (name, file) in [
        ("png", png(0, 5, b"x")),
        ("jpeg", jpeg_claiming(5, 0)),
        ("gif", gif([0, 0], [0, 0, 1, 1])),
        ("bmp", bmp(0, 7)),
        ("webp", webp_lossy(0, 9)),
    ] {
        check(name, &file, "has no pixels");
    }
}

#[test]
fn claims_within_the_limits_without_the_pixels() {
    for (name, file) in [
        ("png", png(8000, 8000, b"")),
        ("png", png(8000, 8000, b"\x78\x9c\x03\0\0\0\0\x01")),
        ("jpeg", jpeg_claiming(8000, 8000)),
        ("webp", webp_lossy(8000, 8000)),
        ("webp", webp_lossless(8000, 8000)),
        ("gif", gif([8000, 8000], [0, 0, 8000, 8000])),
        ("bmp", bmp(8000, 8000)),
    ] {
        let error = refusal(&file);
        assert!(error.starts_with(&format!("the {name} image")), "{name}: {error}");
    }
}

#[test]
fn frames_that_do_not_fit() {
    for frame in
        [[0, 0, 11, 10], [1, 0, 10, 10], [0, 1, 10, 10], [65_535, 65_535, 1, 1], [0, 0, 65_535, 65_535]]
    {
        check("gif", &gif([10, 10], frame), "over the edge of the screen");
    }
    check("gif", &gif([10, 10], [0, 0, 0, 10]), "no pixels");
    check("gif", b"GIF89a\x0a\0\x0a\0\0\0\0;", "no frame");
    check("gif", b"GIF89a\x0a\0\x0a\0\0\0\0\x77", "unknown kind");
    let lossy = |width: u16, height: u16| webp_lossy(width, height)[20..].to_vec();
    // A small canvas with a large frame, of which the decoder would make the pixels first.
    check(
        "webp",
        &webp_extended(0, 10, 10, &[(b"VP8 ", lossy(16_383, 16_383))]),
        "another size than its place",
    );
    check(
        "webp",
        &webp_extended(0, 10, 10, &[(b"VP8L", webp_lossless(16_384, 16_384)[20..].to_vec())]),
        "another size",
    );
    let frame = |left: u32, width: u32, inner: Vec<u8>| {
        let numbers = [left / 2, 0, width - 1, 9, 0];
        let head: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()[..3].to_vec()).collect();
        let chunk = [&b"VP8 "[..], &(inner.len() as u32).to_le_bytes(), &inner].concat();
        [head, vec![0], chunk].concat()
    };
    let animated = |frame| webp_extended(2, 10, 10, &[(b"ANIM", vec![0; 6]), (b"ANMF", frame)]);
    check("webp", &animated(frame(2, 10, lossy(10, 10))), "over the edge of the canvas");
    check("webp", &animated(frame(0, 10, lossy(16_383, 16_383))), "another size than its place");
    check("webp", &webp_extended(2, 10, 10, &[(b"ANIM", vec![0; 6])]), "truncated");
}

#[test]
fn a_progressive_bomb_is_refused_by_its_scans() {
    let good = golden("images/progressive.jpg");
    let scan = good.windows(2).position(|bytes| bytes == [0xff, 0xda]).unwrap();
    let next =
        scan + 2 + good[scan + 2..].windows(2).position(|bytes| bytes[0] == 0xff && bytes[1] != 0).unwrap();
    let mut file = good[..scan].to_vec();
    for _ in 0..500 {
        file.extend_from_slice(&good[scan..next]);
    }
    file.extend_from_slice(&good[next..]);
    check("jpeg", &file, "more scans than the limit of 100");
    let limits = Limits { max_scans: 2, ..Limits::default() };
    assert!(matches!(read_header(&good, &limits), Err(ImageError::TooManyScans { limit: 2 })));
}

#[test]
fn inflating_chunks_are_not_read() {
    let (file, pixels) = encoded(Format::Png, 8, 8);
    // A megabyte of zeros in deflate's shortest form, many times: the body of a stored bomb does not matter,
    // since it is never inflated.
    let bomb = [&b"name\0\0\x78\x9c"[..], &[0xed, 0xc1, 0x01, 0x01, 0, 0, 0, 0x80].repeat(100_000)].concat();
    for name in [b"zTXt", b"iCCP", b"iTXt", b"tEXt"] {
        let file = with_png_chunk(&file, name, &bomb);
        assert_eq!(read(&file).unwrap().pixels(), pixels);
    }
}

#[test]
fn every_truncation() {
    for (name, format) in
        [("rgb.png", Format::Png), ("progressive.jpg", Format::Jpeg), ("exif.jpg", Format::Jpeg)]
    {
        let file = golden(&format!("images/{name}"));
        let whole = read(&file).unwrap();
        for len in 0..file.len() {
            match read(&file[..len]) {
                // The pixels are complete, the end chunk is not.
                Ok(rgb) => assert!(
                    format == Format::Png && len + 12 >= file.len() && rgb == whole,
                    "{name} to {len}"
                ),
                Err(ImageError::DecoderPanicked { .. }) => panic!("{name} to {len}"),
                Err(_) => {}
            }
        }
    }
    for name in ["lossy.webp", "lossless.webp", "animated.gif", "palette_trns.png", "gray16.png", "gray.jpg"]
    {
        let file = golden(&format!("images/{name}"));
        for len in 0..file.len() {
            assert!(
                !matches!(read(&file[..len]), Err(ImageError::DecoderPanicked { .. })),
                "{name} to {len}"
            );
        }
    }
    let (file, _) = encoded(Format::Bmp, 9, 7);
    for len in 0..file.len() - 1 {
        refusal(&file[..len]);
    }
}

#[test]
fn changed_bytes_never_panic() {
    let mut random = Noise(5);
    let mut refused = 0;
    for name in [
        "rgb.png",
        "palette_trns.png",
        "gray16.png",
        "exif.jpg",
        "progressive.jpg",
        "gray.jpg",
        "lossy.webp",
        "lossless.webp",
        "animated.gif",
    ] {
        let good = golden(&format!("images/{name}"));
        for _ in 0..150 {
            let mut file = good.clone();
            for _ in 0..1 + random.next() % 4 {
                // Half of the changes near the start, where the sizes are.
                let range = if random.next().is_multiple_of(2) { 64.min(file.len()) } else { file.len() };
                let at = random.next() as usize % range;
                file[at] = random.next() as u8;
            }
            match read(&file) {
                Err(ImageError::DecoderPanicked { .. }) => panic!("{name} changed to {file:?}"),
                Err(_) => refused += 1,
                Ok(_) => {}
            }
        }
    }
    assert!(refused > 300, "{refused} refused");
}

#[test]
fn noise_after_a_signature() {
    let mut random = Noise(17);
    let signatures: [&[u8]; 7] = [
        b"\x89PNG\r\n\x1a\n",
        b"\xff\xd8\xff",
        b"RIFF\0\x01\0\0WEBPVP8 ",
        b"RIFF\0\x01\0\0WEBPVP8L",
        b"RIFF\0\x01\0\0WEBPVP8X\x0a\0\0\0",
        b"GIF89a",
        b"BM",
    ];
    for signature in signatures {
        for len in 0..60 {
            refusal(&[signature, &random.bytes(len)].concat());
        }
    }
}

/// A lossless picture of 4 x 4 pixels that names so many groups of prefix codes, each of the five with a table of ten bits.
fn webp_with_groups(groups: u32) -> Vec<u8> {
    let (mut bytes, mut held, mut num_held) = (Vec::new(), 0u64, 0);
    let mut put = |value: u32, len: u32| {
        held |= u64::from(value) << num_held;
        num_held += len;
        while num_held >= 8 {
            bytes.push(held as u8);
            (held, num_held) = (held >> 8, num_held - 8);
        }
    };
    // No transform, no colour cache, areas of 4 x 4 pixels: an image of one.
    [(0, 1), (0, 1), (1, 1), (0, 3), (0, 1)].into_iter().for_each(|(value, len)| put(value, len));
    for symbol in [(groups - 1) & 0xff, (groups - 1) >> 8, 0, 0, 0] {
        [(1, 1), (0, 1), (1, 1), (symbol, 8)].into_iter().for_each(|(value, len)| put(value, len));
    }
    for _ in 0..5 * groups {
        // Lengths of 4 bits for 1 to 9, 10 (twice) and others that fill the code: of the symbols 0 to 10, 1, 2, .. 9, 10, 10 bits.
        [(0, 1), (15, 4)].into_iter().for_each(|(value, len)| put(value, len));
        let len_lens = [4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4];
        let order = [17, 18, 0, 1, 2, 3, 4, 5, 16, 6, 7, 8, 9, 10, 11, 12];
        (0..19).for_each(|place| put(*len_lens.get(place).unwrap_or(&0), 3));
        // Eleven lengths follow.
        [(1, 1), (3, 3), (11 - 2, 8)].into_iter().for_each(|(value, len)| put(value, len));
        let mut sorted = order;
        sorted.sort_unstable();
        for len in (1..=9).chain([10, 10]) {
            let code = sorted.iter().position(|symbol| *symbol == len).unwrap() as u32;
            put(code.reverse_bits() >> 28, 4);
        }
    }
    put(0, 7);
    let mut frame = webp_lossless(4, 4)[20..25].to_vec();
    frame.extend(bytes);
    riff(&[(b"VP8L", frame)])
}

#[test]
fn groups_of_prefix_codes_are_in_the_memory() {
    let bytes = |groups: u32| {
        let file = webp_with_groups(groups);
        (file.len() as u64, read_header(&file, &Limits::default()).unwrap().memory_bytes())
    };
    let (small, large) = (bytes(1), bytes(1000));
    assert!(small.1 < 30_000, "{small:?}");
    // A table of 4 KiB for each of the five.
    assert!(large.1 - small.1 >= 999 * 5 * 4096 && large.0 < 100_000, "{large:?}");
    assert!(bytes(65_536).1 > 1 << 30, "more than there is room for");
    let transparency = [&[1], &webp_with_groups(1000)[25..]].concat();
    let file =
        webp_extended(16, 4, 4, &[(b"ALPH", transparency), (b"VP8 ", webp_lossy(4, 4)[20..].to_vec())]);
    assert!(read_header(&file, &Limits::default()).unwrap().memory_bytes() > 999 * 5 * 4096);
    check("webp", &webp_with_groups(1000)[..50_000], "truncated");
    // A thousand frames of which one is decoded.
    let frame = [&[0; 6][..], &[3, 0, 0, 3, 0, 0, 0, 0, 0, 0], &webp_with_groups(9)[12..]].concat();
    let frames = vec![(b"ANMF", frame); 1000];
    assert!(
        read_header(&webp_extended(2, 4, 4, &frames), &Limits::default()).unwrap().memory_bytes() < 1 << 20
    );
}

/// A lossless picture of 4 x 4 pixels with one area, whose red and green are of codes of two symbols, and nothing behind it.
fn webp_with_area(symbols: [u8; 2], bits: u8) -> Vec<u8> {
    let mut bytes = webp_lossless(4, 4)[20..25].to_vec();
    let mut all = vec![0, 0, 1, 0, 0, 0, 0];
    let number = |value: u8, all: &mut Vec<u8>| all.extend((0..8).map(|bit| value >> bit & 1));
    for code in 0..5 {
        all.extend([1, u8::from(code < 2), 1]);
        number(if code < 2 { symbols[0] } else { 0 }, &mut all);
        if code < 2 {
            number(symbols[1], &mut all);
        }
    }
    // Green and red of the area.
    all.extend([bits, bits]);
    // Groups of five codes of one symbol.
    all.extend([1, 0, 0, 0].repeat(5 * 65_536));
    bytes.extend(all.chunks(8).map(|byte| byte.iter().rev().fold(0, |byte, bit| byte << 1 | bit)));
    riff(&[(b"VP8L", bytes)])
}

#[test]
fn codes_of_two_symbols_are_read_as_the_decoder_reads_them() {
    let bytes =
        |symbols, bit| read_header(&webp_with_area(symbols, bit), &Limits::default()).unwrap().memory_bytes();
    // In their order in the file: bit 0 is the first one, also if it is the larger or both are the same.
    let (few, many) = (1 << 20, 60 << 20);
    assert!(bytes([255, 0], 0) > many && bytes([255, 0], 1) < few);
    assert!(bytes([0, 255], 0) < few && bytes([0, 255], 1) > many);
    assert!(bytes([255, 255], 0) > many && bytes([255, 255], 1) > many);
}

#[test]
fn images_without_bits_take_no_time() {
    // Transforms of 4 million areas whose codes have one symbol each, in a hundred thousand chunks.
    let single = [1u8, 0, 0, 0].repeat(5);
    let mut all = vec![1, 0, 0, 0, 0, 0, 0];
    all.extend(&single);
    all.extend([0, 0, 0]);
    all.extend(&single);
    let stream = all.chunks(8).map(|byte| byte.iter().rev().fold(0, |byte, bit| byte << 1 | bit));
    let transparency = [1].into_iter().chain(stream).collect::<Vec<u8>>();
    let mut chunks = vec![(b"ALPH", transparency); 100_000];
    chunks.push((b"VP8 ", webp_lossy(8000, 8000)[20..].to_vec()));
    read_header(&webp_extended(16, 8000, 8000, &chunks), &Limits::default()).unwrap();
}

#[test]
fn too_many_bytes() {
    let file = golden("images/rgb.png");
    let limits = Limits { max_bytes: 100, ..Limits::default() };
    assert!(matches!(read_header(&file, &limits), Err(ImageError::TooManyBytes { limit: 100, .. })));
    let limits = Limits { max_side: 50, ..Limits::default() };
    assert!(matches!(read_header(&file, &limits), Err(ImageError::SideTooLong { limit: 50, .. })));
}
