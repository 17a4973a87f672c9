//! Multi-token prediction layers on any set of host operations.

use super::HostOps;
use super::backend::HostWorkspace;
use super::draft::{gather, set_columns};
use crate::{Capacity, DraftInput, ModelShape, OpError, StepPlan, expect};
use crate::{FusionMatrices, MtpOps};

/// Weights in front of the layer.
pub struct HostFusion<H: HostOps> {
    enorm: H::Vector,
    hnorm: H::Vector,
    eh_proj: H::Matrix,
    /// Embedding and hidden state side by side, `[T, 2 D]`.
    wide: H::Buffer,
    /// `[T, D]`.
    picked: Vec<f32>,
    joined: Vec<f32>,
    sums: Vec<f32>,
}

impl<H: HostOps> MtpOps for H {
    type Fusion = HostFusion<H>;

    fn fusion_bytes(&self, shape: &ModelShape, capacity: &Capacity) -> u64 {
        // The product's input twice, and the rows picked for it.
        4 * (5 * shape.hidden_size * capacity.max_tokens) as u64
    }

    fn load_fusion(
        &mut self,
        host: &FusionMatrices<'_>,
        shape: &ModelShape,
        capacity: &Capacity,
    ) -> Result<HostFusion<H>, OpError> {
        Ok(HostFusion {
            enorm: HostOps::load_vector(self, &host.enorm)?,
            hnorm: HostOps::load_vector(self, &host.hnorm)?,
            eh_proj: HostOps::load_matrix(self, &host.eh_proj)?,
            wide: self.allocate(capacity.max_tokens, 2 * shape.hidden_size)?,
            picked: Vec::new(),
            joined: Vec::new(),
            sums: Vec::new(),
        })
    }

    fn fuse(
        &mut self,
        plan: &StepPlan,
        input: DraftInput<'_>,
        table: &H::Matrix,
        target: &HostWorkspace<H>,
        fusion: &mut HostFusion<H>,
        own: &mut HostWorkspace<H>,
    ) -> Result<(), OpError> {
        expect("fuse", &[plan.num_rows()], &[input.rows().len()])?;
        let HostFusion { enorm, hnorm, eh_proj, wide, picked, joined, sums } = fusion;
        let (d, eps) = (own.shape.hidden_size, own.shape.rms_norm_eps);
        let source = match input {
            DraftInput::Captured(_) => &target.normed,
            DraftInput::Own(_) => &own.normed,
        };
        picked.clear();
        gather(H::values(source), d, input.rows(), picked)?;
        own.take_plan(plan, target);
        joined.clear();
        joined.resize(plan.num_rows() * 2 * d, 0.0);
        target.embed(self, table, &own.plan.tokens, &mut own.hidden, sums)?;
        HostOps::norm(self, &own.hidden, enorm, eps, &mut own.normed)?;
        set_columns(H::values(&own.normed), d, joined, 2 * d, 0);
        self.write(picked, &mut own.hidden)?;
        HostOps::norm(self, &own.hidden, hnorm, eps, &mut own.normed)?;
        set_columns(H::values(&own.normed), d, joined, 2 * d, d);
        self.write(joined, wide)?;
        self.project(wide, eh_proj, &mut own.hidden)
    }

    fn logits_of(
        &mut self,
        head: &H::Matrix,
        own: &HostWorkspace<H>,
        target: &mut HostWorkspace<H>,
    ) -> Result<(), OpError> {
        HostOps::logits(self, &own.normed, &own.plan.logits_rows, head, target.logits_mut())
    }
}
