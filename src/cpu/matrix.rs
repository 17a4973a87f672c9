//! Weight matrices in the layout the kernels stream: panels of sixteen outputs.
//!
//! A panel holds 16 output rows and all of `in`, in steps of 64 bytes: one step is 16 pairs of bf16 (two consecutive
//! inputs of each output) or 16 f32 (one input). Outputs are padded to 16 with zero rows, inputs to an even count with
//! zeros. One step feeds one vector register, and a panel is read front to back, so a product with one row is a pure stream.
//!
//! Formats are per matrix, so lists of experts may mix them. Panels of 4-bit and 8-bit codes have steps of 32 inputs and their
//! scales behind the codes: see [`super::packed_panels`].

use super::layout::{LANES, PanelFormat};
use super::packed_panels;
use super::simd::{self, Isa};
use super::storage::Storage;
use super::transpose::TransposeRows;
use perigee_numbers::quant::{PackedMatrix, StoredMatrix};
use perigee_numbers::tensor::{Dtype, ElementType};
use perigee_numbers::threads::{Shards, ThreadPool, UploadMeter};
use perigee_ops::OpError;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A packed matrix `[out, in]`.
pub struct Panels {
    pub(crate) format: PanelFormat,
    pub(crate) out_features: usize,
    pub(crate) in_features: usize,
    pub(crate) num_panels: usize,
    /// What the scales of even and of odd panels are multiplied by: the tensor scales of one matrix, or of gate and up.
    pub(crate) factors: [f32; 2],
    storage: Arc<Storage>,
    start: usize,
}

impl std::fmt::Debug for Panels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Panels([{}, {}] {:?})", self.out_features, self.in_features, self.format)
    }
}

impl Panels {
    /// Steps per panel.
    pub(crate) fn steps(&self) -> usize {
        self.format.steps(self.in_features)
    }

    /// 32-bit words per panel.
    pub(crate) fn panel_words(&self) -> usize {
        self.format.panel_words(self.in_features)
    }

    /// The words from the first of `panel` to the end of the matrix.
    pub(crate) fn panel(&self, panel: usize) -> &[u32] {
        let words = self.panel_words();
        &self.storage.words()[self.start + panel * words..self.start + self.num_panels * words]
    }

    /// Where `panel` starts, for prefetching; `panel` may be past the end.
    pub(crate) fn address(&self, panel: usize) -> *const u32 {
        self.storage.words().as_ptr().wrapping_add(self.start + panel * self.panel_words())
    }

    /// Writes row `o` of the matrix, widened, to `out` `[in]`. Strides through one panel, which is contiguous.
    pub(crate) fn read_row(&self, o: usize, out: &mut [f32]) {
        let panel = &self.panel(o / LANES)[..self.panel_words()];
        if let PanelFormat::Codes(format) = self.format {
            return packed_panels::read_lane(format, panel, self.factors[o / LANES % 2], o % LANES, out);
        }
        let steps = panel.chunks_exact(LANES).map(|step| step[o % LANES]);
        match self.format {
            PanelFormat::F32 => out.iter_mut().zip(steps).for_each(|(x, word)| *x = f32::from_bits(word)),
            PanelFormat::Bf16 => {
                for (pair, word) in out.chunks_mut(2).zip(steps) {
                    pair[0] = f32::from_bits(word << 16);
                    if let Some(second) = pair.get_mut(1) {
                        *second = f32::from_bits(word & 0xffff_0000);
                    }
                }
            }
            PanelFormat::Codes(_) => unreachable!("read above"),
        }
    }
}

/// A matrix about to be packed.
pub(crate) struct PanelSource<'a> {
    /// Parts `[out_i, in]`.
    parts: Vec<StoredMatrix<'a>>,
    /// Panels of the two parts alternate (gate and up of the same 16 units side by side); otherwise parts are stacked.
    alternate: bool,
    format: PanelFormat,
    factors: [f32; 2],
    in_features: usize,
    num_panels: usize,
}

/// One stored row of a matrix.
#[derive(Clone, Copy)]
enum Row<'a> {
    /// Values of this dtype.
    Plain(Dtype, &'a [u8]),
    /// Row of codes.
    Packed(&'a PackedMatrix<'a>, usize),
}

