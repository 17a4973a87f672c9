//! Every register instruction that the lowering accepts, against expectations computed here: integers in 128
//! bits, floats from the exact value as an unevaluated sum of two f64 and a rounding written for the purpose.

mod kernel;

use kernel::{Random, bytes_at, launch, limited, module, run, shape, words};
use perigee_emulator::machine::Machine;

/// Runs `code` for every tuple: sources `%a`, `%b`, `%c`, `%e` of the given widths, destination `%d`. Width 1 is a
/// predicate; 8 bits live in a register of 16.
fn execute(code: &str, d: u32, sources: &[u32], inputs: &[Vec<u64>]) -> Vec<u64> {
    let mut body = String::from(
        "ld.param.u64 %rd0, [p0]; ld.param.u64 %rd1, [p1]; mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x;
mad.lo.u32 %r0, %r1, 32, %r0; mul.wide.u32 %rd2, %r0, 8; add.u64 %rd0, %rd0, %rd2; mul.wide.u32 %rd2, %r0, 32;
add.u64 %rd1, %rd1, %rd2;\n",
    );
    let declare = |width: u32| match width {
        1 => ".pred".to_string(),
        width => format!(".b{}", width.max(16)),
    };
    for (index, (name, &width)) in ["%a", "%b", "%c", "%e"].iter().zip(sources).enumerate() {
        body += &format!(".reg {} {name};\n", declare(width));
        let offset = 8 * index;
        body += &match width {
            1 => format!("ld.global.b8 %h0, [%rd1+{offset}]; setp.ne.u16 {name}, %h0, 0;\n"),
            width => format!("ld.global.b{width} {name}, [%rd1+{offset}];\n"),
        };
    }
    body += &format!(".reg {} %d;\n{code}\n", declare(d));
    body += &match d {
        1 => "selp.b16 %h0, 1, 0, %d; st.global.b16 [%rd0], %h0;".to_string(),
        d => format!("st.global.b{d} [%rd0], %d;"),
    };
    let mut machine = Machine::new(1, limited());
    let blocks = inputs.len().div_ceil(32);
    let mut data = vec![0u8; blocks * 32 * 32];
    for (item, tuple) in data.chunks_exact_mut(32).zip(inputs) {
        for (slot, value) in item.chunks_exact_mut(8).zip(tuple) {
            slot.copy_from_slice(&value.to_le_bytes());
        }
    }
    let data = bytes_at(&mut machine, &data);
    let out = bytes_at(&mut machine, &vec![0; blocks * 32 * 8]);
    launch(&mut machine, &module("", 2, &body), shape(blocks as u32, 32), &[out, data])
        .unwrap_or_else(|error| panic!("{code}: {error}"));
    let mut bytes = vec![0; inputs.len() * 8];
    machine.read(out, &mut bytes).unwrap();
    bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
}

fn mask(bits: u32) -> u64 {
    if bits >= 64 { u64::MAX } else { (1 << bits) - 1 }
}

/// Compares all tuples; `None` is unspecified.
fn check(code: &str, d: u32, sources: &[u32], inputs: &[Vec<u64>], want: impl Fn(&[u64]) -> Option<u64>) {
    let got = execute(code, d, sources, inputs);
    for (input, got) in inputs.iter().zip(got) {
        let Some(want) = want(input) else { continue };
        let want = want & mask(d);
        if same_nan(code, d, got, want) {
            continue;
        }
        assert!(got == want, "{code}: of {input:#x?} got {got:#x}, want {want:#x}");
    }
}

/// Whether both are NaN in f32, whose payload only `min`, `max` and conversions to narrower formats define.
fn same_nan(code: &str, d: u32, got: u64, want: u64) -> bool {
    let nan = |x: u64| x & 0x7fff_ffff > 0x7f80_0000;
    let half = |shift: u32| {
        let (got, want) = (got >> shift & mask(32), want >> shift & mask(32));
        got == want || want == F32.nan() && nan(got)
    };
    let loose =
        ["add", "sub", "mul", "mad", "fma", "div", "rcp", "sqrt", "cvt.f32.", "cvt.rn.f32.", "cvt.ftz.f32"]
            .iter()
            .any(|start| code.starts_with(start));
    match d {
        32 if loose && code.contains(".f32") || code.starts_with("cvt") && code.contains(".f32.f64") => {
            half(0)
        }
        64 if code.contains(".f32x2") => half(0) && half(32),
        _ => false,
    }
}

/// All tuples of the sets, or 1,024 of them.
fn tuples(sets: &[&[u64]]) -> Vec<Vec<u64>> {
    let all: usize = sets.iter().map(|set| set.len()).product();
    let mut random = Random(all as u64);
    (0..all.min(1024))
        .map(|index| {
            let mut rest = index;
            sets.iter()
                .map(|set| {
                    if all > 1024 {
                        return set[random.below(set.len())];
                    }
                    let value = set[rest % set.len()];
                    rest /= set.len();
                    value
                })
                .collect()
        })
        .collect()
}

/// Integers of a width with all edges.
fn integers(bits: u32) -> Vec<u64> {
    let mut values: Vec<u64> = [0, 1, 2, 3, 5, 7, 8, 31, 100, 127, 128, 255]
        .into_iter()
        .chain([mask(bits), mask(bits) - 1, mask(bits) >> 1, (mask(bits) >> 1) + 1, (mask(bits) >> 1) + 2])
        .chain([0x5555_5555_5555_5555, 0xaaaa_aaaa_aaaa_aaaa, 0x0123_4567_89ab_cdef])
        .map(|value| value & mask(bits))
        .collect();
    let mut random = Random(u64::from(bits));
    values.extend((0..8).map(|_| random.next() & mask(bits)));
    values
}

const COUNTS: &[u64] =
    &[0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40, 63, 64, 65, 100, 255, 256, 257, 0x8000_0000, 0xffff_ffff];

/// Value of the low bits.
fn value(x: u64, bits: u32, signed: bool) -> i128 {
    let x = i128::from(x & mask(bits));
    if signed && x >> (bits - 1) & 1 == 1 { x - (1 << bits) } else { x }
}

const INTEGERS: [(&str, u32, bool); 6] = [
    ("u16", 16, false),
    ("s16", 16, true),
    ("u32", 32, false),
    ("s32", 32, true),
    ("u64", 64, false),
    ("s64", 64, true),
];

#[test]
fn integer_arithmetic() {
    for (ty, bits, signed) in INTEGERS {
        let set = integers(bits);
        let two = tuples(&[&set, &set]);
        let three = tuples(&[&set, &set, &set]);
        let of = |x: u64| value(x, bits, signed);
        type Binary = fn(i128, i128) -> Option<i128>;
        let quotient: Binary = |a, b| (b != 0).then(|| a / b);
        let remainder: Binary = |a, b| (b != 0).then(|| a % b);
        let table: [(&str, Binary); 7] = [
            ("add", |a, b| Some(a + b)),
            ("sub", |a, b| Some(a - b)),
            ("mul.lo", |a, b| Some(a.wrapping_mul(b))),
            ("div", quotient),
            ("rem", remainder),
            ("min", |a, b| Some(a.min(b))),
            ("max", |a, b| Some(a.max(b))),
        ];
        for (op, f) in table {
            check(&format!("{op}.{ty} %d, %a, %b;"), bits, &[bits, bits], &two, |v| {
                let (a, b) = (of(v[0]), of(v[1]));
                // The quotient of the smallest number and -1 has no value.
                let overflow = signed && b == -1 && a == -(1 << (bits - 1)) && op != "rem";
                (!(overflow && op == "div")).then(|| f(a, b))?.map(|x| x as u64)
            });
        }
        // The product of two 64-bit numbers without signs needs all 128 bits.
        let high = move |a: u64, b: u64| match signed {
            true => ((value(a, bits, true) * value(b, bits, true)) >> bits) as u64,
            false => ((u128::from(a & mask(bits)) * u128::from(b & mask(bits))) >> bits) as u64,
        };
        check(&format!("mul.hi.{ty} %d, %a, %b;"), bits, &[bits; 2], &two, |v| Some(high(v[0], v[1])));
        check(&format!("mad.hi.{ty} %d, %a, %b, %c;"), bits, &[bits; 3], &three, |v| {
            Some(high(v[0], v[1]).wrapping_add(v[2]))
        });
        check(&format!("mad.lo.{ty} %d, %a, %b, %c;"), bits, &[bits; 3], &three, |v| {
            Some(v[0].wrapping_mul(v[1]).wrapping_add(v[2]))
        });
        check(&format!("sad.{ty} %d, %a, %b, %c;"), bits, &[bits; 3], &three, |v| {
            Some(((of(v[0]) - of(v[1])).unsigned_abs() as u64).wrapping_add(v[2]))
        });
        if bits < 64 {
            check(&format!("mul.wide.{ty} %d, %a, %b;"), 2 * bits, &[bits; 2], &two, |v| {
                Some((of(v[0]) * of(v[1])) as u64)
            });
            let wide = integers(2 * bits);
            let three = tuples(&[&set, &set, &wide]);
            check(
                &format!("mad.wide.{ty} %d, %a, %b, %c;"),
                2 * bits,
                &[bits, bits, 2 * bits],
                &three,
                |v| Some(((of(v[0]) * of(v[1])) as u64).wrapping_add(v[2])),
            );
        }
        let one = tuples(&[&set]);
        if signed {
            check(&format!("neg.{ty} %d, %a;"), bits, &[bits], &one, |v| Some(v[0].wrapping_neg()));
            check(
                &format!("abs.{ty} %d, %a;"),
                bits,
                &[bits],
                &one,
                |v| Some(of(v[0]).unsigned_abs() as u64),
            );
        }
        if ty == "s32" {
            let clamp = |x: i128| x.clamp(i32::MIN.into(), i32::MAX.into()) as u64;
            check("add.sat.s32 %d, %a, %b;", 32, &[32; 2], &two, |v| Some(clamp(of(v[0]) + of(v[1]))));
            check("sub.sat.s32 %d, %a, %b;", 32, &[32; 2], &two, |v| Some(clamp(of(v[0]) - of(v[1]))));
            for (op, pick) in [("min", i128::min as fn(i128, i128) -> i128), ("max", i128::max)] {
                check(&format!("{op}.relu.s32 %d, %a, %b;"), 32, &[32; 2], &two, |v| {
                    Some(pick(of(v[0]), of(v[1])).max(0) as u64)
                });
            }
        }
        if bits == 32 {
            let low = |x: u64| value(x, 24, signed);
            check(&format!("mul24.lo.{ty} %d, %a, %b;"), 32, &[32; 2], &two, |v| {
                Some((low(v[0]) * low(v[1])) as u64)
            });
            check(&format!("mul24.hi.{ty} %d, %a, %b;"), 32, &[32; 2], &two, |v| {
                Some(((low(v[0]) * low(v[1])) >> 16) as u64)
            });
            check(&format!("mad24.lo.{ty} %d, %a, %b, %c;"), 32, &[32; 3], &three, |v| {
                Some(((low(v[0]) * low(v[1])) as u64).wrapping_add(v[2]))
            });
            check(&format!("mad24.hi.{ty} %d, %a, %b, %c;"), 32, &[32; 3], &three, |v| {
                Some((((low(v[0]) * low(v[1])) >> 16) as u64).wrapping_add(v[2]))
            });
        }
    }
}

#[test]
fn carry_chains() {
    for (bits, types) in [(32, ["u32", "s32", "b32"]), (64, ["u64", "s64", "b64"])] {
        let set = integers(bits);
        let inputs = tuples(&[&set, &set, &set, &set]);
        let wide = |low: u64, high: u64| u128::from(high) << bits | u128::from(low);
        let w = [bits; 4];
        for ty in &types[..2] {
            // {b, a} + {e, c}: the upper half shows the carry.
            let (sum, difference) = (
                format!("add.cc.{ty} %d, %a, %c; addc.{ty} %d, %b, %e;"),
                format!("sub.cc.{ty} %d, %a, %c; subc.{ty} %d, %b, %e;"),
            );
            check(&sum, bits, &w, &inputs, |v| {
                Some((wide(v[0], v[1]).wrapping_add(wide(v[2], v[3])) >> bits) as u64)
            });
            check(&difference, bits, &w, &inputs, |v| {
                Some((wide(v[0], v[1]).wrapping_sub(wide(v[2], v[3])) >> bits) as u64)
            });
            // The carry out of the upper half, of three terms.
            let code = format!("add.cc.{ty} %d, %a, %c; addc.cc.{ty} %d, %b, %e; addc.{ty} %d, 0, 0;");
            check(&code, bits, &w, &inputs, |v| {
                let carry = (u128::from(v[0]) + u128::from(v[2])) >> bits;
                Some(((u128::from(v[1]) + u128::from(v[3]) + carry) >> bits) as u64)
            });
            let code = format!("sub.cc.{ty} %d, %a, %c; subc.cc.{ty} %d, %b, %e; subc.{ty} %d, 0, 0;");
            check(&code, bits, &w, &inputs, |v| {
                let borrow = i128::from(v[0] < v[2]);
                Some(if i128::from(v[1]) - i128::from(v[3]) - borrow < 0 { u64::MAX } else { 0 })
            });
        }
        // a * b + {e, c} in two words, as compilers multiply.
        let ty = types[0];
        let code = format!("mad.lo.cc.{ty} %d, %a, %b, %c; madc.hi.{ty} %d, %a, %b, %e;");
        check(&code, bits, &w, &inputs, |v| {
            let product = u128::from(v[0]) * u128::from(v[1]);
            Some((product.wrapping_add(wide(v[2], v[3])) >> bits) as u64)
        });
        let code =
            format!("mad.lo.cc.{ty} %d, %a, %b, %c; madc.hi.cc.{ty} %d, %a, %b, %e; addc.{ty} %d, 0, 0;");
        check(&code, bits, &w, &inputs, |v| {
            let product = u128::from(v[0]) * u128::from(v[1]);
            let low = ((product & u128::from(mask(bits))) + u128::from(v[2])) >> bits;
            Some((((product >> bits) + u128::from(v[3]) + low) >> bits) as u64)
        });
        let code = format!("add.cc.{ty} %d, %a, %c; madc.lo.{ty} %d, %a, %b, %e;");
        check(&code, bits, &w, &inputs, |v| {
            let carry = (u128::from(v[0]) + u128::from(v[2])) >> bits;
            Some(v[0].wrapping_mul(v[1]).wrapping_add(v[3]).wrapping_add(carry as u64))
        });
    }
}

