//! Calibration on a device: what the host asks about a step, read back after it.

use super::buffers::MOE_ROWS;
use super::ffn::{Ffn, Slots};
use super::projection::SwigluMatrices;
use super::{Cache, CudaBackend, Experts, Router, Workspace};
use crate::driver::Driver;
use crate::kernels::fp4::RowKind;
use crate::kernels::route::Worklist;
use crate::kernels::{experts, tiled, tiled_swiglu};
use crate::tuner::Product;
use perigee_numbers::quant::CachedRowFormat;
use perigee_ops::{
    Activation, CacheDtype, CacheShape, Calibrate, KvSlot, OpError, Routed, RouterShape, expect, peak,
};

impl<D: Driver> Calibrate for CudaBackend<D> {
    fn read<'a>(&'a mut self, what: Activation, w: &'a Workspace<D>) -> Result<&'a [f32], OpError> {
        let (buffer, rows, columns) = match what {
            Activation::Hidden => (w.activations.hidden, w.step.rows(), w.shape.hidden_size),
            Activation::Normed => (w.activations.normed.exact, w.step.rows(), w.shape.hidden_size),
            Activation::Logits => (w.logits, w.num_logits, w.shape.vocab_size),
        };
        self.host = self.stream.read(buffer.address, rows * columns)?;
        Ok(&self.host)
    }

    fn write_hidden(&mut self, rows: &[f32], w: &mut Workspace<D>) -> Result<(), OpError> {
        expect("write_hidden", &[w.step.rows() * w.shape.hidden_size], &[rows.len()])?;
        Ok(self.stream.driver().upload(w.activations.hidden.address, bytemuck::cast_slice(rows))?)
    }

    fn route(&mut self, router: &Router, routed: &Experts, w: &mut Workspace<D>) -> Result<Routed, OpError> {
        let unscaled = RouterShape { routed_scaling_factor: 1.0, ..w.shape.router };
        self.choose(None, router, None, &unscaled, None, w)?;
        let (top_k, width, rows) = (unscaled.top_k, w.shape.hidden_size, w.step.rows());
        let mut norms = Vec::with_capacity(rows * top_k);
        for start in (0..rows).step_by(MOE_ROWS) {
            let range = start..(start + MOE_ROWS).min(rows);
            let list = self.worklist(routed, range.len(), w);
            self.write_worklist(&list, &range, w)?;
            let x = w.activations.normed.row(start, width);
            let (inner, out) = (w.activations.inner.address, w.activations.routed.address);
            self.swiglu(&[Ffn {
                weights: routed,
                slots: Slots::Routed(&list, range.len() * top_k, top_k),
                x,
                inner,
                out,
                has_inner: false,
                kind: RowKind::Replies,
            }])?;
            let outputs: Vec<f32> =
                self.stream.read(w.activations.routed.address, range.len() * top_k * width)?;
            let norm = |x: &[f32]| x.iter().map(|v| f64::from(*v) * f64::from(*v)).sum::<f64>().sqrt() as f32;
            norms.extend(outputs.chunks_exact(width).map(norm));
        }
        let weights = self.stream.read(w.activations.weights.address, rows * top_k)?;
        let chosen = self.chosen(w)?;
        // Of experts that other ranks have there is no output.
        let foreign = chosen.iter().map(|expert| !routed.held().has(*expert));
        norms.iter_mut().zip(foreign).filter(|(_, foreign)| *foreign).for_each(|(norm, _)| *norm = 0.0);
        Ok((chosen, weights, norms))
    }

    fn chosen(&mut self, w: &Workspace<D>) -> Result<Vec<u32>, OpError> {
        self.stream.read(w.activations.chosen.address, w.step.rows() * w.shape.router.top_k)
    }