impl<'a> PanelSource<'a> {
    /// `parts` stacked along `out`.
    pub(crate) fn stacked(op: &'static str, parts: Vec<StoredMatrix<'a>>) -> Result<Self, OpError> {
        let out: usize = parts.iter().map(rows_of).sum();
        Self::new(op, parts, false, out.div_ceil(LANES))
    }

    /// The panels of `a` and `b` alternating.
    pub(crate) fn alternating(
        op: &'static str,
        a: StoredMatrix<'a>,
        b: StoredMatrix<'a>,
    ) -> Result<Self, OpError> {
        if a.shape() != b.shape() {
            return Err(OpError::ShapeMismatch { op, expected: a.shape().to_vec(), got: b.shape().to_vec() });
        }
        let panels = 2 * rows_of(&a).div_ceil(LANES);
        Self::new(op, vec![a, b], true, panels)
    }

    fn new(
        op: &'static str,
        parts: Vec<StoredMatrix<'a>>,
        alternate: bool,
        num_panels: usize,
    ) -> Result<Self, OpError> {
        let in_features = parts.first().and_then(|p| p.shape().get(1)).copied().unwrap_or(0);
        for part in &parts {
            let rows = rows_of(part);
            if part.shape() != [rows, in_features] || rows == 0 || in_features == 0 {
                let expected = vec![rows.max(1), in_features.max(1)];
                return Err(OpError::ShapeMismatch { op, expected, got: part.shape().to_vec() });
            }
        }
        if let Some((format, factors)) = packed_panels::common_format(&parts, alternate) {
            let format = PanelFormat::Codes(format);
            return Ok(Self { parts, alternate, format, factors, in_features, num_panels });
        }
        // What has no panels of its own as codes (parts of different formats, say) is widened exactly.
        let mut format = PanelFormat::Bf16;
        for part in &parts {
            let StoredMatrix::Plain(part) = part else {
                format = PanelFormat::F32;
                continue;
            };
            match part.dtype {
                Dtype::BF16 => {}
                Dtype::F32 | Dtype::F16 => format = PanelFormat::F32,
                dtype => {
                    return Err(OpError::UnsupportedDtype { op, dtype: dtype.to_string(), backend: "cpu" });
                }
            }
            let bytes = part.len() * part.dtype.element_bytes().unwrap_or(0);
            if part.bytes.len() != bytes {
                return Err(OpError::ShapeMismatch {
                    op,
                    expected: vec![bytes],
                    got: vec![part.bytes.len()],
                });
            }
        }
        Ok(Self { parts, alternate, format, factors: [1.0; 2], in_features, num_panels })
    }

    /// The same with packed parts widened to f32; for products whose input is never rounded.
    pub(crate) fn widened(mut self) -> Self {
        if matches!(self.format, PanelFormat::Codes(_)) {
            self.format = PanelFormat::F32;
        }
        self
    }

    fn panel_words(&self) -> usize {
        self.format.panel_words(self.in_features)
    }

