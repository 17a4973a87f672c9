//! Integer operations against i128 and against definitions by single bits.

use super::super::bits::{self, Count, Permutation};
use super::super::integer::{self, Integer, Widen};
use super::exact::Random;
use std::fmt::Debug;

fn arithmetic<T: Integer + Debug>(a: T, b: T, c: T, count: u32) {
    let (x, y, z) = (a.to_i128(), b.to_i128(), c.to_i128());
    let width = T::BITS;
    let modulus = 1_i128 << width;
    let clamp = |wide: i128| T::wrap(wide.clamp(T::MIN.to_i128(), T::MAX.to_i128()));
    let bits = |x: i128| x.rem_euclid(modulus);
    let what = format!("{a:?} {b:?} {c:?} {count}");
    assert_eq!(a.add(b), T::wrap(x + y), "{what}");
    assert_eq!(a.sub(b), T::wrap(x - y), "{what}");
    assert_eq!(a.mul_lo(b), T::wrap(x.wrapping_mul(y)), "{what}");
    // The product of two u64 fits u128, that of two i64 i128; the arithmetic shift is right for both signs.
    let high = if T::SIGNED { (x * y) >> width } else { ((x as u128 * y as u128) >> width) as i128 };
    assert_eq!(a.mul_hi(b), T::wrap(high), "{what}");
    assert_eq!(integer::mad_lo(a, b, c), T::wrap(x.wrapping_mul(y).wrapping_add(z)), "{what}");
    assert_eq!(integer::mad_hi(a, b, c), T::wrap(high + z), "{what}");
    assert_eq!(a.add_sat(b), clamp(x + y), "{what}");
    assert_eq!(a.sub_sat(b), clamp(x - y), "{what}");
    assert_eq!(a.neg(), T::wrap(-x), "{what}");
    assert_eq!(a.absolute(), T::wrap(x.abs()), "{what}");
    assert_eq!(a.distance(b), T::wrap((x - y).abs()), "{what}");
    assert_eq!(integer::sad(a, b, c), T::wrap(z + (x - y).abs()), "{what}");
    assert_eq!(integer::min(a, b).to_i128(), x.min(y), "{what}");
    assert_eq!(integer::max(a, b).to_i128(), x.max(y), "{what}");
    assert_eq!(integer::relu(a).to_i128(), x.max(0), "{what}");
    assert_eq!(a.div(b), if y == 0 { T::ONES } else { T::wrap(x / y) }, "{what}");
    assert_eq!(a.rem(b), if y == 0 { a } else { T::wrap(x % y) }, "{what}");
    assert_eq!(a.shl(count), if count < width { T::wrap(x << count) } else { T::ZERO }, "{what}");
    assert_eq!(a.shr(count), T::wrap(x >> count.min(127)), "{what}");
    for carry in [false, true] {
        let sum = bits(x) + bits(y) + i128::from(carry);
        assert_eq!(a.add_carry(b, carry), (T::wrap(sum), sum >= modulus), "{what}");
        let difference = bits(x) - bits(y) - i128::from(carry);
        assert_eq!(a.sub_borrow(b, carry), (T::wrap(difference), difference < 0), "{what}");
        let sum = bits(x.wrapping_mul(y)) + bits(z) + i128::from(carry);
        assert_eq!(integer::mad_lo_carry(a, b, c, carry), (T::wrap(sum), sum >= modulus), "{what}");
        let sum = bits(high) + bits(z) + i128::from(carry);
        assert_eq!(integer::mad_hi_carry(a, b, c, carry), (T::wrap(sum), sum >= modulus), "{what}");
    }
    assert_eq!((a.and(b), a.or(b), a.xor(b)), (T::wrap(x & y), T::wrap(x | y), T::wrap(x ^ y)), "{what}");
    assert_eq!(integer::cnot(a).to_i128(), i128::from(x == 0), "{what}");
    assert_eq!(a.not(), T::wrap(!x), "{what}");
    let set = |i: u32| x >> i & 1 != 0;
    assert_eq!(a.popc(), (0..width).filter(|&i| set(i)).count() as u32, "{what}");
    assert_eq!(a.clz(), (0..width).rev().take_while(|&i| !set(i)).count() as u32, "{what}");
    assert_eq!(a.brev(), T::wrap((0..width).map(|i| i128::from(set(i)) << (width - 1 - i)).sum()), "{what}");
}