#[test]
fn bits() {
    for bits in [16, 32, 64] {
        let set = integers(bits);
        let two = tuples(&[&set, &set]);
        let w = [bits; 2];
        check(&format!("and.b{bits} %d, %a, %b;"), bits, &w, &two, |v| Some(v[0] & v[1]));
        check(&format!("or.b{bits} %d, %a, %b;"), bits, &w, &two, |v| Some(v[0] | v[1]));
        check(&format!("xor.b{bits} %d, %a, %b;"), bits, &w, &two, |v| Some(v[0] ^ v[1]));
        check(&format!("not.b{bits} %d, %a;"), bits, &w[..1], &tuples(&[&set]), |v| Some(!v[0]));
        let shifts = tuples(&[&set, COUNTS]);
        for (ty, signed) in [("b", false), ("u", false), ("s", true)] {
            check(&format!("shr.{ty}{bits} %d, %a, %b;"), bits, &[bits, 32], &shifts, |v| {
                Some((value(v[0], bits, signed) >> v[1].min(100)) as u64)
            });
        }
        check(&format!("shl.b{bits} %d, %a, %b;"), bits, &[bits, 32], &shifts, |v| {
            Some(if v[1] >= u64::from(bits) { 0 } else { v[0] << v[1] })
        });
    }
    for bits in [32, 64] {
        let set = integers(bits);
        let one = tuples(&[&set]);
        let digits = move |x: u64| (0..bits).map(move |at| x >> at & 1);
        check(&format!("popc.b{bits} %d, %a;"), 32, &[bits], &one, |v| Some(digits(v[0]).sum()));
        check(&format!("clz.b{bits} %d, %a;"), 32, &[bits], &one, |v| {
            Some((0..u64::from(bits)).take_while(|at| v[0] >> (u64::from(bits) - 1 - at) & 1 == 0).count()
                as u64)
        });
        check(&format!("brev.b{bits} %d, %a;"), bits, &[bits], &one, |v| {
            Some(digits(v[0]).fold(0, |all, digit| all << 1 | digit))
        });
        for signed in [false, true] {
            let ty = format!("{}{bits}", if signed { "s" } else { "u" });
            let found = |x: u64| {
                let x = if value(x, bits, signed) < 0 { !x } else { x };
                (0..u64::from(bits)).rev().find(|&at| x >> at & 1 == 1)
            };
            check(&format!("bfind.{ty} %d, %a;"), 32, &[bits], &one, |v| {
                Some(found(v[0]).unwrap_or(u64::MAX))
            });
            check(&format!("bfind.shiftamt.{ty} %d, %a;"), 32, &[bits], &one, |v| {
                Some(found(v[0]).map_or(u64::MAX, |at| u64::from(bits) - 1 - at))
            });
            let inputs = tuples(&[&set, COUNTS, COUNTS]);
            check(&format!("bfe.{ty} %d, %a, %b, %c;"), bits, &[bits, 32, 32], &inputs, |v| {
                let (position, length) = (v[1] & 0xff, v[2] & 0xff);
                let top = u64::from(bits) - 1;
                let sign =
                    if !signed || length == 0 { 0 } else { v[0] >> (position + length - 1).min(top) & 1 };
                let bit = |at: u64| {
                    if at < length && position + at <= top { v[0] >> (position + at) & 1 } else { sign }
                };
                Some((0..=top).fold(0, |all, at| all | bit(at) << at))
            });
        }
        let inputs = tuples(&[&set, &set, COUNTS, COUNTS]);
        check(&format!("bfi.b{bits} %d, %a, %b, %c, %e;"), bits, &[bits, bits, 32, 32], &inputs, |v| {
            let (position, length) = (v[2] & 0xff, v[3] & 0xff);
            let replaced = |at: u64| at >= position && at < position + length;
            Some((0..u64::from(bits)).fold(0, |all, at| {
                all | if replaced(at) { v[0] >> (at - position) & 1 } else { v[1] >> at & 1 } << at
            }))
        });
    }
}

#[test]
fn permutations_tables_and_searches() {
    let set = integers(32);
    let selectors: Vec<u64> =
        set.iter().copied().chain([0x3210, 0x7654, 0xfedc, 0x0246, 0x8888, 0x1f2e]).collect();
    let inputs = tuples(&[&set, &set, &selectors]);
    let byte = |v: &[u64], at: u64| (v[1] << 32 | v[0]) >> (8 * at) & 0xff;
    check("prmt.b32 %d, %a, %b, %c;", 32, &[32; 3], &inputs, |v| {
        Some((0..4).fold(0, |all, at| {
            let selector = v[2] >> (4 * at) & 0xf;
            let byte = byte(v, selector & 7);
            let byte = if selector & 8 == 0 {
                byte
            } else if byte & 0x80 == 0 {
                0
            } else {
                0xff
            };
            all | byte << (8 * at)
        }))
    });
    // Source bytes of the bytes 3, 2, 1, 0 for the low two bits of c: PTX ISA, `prmt`.
    let modes = [
        ("f4e", [[3, 2, 1, 0], [4, 3, 2, 1], [5, 4, 3, 2], [6, 5, 4, 3]]),
        ("b4e", [[5, 6, 7, 0], [6, 7, 0, 1], [7, 0, 1, 2], [0, 1, 2, 3]]),
        ("rc8", [[0; 4], [1; 4], [2; 4], [3; 4]]),
        ("ecl", [[3, 2, 1, 0], [3, 2, 1, 1], [3, 2, 2, 2], [3, 3, 3, 3]]),
        ("ecr", [[0, 0, 0, 0], [1, 1, 1, 0], [2, 2, 1, 0], [3, 2, 1, 0]]),
        ("rc16", [[1, 0, 1, 0], [3, 2, 3, 2], [1, 0, 1, 0], [3, 2, 3, 2]]),
    ];
    for (mode, table) in modes {
        check(&format!("prmt.b32.{mode} %d, %a, %b, %c;"), 32, &[32; 3], &inputs, |v| {
            Some(table[v[2] as usize & 3].iter().fold(0, |all, &at| all << 8 | byte(v, at)))
        });
    }
    for table in [0x00u64, 0x96, 0xe8, 0xca, 0x80, 0xfe, 0x1b, 0xff, 0x3c] {
        check(&format!("lop3.b32 %d, %a, %b, %c, {table};"), 32, &[32; 3], &inputs, |v| {
            Some((0..32).fold(0, |all, at| {
                let index = (v[0] >> at & 1) << 2 | (v[1] >> at & 1) << 1 | v[2] >> at & 1;
                all | (table >> index & 1) << at
            }))
        });
    }
    let shifts = tuples(&[&set, &set, COUNTS]);
    for (mode, wraps) in [("clamp", false), ("wrap", true)] {
        let count = move |c: u64| if wraps { c & 31 } else { c.min(32) };
        check(&format!("shf.l.{mode}.b32 %d, %a, %b, %c;"), 32, &[32; 3], &shifts, |v| {
            Some((u128::from(v[1] << 32 | v[0]) << count(v[2]) >> 32) as u64)
        });
        check(&format!("shf.r.{mode}.b32 %d, %a, %b, %c;"), 32, &[32; 3], &shifts, |v| {
            Some((v[1] << 32 | v[0]) >> count(v[2]))
        });
        let counts = tuples(&[COUNTS, COUNTS]);
        check(&format!("bmsk.{mode}.b32 %d, %a, %b;"), 32, &[32; 2], &counts, |v| {
            // Bits from a to a + b - 1.
            let (start, width) = if wraps { (v[0] & 31, v[1] & 31) } else { (v[0].min(32), v[1].min(32)) };
            Some((0..32).filter(|&at| at >= start && at < start + width).fold(0, |all, at| all | 1 << at))
        });
        for (ty, signed) in [("u32", false), ("s32", true)] {
            let inputs = tuples(&[&set, COUNTS]);
            check(&format!("szext.{mode}.{ty} %d, %a, %b;"), 32, &[32; 2], &inputs, |v| {
                let width = if wraps { v[1] & 31 } else { v[1].min(32) };
                Some(if width == 0 { 0 } else { value(v[0], width as u32, signed) as u64 })
            });
        }
    }
    let offsets: Vec<u64> = (-34..=34i64).map(|offset| offset as u64 & mask(32)).collect();
    let bases: Vec<u64> = (0..32).collect();
    let mut random = Random(7);
    let searches: Vec<Vec<u64>> = (0..1024)
        .map(|_| {
            vec![
                random.next() & random.next() & mask(32),
                bases[random.below(32)],
                offsets[random.below(offsets.len())],
            ]
        })
        .collect();
    check("fns.b32 %d, %a, %b, %c;", 32, &[32; 3], &searches, |v| {
        let (base, offset) = (v[1] as i64, value(v[2], 32, true) as i64);
        let set = |at: i64| v[0] >> at & 1 == 1;
        Some(match offset {
            0 => {
                if set(base) {
                    base as u64
                } else {
                    u64::MAX
                }
            }
            1.. => (base..32).filter(|&at| set(at)).nth(offset as usize - 1).map_or(u64::MAX, |at| at as u64),
            _ => (0..=base)
                .rev()
                .filter(|&at| set(at))
                .nth(-offset as usize - 1)
                .map_or(u64::MAX, |at| at as u64),
        })
    });
    let three = tuples(&[&set, &set, &set]);
    for a_signed in [false, true] {
        for b_signed in [false, true] {
            let ty = |signed: bool| if signed { "s32" } else { "u32" };
            let types = format!("{}.{}", ty(a_signed), ty(b_signed));
            check(&format!("dp4a.{types} %d, %a, %b, %c;"), 32, &[32; 3], &three, |v| {
                let dot: i128 = (0..4)
                    .map(|i| value(v[0] >> (8 * i), 8, a_signed) * value(v[1] >> (8 * i), 8, b_signed))
                    .sum();
                Some((dot as u64).wrapping_add(v[2]))
            });
            for (half, shift) in [("lo", 0), ("hi", 16)] {
                check(&format!("dp2a.{half}.{types} %d, %a, %b, %c;"), 32, &[32; 3], &three, |v| {
                    let dot: i128 = (0..2)
                        .map(|i| {
                            value(v[0] >> (16 * i), 16, a_signed)
                                * value(v[1] >> (shift + 8 * i), 8, b_signed)
                        })
                        .sum();
                    Some((dot as u64).wrapping_add(v[2]))
                });
            }
        }
    }
    let two = tuples(&[&set, &set]);
    for signed in [false, true] {
        let ty = if signed { "s16x2" } else { "u16x2" };
        let pairs = move |v: &[u64], f: &dyn Fn(i128, i128) -> i128| {
            (0..2).fold(0, |all, i| {
                let result = f(value(v[0] >> (16 * i), 16, signed), value(v[1] >> (16 * i), 16, signed));
                all | (result as u64 & 0xffff) << (16 * i)
            })
        };
        check(&format!("add.{ty} %d, %a, %b;"), 32, &[32; 2], &two, |v| Some(pairs(v, &|a, b| a + b)));
        check(&format!("sub.{ty} %d, %a, %b;"), 32, &[32; 2], &two, |v| Some(pairs(v, &|a, b| a - b)));
        check(&format!("min.{ty} %d, %a, %b;"), 32, &[32; 2], &two, |v| Some(pairs(v, &|a, b| a.min(b))));
        check(&format!("max.{ty} %d, %a, %b;"), 32, &[32; 2], &two, |v| Some(pairs(v, &|a, b| a.max(b))));
        if signed {
            check("min.s16x2.relu %d, %a, %b;", 32, &[32; 2], &two, |v| {
                Some(pairs(v, &|a, b| a.min(b).max(0)))
            });
            check("max.s16x2.relu %d, %a, %b;", 32, &[32; 2], &two, |v| {
                Some(pairs(v, &|a, b| a.max(b).max(0)))
            });
        }
    }
}

/// A binary floating-point format with infinities: exponent and fraction bits.
#[derive(Clone, Copy, PartialEq)]
struct Format {
    exponent: u32,
    fraction: u32,
}

const F16: Format = Format { exponent: 5, fraction: 10 };
const BF16: Format = Format { exponent: 8, fraction: 7 };
const F32: Format = Format { exponent: 8, fraction: 23 };

/// Modifiers that change a result.
#[derive(Clone, Copy, Default)]
struct Modifiers {
    rounding: char,
    ftz: bool,
    sat: bool,
    relu: bool,
}

fn two_power(exponent: i32) -> f64 {
    2f64.powi(exponent)
}

impl Format {
    fn bits(self) -> u32 {
        1 + self.exponent + self.fraction
    }
    fn bias(self) -> i32 {
        (1 << (self.exponent - 1)) - 1
    }
    fn smallest_normal(self) -> f64 {
        two_power(1 - self.bias())
    }
    fn largest(self) -> f64 {
        two_power(self.bias()) * (2.0 - two_power(-(self.fraction as i32)))
    }
    fn nan(self) -> u64 {
        mask(self.bits() - 1)
    }

    /// The exact value of a code.
    fn decode(self, code: u64) -> f64 {
        let fraction = (code & mask(self.fraction)) as f64;
        let exponent = (code >> self.fraction & mask(self.exponent)) as i32;
        let magnitude = match exponent {
            _ if exponent as u64 == mask(self.exponent) => {
                if fraction == 0.0 {
                    f64::INFINITY
                } else {
                    f64::NAN
                }
            }
            0 => fraction * two_power(1 - self.bias() - self.fraction as i32),
            _ => {
                (fraction + two_power(self.fraction as i32))
                    * two_power(exponent - self.bias() - self.fraction as i32)
            }
        };
        if code >> (self.bits() - 1) & 1 == 1 { -magnitude } else { magnitude }
    }