    /// Bytes of the parts as they are stored.
    fn stored_bytes(&self) -> usize {
        let bytes = |part: &StoredMatrix<'_>| match part {
            StoredMatrix::Plain(view) => view.bytes.len(),
            StoredMatrix::Packed(packed) => packed.codes.len() + packed.scales.bytes.len(),
        };
        self.parts.iter().map(bytes).sum()
    }

    fn words(&self) -> usize {
        self.num_panels * self.panel_words()
    }

    /// The stored row that lane `lane` of `panel` holds, or `None` for padding.
    fn row(&self, panel: usize, lane: usize) -> Option<Row<'_>> {
        let (part, row) = if self.alternate {
            (&self.parts[panel % 2], panel / 2 * LANES + lane)
        } else {
            let mut row = panel * LANES + lane;
            let part = self.parts.iter().find(|part| {
                let inside = row < rows_of(part);
                if !inside {
                    row -= rows_of(part);
                }
                inside
            })?;
            (part, row)
        };
        if row >= rows_of(part) {
            return None;
        }
        Some(match part {
            StoredMatrix::Plain(view) => {
                let bytes = view.bytes.len() / view.shape[0];
                Row::Plain(view.dtype, &view.bytes[row * bytes..(row + 1) * bytes])
            }
            StoredMatrix::Packed(packed) => Row::Packed(packed, row),
        })
    }

    /// Fills the words of one panel, which are zero.
    fn pack(&self, isa: Isa, panel: usize, words: &mut [u32]) {
        let rows: [Option<Row<'_>>; LANES] = std::array::from_fn(|lane| self.row(panel, lane));
        if let PanelFormat::Codes(format) = self.format {
            let rows = rows.map(|row| match row {
                Some(Row::Packed(matrix, row)) => Some((matrix, row)),
                _ => None,
            });
            return packed_panels::pack(isa, format, &rows, words);
        }
        let whole_words = rows.iter().flatten().all(|row| match (self.format, row) {
            (PanelFormat::Bf16, Row::Plain(..)) => self.in_features.is_multiple_of(2),
            (_, Row::Plain(dtype, _)) => *dtype == Dtype::F32,
            (_, Row::Packed(..)) => false,
        });
        if whole_words && cfg!(target_endian = "little") {
            let rows = rows.map(|row| match row {
                Some(Row::Plain(_, bytes)) => bytes,
                _ => &[][..],
            });
            // SAFETY: the instruction set is supported (checked at construction).
            return unsafe { simd::launch(isa, TransposeRows { rows, words }) };
        }
        let mut values = Vec::new();
        for (lane, row) in rows.into_iter().enumerate() {
            let steps = words.iter_mut().skip(lane).step_by(LANES);
            let (dtype, row) = match row {
                None => continue,
                Some(Row::Packed(matrix, row)) => {
                    values.resize(self.in_features, 0.0);
                    matrix.row_to_f32(row, &mut values);
                    steps.zip(&values).for_each(|(word, x)| *word = x.to_bits());
                    continue;
                }
                Some(Row::Plain(dtype, row)) => (dtype, row),
            };
            match (self.format, dtype) {
                (PanelFormat::Bf16, _) => {
                    for (word, pair) in steps.zip(row.chunks(4)) {
                        let high = if pair.len() == 4 { [pair[2], pair[3]] } else { [0, 0] };
                        *word = u32::from_le_bytes([pair[0], pair[1], high[0], high[1]]);
                    }
                }
                (_, Dtype::F32) => {
                    for (word, x) in steps.zip(row.chunks_exact(4)) {
                        *word = u32::from_le_bytes([x[0], x[1], x[2], x[3]]);
                    }
                }
                _ => {
                    let f16 = dtype == Dtype::F16;
                    for (word, x) in steps.zip(row.chunks_exact(2)) {
                        let bits = u16::from_le_bytes([x[0], x[1]]);
                        let value = if f16 {
                            half::f16::from_bits(bits).to_f32()
                        } else {
                            half::bf16::from_bits(bits).to_f32()
                        };
                        *word = value.to_bits();
                    }
                }
            }
        }
    }
}

/// `out` of a stored matrix; 0 for a tensor without dimensions.
fn rows_of(stored: &StoredMatrix<'_>) -> usize {
    stored.shape().first().copied().unwrap_or(0)
}