fn fields<T: Integer + Debug>(a: T, b: T, position: u32, length: u32) {
    let set = |x: T, i: u32| x.to_i128() >> i & 1;
    let (first, count) = (position & 0xff, length & 0xff);
    let top = T::BITS - 1;
    // PTX ISA, bfe, bfi and bfind: the loops given there.
    let sign = if T::SIGNED && count != 0 { set(a, (first + count - 1).min(top)) } else { 0 };
    let bit = |i: u32| if i < count && first + i <= top { set(a, first + i) } else { sign };
    let want = T::wrap((0..=top).map(|i| bit(i) << i).sum());
    assert_eq!(bits::bfe(a, position, length), want, "bfe {a:?} {position} {length}");
    let bit = |i: u32| if i >= first && i - first < count { set(a, i - first) } else { set(b, i) };
    let want = T::wrap((0..=top).map(|i| bit(i) << i).sum());
    assert_eq!(bits::bfi(a, b, position, length), want, "bfi {a:?} {b:?} {position} {length}");
    let sign = i128::from(T::SIGNED && a < T::ZERO);
    let found = (0..=top).rev().find(|&i| set(a, i) != sign);
    assert_eq!(bits::bfind(a, false), found.unwrap_or(u32::MAX), "bfind {a:?}");
    assert_eq!(bits::bfind(a, true), found.map_or(u32::MAX, |i| top - i), "bfind {a:?}");
}

fn wide<T: Widen + Debug>(a: T, b: T, c: u64) {
    let product = a.to_i128() * b.to_i128();
    let c = <T::Wide as Integer>::wrap_u64(c);
    assert_eq!(integer::mul_wide(a, b).to_i128(), product);
    assert!(integer::mad_wide(a, b, c) == <T::Wide as Integer>::wrap(product + c.to_i128()));
}

#[test]
fn every_width_against_wide_integers() {
    fn all<T: Integer + Debug>(words: [u64; 3], counts: [u32; 2]) {
        let [a, b, c] = words.map(T::wrap_u64);
        arithmetic(a, b, c, counts[0]);
        fields(a, b, counts[0], counts[1]);
    }
    let mut random = Random(21);
    for _ in 0..30_000 {
        let words = [random.integer(), random.integer(), random.integer()];
        let counts = std::array::from_fn(|_| {
            let wild = random.next() as u32;
            if wild & 7 == 0 { wild } else { wild % 70 }
        });
        all::<u8>(words, counts);
        all::<i8>(words, counts);
        all::<u16>(words, counts);
        all::<i16>(words, counts);
        all::<u32>(words, counts);
        all::<i32>(words, counts);
        all::<u64>(words, counts);
        all::<i64>(words, counts);
        let [a, b, c] = words;
        wide(a as u16, b as u16, c);
        wide(a as i16, b as i16, c);
        wide(a as u32, b as u32, c);
        wide(a as i32, b as i32, c);
    }
    for a in [i64::MIN, -1, 0, 1, i64::MAX] {
        for b in [i64::MIN, -1, 0, 1, i64::MAX] {
            all::<i64>([a as u64, b as u64, 1], [63, 64]);
            all::<u64>([a as u64, b as u64, 1], [64, 1]);
        }
    }
    assert_eq!(i32::MIN.div(-1), i32::MIN);
    assert_eq!(Integer::rem(i32::MIN, -1), 0);
}