    /// The code of a value that the format holds; NaN is canonical.
    fn encode(self, x: f64) -> u64 {
        let sign = u64::from(x.is_sign_negative()) << (self.bits() - 1);
        let a = x.abs();
        if x.is_nan() {
            return self.nan();
        }
        if a.is_infinite() {
            return sign | mask(self.exponent) << self.fraction;
        }
        if a < self.smallest_normal() {
            return sign | (a / two_power(1 - self.bias() - self.fraction as i32)) as u64;
        }
        let exponent = (a.to_bits() >> 52) as i32 - 1023;
        let fraction = ((a / two_power(exponent) - 1.0) * two_power(self.fraction as i32)) as u64;
        sign | ((exponent + self.bias()) as u64) << self.fraction | fraction
    }

    /// `sum + rest` rounded; `rest` is at most half a unit of `sum`.
    fn round(self, sum: f64, rest: f64, rounding: char) -> f64 {
        if !sum.is_finite() || sum == 0.0 {
            return sum;
        }
        let exponent = ((sum.abs().to_bits() >> 52) as i32 - 1023).max(1 - self.bias());
        // The rest may take the value below a power of two, where the unit is finer.
        let below = sum.abs() == two_power(exponent) && rest * sum < 0.0 && exponent > 1 - self.bias();
        let unit = two_power(exponent - i32::from(below) - self.fraction as i32);
        let (scaled, rest) = (sum.abs() / unit, if sum < 0.0 { -rest } else { rest } / unit);
        let mut floor = scaled.floor();
        let mut part = scaled - floor;
        if part == 0.0 && rest < 0.0 {
            (floor, part) = (floor - 1.0, 1.0);
        }
        let exact = part == 0.0 && rest == 0.0;
        // Compares the part behind the floor with one half.
        let half = (part - 0.5).partial_cmp(&-rest).unwrap();
        let negative = sum < 0.0;
        let up = match rounding {
            'n' => half.is_gt() || half.is_eq() && floor % 2.0 == 1.0,
            'a' => half.is_ge(),
            'p' => !negative && !exact,
            'm' => negative && !exact,
            _ => false,
        };
        let mut magnitude = (floor + f64::from(up)) * unit;
        if magnitude > self.largest() {
            let to_infinity = matches!((rounding, negative), ('n' | 'a', _) | ('p', false) | ('m', true));
            magnitude = if to_infinity { f64::INFINITY } else { self.largest() };
        }
        if negative { -magnitude } else { magnitude }
    }

    /// The code of `sum + rest` under modifiers; `None` where tiny results are defined differently.
    fn finish(self, sum: f64, rest: f64, m: Modifiers) -> Option<u64> {
        let mut x = self.round(sum, rest, m.rounding);
        if m.ftz {
            if x.abs() < self.smallest_normal() {
                x = 0f64.copysign(x);
            } else if x.abs() == self.smallest_normal() && x != sum {
                return None;
            }
        }
        if m.sat {
            x = if x.is_nan() || x <= 0.0 { 0.0 } else { x.min(1.0) };
        }
        if m.relu && x.is_sign_negative() && !x.is_nan() {
            x = 0.0;
        }
        Some(self.encode(x))
    }

    fn input(self, code: u64, m: Modifiers) -> f64 {
        let x = self.decode(code);
        if m.ftz && x.abs() < self.smallest_normal() { 0f64.copysign(x) } else { x }
    }

    /// Values with all edges.
    fn set(self) -> Vec<u64> {
        let top = self.bits() - 1;
        let infinity = mask(self.exponent) << self.fraction;
        let one = (self.bias() as u64) << self.fraction;
        let mut codes = vec![0, 1, 5, mask(self.fraction), 1 << self.fraction, one, one + 1, one - 1];
        codes.extend([
            one + (1 << self.fraction),
            one + (1 << (self.fraction - 1)),
            one - (1 << self.fraction),
        ]);
        codes.extend([
            infinity,
            infinity - 1,
            infinity + 1,
            infinity + (1 << (self.fraction - 1)),
            infinity / 2,
        ]);
        let mut random = Random(u64::from(self.bits()));
        codes.extend((0..10).map(|_| random.next() % infinity));
        // Values near one, where sums cancel and products are ordinary.
        codes.extend((0..8).map(|_| one - (2 << self.fraction) + (random.next() & mask(self.fraction + 2))));
        codes.iter().flat_map(|&code| [code, code | 1 << top]).collect()
    }
}

/// `x + y` as a sum and its rounding error.
fn two_sum(x: f64, y: f64) -> (f64, f64) {
    let sum = x + y;
    if !sum.is_finite() {
        return (sum, 0.0);
    }
    let part = sum - x;
    (sum, (x - (sum - part)) + (y - part))
}

/// `a * b + c` of narrow formats, with the sign of an exact zero. The product is exact.
fn multiply_add(a: f64, b: f64, c: f64, rounding: char) -> (f64, f64) {
    let product = a * b;
    let (sum, rest) = two_sum(product, c);
    if sum == 0.0
        && rest == 0.0
        && !(product == 0.0 && c == 0.0 && product.is_sign_negative() == c.is_sign_negative())
    {
        return (if rounding == 'm' { -0.0 } else { 0.0 }, 0.0);
    }
    (sum, rest)
}

/// The rounding error of a quotient or root, of which only the sign counts.
fn sign_only(residual: f64) -> f64 {
    if residual == 0.0 || residual.is_nan() { 0.0 } else { 1e-300f64.copysign(residual) }
}

const ROUNDINGS: [&str; 4] = ["rn", "rz", "rm", "rp"];

/// Modifier texts with what they mean.
fn float_modifiers() -> Vec<(String, Modifiers)> {
    let mut all = Vec::new();
    for rounding in ROUNDINGS {
        for (ftz, sat) in [(false, false), (true, false), (false, true), (true, true)] {
            let text =
                format!(".{rounding}{}{}", if ftz { ".ftz" } else { "" }, if sat { ".sat" } else { "" });
            let rounding = rounding.chars().nth(1).unwrap();
            all.push((text, Modifiers { rounding, ftz, sat, relu: false }));
        }
    }
    all
}

#[test]
fn single_precision() {
    let set = F32.set();
    let (one, two, three) = (tuples(&[&set]), tuples(&[&set, &set]), tuples(&[&set, &set, &set]));
    for (text, m) in float_modifiers() {
        let x = |v: &[u64], at: usize| F32.input(v[at], m);
        let sum = |a: f64, b: f64, c: f64| {
            let (sum, rest) = multiply_add(a, b, c, m.rounding);
            F32.finish(sum, rest, m)
        };
        check(&format!("add{text}.f32 %d, %a, %b;"), 32, &[32; 2], &two, |v| sum(x(v, 0), 1.0, x(v, 1)));
        check(&format!("sub{text}.f32 %d, %a, %b;"), 32, &[32; 2], &two, |v| sum(x(v, 0), 1.0, -x(v, 1)));
        check(&format!("mul{text}.f32 %d, %a, %b;"), 32, &[32; 2], &two, |v| {
            F32.finish(x(v, 0) * x(v, 1), 0.0, m)
        });
        for op in ["fma", "mad"] {
            check(&format!("{op}{text}.f32 %d, %a, %b, %c;"), 32, &[32; 3], &three, |v| {
                sum(x(v, 0), x(v, 1), x(v, 2))
            });
        }
        if m.sat {
            continue;
        }
        let quotient = |a: f64, b: f64| {
            let q = a / b;
            let residual = (-q).mul_add(b, a);
            F32.finish(q, if q.is_finite() && b.is_finite() { sign_only(residual / b) } else { 0.0 }, m)
        };
        check(&format!("div{text}.f32 %d, %a, %b;"), 32, &[32; 2], &two, |v| quotient(x(v, 0), x(v, 1)));
        check(&format!("rcp{text}.f32 %d, %a;"), 32, &[32], &one, |v| quotient(1.0, x(v, 0)));
        check(&format!("sqrt{text}.f32 %d, %a;"), 32, &[32], &one, |v| {
            let root = x(v, 0).sqrt();
            let residual = (-root).mul_add(root, x(v, 0));
            F32.finish(root, if root.is_finite() { sign_only(residual) } else { 0.0 }, m)
        });
        // Two at a time; `.sat` does not exist.
        let high = |v: &[u64], at: usize| F32.input(v[at] >> 32, m);
        let low = |v: &[u64], at: usize| F32.input(v[at] & mask(32), m);
        let pair = |low: Option<u64>, high: Option<u64>| Some(low? | high? << 32);
        let wide: Vec<u64> =
            set.iter().zip(set.iter().skip(7).chain(&set)).map(|(&a, &b)| a | b << 32).collect();
        let (two, three) = (tuples(&[&wide, &wide]), tuples(&[&wide, &wide, &wide]));
        check(&format!("add{text}.f32x2 %d, %a, %b;"), 64, &[64; 2], &two, |v| {
            pair(sum(low(v, 0), 1.0, low(v, 1)), sum(high(v, 0), 1.0, high(v, 1)))
        });
        check(&format!("sub{text}.f32x2 %d, %a, %b;"), 64, &[64; 2], &two, |v| {
            pair(sum(low(v, 0), 1.0, -low(v, 1)), sum(high(v, 0), 1.0, -high(v, 1)))
        });
        check(&format!("mul{text}.f32x2 %d, %a, %b;"), 64, &[64; 2], &two, |v| {
            pair(F32.finish(low(v, 0) * low(v, 1), 0.0, m), F32.finish(high(v, 0) * high(v, 1), 0.0, m))
        });
        check(&format!("fma{text}.f32x2 %d, %a, %b, %c;"), 64, &[64; 3], &three, |v| {
            pair(sum(low(v, 0), low(v, 1), low(v, 2)), sum(high(v, 0), high(v, 1), high(v, 2)))
        });
        // Narrow sources, the sum in f32.
        for (name, narrow) in [("f16", F16), ("bf16", BF16)] {
            let halves = narrow.set();
            let y = |v: &[u64], at: usize| narrow.decode(v[at]);
            // Flushing of narrow sources is not defined.
            if m.ftz {
                continue;
            }
            let inputs = tuples(&[&halves, &set]);
            check(&format!("add{text}.f32.{name} %d, %a, %b;"), 32, &[16, 32], &inputs, |v| {
                sum(y(v, 0), 1.0, x(v, 1))
            });
            check(&format!("sub{text}.f32.{name} %d, %a, %b;"), 32, &[16, 32], &inputs, |v| {
                sum(y(v, 0), 1.0, -x(v, 1))
            });
            let inputs = tuples(&[&halves, &halves, &set]);
            check(&format!("fma{text}.f32.{name} %d, %a, %b, %c;"), 32, &[16, 16, 32], &inputs, |v| {
                sum(y(v, 0), y(v, 1), x(v, 2))
            });
        }
    }
    for ftz in [false, true] {
        let text = if ftz { ".ftz" } else { "" };
        let flush = |code: u64| if ftz && code & 0x7f80_0000 == 0 { code & 0x8000_0000 } else { code };
        let unless_nan = |code: u64, result: u64| (code & 0x7fff_ffff <= 0x7f80_0000).then_some(result);
        check(&format!("neg{text}.f32 %d, %a;"), 32, &[32], &one, |v| {
            unless_nan(v[0], flush(v[0]) ^ 0x8000_0000)
        });
        check(&format!("abs{text}.f32 %d, %a;"), 32, &[32], &one, |v| {
            unless_nan(v[0], flush(v[0]) & 0x7fff_ffff)
        });
    }
    check("copysign.f32 %d, %a, %b;", 32, &[32; 2], &two, |v| Some(v[0] & 0x8000_0000 | v[1] & 0x7fff_ffff));
}

/// Codes compared as sign and magnitude: -0 below +0.
fn order(code: u64, format: Format) -> i64 {
    let magnitude = (code & mask(format.bits() - 1)) as i64;
    if code >> (format.bits() - 1) & 1 == 1 { -magnitude - 1 } else { magnitude }
}

fn extremum(
    format: Format,
    codes: &[u64],
    larger: bool,
    nan: bool,
    abs: bool,
    xorsign: bool,
    ftz: bool,
) -> u64 {
    let top = 1u64 << (format.bits() - 1);
    let flush = |code: u64| {
        if ftz && code & (mask(format.exponent) << format.fraction) == 0 { code & top } else { code }
    };
    let codes: Vec<u64> = codes.iter().map(|&code| flush(code & mask(format.bits()))).collect();
    let sign = codes.iter().fold(0, |all, code| all ^ code & top);
    let magnitudes: Vec<u64> = codes.iter().map(|&code| if abs { code & !top } else { code }).collect();
    let numbers: Vec<u64> =
        magnitudes.iter().copied().filter(|&code| !format.decode(code).is_nan()).collect();
    if numbers.is_empty() || nan && numbers.len() < codes.len() {
        return format.nan();
    }
    let key = |code: &u64| order(*code, format);
    let found =
        if larger { numbers.into_iter().max_by_key(key) } else { numbers.into_iter().min_by_key(key) };
    found.unwrap() | if xorsign { sign } else { 0 }
}

