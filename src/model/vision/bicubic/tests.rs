use super::*;
use crate::vision::test_data::{Noise, golden_json, sha256};

fn noise(width: usize, height: usize, seed: u32) -> Rgb {
    Rgb::new(width, height, Noise(seed).bytes(width * height * 3))
}

fn resized(kernel: Kernel, picture: &Rgb, width: usize, height: usize) -> Vec<u8> {
    let mut out = vec![0; width * height * 3];
    resize_with(kernel, picture, width, height, &mut out, width * 3);
    out
}

#[test]
fn equals_pillow() {
    for row in golden_json("released_limits.json")["resize"].as_array().unwrap() {
        let number = |key: &str| row[key].as_u64().unwrap() as usize;
        let picture = noise(number("width"), number("height"), number("seed") as u32);
        assert_eq!(sha256(picture.pixels()), row["sha256_in"].as_str().unwrap(), "{row}");
        for kernel in [Kernel::Portable, Kernel::best()] {
            let out = resized(kernel, &picture, number("new_width"), number("new_height"));
            for (i, first) in row["first"].as_array().unwrap().iter().enumerate() {
                assert_eq!(u64::from(out[i]), first.as_u64().unwrap(), "value {i} of {row}");
            }
            assert_eq!(sha256(&out), row["sha256_out"].as_str().unwrap(), "{row}");
        }
    }
}

#[test]
fn kernels_agree() {
    let mut random = Noise(7);
    let mut side = |most: u32| (random.next() % most + 1) as usize;
    for case in 0..600 {
        let most = if case % 10 == 0 { 700 } else { 60 };
        let (width, height, new_width, new_height) = (side(most), side(most), side(most), side(most));
        let mut picture = noise(width, height, case + 1);
        if case % 3 == 0 {
            // Extremes, where sums are clipped.
            let pixels = picture.pixels().iter().map(|&value| if value < 128 { 0 } else { 255 }).collect();
            picture = Rgb::new(width, height, pixels);
        }
        assert!(
            resized(Kernel::best(), &picture, new_width, new_height)
                == resized(Kernel::Portable, &picture, new_width, new_height),
            "case {case}: {width}x{height} -> {new_width}x{new_height}"
        );
    }
}

#[test]
fn long_filters_and_narrow_pictures() {
    for (width, height, new_width, new_height) in [
        (1, 5000, 1, 3),
        (5000, 1, 3, 1),
        (2, 3000, 1, 7),
        (3000, 2, 7, 1),
        (1, 1, 1, 1),
        (1, 40, 5, 40),
        (40, 1, 40, 9),
    ] {
        let picture = noise(width, height, 3);
        assert_eq!(
            resized(Kernel::best(), &picture, new_width, new_height),
            resized(Kernel::Portable, &picture, new_width, new_height),
        );
    }
}

#[test]
fn rows_of_the_result_may_be_apart() {
    let picture = noise(50, 40, 5);
    let mut out = vec![9; 30 * 100];
    resize_into(&picture, 20, 30, &mut out, 100);
    let whole = resize(&picture, 20, 30);
    for (y, row) in out.chunks(100).enumerate() {
        assert_eq!(&row[..60], whole.row(y));
        assert!(row[60..].iter().all(|&value| value == 9));
    }
}

#[test]
fn the_same_size_changes_nothing() {
    let picture = noise(31, 17, 11);
    assert_eq!(resize(&picture, 31, 17), picture);
}