#[test]
fn products_of_24_bits() {
    let mut random = Random(22);
    for _ in 0..20_000 {
        let [a, b, c] = std::array::from_fn(|_| random.integer() as u32);
        let low = |x: u32| i64::from(x & 0xff_ffff);
        let signed = |x: u32| low(x) - if x & 0x80_0000 != 0 { 1 << 24 } else { 0 };
        let product = low(a) * low(b);
        assert_eq!(integer::mul24_lo(a, b), product as u32);
        assert_eq!(integer::mul24_hi(a, b), (product >> 16) as u32);
        let product = signed(a) * signed(b);
        let (a, b, c) = (a as i32, b as i32, c as i32);
        assert_eq!(integer::mad24_lo(a, b, c), (product as i32).wrapping_add(c));
        assert_eq!(integer::mad24_hi(a, b, c), ((product >> 16) as i32).wrapping_add(c));
        assert_eq!(integer::mad24_hi_sat(a, b, c), ((product >> 16) as i32).saturating_add(c));
        let high = (i64::from(a) * i64::from(b)) >> 32;
        let want = (high + i64::from(c)).clamp(i32::MIN.into(), i32::MAX.into());
        assert_eq!(i64::from(integer::mad_hi_sat(a, b, c)), want);
    }
}

#[test]
fn dot_products_of_bytes() {
    let mut random = Random(23);
    for _ in 0..20_000 {
        let [a, b, c] = std::array::from_fn(|_| random.next() as u32);
        let extend = |x: i64, width: u32, signed: bool| {
            if signed && x >> (width - 1) != 0 { x - (1 << width) } else { x }
        };
        let element = |x: u32, i: u32, width: u32, signed: bool| {
            extend(i64::from(x) >> (i * width) & ((1 << width) - 1), width, signed)
        };
        for (a_signed, b_signed) in [(false, false), (false, true), (true, false), (true, true)] {
            let sum: i64 = (0..4).map(|i| element(a, i, 8, a_signed) * element(b, i, 8, b_signed)).sum();
            assert_eq!(integer::dp4a(a, b, c, a_signed, b_signed), (i64::from(c) + sum) as u32);
            for (high, first) in [(false, 0), (true, 2)] {
                let product = |i| element(a, i, 16, a_signed) * element(b, first + i, 8, b_signed);
                let want = (i64::from(c) + product(0) + product(1)) as u32;
                assert_eq!(integer::dp2a(a, b, c, a_signed, b_signed, high), want);
            }
        }
    }
}

#[test]
fn permutations() {
    // PTX ISA, prmt: rows by selector value 0 to 3, bytes from the highest to the lowest.
    let tables = [
        (Permutation::Forward, [[3, 2, 1, 0], [4, 3, 2, 1], [5, 4, 3, 2], [6, 5, 4, 3]]),
        (Permutation::Backward, [[5, 6, 7, 0], [6, 7, 0, 1], [7, 0, 1, 2], [0, 1, 2, 3]]),
        (Permutation::ReplicateByte, [[0; 4], [1; 4], [2; 4], [3; 4]]),
        (Permutation::ClampLeft, [[3, 2, 1, 0], [3, 2, 1, 1], [3, 2, 2, 2], [3, 3, 3, 3]]),
        (Permutation::ClampRight, [[0, 0, 0, 0], [1, 1, 1, 0], [2, 2, 1, 0], [3, 2, 1, 0]]),
        (Permutation::ReplicateHalf, [[1, 0, 1, 0], [3, 2, 3, 2], [1, 0, 1, 0], [3, 2, 3, 2]]),
    ];
    let (a, b) = (0x8372_6150_u32, 0x07f6_e5d4_u32);
    let bytes: Vec<u8> = a.to_le_bytes().into_iter().chain(b.to_le_bytes()).collect();
    for (permutation, rows) in tables {
        for (c, row) in rows.into_iter().enumerate() {
            let want = u32::from_be_bytes(row.map(|i| bytes[i]));
            for c in [c as u32, c as u32 | 0xfffc] {
                assert_eq!(bits::prmt(a, b, c, permutation), want, "{permutation:?} {c}");
            }
        }
    }
    for c in 0..=0xffff_u32 {
        let byte = |selector: u32| {
            let byte = bytes[selector as usize & 7];
            match selector & 8 {
                0 => byte,
                _ if byte & 0x80 != 0 => 0xff,
                _ => 0,
            }
        };
        let want = u32::from_le_bytes([0, 4, 8, 12].map(|shift| byte(c >> shift)));
        assert_eq!(bits::prmt(a, b, c | 0xabcd_0000, Permutation::Bytes), want, "{c:#x}");
    }
}

