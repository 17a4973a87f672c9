//! Weights in the layout that the backend's arithmetic reads.

use super::CudaBackend;
use crate::Arch;
use crate::driver::Driver;
use crate::kernels::experts::{self, TILE_ROWS};
use crate::kernels::fp4::{LaunchForm, RowKind};
use crate::kernels::route::Held;
use crate::packer::Packer;
use crate::tuner::Choices;
use crate::weights::{Matrix, Panels, Pieces, Tiled, row_bytes};
use perigee_numbers::quant::StoredMatrix;
use perigee_ops::host::{ExpertPieces, ExpertProjection};
use perigee_ops::{Activations, OpError, RowForms, expect};

/// A linear.
#[derive(Debug, Clone, Copy)]
pub enum Projection {
    /// For f32.
    Rows(Matrix),
    /// For tensor cores.
    Tiles(Tiled),
}

impl Projection {
    /// N.
    pub(super) fn out_features(&self) -> usize {
        match self {
            Self::Rows(matrix) => matrix.out_features,
            Self::Tiles(tiled) => tiled.out_features,
        }
    }

    /// K.
    pub(super) fn in_features(&self) -> usize {
        match self {
            Self::Rows(matrix) => matrix.in_features,
            Self::Tiles(tiled) => tiled.in_features,
        }
    }
}

/// One or many experts: of routed ones all, or a rank's.
#[derive(Debug, Clone, Copy)]
pub struct Experts {
    pub(super) weights: SwigluMatrices,
    /// Number of the first one.
    pub(super) first: usize,
}

/// SwiGLU matrices of one or many experts.
#[derive(Debug, Clone, Copy)]
pub(super) enum SwigluMatrices {
    /// For f32.
    Rows(experts::Experts),
    /// For tensor cores.
    Tiles {
        /// `[E, I, D]`, pairs of gate and up.
        gate_up: Tiled,
        /// `[E, D, I]`.
        down: Tiled,
    },
    /// For tensor cores that multiply rows in 4-bit floats.
    Panels {
        /// `[E, I, D]`, pairs of gate and up.
        gate_up: Panels,
        /// `[E, D, I]`.
        down: Panels,
        /// Of the rows in front of both products.
        forms: [RowForms; 2],
    },
}

impl Experts {
    /// Numbers of these experts.
    pub(super) fn held(&self) -> Held {
        let count = match &self.weights {
            SwigluMatrices::Rows(experts) => experts.gate.count,
            SwigluMatrices::Tiles { gate_up, .. } => gate_up.count,
            SwigluMatrices::Panels { gate_up, .. } => gate_up.count,
        };
        Held { first: self.first as u32, count: count as u32 }
    }

    /// I.
    pub(super) fn units(&self) -> usize {
        match &self.weights {
            SwigluMatrices::Rows(experts) => experts.gate.out_features,
            SwigluMatrices::Tiles { gate_up, .. } => gate_up.out_features,
            SwigluMatrices::Panels { gate_up, .. } => gate_up.out_features,
        }
    }

    /// Bytes of a row between the two products.
    pub(super) fn inner_row_bytes(&self) -> usize {
        match &self.weights {
            SwigluMatrices::Rows(_) => 4 * self.units(),
            SwigluMatrices::Tiles { .. } => 2 * self.units(),
            SwigluMatrices::Panels { forms: [_, inner], .. } => {
                row_bytes(self.units(), inner.prompt.num_terms().max(inner.reply.num_terms()))
            }
        }
    }

    /// Slots of a tile of a worklist for `num_slots` slots.
    pub(super) fn tile_rows(&self, arch: Arch, choices: &Choices, num_slots: usize, kind: RowKind) -> usize {
        match &self.weights {
            SwigluMatrices::Rows(_) => TILE_ROWS,
            SwigluMatrices::Tiles { gate_up, down } => choices.pair(gate_up, down, num_slots)[0].rows,
            SwigluMatrices::Panels { gate_up, down, forms: [input, _] } => {
                choices.panel_slots(arch, [gate_up, down], LaunchForm::of(*input, kind).form, num_slots)
            }
        }
    }
}

impl<D: Driver> CudaBackend<D> {
    pub(super) fn load_projection(
        &mut self,
        op: &'static str,
        host: &StoredMatrix<'_>,
    ) -> Result<Projection, OpError> {
        match self.arithmetic {
            Activations::Bf16 | Activations::Int8 if Packer::packs(host) => {
                self.packer.pack(&mut self.stream, op, &[host], None).map(Projection::Tiles)
            }
            _ => Matrix::load(&mut self.stream, op, &[host]).map(Projection::Rows),
        }
    }

    /// Uploads experts, the first of which is number `first`.
    pub(super) fn load_swiglu(
        &mut self,
        experts: &ExpertPieces<'_>,
        first: usize,
    ) -> Result<Experts, OpError> {
        const OP: &str = "load_experts";
        let forms = experts.forms("cuda")?;
        let count = experts.len();
        let [gate, up, down] = [ExpertProjection::Gate, ExpertProjection::Up, ExpertProjection::Down]
            .map(|projection| move |e: usize| experts.piece(e, projection));
        let packs = experts.stored().all(|matrix| Packer::packs(&matrix));
        let weights = if let Some(forms) = forms {
            if !self.stream.driver().arch().multiplies_fp4() {
                let form = forms[0].reply.name();
                return Err(OpError::UnsupportedActivations { form, backend: "cuda" });
            }
            SwigluMatrices::Panels {
                gate_up: self.packer.pack_panel_pieces(&mut self.stream, OP, count, &gate, Some(&up))?,
                down: self.packer.pack_panel_pieces(&mut self.stream, OP, count, &down, None)?,
                forms,
            }
        } else if self.arithmetic.are_rounded() && packs {
            SwigluMatrices::Tiles {
                gate_up: self.packer.pack_pieces(&mut self.stream, OP, count, &gate, Some(&up))?,
                down: self.packer.pack_pieces(&mut self.stream, OP, count, &down, None)?,
            }
        } else {
            let mut load = |pieces: &Pieces<'_>| Matrix::load_pieces(&mut self.stream, OP, count, pieces);
            let experts = experts::Experts { gate: load(&gate)?, up: load(&up)?, down: load(&down)? };
            if experts.gate.format != experts.up.format {
                let dtype = format!("{} beside {}", experts.gate.format.name(), experts.up.format.name());
                return Err(OpError::UnsupportedDtype { op: OP, dtype, backend: "cuda" });
            }
            let shape = |matrix: &Matrix| [matrix.out_features, matrix.in_features];
            expect(OP, &shape(&experts.gate), &shape(&experts.up))?;
            SwigluMatrices::Rows(experts)
        };
        let (inner, hidden, down) = match &weights {
            SwigluMatrices::Rows(e) => {
                (e.gate.out_features, e.gate.in_features, [e.down.out_features, e.down.in_features])
            }
            SwigluMatrices::Tiles { gate_up, down } => {
                (gate_up.out_features, gate_up.in_features, [down.out_features, down.in_features])
            }
            SwigluMatrices::Panels { gate_up, down, .. } => {
                (gate_up.out_features, gate_up.in_features, [down.out_features, down.in_features])
            }
        };
        expect(OP, &[hidden, inner], &down)?;
        Ok(Experts { weights, first })
    }
}
