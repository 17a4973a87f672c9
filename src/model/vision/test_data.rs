//! Reference data and files for the tests of this module.

use std::path::Path;

use safetensors::SafeTensors;
use serde_json::Value;

use super::Preprocessor;

/// A file of the oracle, `tests/golden/vision`: see its README.
pub(super) fn golden(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/vision").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A JSON file of the oracle.
pub(super) fn golden_json(name: &str) -> Value {
    serde_json::from_slice(&golden(name)).unwrap()
}

/// Tensors of the oracle.
pub(super) struct Expected(Vec<u8>);

impl Expected {
    pub(super) fn read() -> Self {
        Self(golden("expected.safetensors"))
    }

    /// Shape and bytes, if there is such a tensor.
    pub(super) fn get(&self, name: &str) -> Option<(Vec<usize>, Vec<u8>)> {
        let tensors = SafeTensors::deserialize(&self.0).unwrap();
        tensors.tensor(name).ok().map(|tensor| (tensor.shape().to_vec(), tensor.data().to_vec()))
    }

    pub(super) fn f32(&self, name: &str) -> Vec<f32> {
        let bytes = self.get(name).unwrap_or_else(|| panic!("tensor {name}")).1;
        bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
    }
}

/// The settings of the released checkpoints, with another limit of patches.
pub(super) fn released(in_patch_limit: usize) -> Preprocessor {
    let json = serde_json::json!({"media_proc_cfg": {
        "in_patch_limit": in_patch_limit, "patch_limit_on_one_side": 512, "patch_size": 14, "merge_kernel_size": 2,
        "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "fixed_output_tokens": null,
    }});
    Preprocessor::parse(json.to_string().as_bytes(), "kimi_k25").unwrap()
}

/// The noise of the oracle: the lowest byte of a 32-bit xorshift.
pub(super) struct Noise(pub(super) u32);

impl Noise {
    pub(super) fn next(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 17;
        self.0 ^= self.0 << 5;
        self.0
    }

    pub(super) fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// SHA-256 (FIPS 180-4) in hexadecimal digits; the oracle's checksums are of this kind.
pub(super) fn sha256(bytes: &[u8]) -> String {
    // Fractions of square and cube roots of the first primes.
    let primes: Vec<u32> = (2..312).filter(|n| (2..*n).all(|d| n % d != 0)).collect();
    let fraction = |root: f64| (root.fract() * 4294967296.0) as u32;
    let constants: Vec<u32> = primes[..64].iter().map(|&p| cube_root_fraction(p)).collect();
    let mut state: Vec<u32> = primes[..8].iter().map(|&p| fraction(f64::from(p).sqrt())).collect();
    let mut message = bytes.to_vec();
    message.push(0x80);
    message.resize((bytes.len() + 9).next_multiple_of(64), 0);
    let end = message.len() - 8;
    message[end..].copy_from_slice(&(bytes.len() as u64 * 8).to_be_bytes());
    for block in message.as_chunks::<64>().0 {
        let mut w: Vec<u32> = block.as_chunks().0.iter().map(|&word| u32::from_be_bytes(word)).collect();
        for i in 16..64 {
            let (a, b) = (w[i - 15], w[i - 2]);
            let s0 = a.rotate_right(7) ^ a.rotate_right(18) ^ a >> 3;
            let s1 = b.rotate_right(17) ^ b.rotate_right(19) ^ b >> 10;
            w.push(w[i - 16].wrapping_add(s0).wrapping_add(w[i - 7]).wrapping_add(s1));
        }
        let mut v: Vec<u32> = state.clone();
        for i in 0..64 {
            let s1 = v[4].rotate_right(6) ^ v[4].rotate_right(11) ^ v[4].rotate_right(25);
            let choice = v[4] & v[5] ^ !v[4] & v[6];
            let t1 = v[7].wrapping_add(s1).wrapping_add(choice).wrapping_add(constants[i]).wrapping_add(w[i]);
            let s0 = v[0].rotate_right(2) ^ v[0].rotate_right(13) ^ v[0].rotate_right(22);
            let majority = v[0] & v[1] ^ v[0] & v[2] ^ v[1] & v[2];
            v.rotate_right(1);
            v[4] = v[4].wrapping_add(t1);
            v[0] = t1.wrapping_add(s0).wrapping_add(majority);
        }
        state.iter_mut().zip(&v).for_each(|(state, v)| *state = state.wrapping_add(*v));
    }
    state.iter().map(|word| format!("{word:08x}")).collect()
}

/// 32 bits after the point of a cube root, by whole numbers: f64 has too few digits for some.
fn cube_root_fraction(p: u32) -> u32 {
    let target = u128::from(p) << 96;
    let (mut low, mut high) = (0u128, 8u128 << 32);
    while high - low > 1 {
        let middle = (low + high) / 2;
        if middle * middle * middle <= target { low = middle } else { high = middle }
    }
    low as u32
}

#[test]
fn sha256_of_known_texts() {
    assert_eq!(sha256(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_eq!(
        sha256(b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"
    );
}
