//! Whether a candidate computes what the first variant computes, bit for bit, and the first what the f32 kernel computes.
//!
//! Outputs are poisoned before each run and lie between guards. A candidate that fails once is refused; it is not run
//! again, and never timed.

use super::TuneError;
use super::candidate::Candidate;
use super::op::{Product, TunedOp};
use super::problem::{Problem, Workload};
use crate::kernels::fp4_rows;
use crate::kernels::tiled::Rows;
use crate::stream::Buffer;
use crate::weights::decode_row;
use crate::{Driver, Stream};
use perigee_numbers::quant::ActivationForm;
use perigee_ops::OpError;
use perigee_ops::tolerance::{PROJECT, SWIGLU, difference};

/// Bytes of guards in front of and behind the outputs.
const GUARD_BYTES: usize = 256;
/// A byte of poison: a value of these is a NaN that no kernel computes.
const POISON: u8 = 0xff;

/// Output of a launch on the device, and the poison that it is filled with.
pub(super) struct Output {
    buffer: Buffer,
    poison: Buffer,
    width: usize,
    value_bytes: usize,
    /// Where values are bytes, the form of the rows that they are, and their columns.
    coded: Option<(ActivationForm, usize)>,
}

impl Output {
    pub(super) fn new<D: Driver>(stream: &mut Stream<D>, problem: &Problem) -> Result<Self, OpError> {
        let coded = problem.op.inner_form();
        let (width, value_bytes) = match coded {
            Some(form) => (fp4_rows::row_bytes(problem.op.out_features, form.num_terms()), 1),
            None => (problem.op.out_features, problem.op.product.value_bytes()),
        };
        let bytes = 2 * GUARD_BYTES + problem.max_slots * width * value_bytes;
        let poison = stream.store("tuning", &vec![POISON; bytes])?;
        let coded = coded.map(|form| (form, problem.op.out_features));
        Ok(Self { buffer: stream.allocate("tuning", bytes)?, poison, width, value_bytes, coded })
    }

    /// Where rows are written.
    pub(super) fn rows(&self) -> Rows {
        Rows { address: self.buffer.address + GUARD_BYTES as u64, stride: self.width }
    }

    /// The outputs of a candidate for a workload, with the guards.
    fn run<D: Driver>(
        &self,
        stream: &mut Stream<D>,
        problem: &Problem,
        workload: &Workload,
        candidate: &Candidate,
    ) -> Result<Vec<u8>, OpError> {
        let list = problem.worklist(stream, workload, candidate.rows)?;
        let slots = problem.slots(workload, list.as_ref());
        self.written_by(stream, &mut |stream| candidate.launch(stream, problem, 0, slots, self.rows()))
    }

    /// The outputs of a launch over poison, with the guards.
    pub(super) fn written_by<D: Driver>(
        &self,
        stream: &mut Stream<D>,
        launch: &mut dyn FnMut(&mut Stream<D>) -> Result<(), OpError>,
    ) -> Result<Vec<u8>, OpError> {
        stream.driver().copy(self.buffer.address, self.poison.address, self.buffer.bytes)?;
        launch(stream)?;
        stream.read(self.buffer.address, self.buffer.bytes)
    }

    /// Bits and value at an index of the outputs.
    fn value(&self, outputs: &[u8], index: usize) -> (u32, f32) {
        let bytes = &outputs[GUARD_BYTES + index * self.value_bytes..][..self.value_bytes];
        match *bytes {
            [a, b, c, d] => {
                let value = f32::from_le_bytes([a, b, c, d]);
                (value.to_bits(), value)
            }
            [a, b] => {
                let value = half::bf16::from_le_bytes([a, b]);
                (u32::from(value.to_bits()), value.to_f32())
            }
            [byte] => (u32::from(byte), f32::from(byte)),
            _ => (0, f32::NAN),
        }
    }

    pub(super) fn values(&self, outputs: &[u8], num_slots: usize) -> Vec<f32> {
        if let Some((form, columns)) = self.coded {
            let rows = outputs[GUARD_BYTES..].chunks_exact(self.width).take(num_slots);
            return rows.flat_map(|row| decode_row(form, row, columns)).collect();
        }
        (0..num_slots * self.width).map(|i| self.value(outputs, i).1).collect()
    }

    fn place(&self, index: usize) -> String {
        format!("row {}, output {}", index / self.width, index % self.width)
    }

