use super::super::bf16::Bf16;
use super::super::extremum::Selection;
use super::super::half::F16;
use super::super::packed::*;
use super::super::round::Mode;
use super::super::sixteen::Sixteen;
use super::super::{float, integer};
use super::exact::{self, F32, Format, Random};

fn halves<F: Sixteen>(format: Format, seed: u64) {
    let mut random = Random(seed);
    for _ in 0..5_000 {
        let [low, high]: [[u16; 3]; 2] =
            std::array::from_fn(|_| std::array::from_fn(|_| random.code(format) as u16));
        let [a, b, c] = std::array::from_fn(|i| join(low[i], high[i]));
        let check = |name: &str, got: u32, f: &dyn Fn([u16; 3]) -> u16| {
            assert_eq!(split(got), (f(low), f(high)), "{name} {a:#x} {b:#x} {c:#x}");
        };
        for mode in [Mode::RN, Mode::RN.ftz(), Mode::RN.sat(), Mode::RN.relu()] {
            check("add", add::<F>(a, b, mode), &|x| F::add(x[0], x[1], mode));
            check("sub", sub::<F>(a, b, mode), &|x| F::sub(x[0], x[1], mode));
            check("mul", mul::<F>(a, b, mode), &|x| F::mul(x[0], x[1], mode));
            check("fma", fma::<F>(a, b, c, mode), &|x| F::fma(x[0], x[1], x[2], mode));
            check("neg", neg::<F>(a, mode), &|x| F::neg(x[0], mode));
            check("abs", abs::<F>(a, mode), &|x| F::abs(x[0], mode));
            check("ex2", ex2::<F>(a, mode), &|x| F::ex2(x[0], mode));
        }
        let plain = Selection::default();
        check("min", min::<F>(a, b, plain), &|x| F::min(x[0], x[1], plain));
        check("max", max::<F>(a, b, plain), &|x| F::max(x[0], x[1], plain));
        check("tanh", tanh::<F>(a), &|x| F::tanh(x[0]));
    }
}

#[test]
fn sixteen_bit_pairs() {
    halves::<F16>(exact::F16, 31);
    halves::<Bf16>(exact::BF16, 32);
    assert_eq!(convert::<F16>(1.0, 2.0, Mode::RN), 0x3c00_4000);
    assert_eq!(convert::<Bf16>(1.0, -2.0, Mode::RN.relu()), 0x3f80_0000);
}

#[test]
fn integer_pairs() {
    let (a, b) = (0xffff_0002, 0x0001_8003);
    assert_eq!(add_integers::<u16>(a, b), 0x0000_8005);
    assert_eq!(sub_integers::<i16>(a, b), 0xfffe_7fff);
    assert_eq!(min_integers::<u16>(a, b), 0x0001_0002);
    assert_eq!(min_integers::<i16>(a, b), 0xffff_8003);
    assert_eq!(max_integers::<i16>(a, b), 0x0001_0002);
    assert_eq!(relu_s16x2(0x8000_7fff), 0x0000_7fff);
    assert_eq!(integer::relu(-5), 0);
}

#[test]
fn f32_pairs() {
    let mut random = Random(33);
    for _ in 0..5_000 {
        let [low, high]: [[f32; 3]; 2] =
            std::array::from_fn(|_| std::array::from_fn(|_| f32::from_bits(random.code(F32) as u32)));
        let [a, b, c] = std::array::from_fn(|i| join_f32(low[i], high[i]));
        let bits = |low: f32, high: f32| u64::from(low.to_bits()) | u64::from(high.to_bits()) << 32;
        for mode in [Mode::RN, Mode::RZ.ftz()] {
            let each = |f: &dyn Fn([f32; 3]) -> f32| bits(f(low), f(high));
            assert_eq!(add_f32x2(a, b, mode), each(&|x| float::add(x[0], x[1], mode)));
            assert_eq!(sub_f32x2(a, b, mode), each(&|x| float::sub(x[0], x[1], mode)));
            assert_eq!(mul_f32x2(a, b, mode), each(&|x| float::mul(x[0], x[1], mode)));
            assert_eq!(fma_f32x2(a, b, c, mode), each(&|x| float::fma(x[0], x[1], x[2], mode)));
        }
    }
}