#[test]
fn minima_and_maxima() {
    for (op, larger) in [("min", false), ("max", true)] {
        for ftz in [false, true] {
            for nan in [false, true] {
                for (kind, abs, xorsign) in
                    [("", false, false), (".xorsign.abs", true, true), (".abs", true, false)]
                {
                    let text = format!(
                        "{op}{}{}{kind}",
                        if ftz { ".ftz" } else { "" },
                        if nan { ".NaN" } else { "" }
                    );
                    let set = F32.set();
                    if kind != ".abs" {
                        check(
                            &format!("{text}.f32 %d, %a, %b;"),
                            32,
                            &[32; 2],
                            &tuples(&[&set, &set]),
                            |v| Some(extremum(F32, v, larger, nan, abs, xorsign, ftz)),
                        );
                    }
                    if !xorsign {
                        check(
                            &format!("{text}.f32 %d, %a, %b, %c;"),
                            32,
                            &[32; 3],
                            &tuples(&[&set, &set, &set]),
                            |v| Some(extremum(F32, v, larger, nan, abs, xorsign, ftz)),
                        );
                    }
                    for (name, format) in [("f16", F16), ("bf16", BF16)] {
                        if kind == ".abs" || format == BF16 && ftz {
                            continue;
                        }
                        let set = format.set();
                        let want = |v: &[u64]| extremum(format, v, larger, nan, abs, xorsign, ftz);
                        check(
                            &format!("{text}.{name} %d, %a, %b;"),
                            16,
                            &[16; 2],
                            &tuples(&[&set, &set]),
                            |v| Some(want(v)),
                        );
                        let pairs: Vec<u64> =
                            set.iter().zip(set.iter().rev()).map(|(&a, &b)| a | b << 16).collect();
                        check(
                            &format!("{text}.{name}x2 %d, %a, %b;"),
                            32,
                            &[32; 2],
                            &tuples(&[&pairs, &pairs]),
                            |v| {
                                Some(
                                    want(&[v[0] & 0xffff, v[1] & 0xffff])
                                        | want(&[v[0] >> 16, v[1] >> 16]) << 16,
                                )
                            },
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn sixteen_bits() {
    for (name, format) in [("f16", F16), ("bf16", BF16)] {
        let set = format.set();
        let pairs: Vec<u64> = set.iter().zip(set.iter().rev()).map(|(&a, &b)| a | b << 16).collect();
        for (text, m) in [
            ("", Modifiers { rounding: 'n', ..Modifiers::default() }),
            (".ftz", Modifiers { rounding: 'n', ftz: true, ..Modifiers::default() }),
            (".sat", Modifiers { rounding: 'n', sat: true, ..Modifiers::default() }),
            (".ftz.sat", Modifiers { rounding: 'n', ftz: true, sat: true, ..Modifiers::default() }),
            (".relu", Modifiers { rounding: 'n', relu: true, ..Modifiers::default() }),
        ] {
            // bf16 has neither `.ftz` nor `.sat`; `.relu` is a modifier of `fma`.
            if format == BF16 && (m.ftz || m.sat) {
                continue;
            }
            let of = |v: &[u64], at: usize, shift: u32| format.input(v[at] >> shift & 0xffff, m);
            let sum = |a: f64, b: f64, c: f64| {
                let (sum, rest) = multiply_add(a, b, c, 'n');
                format.finish(sum, rest, m)
            };
            type Of<'a> = &'a dyn Fn(usize) -> f64;
            type Operation<'a> = &'a dyn Fn(Of) -> Option<u64>;
            let table: [(&str, usize, Operation); 4] = [
                ("add", 2, &|x| sum(x(0), 1.0, x(1))),
                ("sub", 2, &|x| sum(x(0), 1.0, -x(1))),
                ("mul", 2, &|x| format.finish(x(0) * x(1), 0.0, m)),
                ("fma", 3, &|x| sum(x(0), x(1), x(2))),
            ];
            for (op, count, f) in table {
                if m.relu && op != "fma" {
                    continue;
                }
                let operands = ["%a", "%b", "%c"][..count].join(", ");
                let inputs = tuples(&vec![&set[..]; count]);
                for rounding in [".rn", ""] {
                    if op == "fma" && rounding.is_empty() {
                        continue;
                    }
                    check(
                        &format!("{op}{rounding}{text}.{name} %d, {operands};"),
                        16,
                        &vec![16; count],
                        &inputs,
                        |v| f(&|at| of(v, at, 0)),
                    );
                }
                let inputs = tuples(&vec![&pairs[..]; count]);
                check(
                    &format!("{op}.rn{text}.{name}x2 %d, {operands};"),
                    32,
                    &vec![32; count],
                    &inputs,
                    |v| Some(f(&|at| of(v, at, 0))? | f(&|at| of(v, at, 16))? << 16),
                );
            }
        }
        let number = |code: u64| !format.decode(code).is_nan();
        check(&format!("neg.{name} %d, %a;"), 16, &[16], &tuples(&[&set]), |v| {
            number(v[0]).then_some(v[0] ^ 0x8000)
        });
        check(&format!("abs.{name} %d, %a;"), 16, &[16], &tuples(&[&set]), |v| {
            number(v[0]).then_some(v[0] & 0x7fff)
        });
        check(&format!("neg.{name}x2 %d, %a;"), 32, &[32], &tuples(&[&pairs]), |v| {
            (number(v[0] & 0xffff) && number(v[0] >> 16)).then_some(v[0] ^ 0x8000_8000)
        });
        check(&format!("abs.{name}x2 %d, %a;"), 32, &[32], &tuples(&[&pairs]), |v| {
            (number(v[0] & 0xffff) && number(v[0] >> 16)).then_some(v[0] & 0x7fff_7fff)
        });
    }
}

/// f64 values where residuals neither overflow nor underflow, then the special ones.
fn doubles() -> (Vec<u64>, Vec<u64>) {
    let mut random = Random(64);
    let mut ordinary: Vec<f64> =
        vec![1.0, -1.0, 0.1, 3.0, -7.5, 1e10, 1e-10, 1.0 + f64::EPSILON, 4.0, 1e15 + 1.0];
    ordinary.extend((0..20).map(|_| (random.next() as i64 as f64) / 1e9));
    let special = [
        0.0,
        -0.0,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        f64::MAX,
        f64::MIN_POSITIVE,
        5e-324,
        1.0,
        -2.5,
    ];
    let bits = |values: &[f64]| values.iter().map(|x| x.to_bits()).collect();
    (bits(&ordinary), bits(&special))
}

/// The neighbour of a nearest result that a directed rounding takes, given the sign of the error left.
fn directed(nearest: f64, rest: f64, rounding: char) -> u64 {
    let towards_zero = if nearest > 0.0 { 'm' } else { 'p' };
    match (if rounding == 'z' { towards_zero } else { rounding }, rest) {
        ('m', rest) if rest < 0.0 => nearest.next_down(),
        ('p', rest) if rest > 0.0 => nearest.next_up(),
        _ => nearest,
    }
    .to_bits()
}

#[test]
fn double_precision() {
    let (ordinary, special) = doubles();
    let all: Vec<u64> = ordinary.iter().chain(&special).copied().collect();
    let x = |v: &[u64], at: usize| f64::from_bits(v[at]);
    let bits = |x: f64| if x.is_nan() { None } else { Some(x.to_bits()) };
    let (one, two, three) = (tuples(&[&all]), tuples(&[&all, &all]), tuples(&[&all, &all, &all]));
    check("add.f64 %d, %a, %b;", 64, &[64; 2], &two, |v| bits(x(v, 0) + x(v, 1)));
    check("sub.f64 %d, %a, %b;", 64, &[64; 2], &two, |v| bits(x(v, 0) - x(v, 1)));
    check("mul.f64 %d, %a, %b;", 64, &[64; 2], &two, |v| bits(x(v, 0) * x(v, 1)));
    check("div.rn.f64 %d, %a, %b;", 64, &[64; 2], &two, |v| bits(x(v, 0) / x(v, 1)));
    check("fma.rn.f64 %d, %a, %b, %c;", 64, &[64; 3], &three, |v| bits(x(v, 0).mul_add(x(v, 1), x(v, 2))));
    check("mad.rn.f64 %d, %a, %b, %c;", 64, &[64; 3], &three, |v| bits(x(v, 0).mul_add(x(v, 1), x(v, 2))));
    check("rcp.rn.f64 %d, %a;", 64, &[64], &one, |v| bits(1.0 / x(v, 0)));
    check("sqrt.rn.f64 %d, %a;", 64, &[64], &one, |v| bits(x(v, 0).sqrt()));
    check("neg.f64 %d, %a;", 64, &[64], &one, |v| bits(-x(v, 0)));
    check("abs.f64 %d, %a;", 64, &[64], &one, |v| bits(x(v, 0).abs()));
    for (op, larger) in [("min", false), ("max", true)] {
        check(&format!("{op}.f64 %d, %a, %b;"), 64, &[64; 2], &two, |v| {
            let (a, b) = (x(v, 0), x(v, 1));
            let first = if larger { a.total_cmp(&b).is_ge() } else { a.total_cmp(&b).is_le() };
            match (a.is_nan(), b.is_nan()) {
                (true, true) => None,
                (true, _) => Some(v[1]),
                (_, true) => Some(v[0]),
                _ => Some(if first { v[0] } else { v[1] }),
            }
        });
    }
    let (one, two) = (tuples(&[&ordinary]), tuples(&[&ordinary, &ordinary]));
    for text in &ROUNDINGS[1..] {
        let r = text.chars().nth(1).unwrap();
        let sum = |a: f64, b: f64| {
            let (sum, rest) = two_sum(a, b);
            (sum != 0.0).then(|| directed(sum, rest, r))
        };
        check(&format!("add.{text}.f64 %d, %a, %b;"), 64, &[64; 2], &two, |v| sum(x(v, 0), x(v, 1)));
        check(&format!("sub.{text}.f64 %d, %a, %b;"), 64, &[64; 2], &two, |v| sum(x(v, 0), -x(v, 1)));
        check(&format!("mul.{text}.f64 %d, %a, %b;"), 64, &[64; 2], &two, |v| {
            let product = x(v, 0) * x(v, 1);
            Some(directed(product, x(v, 0).mul_add(x(v, 1), -product), r))
        });
        check(&format!("div.{text}.f64 %d, %a, %b;"), 64, &[64; 2], &two, |v| {
            let q = x(v, 0) / x(v, 1);
            Some(directed(q, (-q).mul_add(x(v, 1), x(v, 0)) * x(v, 1).signum(), r))
        });
        check(&format!("rcp.{text}.f64 %d, %a;"), 64, &[64], &one, |v| {
            let q = 1.0 / x(v, 0);
            Some(directed(q, (-q).mul_add(x(v, 0), 1.0) * x(v, 0).signum(), r))
        });
        check(&format!("sqrt.{text}.f64 %d, %a;"), 64, &[64], &one, |v| {
            let root = x(v, 0).sqrt();
            (!root.is_nan()).then(|| directed(root, (-root).mul_add(root, x(v, 0)), r))
        });
        // a * b + c with c far below: the product decides, c breaks it.
        check(&format!("fma.{text}.f64 %d, %a, 1.0, %b;"), 64, &[64; 2], &two, |v| sum(x(v, 0), x(v, 1)));
    }
}

#[test]
fn approximations() {
    let values = [0.0f32, -0.0, 1.0, 0.5, 2.0, 3.7, -1.3, 10.0, 100.0, 1e-3, 1e-20, 1e20, -5.25, 0.7, 1e-40];
    let set: Vec<u64> = values.iter().map(|x| u64::from(x.to_bits())).collect();
    let inf = f32::INFINITY;
    // Errors that the PTX ISA allows, relative except where noted.
    let near =
        |code: &str, inputs: &[Vec<u64>], relative: f64, absolute: f64, f: &dyn Fn(f64, f64) -> f64| {
            let widths = vec![32; inputs[0].len()];
            for (v, got) in inputs.iter().zip(execute(code, 32, &widths, inputs)) {
                let of = |at: usize| v.get(at).map_or(0.0, |&bits| f64::from(f32::from_bits(bits as u32)));
                let (want, got) = (f(of(0), of(1)), f64::from(f32::from_bits(got as u32)));
                let rounded = f64::from(want as f32);
                if want.is_nan() || rounded.is_infinite() || rounded == 0.0 {
                    assert!(
                        got == rounded || want.is_nan() && got.is_nan() || got.abs() < 1e-37,
                        "{code} of {:?}: {got}, want {want}",
                        (of(0), of(1))
                    );
                } else {
                    assert!(
                        (got - want).abs() <= relative * want.abs() + absolute,
                        "{code} of {:?}: {got}, want {want}",
                        (of(0), of(1))
                    );
                }
            }
        };
    let one = tuples(&[&set]);
    let ulp2 = 2f64.powi(-22);
    for ftz in ["", ".ftz"] {
        near(&format!("ex2.approx{ftz}.f32 %d, %a;"), &one, ulp2, 1e-37, &|x, _| x.exp2());
        near(&format!("rcp.approx{ftz}.f32 %d, %a;"), &tuples(&[&set[..14]]), ulp2, 0.0, &|x, _| 1.0 / x);
        near(&format!("rsqrt.approx{ftz}.f32 %d, %a;"), &tuples(&[&set[..14]]), ulp2, 0.0, &|x, _| {
            1.0 / x.sqrt()
        });
        near(&format!("sqrt.approx{ftz}.f32 %d, %a;"), &tuples(&[&set[..14]]), ulp2, 0.0, &|x, _| x.sqrt());
        near(
            &format!("lg2.approx{ftz}.f32 %d, %a;"),
            &tuples(&[&set[..14]]),
            ulp2,
            2f64.powi(-22),
            &|x, _| x.log2(),
        );
        let small: Vec<u64> =
            [0.0f32, 0.3, -0.7, 1.5, 3.0, -3.1].iter().map(|x| u64::from(x.to_bits())).collect();
        near(&format!("sin.approx{ftz}.f32 %d, %a;"), &tuples(&[&small]), 0.0, 2f64.powi(-20), &|x, _| {
            x.sin()
        });
        near(&format!("cos.approx{ftz}.f32 %d, %a;"), &tuples(&[&small]), 0.0, 2f64.powi(-20), &|x, _| {
            x.cos()
        });
        for kind in ["approx", "full"] {
            let two = tuples(&[&set[2..14], &set[2..10]]);
            near(&format!("div.{kind}{ftz}.f32 %d, %a, %b;"), &two, 2f64.powi(-22), 0.0, &|x, y| x / y);
        }
    }
    near("tanh.approx.f32 %d, %a;", &one, 2f64.powi(-10), 0.0, &|x, _| x.tanh());
    let exact = |code: &str, pairs: &[(f32, f32)]| {
        let inputs: Vec<Vec<u64>> = pairs.iter().map(|pair| vec![u64::from(pair.0.to_bits())]).collect();
        for (pair, got) in pairs.iter().zip(execute(code, 32, &[32], &inputs)) {
            let got = f32::from_bits(got as u32);
            assert!(
                got.to_bits() == pair.1.to_bits() || got.is_nan() && pair.1.is_nan(),
                "{code} of {}: {got}",
                pair.0
            );
        }
    };
    exact("ex2.approx.ftz.f32 %d, %a;", &[(-inf, 0.0), (inf, inf), (0.0, 1.0), (f32::NAN, f32::NAN)]);
    exact("rcp.approx.ftz.f32 %d, %a;", &[(0.0, inf), (-0.0, -inf), (inf, 0.0), (-inf, -0.0), (1e-40, inf)]);
    exact("rsqrt.approx.f32 %d, %a;", &[(0.0, inf), (-0.0, -inf), (inf, 0.0), (-1.0, f32::NAN)]);
    exact("lg2.approx.f32 %d, %a;", &[(0.0, -inf), (inf, inf), (-1.0, f32::NAN), (1.0, 0.0)]);
    exact("sqrt.approx.f32 %d, %a;", &[(-0.0, -0.0), (-1.0, f32::NAN), (inf, inf)]);
    exact("tanh.approx.f32 %d, %a;", &[(inf, 1.0), (-inf, -1.0), (0.0, 0.0), (-0.0, -0.0)]);
    let wide = |code: &str, f: fn(f64) -> f64, relative: f64| {
        let inputs: Vec<Vec<u64>> = [1.0f64, 2.0, 0.3, 7.5e10].iter().map(|x| vec![x.to_bits()]).collect();
        for (v, got) in inputs.iter().zip(execute(code, 64, &[64], &inputs)) {
            let (want, got) = (f(f64::from_bits(v[0])), f64::from_bits(got));
            assert!((got - want).abs() <= relative * want, "{code} of {}: {got}", f64::from_bits(v[0]));
        }
    };
    wide("rcp.approx.ftz.f64 %d, %a;", |x| 1.0 / x, 2f64.powi(-19));
    wide("rsqrt.approx.f64 %d, %a;", |x| 1.0 / x.sqrt(), 2f64.powi(-19));
    wide("rsqrt.approx.ftz.f64 %d, %a;", |x| 1.0 / x.sqrt(), 2f64.powi(-19));
    for (name, format, relative) in [("f16", F16, 2f64.powi(-9)), ("bf16", BF16, 2f64.powi(-7))] {
        let codes: Vec<u64> =
            [0.0, 1.0, -2.5, 0.375, 4.0, -0.125].iter().map(|&x| format.encode(x)).collect();
        for (op, f) in [("ex2.approx", f64::exp2 as fn(f64) -> f64), ("tanh.approx", f64::tanh)] {
            let ftz = if op == "ex2.approx" && name == "bf16" { ".ftz" } else { "" };
            let inputs = tuples(&[&codes]);
            let got = execute(&format!("{op}{ftz}.{name} %d, %a;"), 16, &[16], &inputs);
            let pairs: Vec<Vec<u64>> = codes.iter().map(|&code| vec![code | codes[1] << 16]).collect();
            let both = execute(&format!("{op}{ftz}.{name}x2 %d, %a;"), 32, &[32], &pairs);
            for ((v, got), both) in inputs.iter().zip(got).zip(both) {
                let (x, result) = (format.decode(v[0]), format.decode(got));
                assert!((result - f(x)).abs() <= relative * f(x).abs(), "{op}.{name} of {x}: {result}");
                assert_eq!(both & 0xffff, got);
            }
        }
    }
}

#[test]
fn comparisons() {
    type Test = fn(std::cmp::Ordering) -> bool;
    let tests: [(&str, Test); 6] = [
        ("eq", |o| o.is_eq()),
        ("ne", |o| o.is_ne()),
        ("lt", |o| o.is_lt()),
        ("le", |o| o.is_le()),
        ("gt", |o| o.is_gt()),
        ("ge", |o| o.is_ge()),
    ];
    // First result, second result under a combination with a predicate.
    let combine = |kind: &str, x: bool, c: bool| match kind {
        "and" => x & c,
        "or" => x | c,
        "xor" => x ^ c,
        _ => x,
    };
    let check_all =
        |name: &str, ty: &str, bits: u32, inputs: &[Vec<u64>], holds: &dyn Fn(u64, u64) -> bool| {
            let b = |x: bool| u64::from(x);
            check(&format!("setp.{name}.{ty} %d, %a, %b;"), 1, &[bits; 2], inputs, |v| {
                Some(b(holds(v[0], v[1])))
            });
            let both = "selp.b32 %r5, 1, 0, %p1; selp.b32 %r6, 2, 0, %p2; or.b32 %d, %r5, %r6;";
            let code = format!("setp.{name}.{ty} %p1|%p2, %a, %b; {both}");
            check(&code, 32, &[bits; 2], inputs, |v| {
                let x = holds(v[0], v[1]);
                Some(b(x) | b(!x) << 1)
            });
            for kind in ["and", "or", "xor"] {
                for invert in ["", "!"] {
                    let code = format!("setp.{name}.{kind}.{ty} %p1|%p2, %a, %b, {invert}%c; {both}");
                    let inputs: Vec<Vec<u64>> =
                        inputs.iter().take(256).flat_map(|v| [0, 1].map(|c| vec![v[0], v[1], c])).collect();
                    check(&code, 32, &[bits, bits, 1], &inputs, |v| {
                        let (x, c) = (holds(v[0], v[1]), (v[2] == 1) ^ (invert == "!"));
                        Some(b(combine(kind, x, c)) | b(combine(kind, !x, c)) << 1)
                    });
                }
            }
        };
    for (ty, bits, signed) in INTEGERS {
        let set = integers(bits);
        let inputs = tuples(&[&set, &set]);
        for (name, test) in tests {
            check_all(name, ty, bits, &inputs, &|a, b| {
                test(value(a, bits, signed).cmp(&value(b, bits, signed)))
            });
        }
        // The names for numbers without signs.
        for (name, test) in [("lo", tests[2].1), ("ls", tests[3].1), ("hi", tests[4].1), ("hs", tests[5].1)] {
            if !signed {
                check(&format!("setp.{name}.{ty} %d, %a, %b;"), 1, &[bits; 2], &inputs, |v| {
                    Some(u64::from(test(v[0].cmp(&v[1]))))
                });
            }
        }
    }
    let f64s: Vec<u64> = doubles().1;
    let wide = |code: u64| f64::from_bits(code);
    type Decode<'a> = &'a dyn Fn(u64) -> f64;
    let floats: [(&str, u32, Vec<u64>, Decode); 5] = [
        ("f32", 32, F32.set(), &|code| F32.decode(code)),
        ("ftz.f32", 32, F32.set(), &|code| F32.input(code, Modifiers { ftz: true, ..Modifiers::default() })),
        ("f64", 64, f64s, &wide),
        ("f16", 16, F16.set(), &|code| F16.decode(code)),
        ("bf16", 16, BF16.set(), &|code| BF16.decode(code)),
    ];
    for (ty, bits, set, decode) in floats {
        let inputs = tuples(&[&set, &set]);
        for (name, test) in tests {
            check_all(name, ty, bits, &inputs, &|a, b| decode(a).partial_cmp(&decode(b)).is_some_and(test));
            check_all(&format!("{name}u"), ty, bits, &inputs, &|a, b| {
                decode(a).partial_cmp(&decode(b)).is_none_or(test)
            });
        }
        check_all("num", ty, bits, &inputs, &|a, b| !decode(a).is_nan() && !decode(b).is_nan());
        check_all("nan", ty, bits, &inputs, &|a, b| decode(a).is_nan() || decode(b).is_nan());
    }
    let set = F32.set();
    type Property = (&'static str, fn(f64, f64) -> bool);
    let properties: [Property; 6] = [
        ("finite", |x, _| x.is_finite()),
        ("infinite", |x, _| x.is_infinite()),
        ("number", |x, _| !x.is_nan()),
        ("notanumber", |x, _| x.is_nan()),
        ("normal", |x, smallest| x.is_finite() && x.abs() >= smallest),
        ("subnormal", |x, smallest| x != 0.0 && x.abs() < smallest),
    ];
    for (name, holds) in properties {
        check(&format!("testp.{name}.f32 %d, %a;"), 1, &[32], &tuples(&[&set]), |v| {
            Some(u64::from(holds(F32.decode(v[0]), F32.smallest_normal())))
        });
        check(&format!("testp.{name}.f64 %d, %a;"), 1, &[64], &tuples(&[&doubles().1]), |v| {
            Some(u64::from(holds(f64::from_bits(v[0]), f64::MIN_POSITIVE)))
        });
    }
}

#[test]
fn selections_and_predicates() {
    for bits in [16, 32, 64] {
        let set = integers(bits);
        let inputs = tuples(&[&set[..8], &set[8..16], &[0, 1]]);
        for ty in ["b", "u", "s"] {
            check(&format!("selp.{ty}{bits} %d, %a, %b, %c;"), bits, &[bits, bits, 1], &inputs, |v| {
                Some(if v[2] == 1 { v[0] } else { v[1] })
            });
        }
    }
    let inputs = tuples(&[&F32.set()[..8], &F32.set()[8..16], &[0, 1]]);
    check("selp.f32 %d, %a, %b, %c;", 32, &[32, 32, 1], &inputs, |v| {
        Some(if v[2] == 1 { v[0] } else { v[1] })
    });
    check("selp.f64 %d, 0d3FF0000000000000, 0d4000000000000000, %a;", 64, &[1], &tuples(&[&[0, 1]]), |v| {
        Some(if v[0] == 1 { 1f64 } else { 2f64 }.to_bits())
    });
    let set = integers(32);
    check("slct.b32.s32 %d, %a, %b, %c;", 32, &[32; 3], &tuples(&[&set, &set, &set]), |v| {
        Some(if (v[2] as i32) < 0 { v[1] } else { v[0] })
    });
    let bits: &[u64] = &[0, 1];
    let two = tuples(&[bits, bits]);
    for (op, f) in
        [("and", (|a, b| a & b) as fn(u64, u64) -> u64), ("or", |a, b| a | b), ("xor", |a, b| a ^ b)]
    {
        check(&format!("{op}.pred %d, %a, %b;"), 1, &[1, 1], &two, |v| Some(f(v[0], v[1])));
        check(&format!("{op}.pred %d, %a, !%b;"), 1, &[1, 1], &two, |v| Some(f(v[0], v[1] ^ 1)));
        check(&format!("{op}.pred %d, !%a, %b;"), 1, &[1, 1], &two, |v| Some(f(v[0] ^ 1, v[1])));
        check(&format!("{op}.pred %d, !%a, -1;"), 1, &[1, 1], &two, |v| Some(f(v[0] ^ 1, 1)));
    }
    check("not.pred %d, %a;", 1, &[1], &tuples(&[bits]), |v| Some(v[0] ^ 1));
    check("mov.pred %d, %a;", 1, &[1], &tuples(&[bits]), |v| Some(v[0]));
    check("mov.pred %d, -1;", 1, &[1], &tuples(&[bits]), |_| Some(1));
    check("mov.pred %d, 0;", 1, &[1], &tuples(&[bits]), |_| Some(0));
}

/// All integer types of `cvt`.
const ALL: [(&str, u32, bool); 8] = [
    ("u8", 8, false),
    ("s8", 8, true),
    ("u16", 16, false),
    ("s16", 16, true),
    ("u32", 32, false),
    ("s32", 32, true),
    ("u64", 64, false),
    ("s64", 64, true),
];

fn limits(bits: u32, signed: bool) -> (i128, i128) {
    if signed { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) }
}

#[test]
fn conversions_of_integers() {
    for (from, from_bits, from_signed) in ALL {
        // The bits of the register above an 8-bit source do not count.
        let register = from_bits.max(16);
        let inputs = tuples(&[&integers(register)]);
        for (to, to_bits, to_signed) in ALL {
            let (low, high) = limits(to_bits, to_signed);
            // A wider destination takes the sign or zeros.
            for d in [16, 32, 64].into_iter().filter(|&d| d >= to_bits) {
                let extend = |x: i128| value(x as u64, to_bits, to_signed) as u64;
                check(&format!("cvt.{to}.{from} %d, %a;"), d, &[register], &inputs, |v| {
                    Some(extend(value(v[0], from_bits, from_signed)))
                });
                check(&format!("cvt.sat.{to}.{from} %d, %a;"), d, &[register], &inputs, |v| {
                    Some(extend(value(v[0], from_bits, from_signed).clamp(low, high)))
                });
            }
        }
    }
}

/// Rounds to an integral value.
fn integral(x: f64, rounding: char) -> f64 {
    match rounding {
        'z' => x.trunc(),
        'm' => x.floor(),
        'p' => x.ceil(),
        _ => x.round_ties_even(),
    }
}

#[test]
fn conversions_between_integers_and_floats() {
    let mut f64s: Vec<f64> =
        vec![0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, 127.5, 255.5, 300.0, -129.0, 65535.9, 1e9, -1e9];
    f64s.extend([
        2147483647.0,
        2147483648.0,
        4294967295.5,
        4294967296.0,
        9.3e18,
        -9.3e18,
        1.9e19,
        1e30,
        -1e30,
    ]);
    f64s.extend([f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1e-40, -3.999, 0.999]);
    let of = |format: Format| -> Vec<u64> {
        let codes = f64s.iter().map(|&x| format.encode(format.round(x, 0.0, 'n')));
        codes.chain(format.set()).collect()
    };
    type Decode<'a> = &'a dyn Fn(u64) -> f64;
    let doubles: Vec<u64> = f64s.iter().map(|x| x.to_bits()).collect();
    let sources: [(&str, u32, Vec<u64>, Decode); 4] = [
        ("f32", 32, of(F32), &|code| F32.decode(code)),
        ("f64", 64, doubles, &f64::from_bits),
        ("f16", 16, of(F16), &|code| F16.decode(code)),
        ("bf16", 16, of(BF16), &|code| BF16.decode(code)),
    ];
    for (from, bits, set, decode) in &sources {
        let inputs = tuples(&[set]);
        for rounding in ["rni", "rzi", "rmi", "rpi"] {
            let r = rounding.chars().nth(1).unwrap();
            for (to, to_bits, signed) in ALL {
                let (low, high) = limits(to_bits, signed);
                check(
                    &format!("cvt.{rounding}.{to}.{from} %d, %a;"),
                    to_bits.max(16),
                    &[*bits],
                    &inputs,
                    |v| {
                        let x = integral(decode(v[0]), r);
                        // NaN is 0, but the smallest number of 64 bits, and from f64.
                        if x.is_nan() {
                            return (to_bits <= 32 && *from != "f64").then_some(0);
                        }
                        // Far outside, `as` saturates to i128.
                        let result = (x as i128).clamp(low, high) as u64;
                        Some(value(result, to_bits, signed) as u64 & mask(to_bits.max(16)))
                    },
                );
            }
            if *from != "f64" {
                let format =
                    [F32, F16, BF16][["f32", "f16", "bf16"].iter().position(|name| name == from).unwrap()];
                check(&format!("cvt.{rounding}.{from}.{from} %d, %a;"), *bits, &[*bits], &inputs, |v| {
                    let x = decode(v[0]);
                    // The sign of zero is that of the source.
                    Some(format.encode(integral(x, r).copysign(x))).filter(|_| !x.is_nan())
                });
            } else {
                check(&format!("cvt.{rounding}.f64.f64 %d, %a;"), 64, &[64], &inputs, |v| {
                    let x = decode(v[0]);
                    (!x.is_nan()).then(|| integral(x, r).copysign(x).to_bits())
                });
            }
        }
    }
    for (from, bits, signed) in ALL {
        let register = bits.max(16);
        let mut set = integers(register);
        // Ties and their neighbours in each format.
        set.extend(
            [0x0100_0001, 0x0100_0003, 0x0180, 0x0181, 0x0801, 0x1001, 0x0020_0000_0000_0001]
                .map(|x: u64| x & mask(register)),
        );
        let inputs = tuples(&[&set]);
        for rounding in ROUNDINGS {
            let r = rounding.chars().nth(1).unwrap();
            let parts = |v: &[u64]| {
                let exact = value(v[0], bits, signed);
                let sum = exact as f64;
                (sum, (exact - sum as i128) as f64)
            };
            for (to, format) in [("f32", F32), ("f16", F16), ("bf16", BF16)] {
                check(
                    &format!("cvt.{rounding}.{to}.{from} %d, %a;"),
                    format.bits(),
                    &[register],
                    &inputs,
                    |v| {
                        let (sum, rest) = parts(v);
                        Some(format.encode(format.round(sum, rest, r)))
                    },
                );
            }
            check(&format!("cvt.{rounding}.f64.{from} %d, %a;"), 64, &[register], &inputs, |v| {
                let (sum, rest) = parts(v);
                Some(if r == 'n' { sum.to_bits() } else { directed(sum, rest, r) })
            });
        }
    }
    // 300 to 8 bits: by saturation, and by way of 16 bits and a cut.
    let three_hundred = vec![vec![u64::from(300f32.to_bits())]];
    check("cvt.rni.s8.f32 %d, %a;", 16, &[32], &three_hundred, |_| Some(127));
    check("cvt.rzi.s16.f32 %h1, %a; cvt.s8.s16 %d, %h1;", 16, &[32], &three_hundred, |_| Some(44));
}

#[test]
fn conversions_between_floats() {
    let set = F32.set();
    let one = tuples(&[&set]);
    let mode = |rounding: char| Modifiers { rounding, ..Modifiers::default() };
    for (name, format) in [("f16", F16), ("bf16", BF16)] {
        for rounding in ROUNDINGS {
            let r = rounding.chars().nth(1).unwrap();
            for relu in [false, true] {
                let text = format!("{rounding}{}", if relu { ".relu" } else { "" });
                let m = Modifiers { relu, ..mode(r) };
                check(&format!("cvt.{text}.{name}.f32 %d, %a;"), 16, &[32], &one, |v| {
                    format.finish(F32.decode(v[0]), 0.0, m)
                });
                check(
                    &format!("cvt.{text}.{name}x2.f32 %d, %a, %b;"),
                    32,
                    &[32; 2],
                    &tuples(&[&set, &set]),
                    |v| {
                        let half = |at: usize| format.finish(F32.decode(v[at]), 0.0, m);
                        Some(half(0)? << 16 | half(1)?)
                    },
                );
            }
            check(&format!("cvt.{rounding}.satfinite.{name}.f32 %d, %a;"), 16, &[32], &one, |v| {
                let x = format.round(F32.decode(v[0]), 0.0, r);
                Some(format.encode(if x.is_nan() { x } else { x.clamp(-format.largest(), format.largest()) }))
            });
            check(&format!("cvt.{rounding}.{name}.f64 %d, %a;"), 16, &[64], &tuples(&[&doubles().0]), |v| {
                format.finish(f64::from_bits(v[0]), 0.0, mode(r))
            });
        }
        let codes = format.set();
        check(&format!("cvt.f32.{name} %d, %a;"), 32, &[16], &tuples(&[&codes]), |v| {
            Some(F32.encode(format.decode(v[0])))
        });
        check(&format!("cvt.f64.{name} %d, %a;"), 64, &[16], &tuples(&[&codes]), |v| {
            let x = format.decode(v[0]);
            (!x.is_nan()).then_some(x.to_bits())
        });
    }
    check("cvt.rn.bf16.f16 %d, %a;", 16, &[16], &tuples(&[&F16.set()]), |v| {
        BF16.finish(F16.decode(v[0]), 0.0, mode('n'))
    });
    check("cvt.rz.f16.bf16 %d, %a;", 16, &[16], &tuples(&[&BF16.set()]), |v| {
        F16.finish(BF16.decode(v[0]), 0.0, mode('z'))
    });
    check("cvt.ftz.f32.f32 %d, %a;", 32, &[32], &one, |v| {
        let m = Modifiers { rounding: 'n', ftz: true, ..Modifiers::default() };
        F32.finish(F32.input(v[0], m), 0.0, m)
    });
    check("cvt.sat.f32.f32 %d, %a;", 32, &[32], &one, |v| {
        F32.finish(F32.decode(v[0]), 0.0, Modifiers { rounding: 'n', sat: true, ..Modifiers::default() })
    });
    check("cvt.sat.f64.f64 %d, %a;", 64, &[64], &tuples(&[&doubles().0, &[0]]), |v| {
        Some(f64::from_bits(v[0]).clamp(0.0, 1.0).to_bits())
    });
    check("cvt.f64.f32 %d, %a;", 64, &[32], &one, |v| {
        let x = F32.decode(v[0]);
        (!x.is_nan()).then_some(x.to_bits())
    });
    let (ordinary, special) = doubles();
    for rounding in ROUNDINGS {
        let r = rounding.chars().nth(1).unwrap();
        check(
            &format!("cvt.{rounding}.f32.f64 %d, %a;"),
            32,
            &[64],
            &tuples(&[&ordinary, &special, &[0]]),
            |v| F32.finish(f64::from_bits(v[0]), 0.0, mode(r)),
        );
    }
    // tf32: eight exponent bits, ten of fraction, in the upper bits of 32.
    let tf32 = Format { exponent: 8, fraction: 10 };
    for (text, r) in [("rna", 'a'), ("rn", 'n'), ("rz", 'z')] {
        for relu in [false, true] {
            let modifier = if relu { ".relu" } else { "" };
            check(&format!("cvt.{text}{modifier}.tf32.f32 %d, %a;"), 32, &[32], &one, |v| {
                let x = F32.decode(v[0]);
                if x.is_nan() {
                    return Some(0x7fff_ffff);
                }
                tf32.finish(x, 0.0, Modifiers { relu, ..mode(r) }).map(|code| code << 13)
            });
        }
    }
}

/// A format of at most 8 bits: name, bits, exponent bits, fraction bits, bits of a code in a pair.
const NARROW: [(&str, u32, u32, u32); 5] =
    [("e4m3", 8, 4, 3), ("e5m2", 8, 5, 2), ("e2m1", 4, 2, 1), ("e2m3", 6, 2, 3), ("e3m2", 6, 3, 2)];

/// Value of a narrow code.
fn narrow_value(name: &str, code: u64) -> f64 {
    let &(_, bits, exponent, fraction) = NARROW.iter().find(|format| format.0 == name).unwrap();
    let magnitude = code & mask(bits - 1);
    let sign = if code >> (bits - 1) & 1 == 1 { -1.0 } else { 1.0 };
    match (name, magnitude) {
        ("e4m3", 0x7f) => return f64::NAN,
        ("e5m2", 0x7c) => return sign * f64::INFINITY,
        ("e5m2", 0x7d..) => return f64::NAN,
        _ => {}
    }
    let bias = (1 << (exponent - 1)) - 1;
    let (e, f) = ((magnitude >> fraction) as i32, (magnitude & mask(fraction)) as f64);
    let hidden = if e == 0 { 0.0 } else { two_power(fraction as i32) };
    sign * (f + hidden) * two_power(e.max(1) - bias - fraction as i32)
}

/// The nearest finite code by search, ties to the even code, saturating.
fn narrow_code(name: &str, x: f64, relu: bool) -> u64 {
    let &(_, bits, _, _) = NARROW.iter().find(|format| format.0 == name).unwrap();
    if x.is_nan() {
        return if bits == 8 { 0x7f } else { mask(bits - 1) };
    }
    if relu && x.is_sign_negative() {
        return 0;
    }
    let distance = |code: &u64| (narrow_value(name, *code) - x.abs()).abs();
    let finite = (0..=mask(bits - 1)).filter(|&code| narrow_value(name, code).is_finite());
    let largest = finite.clone().next_back().unwrap();
    let found = if x.abs() >= narrow_value(name, largest) {
        largest
    } else {
        finite.min_by(|a, b| distance(a).total_cmp(&distance(b)).then((a & 1).cmp(&(b & 1)))).unwrap()
    };
    found | u64::from(x.is_sign_negative()) << (bits - 1)
}

#[test]
fn conversions_of_narrow_floats() {
    for (name, bits, _, _) in NARROW {
        let place = if bits == 4 { 4 } else { 8 };
        let width = 2 * place;
        // Every pair of codes for four bits; for others each code in both places.
        let pairs: Vec<u64> =
            (0..256u64)
                .map(|x| {
                    if bits == 4 { x } else { x & mask(bits) | (x ^ 0x15 & mask(bits)) << 8 & mask(8 + bits) }
                })
                .collect();
        for (wide, format) in [("f16", F16), ("bf16", BF16)] {
            check_pair(&format!("cvt.rn.{wide}x2.{name}x2 %d, %x;"), width, &pairs, |code| {
                let half = |at: u32| {
                    format.encode(format.round(narrow_value(name, code >> at & mask(bits)), 0.0, 'n'))
                };
                half(0) | half(place) << 16
            });
        }
        // Every code as a number, the middle between neighbours, and a little off.
        let mut numbers: Vec<f64> =
            (0..=mask(bits - 1)).map(|code| narrow_value(name, code)).filter(|x| x.is_finite()).collect();
        let middles: Vec<f64> = numbers.windows(2).map(|w| (w[0] + w[1]) / 2.0).collect();
        numbers.extend(
            middles
                .iter()
                .flat_map(|&x| [x, f64::from((x as f32).next_up()), f64::from((x as f32).next_down())]),
        );
        numbers.extend([1e9, f64::INFINITY, f64::NAN, 1e-30]);
        let codes: Vec<u64> = numbers.iter().flat_map(|&x| [x, -x]).map(|x| F32.encode(x)).collect();
        for relu in [false, true] {
            let text = if relu { ".relu" } else { "" };
            let inputs: Vec<Vec<u64>> =
                codes.iter().zip(codes.iter().rev()).map(|(&a, &b)| vec![a, b]).collect();
            let code = format!("cvt.rn.satfinite{text}.{name}x2.f32 %y, %a, %b;");
            check(&narrowed(&code, width), 32, &[32; 2], &inputs, |v| {
                Some(
                    narrow_code(name, F32.decode(v[0]), relu) << place
                        | narrow_code(name, F32.decode(v[1]), relu),
                )
            });
        }
        if ["e4m3", "e5m2"].contains(&name) {
            let halves = F16.set();
            let inputs: Vec<Vec<u64>> =
                halves.iter().zip(halves.iter().rev()).map(|(&a, &b)| vec![a | b << 16]).collect();
            let code = format!("cvt.rn.satfinite.{name}x2.f16x2 %y, %a;");
            check(&narrowed(&code, width), 32, &[32], &inputs, |v| {
                let half = |at: u32| narrow_code(name, F16.decode(v[0] >> at & 0xffff), false);
                Some(half(0) | half(16) << 8)
            });
        }
    }
    // ue8m0: powers of two.
    let mut exponents: Vec<f32> = (-126..128).map(|e| 2f32.powi(e)).collect();
    exponents.extend([3.0, 0.0, -5.0, f32::NAN, f32::INFINITY, 1e-39, 6e-39, 1.5, f32::MAX]);
    let codes: Vec<u64> = exponents.iter().map(|x| u64::from(x.to_bits())).collect();
    let inputs: Vec<Vec<u64>> = codes.iter().zip(codes.iter().rev()).map(|(&a, &b)| vec![a, b]).collect();
    for (text, up) in [("rz", false), ("rp", true)] {
        let code = format!("cvt.{text}.satfinite.ue8m0x2.f32 %y, %a, %b;");
        check(&narrowed(&code, 16), 32, &[32; 2], &inputs, |v| {
            let scale = |code: u64| {
                let x = F32.decode(code).abs();
                match () {
                    () if x.is_nan() => 0xff,
                    () if x <= two_power(-127) => 0,
                    () => (0..=0xfeu64)
                        .filter(|&e| {
                            if up { two_power(e as i32 - 127) >= x } else { two_power(e as i32 - 127) <= x }
                        })
                        .reduce(|a, b| if up { a.min(b) } else { a.max(b) })
                        .unwrap_or(0xfe),
                }
            };
            Some(scale(v[0]) << 8 | scale(v[1]))
        });
    }
    let pairs: Vec<u64> = (0..256).map(|x| x | (255 - x) << 8).collect();
    check_pair("cvt.rn.bf16x2.ue8m0x2 %d, %x;", 16, &pairs, |code| {
        let half = |x: u64| if x == 0xff { 0x7fff } else { BF16.encode(two_power(x as i32 - 127)) };
        half(code & 0xff) | half(code >> 8) << 16
    });
}

/// Code that writes `%y`, a narrow pair, moved to a `%d` of 32 bits.
fn narrowed(code: &str, width: u32) -> String {
    match width {
        8 => format!("{{ .reg .b8 %y, %z; {code} mov.b32 %d, {{%y, 0, 0, 0}}; }}"),
        _ => format!("{{ .reg .b16 %y; {code} mov.b32 %d, {{%y, 0}}; }}"),
    }
}

/// Checks the conversion of a pair `%x` of codes to 32 bits.
fn check_pair(code: &str, width: u32, pairs: &[u64], want: impl Fn(u64) -> u64) {
    let text = match width {
        8 => format!("{{ .reg .b8 %x, %y, %z, %w; mov.b32 {{%x, %y, %z, %w}}, %a; {code} }}"),
        _ => format!("{{ .reg .b16 %x; mov.b32 {{%x, _}}, %a; {code} }}"),
    };
    check(&text, 32, &[32], &tuples(&[pairs]), |v| Some(want(v[0])));
}

#[test]
fn moves() {
    let values = [0x1122_3344_5566_7788u64, 0x99aa_bbcc_ddee_ff00, 0x0123_4567_89ab_cdef];
    let one = tuples(&[&values]);
    let low = |v: &[u64]| v[0] & mask(32);
    // Source width, destination width, code, expectation.
    type Want = fn(&[u64]) -> u64;
    let table: [(u32, u32, &str, Want); 21] = [
        (64, 32, "mov.b64 {%r5, %d}, %a;", |v| v[0] >> 32),
        (64, 32, "mov.b64 {%d, %r5}, %a;", |v| v[0]),
        (64, 32, "mov.b64 {_, %d}, %a;", |v| v[0] >> 32),
        (64, 32, "mov.b64 {%d, _}, %a;", |v| v[0]),
        (64, 64, "mov.b64 {%r5, %r6}, %a; mov.b64 %d, {%r6, %r5};", |v| v[0].rotate_left(32)),
        (64, 64, "mov.b64 {%h1, %h2, %h3, %h4}, %a; mov.b64 %d, {%h4, %h3, %h2, %h1};", |v| {
            (0..4).fold(0, |all, i| all << 16 | v[0] >> (16 * i) & 0xffff)
        }),
        (32, 32, "mov.b32 {%h1, %h2}, %a; mov.b32 %d, {%h2, %h1};", |v| {
            u64::from((v[0] as u32).rotate_left(16))
        }),
        (
            32,
            32,
            "{ .reg .b8 %x<4>; mov.b32 {%x0, %x1, %x2, %x3}, %a; mov.b32 %d, {%x3, %x2, %x1, %x0}; }",
            |v| u64::from((v[0] as u32).swap_bytes()),
        ),
        (16, 16, "{ .reg .b8 %x<2>; mov.b16 {%x0, %x1}, %a; mov.b16 %d, {%x1, %x0}; }", |v| {
            u64::from((v[0] as u16).swap_bytes())
        }),
        // Registers on both sides.
        (32, 32, "mov.b32 {%a, %h2}, %a; mov.b32 %d, {%h2, %a};", |v| {
            u64::from((v[0] as u32).rotate_left(16))
        }),
        (32, 32, "mov.b32 {%h2, %a}, %a; mov.b32 %d, {%a, %h2};", |v| {
            u64::from((v[0] as u32).rotate_left(16))
        }),
        (32, 32, "mov.u32 %d, %a; mov.b32 %d, {%d, %d};", |v| (v[0] & 0xffff) * 0x10001),
        (32, 32, "mov.u32 %d, 7; mov.b32 %d, {%a, %d};", |v| v[0] & 0xffff | 7 << 16),
        (32, 64, "mov.b64 %d, {%a, 5};", |v| v[0] & mask(32) | 5 << 32),
        (32, 64, "mov.b64 %d, {%a, %a};", |v| (v[0] & mask(32)) * 0x1_0000_0001),
        (
            64,
            64,
            "mov.b128 %v1, {%a, 9}; mov.b128 %v2, %v1; mov.b128 {%rd5, %rd6}, %v2; add.u64 %d, %rd5, %rd6;",
            |v| v[0].wrapping_add(9),
        ),
        (64, 64, "mov.b128 %v1, {9, %a}; mov.b128 {_, %d}, %v1;", |v| v[0]),
        (64, 64, "mov.u64 %d, %a;", |v| v[0]),
        (32, 32, "mov.f32 %d, 0f3F800000;", |_| 0x3f80_0000),
        (32, 32, "mov.b32 %d, 0x80000001;", |_| 0x8000_0001),
        (64, 64, "mov.s64 %d, -2;", |_| u64::MAX - 1),
    ];
    for (from, to, code, want) in table {
        check(code, to, &[from], &one, |v| Some(want(v)));
    }
    check("mov.b32 %d, %a;", 32, &[32], &one, |v| Some(low(v)));
    check("mov.f64 %d, 1.5;", 64, &[32], &one, |_| Some(1.5f64.to_bits()));
    check("mov.b16 %d, -1;", 16, &[32], &one, |_| Some(0xffff));
}

#[test]
fn loads_and_stores() {
    // Loads of each type into registers of each width, from global, shared, local and generic addresses.
    let bytes: Vec<u8> = (0..64u32).map(|at| (at * 37 + 0x85) as u8).collect();
    let spaces = [
        ("ld.global", "st.global", "%rd9", ""),
        ("ld", "st", "%rd9", ""),
        ("ld.shared", "st.shared", "%r9", "mov.u32 %r9, buffer;"),
        ("ld", "st", "%rd9", "mov.u64 %rd9, buffer; cvta.shared.u64 %rd9, %rd9;"),
        ("ld", "st", "%rd9", "mov.u32 %r9, buffer; cvta.shared.u64 %rd9, %r9;"),
        ("ld.local", "st.local", "%rd9", "mov.u64 %rd9, frame;"),
        ("ld", "st", "%rd9", "mov.u64 %rd9, frame; cvta.local.u64 %rd9, %rd9;"),
        (
            "ld.local",
            "st.local",
            "%rd9",
            "mov.u64 %rd9, frame; cvta.local.u64 %rd8, %rd9; cvta.to.local.u64 %rd9, %rd8;",
        ),
        (
            "ld.shared",
            "st.shared",
            "%rd9",
            "mov.u64 %rd9, buffer; cvta.shared.u64 %rd8, %rd9; cvta.to.shared.u64 %rd9, %rd8;",
        ),
    ];
    let sources = [
        ("b8", 8, false),
        ("u8", 8, false),
        ("s8", 8, true),
        ("b16", 16, false),
        ("u16", 16, false),
        ("s16", 16, true),
        ("b32", 32, false),
        ("u32", 32, false),
        ("s32", 32, true),
        ("f32", 32, false),
        ("b64", 64, false),
        ("u64", 64, false),
        ("s64", 64, true),
        ("f64", 64, false),
        ("f16", 16, false),
    ];
    for (load, store, base, prepare) in spaces {
        for (ty, bits, signed) in sources {
            for register in [16, 32, 64].into_iter().filter(|&width| width >= bits) {
                for vector in [1u32, 2, 4, 8]
                    .into_iter()
                    .filter(|vector| vector * bits <= 256 && (*vector < 8 || bits == 32))
                {
                    // Each thread of 32 has its 64 bytes; shared and local memory are filled by the kernel first.
                    let names: Vec<String> = (0..vector).map(|i| format!("%x{i}")).collect();
                    let (values, v) = match vector {
                        1 => (names[0].clone(), String::new()),
                        _ => (format!("{{{}}}", names.join(", ")), format!(".v{vector}")),
                    };
                    let fill = if prepare.is_empty() {
                        String::from("mul.wide.u32 %rd8, %r0, 64; add.u64 %rd9, %rd6, %rd8;")
                    } else {
                        let offset = match base {
                            _ if prepare.contains("frame") => String::new(),
                            "%r9" => String::from("mul.lo.u32 %r8, %r0, 64; add.u32 %r9, %r9, %r8;"),
                            _ => String::from("mul.wide.u32 %rd7, %r0, 64; add.u64 %rd9, %rd9, %rd7;"),
                        };
                        let copies: String = (0..8)
                            .map(|i| {
                                format!(
                                    "ld.global.b64 %rd5, [%rd4+{}]; {store}.b64 [{base}+{}], %rd5;\n",
                                    8 * i,
                                    8 * i
                                )
                            })
                            .collect();
                        format!(
                            "{prepare} {offset} mul.wide.u32 %rd8, %r0, 64; add.u64 %rd4, %rd6, %rd8; {copies}"
                        )
                    };
                    let results: String = (0..vector)
                        .map(|i| {
                            let widen = match register {
                                16 => format!("cvt.u64.u16 %rd5, %x{i};"),
                                32 => format!("cvt.u64.u32 %rd5, %x{i};"),
                                _ => format!("mov.b64 %rd5, %x{i};"),
                            };
                            format!("{widen} st.global.b64 [%rd3+{}], %rd5;\n", 8 * i)
                        })
                        .collect();
                    let at = 32;
                    let body = format!(
                        ".reg .b{register} %x<8>; .local .align 32 .b8 frame[64];
                        ld.param.u64 %rd6, [p0]; ld.param.u64 %rd3, [p1]; mov.u32 %r0, %tid.x;
                        mul.wide.u32 %rd8, %r0, 64; add.u64 %rd3, %rd3, %rd8;
                        {fill}
                        {load}{v}.{ty} {values}, [{base}+{at}];
                        {results}
                        {store}{v}.b{bits} [{base}], {values};
                        {load}{v}.{ty} {values}, [{base}];
                        {}",
                        if vector == 1 { results.replace("[%rd3+0]", "[%rd3+8]") } else { results.clone() }
                    );
                    let mut machine = Machine::new(1, limited());
                    let data: Vec<u8> =
                        (0..32u8).flat_map(|lane| bytes.iter().map(move |b| b.wrapping_add(lane))).collect();
                    let input = bytes_at(&mut machine, &data);
                    let out = words(&mut machine, &[0; 32 * 16]);
                    let text = module(".shared .align 32 .b8 buffer[2048];", 2, &body);
                    launch(&mut machine, &text, shape(1, 32), &[input, out])
                        .unwrap_or_else(|error| panic!("{error}\n{text}"));
                    let mut got = vec![0; 2048];
                    machine.read(out, &mut got).unwrap();
                    for lane in 0..32 {
                        for i in 0..vector as usize {
                            let start = lane * 64 + at + i * bits as usize / 8;
                            let mut word = [0; 8];
                            word[..bits as usize / 8]
                                .copy_from_slice(&data[start..start + bits as usize / 8]);
                            let want = value(u64::from_le_bytes(word), bits, signed) as u64 & mask(register);
                            for slot in if vector == 1 { vec![0, 1] } else { vec![i] } {
                                let place = lane * 64 + slot * 8;
                                let got = u64::from_le_bytes(got[place..place + 8].try_into().unwrap());
                                assert_eq!(
                                    got, want,
                                    "{load}{v}.{ty} into {register} bits, lane {lane} element {i}"
                                );
                            }
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn parameters_constants_and_globals() {
    let text = ".version 8.8\n.target sm_90a\n.address_size 64
.const .align 4 .b32 table[4] = {11, -22, 0x33, 44};
.global .align 8 .u64 wide[2] = {0x1122334455667788, -1};
.global .align 4 .f32 floats[3] = {0f3F800000, -0f40000000, 1.5};
.global .f64 real = -2.5;
.global .align 2 .b16 short[3] = {1, 2};
.global .b32 fresh[2];
.visible .entry k(.param .u64 out, .param .u8 a, .param .s16 b, .param .align 16 .b8 block[24], .param .f32 c)
{
.reg .b64 %rd<9>; .reg .b32 %r<9>; .reg .b16 %h<9>;
ld.param.u64 %rd1, [out];
ld.param.s8 %r1, [a]; st.global.b32 [%rd1], %r1;
ld.param.s16 %r1, [b]; st.global.b32 [%rd1+4], %r1;
ld.param.v4.b32 {%r1, %r2, %r3, %r4}, [block]; st.global.v2.b32 [%rd1+8], {%r1, %r4};
ld.param.b64 %rd2, [block+16]; st.global.b64 [%rd1+16], %rd2;
ld.param.f32 %r1, [c]; st.global.b32 [%rd1+24], %r1;
mov.b32 %r1, block; cvt.u64.u32 %rd2, %r1; cvta.param.u64 %rd3, %rd2; ld.u32 %r2, [%rd3+4]; st.global.b32 [%rd1+28], %r2;
mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; mov.u64 %rd3, table; add.u64 %rd3, %rd3, %rd2;
ld.const.b32 %r2, [%rd3+4]; st.global.b32 [%rd1+32], %r2; ld.const.b32 %r2, [table+12]; st.global.b32 [%rd1+36], %r2;
ld.global.b64 %rd4, [wide+8]; st.global.b64 [%rd1+40], %rd4;
ld.global.v2.b32 {%r1, %r2}, [wide]; st.global.v2.b32 [%rd1+48], {%r1, %r2};
ld.global.b32 %r1, [floats+4]; ld.global.b32 %r2, [floats+8]; st.global.v2.b32 [%rd1+56], {%r1, %r2};
ld.global.b64 %rd4, [real]; st.global.b64 [%rd1+64], %rd4;
ld.global.b16 %h1, [short+4]; ld.global.b16 %h2, [short+2]; mov.b32 %r1, {%h2, %h1}; st.global.b32 [%rd1+72], %r1;
ld.global.b32 %r1, [fresh+4]; st.global.b32 [%rd1+76], %r1; st.global.b32 [fresh], 5;
mov.u64 %rd2, floats; cvta.global.u64 %rd3, %rd2; ld.b32 %r1, [%rd3]; st.global.b32 [%rd1+80], %r1;
ret;
}";
    let mut machine = Machine::new(1, limited());
    let out = words(&mut machine, &[0; 21]);
    let module = machine.load(0, text).unwrap();
    let kernel = module.kernel("k").unwrap();
    // out, a, b at 10, the block at 16, c at 40.
    assert_eq!(kernel.parameter_bytes(), 44);
    let mut parameters = out.to_le_bytes().to_vec();
    parameters.extend([0x80, 0, 0xfe, 0xff, 0, 0, 0, 0]);
    parameters.extend((1..=24u8).map(|x| x * 3));
    parameters.extend(2.5f32.to_bits().to_le_bytes());
    machine.launch(&kernel, shape(1, 1), &parameters).unwrap_or_else(|fault| panic!("{fault}"));
    let block = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| ((at + i) as u8 + 1) * 3));
    let got = kernel::read_words(&mut machine, out, 21);
    let want = [
        -128i32 as u32,
        -2i32 as u32,
        block(0),
        block(12),
        block(16),
        block(20),
        2.5f32.to_bits(),
        block(4),
        -22i32 as u32,
        44,
        u32::MAX,
        u32::MAX,
        0x5566_7788,
        0x1122_3344,
        (-2f32).to_bits(),
        1.5f32.to_bits(),
        (-2.5f64).to_bits() as u32,
        ((-2.5f64).to_bits() >> 32) as u32,
        2,
        0,
        1f32.to_bits(),
    ];
    assert_eq!(got, want);
}

#[test]
fn atomics() {
    // Type, operation, old value, operand (and new value of cas), result.
    let f = |x: f32| u64::from(x.to_bits());
    let table: &[(&str, u32, u64, u64, u64, u64)] = &[
        ("add.u32", 32, 7, mask(32), 0, 6),
        ("add.s32", 32, 7, mask(32), 0, 6),
        ("add.u64", 64, 7, u64::MAX, 0, 6),
        ("add.f32", 32, f(1.5), f(2.25), 0, f(3.75)),
        ("add.f64", 64, 1.5f64.to_bits(), 2.25f64.to_bits(), 0, 3.75f64.to_bits()),
        ("add.noftz.f16", 16, F16.encode(1.5), F16.encode(0.25), 0, F16.encode(1.75)),
        ("add.noftz.bf16", 16, BF16.encode(1.5), BF16.encode(0.25), 0, BF16.encode(1.75)),
        ("add.noftz.f16x2", 32, 0x3c00_4000, 0x3c00_3c00, 0, 0x4000_4200),
        ("add.noftz.bf16x2", 32, 0x3f80_4000, 0x3f80_3f80, 0, 0x4000_4040),
        ("min.u32", 32, 7, mask(32), 0, 7),
        ("min.s32", 32, 7, mask(32), 0, mask(32)),
        ("max.u32", 32, 7, mask(32), 0, mask(32)),
        ("max.s32", 32, 7, mask(32), 0, 7),
        ("min.s64", 64, 7, u64::MAX, 0, u64::MAX),
        ("max.u64", 64, 7, u64::MAX, 0, u64::MAX),
        ("min.noftz.f16", 16, F16.encode(1.5), F16.encode(-0.25), 0, F16.encode(-0.25)),
        ("max.noftz.bf16x2", 32, 0x3f80_4000, 0x4000_3f80, 0, 0x4000_4000),
        ("inc.u32", 32, 7, 9, 0, 8),
        ("inc.u32", 32, 9, 9, 0, 0),
        ("dec.u32", 32, 7, 9, 0, 6),
        ("dec.u32", 32, 0, 9, 0, 9),
        ("dec.u32", 32, 12, 9, 0, 9),
        ("and.b32", 32, 0xff0, 0x0ff, 0, 0x0f0),
        ("or.b32", 32, 0xff0, 0x0ff, 0, 0xfff),
        ("xor.b64", 64, 0xff0, 0x0ff, 0, 0xf0f),
        ("exch.b32", 32, 1, 2, 0, 2),
        ("exch.b64", 64, 1, 2, 0, 2),
        ("cas.b16", 16, 5, 5, 6, 6),
        ("cas.b32", 32, 5, 5, 6, 6),
        ("cas.b32", 32, 5, 4, 6, 5),
        ("cas.b64", 64, 5, 5, u64::MAX, u64::MAX),
    ];
    for &(op, bits, old, operand, swap, want) in table {
        let third = if op.starts_with("cas") { ", %c" } else { "" };
        for (space, address) in [("global", "[%rd0]"), ("shared", "[cell]"), ("", "[%rd9]")] {
            let dot = if space.is_empty() { "" } else { "." };
            let access = |verb: &str| format!("{verb}{dot}{space}");
            // The old value comes back and the new one stays.
            let prepare = format!(
                "shl.b64 %rd8, %rd2, 1; cvt.u32.u64 %r9, %rd8; mov.u64 %rd9, cell; cvta.shared.u64 %rd9, %rd9; {}.b{bits} {address}, %a;",
                access("st")
            );
            let one = vec![vec![old, operand, swap]];
            let atom = format!("{prepare} atom{dot}{space}.gpu.relaxed.{op} %d, {address}, %b{third};");
            check_one(&atom, bits, &one, old);
            check_one(&format!("{atom} {}.b{bits} %d, {address};", access("ld")), bits, &one, want);
            if !op.starts_with("cas") && !op.starts_with("exch") {
                let red = format!(
                    "{prepare} red{dot}{space}.release.gpu.{op} {address}, %b; {}.b{bits} %d, {address};",
                    access("ld")
                );
                check_one(&red, bits, &one, want);
            }
        }
    }
    // Lanes one after the other: each sees a different old value.
    let got = run(
        "",
        shape(2, 32),
        64,
        "add.u64 %rd5, %rd0, 0; st.global.u32 [%rd1], %r0; bar.sync 0;
        atom.global.add.u32 %r5, [%rd0], 1;",
    );
    assert_eq!((got[0], got[1]), (64, 1));
    // A vector of two floats.
    let got = run(
        "",
        shape(1, 1),
        4,
        "mov.b32 %f1, 0f3F800000; st.global.v4.b32 [%rd0], {%f1, %f1, %f1, %f1};
        atom.global.v2.f32.add {%f2, %f3}, [%rd0], {%f1, 0f40000000}; st.global.v2.b32 [%rd0+8], {%f2, %f3};",
    );
    assert_eq!(got, [2f32, 3.0, 1.0, 1.0].map(f32::to_bits));
}

/// Runs code in one thread that owns a `cell` of shared memory.
fn check_one(code: &str, bits: u32, inputs: &[Vec<u64>], want: u64) {
    let code = format!("{{ .shared .align 8 .b64 cell; setp.ne.u32 %p7, %r0, 0; @%p7 ret; {code} }}");
    check(&code, bits, &[bits; 3], inputs, |_| Some(want));
}

#[test]
fn guards_leave_other_lanes_alone() {
    // Registers, memory and predicates of lanes whose guard is false.
    let got = run("", shape(1, 32), 96, "and.b32 %r5, %r0, 1; setp.eq.u32 %p1, %r5, 1; setp.gt.u32 %p2, %r0, 15; mov.u32 %r6, 7;
        @%p1 mov.u32 %r6, 8; @!%p1 add.u32 %r6, %r6, 100; @%p1 setp.eq.u32 %p2, %r0, %r0; @%p2 st.global.u32 [%rd1], %r6;
        @!%p2 st.global.u32 [%rd1+128], %r6; mov.u64 %rd5, 1; @%p1 mov.b64 %rd5, {%r0, %r0}; mov.b64 {%r7, %r8}, %rd5; st.global.u32 [%rd1+256], %r8;");
    for lane in 0..32u32 {
        let odd = lane % 2 == 1;
        let value = if odd { 8 } else { 107 };
        let second = odd || lane > 15;
        let at = |base: usize| got[base + lane as usize];
        assert_eq!(at(0), if second { value } else { 0xcccc_cccc });
        assert_eq!(at(32), if second { 0xcccc_cccc } else { value });
        assert_eq!(at(64), if odd { lane } else { 0 });
    }
}

#[test]
fn special_registers() {
    let names = [
        "%tid.x",
        "%tid.y",
        "%tid.z",
        "%ntid.x",
        "%ntid.y",
        "%ntid.z",
        "%ctaid.x",
        "%ctaid.y",
        "%ctaid.z",
        "%nctaid.x",
        "%nctaid.y",
        "%nctaid.z",
        "%laneid",
        "%warpid",
        "%nwarpid",
        "%lanemask_eq",
        "%lanemask_lt",
        "%lanemask_le",
        "%lanemask_gt",
        "%lanemask_ge",
        "%cluster_ctaid.x",
        "%cluster_ctaid.y",
        "%cluster_ctaid.z",
        "%cluster_nctaid.x",
        "%cluster_nctaid.y",
        "%cluster_nctaid.z",
        "%cluster_ctarank",
        "%cluster_nctarank",
        "%clusterid.x",
        "%clusterid.y",
        "%clusterid.z",
        "%nclusterid.x",
        "%nclusterid.y",
        "%nclusterid.z",
        "%dynamic_smem_size",
        "%total_smem_size",
    ];
    let (block, grid, cluster) = ([5u32, 3, 4], [4u32, 6, 2], [2u32, 3, 1]);
    let threads = block.iter().product::<u32>() as usize;
    let blocks = grid.iter().product::<u32>() as usize;
    let stores: String = names
        .iter()
        .enumerate()
        .map(|(i, name)| format!("mov.u32 %r5, {name}; st.global.u32 [%rd1+{}], %r5;\n", 4 * i))
        .collect();
    let size = 4 * names.len();
    let body = format!(
        "ld.param.u64 %rd0, [p0]; mov.u32 %r1, %ctaid.z; mov.u32 %r2, %nctaid.y; mov.u32 %r3, %ctaid.y; mad.lo.u32 %r1, %r1, %r2, %r3;
        mov.u32 %r2, %nctaid.x; mov.u32 %r3, %ctaid.x; mad.lo.u32 %r1, %r1, %r2, %r3; mov.u32 %r2, %tid.z; mov.u32 %r3, %tid.y;
        mad.lo.u32 %r2, %r2, 3, %r3; mov.u32 %r3, %tid.x; mad.lo.u32 %r2, %r2, 5, %r3; mad.lo.u32 %r1, %r1, {threads}, %r2;
        mul.wide.u32 %rd1, %r1, {size}; add.u64 %rd1, %rd1, %rd0; {stores}"
    );
    let mut machine = Machine::new(1, limited());
    let out = machine.allocate(0, (size * threads * blocks) as u64, 256);
    let text = module(".shared .align 4 .b8 fixed[100];", 1, &body);
    let launch_shape =
        perigee_emulator::case::LaunchShape { grid, block, cluster, dynamic_shared_bytes: 640 };
    launch(&mut machine, &text, launch_shape, &[out]).unwrap();
    let got = kernel::read_words(&mut machine, out, size / 4 * threads * blocks);
    for at_block in 0..blocks as u32 {
        for thread in 0..threads as u32 {
            let row = &got[(at_block as usize * threads + thread as usize) * names.len()..][..names.len()];
            let at = |name: &str| row[names.iter().position(|other| *other == name).unwrap()];
            let lane = thread % 32;
            let axes = |index: u32, shape: [u32; 3]| {
                [index % shape[0], index / shape[0] % shape[1], index / shape[0] / shape[1]]
            };
            let id = axes(at_block, grid);
            for (axis, name) in ["x", "y", "z"].iter().enumerate() {
                assert_eq!(at(&format!("%tid.{name}")), axes(thread, block)[axis]);
                assert_eq!(at(&format!("%ntid.{name}")), block[axis]);
                assert_eq!(at(&format!("%ctaid.{name}")), id[axis]);
                assert_eq!(at(&format!("%nctaid.{name}")), grid[axis]);
                assert_eq!(at(&format!("%cluster_ctaid.{name}")), id[axis] % cluster[axis]);
                assert_eq!(at(&format!("%clusterid.{name}")), id[axis] / cluster[axis]);
                assert_eq!(at(&format!("%nclusterid.{name}")), grid[axis] / cluster[axis]);
                assert_eq!(at(&format!("%cluster_nctaid.{name}")), cluster[axis]);
            }
            assert_eq!((at("%laneid"), at("%warpid"), at("%nwarpid")), (lane, thread / 32, 2));
            let masks = [
                1 << lane,
                mask(lane) as u32,
                mask(lane + 1) as u32,
                !mask(lane + 1) as u32,
                !mask(lane) as u32,
            ];
            for (name, want) in ["eq", "lt", "le", "gt", "ge"].iter().zip(masks) {
                assert_eq!(at(&format!("%lanemask_{name}")), want, "lane {lane}");
            }
            assert_eq!(at("%cluster_ctarank"), id[0] % 2 + id[1] % 3 * 2);
            assert_eq!((at("%cluster_nctarank"), at("%dynamic_smem_size")), (6, 640));
            assert!(at("%total_smem_size") >= 740);
        }
    }
}