#[test]
fn logic_tables() {
    let (a, b, c) = (0xff00_f0f0_u32, 0xcccc_0ff0, 0xaaaa_00ff);
    for table in 0..=255_u8 {
        let got = bits::lop3(a, b, c, table);
        for i in 0..32 {
            let index = (a >> i & 1) << 2 | (b >> i & 1) << 1 | c >> i & 1;
            assert_eq!(got >> i & 1, u32::from(table) >> index & 1, "{table:#x} bit {i}");
        }
    }
}

#[test]
fn funnel_shifts_and_masks() {
    let mut random = Random(24);
    for _ in 0..20_000 {
        let [a, b] = std::array::from_fn(|_| random.next() as u32);
        let wild = random.next() as u32;
        let (count, length) = if wild & 1 == 0 { (wild % 40, wild >> 8 & 63) } else { (wild, !wild) };
        for mode in [Count::Clamp, Count::Wrap] {
            let limit = |n: u32| if mode == Count::Clamp { n.min(32) } else { n % 32 };
            let n = limit(count);
            let set = |i: u32| if i < 32 { a >> i & 1 } else { b >> (i - 32) & 1 };
            let left = (0..32).map(|i| set(32 + i - n) << i).sum::<u32>();
            let right = (0..32).map(|i| set(i + n) << i).sum::<u32>();
            assert_eq!(bits::shf_l(a, b, count, mode), left, "{a:#x} {b:#x} {count} {mode:?}");
            assert_eq!(bits::shf_r(a, b, count, mode), right, "{a:#x} {b:#x} {count} {mode:?}");
            let within = |i: u32| i >= n && i - n < limit(length);
            let mask = (0..32).map(|i| u32::from(within(i)) << i).sum::<u32>();
            assert_eq!(bits::bmsk(count, length, mode), mask, "{count} {length} {mode:?}");
            let sign = if n == 0 { 0 } else { a >> (n - 1) & 1 };
            let bit = |i: u32| if i < n { a >> i & 1 } else { sign };
            let extended = (0..32).map(|i| bit(i) << i).sum::<u32>();
            assert_eq!(bits::szext(a as i32, count, mode) as u32, extended);
            let low = (0..32).map(|i| u32::from(i < n && a >> i & 1 != 0) << i).sum::<u32>();
            assert_eq!(bits::szext(a, count, mode), low);
        }
    }
}

#[test]
fn set_bits_by_number() {
    // (mask, base, offset, result)
    for (mask, base, offset, want) in [
        (0b1011_0100, 0, 1, 2),
        (0b1011_0100, 0, 4, 7),
        (0b1011_0100, 0, 5, u32::MAX),
        (0b1011_0100, 2, 1, 2),
        (0b1011_0100, 3, 1, 4),
        (0b1011_0100, 7, -1, 7),
        (0b1011_0100, 7, -3, 4),
        (0b1011_0100, 31, -4, 2),
        (0b1011_0100, 31, -5, u32::MAX),
        (0b1011_0100, 5, 0, 5),
        (0b1011_0100, 6, 0, u32::MAX),
        (u32::MAX, 31, 1, 31),
        (u32::MAX, 32, 1, u32::MAX),
        (u32::MAX, 0, i32::MIN, u32::MAX),
    ] {
        assert_eq!(bits::fns(mask, base, offset), want, "{mask:#b} {base} {offset}");
    }
}