    fn inner_peak(
        &mut self,
        rows: &[u32],
        weights: &Experts,
        expert: usize,
        w: &Workspace<D>,
    ) -> Result<f32, OpError> {
        let a = &w.activations;
        let mut largest = 0.0f32;
        // As many rows at once as the worklist has room for.
        for rows in rows.chunks((a.slots.bytes / 4).max(1)) {
            let tiles = rows.len().div_ceil(experts::TILE_ROWS);
            let tile = |i: usize| {
                let first = i * experts::TILE_ROWS;
                [expert as i32, first as i32, experts::TILE_ROWS.min(rows.len() - first) as i32]
            };
            let list: Vec<i32> = (0..tiles).flat_map(tile).collect();
            let (driver, bytes) = (self.stream.driver(), a.tiles.bytes);
            expect("inner_peak", &[bytes.max(4 * list.len())], &[bytes])?;
            driver.upload(a.slots.address, bytemuck::cast_slice(rows))?;
            driver.upload(a.tiles.address, bytemuck::cast_slice(&list))?;
            driver.upload(a.num_tiles.address, bytemuck::bytes_of(&(tiles as i32)))?;
            let list = Worklist {
                num_tiles: a.num_tiles.address,
                tiles: a.tiles.address,
                slots: a.slots.address,
                tile_rows: experts::TILE_ROWS,
                max_tiles: tiles,
                held: weights.held(),
            };
            let ([x, rounded], inner) = (a.normed.row(0, w.shape.hidden_size), a.inner.address);
            let units = weights.units();
            match &weights.weights {
                SwigluMatrices::Rows(weights) => {
                    let slots = experts::Slots::Routed(&list);
                    experts::launch_up(&mut self.stream, weights, slots, 1, x, inner)?;
                }
                SwigluMatrices::Tiles { gate_up, .. } => {
                    let x = tiled::Rows { address: rounded, stride: gate_up.in_features };
                    let y = tiled::Rows { address: inner, stride: units };
                    let slots = tiled::Slots::Routed(&list, 1);
                    let usable = self.choices.with_rows(Product::Swiglu, gate_up, list.tile_rows);
                    let variant = usable.unwrap_or_else(|| tiled::Variant::with_rows(list.tile_rows));
                    let part = tiled::Part { matrix: gate_up, slots, x, y };
                    tiled_swiglu::launch(&mut self.stream, variant, &[part])?;
                }
                // What scales are measured for is not rounded by them.
                SwigluMatrices::Panels { forms: [form, _], .. } => {
                    return Err(OpError::UnsupportedActivations { form: form.reply.name(), backend: "cuda" });
                }
            }
            for row in rows {
                let at = inner + (weights.inner_row_bytes() * *row as usize) as u64;
                let values = match &weights.weights {
                    SwigluMatrices::Rows(_) => self.stream.read::<f32>(at, units)?,
                    _ => {
                        let bits = self.stream.read::<u16>(at, units)?;
                        bits.iter().map(|bits| half::bf16::from_bits(*bits).to_f32()).collect()
                    }
                };
                largest = peak([largest, peak(values)]);
            }
        }
        Ok(largest)
    }

    fn cached_peak(&mut self, layer: usize, cache: &Cache, w: &Workspace<D>) -> Result<f32, OpError> {
        let (shape, mut largest) = (&cache.shape, 0.0f32);
        for slot in w.kv_slots.iter().filter(|slot| **slot != KvSlot::PAD) {
            let at = cache.layer(layer) + (slot.at() * shape.row_bytes()) as u64;
            let row: Vec<u8> = self.stream.read(at, shape.row_bytes())?;
            largest = peak([largest, peak(decoded(&row, shape))]);
        }
        Ok(largest)
    }
}

/// Values of a cached row.
fn decoded(row: &[u8], shape: &CacheShape) -> Vec<f32> {
    let widen = |bits: &u16| half::bf16::from_bits(*bits).to_f32();
    match shape.dtype {
        CacheDtype::F32 => row.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect(),
        CacheDtype::Bf16 => {
            let bits: Vec<u16> = row.chunks_exact(2).map(bytemuck::pod_read_unaligned).collect();
            bits.iter().map(widen).collect()
        }
        CacheDtype::Fp8(format) => fp8_row(row, format, shape.latent_dim, shape.rope_dim, widen),
    }
}

fn fp8_row(
    row: &[u8],
    format: CachedRowFormat,
    latent_dim: usize,
    rope_dim: usize,
    widen: impl Fn(&u16) -> f32,
) -> Vec<f32> {
    let mut bits = vec![0u16; latent_dim];
    format.decode(row, latent_dim - rope_dim, &mut bits);
    bits.iter().map(widen).collect()
}
