//! Multi-token prediction layers on a device.

use super::buffers::Values;
use super::draft::{copy, part};
use super::projection::Projection;
use super::{CudaBackend, Workspace};
use crate::driver::Driver;
use crate::kernels::draft::{self, RowsParams};
use crate::kernels::linear::Output;
use crate::kernels::sampler_shards::Inputs;
use crate::step;
use crate::stream::Buffer;
use perigee_ops::{
    Activations, Backend, Capacity, DraftInput, FusionMatrices, ModelShape, MtpOps, OpError, StepPlan, expect,
};

/// Weights in front of the layer.
pub struct Fusion {
    enorm: Buffer,
    hnorm: Buffer,
    eh_proj: Projection,
    /// Embedding and hidden state side by side, `[T, 2 D]`.
    wide: Values,
}

/// Bytes of the product's input in f32 and, where tensor cores read it, in bf16.
fn bytes(shape: &ModelShape, capacity: &Capacity, arithmetic: Activations) -> [usize; 2] {
    let rows = capacity.max_tokens.max(step::padded(capacity.max_tokens));
    let values = rows * 2 * shape.hidden_size;
    [4 * values, if arithmetic.are_rounded() { 2 * values } else { 0 }]
}

impl<D: Driver> MtpOps for CudaBackend<D> {
    type Fusion = Fusion;

    fn fusion_bytes(&self, shape: &ModelShape, capacity: &Capacity) -> u64 {
        bytes(shape, capacity, self.arithmetic).iter().sum::<usize>() as u64
    }

    fn load_fusion(
        &mut self,
        host: &FusionMatrices<'_>,
        shape: &ModelShape,
        capacity: &Capacity,
    ) -> Result<Fusion, OpError> {
        let [exact, rounded] = bytes(shape, capacity, self.arithmetic);
        let mut allocate = |bytes| match bytes {
            0 => Ok(Buffer::NONE),
            bytes => self.stream.allocate("draft activations", bytes),
        };
        let wide = Values { exact: allocate(exact)?, rounded: allocate(rounded)? };
        Ok(Fusion {
            enorm: self.load_vector(&host.enorm)?,
            hnorm: self.load_vector(&host.hnorm)?,
            eh_proj: self.load_projection("load_fusion", &host.eh_proj)?,
            wide,
        })
    }

    fn fuse(
        &mut self,
        plan: &StepPlan,
        input: DraftInput<'_>,
        table: &Projection,
        target: &Workspace<D>,
        fusion: &mut Fusion,
        own: &mut Workspace<D>,
    ) -> Result<(), OpError> {
        expect("fuse", &[plan.num_rows()], &[input.rows().len()])?;
        self.begin_from(plan, input.rows(), own)?;
        let (rows, d, eps) = (own.step.padded_rows(), own.shape.hidden_size, own.shape.rms_norm_eps);
        let hidden = own.activations.hidden;
        let tokens = [own.step.tokens(), target.sampler.last_tokens()];
        self.embed_rows(rows, table, tokens, hidden, own.peers.as_ref())?;
        let normed = |source: Buffer, gain: &Buffer, first: usize| {
            let [to, rounded, stride] = part(fusion.wide, first, 2 * d);
            let gain = gain.address;
            RowsParams { gain, to, rounded, to_stride: stride as i64, eps, ..copy(source, source, d) }
        };
        draft::launch_rows(&mut self.stream, rows, &normed(hidden, &fusion.enorm, 0))?;
        let source = match input {
            DraftInput::Captured(_) => target.activations.normed.exact,
            DraftInput::Own(_) => own.activations.normed.exact,
        };
        let fed = RowsParams { rows: own.step.sources(), ..normed(source, &fusion.hnorm, d) };
        draft::launch_rows(&mut self.stream, rows, &fed)?;
        self.project(rows, fusion.wide, 0, &fusion.eh_proj, hidden, Output::Set)
    }

    fn logits_of(
        &mut self,
        head: &Projection,
        own: &Workspace<D>,
        target: &mut Workspace<D>,
    ) -> Result<(), OpError> {
        let sizes = [head.in_features(), head.out_features()];
        expect("logits_of", &[target.shape.hidden_size, target.shape.vocab_size], &sizes)?;
        let (rows, capacity) = (own.num_logits_rows, target.logits.bytes / (4 * target.shape.vocab_size));
        expect("logits_of", &[capacity.max(rows)], &[capacity])?;
        target.num_logits = rows;
        let list = own.step.logits_rows();
        let address = own.activations.normed.exact.address;
        target.sampler.compare(Inputs { address, rows: list, columns: own.shape.hidden_size });
        self.project(rows, own.activations.normed, list, head, target.logits, Output::Set)
    }
}