/// Packs all `sources` into one allocation, on all threads.
pub(crate) fn pack_all(
    pool: &mut ThreadPool,
    isa: Isa,
    what: &'static str,
    sources: &[PanelSource<'_>],
) -> Result<Vec<Panels>, OpError> {
    pack_reporting(pool, isa, what, sources, &UploadMeter::default())
}

/// [`pack_all`] that reports the bytes of the sources to `meter`.
pub(crate) fn pack_reporting(
    pool: &mut ThreadPool,
    isa: Isa,
    what: &'static str,
    sources: &[PanelSource<'_>],
    meter: &UploadMeter,
) -> Result<Vec<Panels>, OpError> {
    // Where each matrix starts, and which panel of which matrix each task packs.
    let mut starts = Vec::with_capacity(sources.len());
    let mut tasks = Vec::new();
    let mut total = 0;
    for (s, source) in sources.iter().enumerate() {
        starts.push(total);
        tasks.extend((0..source.num_panels).map(|panel| (s, panel)));
        total += source.words();
    }
    let mut storage = Storage::zeroed(total, what)?;
    let words = Shards::new(storage.words_mut());
    let not_a_number = AtomicBool::new(false);
    let pack = |(s, panel): (usize, usize)| {
        let panel_words = sources[s].panel_words();
        // SAFETY: `storage` outlives the call, and every task has a panel of its own.
        let words = unsafe { words.slice(starts[s] + panel * panel_words, panel_words) };
        sources[s].pack(isa, panel, words);
        if let PanelFormat::Codes(format) = sources[s].format
            && packed_panels::has_not_a_number(format, words, sources[s].in_features)
        {
            not_a_number.store(true, Ordering::Relaxed);
        }
    };
    match sources {
        [source] => {
            pool.for_each(tasks.len(), |_, task| pack(tasks[task]));
            meter.add(source.stored_bytes());
        }
        _ => {
            // In their order, whichever thread is free: the threads stay near each other in the file, which is read
            // ahead of them. The last panel of a matrix reports for all.
            let next = AtomicUsize::new(0);
            pool.run(&|_| {
                while let Some((s, panel)) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
                    pack((*s, *panel));
                    if panel + 1 == sources[*s].num_panels {
                        meter.add(sources[*s].stored_bytes());
                    }
                }
            });
        }
    }
    if not_a_number.into_inner() {
        let dtype =
            "FP8 with a code that is not a number (the file is damaged, or its exporter was: get it again)";
        return Err(OpError::UnsupportedDtype { op: what, dtype: dtype.into(), backend: "cpu" });
    }
    let storage = Arc::new(storage);
    Ok(sources
        .iter()
        .zip(starts)
        .map(|(source, start)| Panels {
            format: source.format,
            out_features: if source.alternate {
                rows_of(&source.parts[0])
            } else {
                source.parts.iter().map(rows_of).sum()
            },
            factors: source.factors,
            in_features: source.in_features,
            num_panels: source.num_panels,
            storage: storage.clone(),
            start,
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_numbers::tensor::TensorView;

    #[test]
    fn rows_come_back_from_any_dtype_and_size() {
        let mut pool = ThreadPool::new("test", 2);
        for (isa, (rows, cols)) in Isa::supported()
            .into_iter()
            .flat_map(|isa| [(1, 1), (5, 3), (16, 8), (33, 7), (40, 64), (18, 38)].map(|size| (isa, size)))
        {
            let values: Vec<f32> = (0..rows * cols).map(|i| (i as f32 - 20.0) * 0.5).collect();
            let f32s: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            let f16s: Vec<u8> = values.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect();
            let bf16s: Vec<u8> = values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect();
            let shape = [rows, cols];
            for (dtype, bytes) in [(Dtype::F32, &f32s), (Dtype::F16, &f16s), (Dtype::BF16, &bf16s)] {
                let view = TensorView { dtype, shape: &shape, bytes };
                let source = PanelSource::stacked("test", vec![view.into(), view.into()]).expect("valid");
                let packed = pack_all(&mut pool, isa, "test", &[source]).expect("memory");
                assert_eq!((packed[0].out_features, packed[0].in_features), (2 * rows, cols));
                let want = view.to_f32();
                for o in 0..2 * rows {
                    let mut got = vec![f32::NAN; cols];
                    packed[0].read_row(o, &mut got);
                    assert_eq!(got, want[o % rows * cols..(o % rows + 1) * cols], "{dtype} row {o}");
                }
            }
        }
    }

    #[test]
    fn bad_parts_are_errors() {
        let bytes = [0u8; 24];
        let check = |dtype, shape: &[usize]| {
            PanelSource::stacked("test", vec![TensorView { dtype, shape, bytes: &bytes }.into()]).is_err()
        };
        assert!(!check(Dtype::BF16, &[3, 4]));
        assert!(check(Dtype::BF16, &[12]));
        assert!(check(Dtype::BF16, &[0, 4]));
        assert!(check(Dtype::BF16, &[3, 5]));
        assert!(check(Dtype::F8_E4M3, &[3, 8]));
    }
}