    /// Finds what is wrong with one run by itself.
    pub(super) fn check_alone(&self, outputs: &[u8], num_slots: usize) -> Result<(), String> {
        let end = GUARD_BYTES + num_slots * self.width * self.value_bytes;
        if outputs[..GUARD_BYTES].iter().chain(&outputs[end..]).any(|byte| *byte != POISON) {
            return Err("it writes outside of its output".into());
        }
        if self.coded.is_some() {
            // Any byte is a code; a scale that is not written is no number.
            return Ok(());
        }
        let poison = if self.value_bytes == 2 { 0xffff } else { u32::MAX };
        let of = |wrong: &dyn Fn(u32, f32) -> bool| -> Vec<usize> {
            let wrong_at = |i: &usize| {
                let (bits, value) = self.value(outputs, *i);
                wrong(bits, value)
            };
            (0..num_slots * self.width).filter(wrong_at).collect()
        };
        let unwritten = of(&|bits, _| bits == poison);
        if let Some(first) = unwritten.first() {
            let (left, of) = (unwritten.len(), num_slots * self.width);
            return Err(format!(
                "it leaves {left} of {of} values unwritten, the first at {}",
                self.place(*first)
            ));
        }
        let not_finite = of(&|_, value| !value.is_finite());
        match not_finite.first() {
            Some(first) => {
                let (_, value) = self.value(outputs, *first);
                Err(format!("it gives {value} at {}", self.place(*first)))
            }
            None => Ok(()),
        }
    }

    /// The first value that differs.
    pub(super) fn first_difference(&self, a: &[u8], b: &[u8], num_slots: usize) -> Option<String> {
        let differs = |i: &usize| self.value(a, *i).0 != self.value(b, *i).0;
        let at = (0..num_slots * self.width).find(differs)?;
        let [a, b] = [a, b].map(|outputs| self.value(outputs, at).1);
        Some(format!("{a:e} and {b:e} at {}", self.place(at)))
    }
}

/// Difference from the f32 kernel that is allowed. A product of rows in one term is off by 9e-2, in two by 9e-3 of its size, in three by less than
/// in bf16.
fn allowed(op: &TunedOp) -> f32 {
    match (op.product, op.terms) {
        (Product::Linear, 1) => 0.25,
        (Product::Linear, 2) => 0.03,
        (Product::Linear, _) => PROJECT.bf16_activations,
        (Product::Swiglu, 1) => 0.4,
        (Product::Swiglu, 2) => 0.06,
        (Product::Swiglu, _) => SWIGLU.bf16_activations,
    }
}

/// Result of the checks of all candidates.
pub(super) struct Verdict {
    /// Reason of each candidate's refusal.
    pub(super) refused: Vec<Option<String>>,
    /// Largest difference of the first candidate from the f32 kernel.
    pub(super) error: f32,
}

/// Runs every candidate, twice on each workload.
pub(super) fn check<D: Driver>(
    stream: &mut Stream<D>,
    problem: &Problem,
    output: &Output,
    candidates: &[Candidate],
) -> Result<Verdict, TuneError> {
    let mut refused: Vec<Option<String>> = vec![None; candidates.len()];
    let allowed = allowed(&problem.op);
    let mut error = 0.0f32;
    for rows in problem.rows() {
        let workload = problem.workload(rows);
        let num_slots = workload.num_slots;
        let expected = problem.expected(stream, &workload)?;
        let mut first_outputs: Option<Vec<u8>> = None;
        for (c, candidate) in candidates.iter().enumerate() {
            if refused[c].is_some() {
                continue;
            }
            let mut twice = || {
                let a = output.run(stream, problem, &workload, candidate)?;
                Ok((a, output.run(stream, problem, &workload, candidate)?))
            };
            let (a, b) = match twice() {
                Ok(outputs) => outputs,
                Err(error @ OpError::Device { fatal: false, .. }) => {
                    refused[c] = Some(format!("its launch fails: {error}"));
                    continue;
                }
                Err(error) => return Err(TuneError::of(candidate, error)),
            };
            let fault = match &first_outputs {
                // The first one's have been looked at.
                Some(first) if a == *first && b == *first => None,
                first => {
                    let alone =
                        output.check_alone(&a, num_slots).and_then(|()| output.check_alone(&b, num_slots));
                    let runs = || output.first_difference(&a, &b, num_slots);
                    let runs = || runs().map(|text| format!("two runs differ: {text}"));
                    let other = || output.first_difference(first.as_deref()?, &a, num_slots);
                    let name = candidates[0].name;
                    alone
                        .err()
                        .or_else(runs)
                        .or_else(|| other().map(|text| format!("it has other bits than {name}: {text}")))
                }
            };
            if let Some(fault) = fault {
                refused[c] = Some(fault);
            } else if c == 0 {
                let off = difference(&output.values(&a, num_slots), &expected);
                error = error.max(off);
                if off > allowed {
                    refused[c] = Some(format!(
                        "it differs from the f32 kernel by {off:.1e}, allowed are {allowed:.1e}"
                    ));
                } else {
                    first_outputs = Some(a);
                }
            }
        }
        if refused[0].is_some() {
            break;
        }
    }
    if refused[0].is_some() {
        let reason = format!("there is nothing to compare it with: {} is refused", candidates[0].name);
        for other in refused.iter_mut().filter(|other| other.is_none()) {
            *other = Some(reason.clone());
        }
    }
    Ok(Verdict { refused, error })
}
