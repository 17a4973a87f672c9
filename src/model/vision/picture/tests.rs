use super::*;
use crate::vision::test_data::{Expected, golden, golden_json, released, sha256};
use crate::vision::{Format, Limits, decode, read_header};
use perigee_ops::PATCH_VALUES;

fn settings() -> Preprocessor {
    Preprocessor::parse(&golden("preprocessor_config.json"), "kimi_k25").unwrap()
}

/// All values of the encoder's input, little endian.
fn values(picture: &Picture, preprocessor: &Preprocessor) -> Vec<f32> {
    let levels = preprocessor.levels();
    let mut all = vec![0.0; picture.num_patches() * PATCH_VALUES];
    for (index, patch) in all.chunks_mut(PATCH_VALUES).enumerate() {
        picture.patch(index, &levels, patch);
    }
    all
}

fn check(name: &str, case: &serde_json::Value, expected: &Expected, compositing: Compositing) {
    let preprocessor = settings();
    let file = golden(&format!("images/{}", case["file"].as_str().unwrap()));
    let limits = Limits::default();
    let header = read_header(&file, &limits).unwrap();
    let mut rgb = decode(&file, &header, &limits, compositing, &|| false).unwrap();
    assert_eq!((rgb.width() as u32, rgb.height() as u32), header.size(compositing), "{name}");
    let released = compositing == Compositing::Released;
    // Where both ways agree, there is one set of entries.
    let agree = case["policies_agree"].as_bool().unwrap();
    let prefix = if released && !agree { format!("{name}.released") } else { name.to_owned() };
    if !released {
        assert_eq!(
            [header.width, header.height].map(u64::from),
            ["width", "height"].map(|key| case[key].as_u64().unwrap())
        );
    }
    let lossy = header.format == Format::Jpeg || name == "lossy_webp";
    if let Some((shape, decoded)) = expected.get(&format!("{prefix}.decoded")) {
        assert_eq!(shape, [rgb.height(), rgb.width(), 3], "{name}");
        let differences: Vec<u8> = rgb.pixels().iter().zip(&decoded).map(|(a, b)| a.abs_diff(*b)).collect();
        let most = *differences.iter().max().unwrap();
        let mean = differences.iter().map(|&d| f64::from(d)).sum::<f64>() / differences.len() as f64;
        assert!(most <= 8 && mean < 1.0, "{prefix}: decoded pixels differ by {most}, {mean} on average");
        rgb = Rgb::new(rgb.width(), rgb.height(), decoded);
    } else if lossy {
        assert!(released, "{name} has no decoded pixels");
        return;
    }
    let picture = super::picture(&preprocessor, &rgb).unwrap();
    let (shape, pixels) = expected.get(&format!("{prefix}.pixels")).unwrap();
    assert_eq!(shape, [1, picture.rows() * 14, picture.cols() * 14, 3], "{prefix}");
    assert!(*picture.pixels() == pixels, "pixels of {prefix}");
    let grid = preprocessor.grid(rgb.width(), rgb.height()).unwrap();
    let suffix = if prefix == name { "" } else { "_released" };
    assert_eq!(grid.tokens() as u64, case[format!("tokens{suffix}")].as_u64().unwrap(), "{prefix}");
    let values = values(&picture, &preprocessor);
    if let Some((_, _)) = expected.get(&format!("{prefix}.pixel_values_head")) {
        let head = expected.f32(&format!("{prefix}.pixel_values_head"));
        assert_eq!(values[..head.len()], head, "{prefix}");
    }
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    assert_eq!(sha256(&bytes), case[format!("pixel_values_sha256{suffix}")].as_str().unwrap(), "{prefix}");
}

#[test]
fn pictures_of_the_oracle() {
    let expected = Expected::read();
    let cases = golden_json("cases.json");
    let mut seen = 0;
    for (name, case) in cases["images"].as_object().unwrap() {
        if case.get("file").is_none() {
            continue;
        }
        seen += 1;
        check(name, case, &expected, Compositing::Upright);
        check(name, case, &expected, Compositing::Released);
    }
    assert_eq!(seen, 19);
}

#[test]
fn frames_of_the_oracle() {
    let expected = Expected::read();
    let (shape, frames) = expected.get("video.frames").unwrap();
    let preprocessor = settings().with_patch_limit(64);
    for (chunk, frames_before) in [("video_chunk0", 0), ("video_chunk1", 4)] {
        let (pixels_shape, pixels) = expected.get(&format!("{chunk}.pixels")).unwrap();
        for frame in 0..pixels_shape[0] {
            let bytes = shape[1] * shape[2] * 3;
            let rgb =
                Rgb::new(shape[2], shape[1], frames[(frames_before + frame) * bytes..][..bytes].to_vec());
            let picture = super::picture(&preprocessor, &rgb).unwrap();
            let bytes = picture.pixels().len();
            assert!(*picture.pixels() == pixels[frame * bytes..][..bytes], "frame {frame} of {chunk}");
        }
    }
}

#[test]
fn hashes_depend_on_everything() {
    let hashes = [
        content_hash(b"a", &released(16384), Compositing::Upright),
        content_hash(b"b", &released(16384), Compositing::Upright),
        content_hash(b"", &released(16384), Compositing::Upright),
        content_hash(b"a", &released(4096), Compositing::Upright),
        content_hash(b"a", &released(16384), Compositing::Released),
        content_hash(b"a", &settings(), Compositing::Upright),
    ];
    for (i, hash) in hashes.iter().enumerate() {
        assert!(!hashes[..i].contains(hash), "hash {i}");
    }
    assert_eq!(hashes[0], content_hash(b"a", &released(16384), Compositing::Upright));
}
