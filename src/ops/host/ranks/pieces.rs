//! Experts as a rank has them: whole, or cut when they are uploaded. A layer of Kimi K2 has gigabytes of experts, of which cut copies are
//! not to lie in the host's memory together.

use std::ops::Range;

use super::share::{self, Part, Share};
use crate::{ExpertMatrices, OpError, RowForms};
use perigee_numbers::quant::StoredMatrix;

/// A matrix, or a part of one.
pub enum Piece<'a> {
    /// The matrix as it is stored.
    Whole(StoredMatrix<'a>),
    /// Cut out for a rank.
    Part(Part<'a>),
}

impl Piece<'_> {
    /// The piece as a matrix of its own.
    pub fn view(&self) -> StoredMatrix<'_> {
        match self {
            Self::Whole(matrix) => *matrix,
            Self::Part(part) => part.view(),
        }
    }
}

/// One of an expert's matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpertProjection {
    /// `[I, D]`.
    Gate,
    /// `[I, D]`.
    Up,
    /// `[D, I]`.
    Down,
}

/// Experts of a rank, in their order.
#[derive(Debug, Clone, Copy)]
pub struct ExpertPieces<'a> {
    experts: &'a [ExpertMatrices<'a>],
    /// Which part of each; `None`: all of it.
    share: Option<Share>,
}

impl<'a> ExpertPieces<'a> {
    /// Whole experts.
    pub fn whole(experts: &'a [ExpertMatrices<'a>]) -> Self {
        Self { experts, share: None }
    }

    /// Of each expert the part of one of several ranks.
    pub fn cut(experts: &'a [ExpertMatrices<'a>], share: Share) -> Self {
        Self { experts, share: Some(share).filter(|share| share.world > 1) }
    }

    /// Number of experts.
    pub fn len(&self) -> usize {
        self.experts.len()
    }

    /// Whether there is no expert.
    pub fn is_empty(&self) -> bool {
        self.experts.is_empty()
    }

    /// The matrices as they are stored, which have the formats of their pieces.
    pub fn stored(&self) -> impl Iterator<Item = StoredMatrix<'a>> + use<'a> {
        self.experts.iter().flat_map(|expert| [expert.gate_proj, expert.up_proj, expert.down_proj])
    }

    /// The forms that rows in front of both products are rounded to, of all experts; `None`: they are not.
    ///
    /// Errors: `backend` needs one pair of forms for all of them, and there are several, or one without the other.
    pub fn forms(&self, backend: &'static str) -> Result<Option<[RowForms; 2]>, OpError> {
        let mut all = self.experts.iter().map(|expert| [expert.input, expert.inner]);
        let first = all.next().unwrap_or([None; 2]);
        match (first, all.find(|other| *other != first)) {
            ([None, None], None) => Ok(None),
            ([Some(input), Some(inner)], None) => Ok(Some([input, inner])),
            (_, other) => {
                let form = [first, other.unwrap_or(first)].concat().into_iter().flatten().next();
                let form = form.map_or("in several forms", |form| form.reply.name());
                Err(OpError::UnsupportedActivations { form, backend })
            }
        }
    }

    /// A matrix of expert `e`: rows of gate and up, columns of down, cut between runs that stay whole.
    ///
    /// Errors: [`OpError::TooFewUnits`].
    pub fn piece(&self, e: usize, projection: ExpertProjection) -> Result<Piece<'a>, OpError> {
        let op = "load_experts";
        let expert = &self.experts[e];
        let matrix = match projection {
            ExpertProjection::Gate => &expert.gate_proj,
            ExpertProjection::Up => &expert.up_proj,
            ExpertProjection::Down => &expert.down_proj,
        };
        let Some(share) = self.share else { return Ok(Piece::Whole(*matrix)) };
        let units = units(op, share, expert)?;
        Ok(Piece::Part(match projection {
            ExpertProjection::Gate | ExpertProjection::Up => share::rows(op, matrix, units)?,
            ExpertProjection::Down => share::cols(op, matrix, units)?,
        }))
    }

    /// Calls `with` on all experts at once, cut.
    pub fn with_all<T>(
        &self,
        with: impl FnOnce(&[ExpertMatrices<'_>]) -> Result<T, OpError>,
    ) -> Result<T, OpError> {
        let piece = |e, projection| self.piece(e, projection);
        let all = (0..self.len())
            .map(|e| {
                Ok([
                    piece(e, ExpertProjection::Gate)?,
                    piece(e, ExpertProjection::Up)?,
                    piece(e, ExpertProjection::Down)?,
                ])
            })
            .collect::<Result<Vec<_>, OpError>>()?;
        let views: Vec<_> = all
            .iter()
            .zip(self.experts)
            .map(|([gate, up, down], whole)| ExpertMatrices {
                gate_proj: gate.view(),
                up_proj: up.view(),
                down_proj: down.view(),
                ..*whole
            })
            .collect();
        with(&views)
    }
}

/// A rank's inner units of an FFN.
fn units(op: &'static str, share: Share, ffn: &ExpertMatrices<'_>) -> Result<Range<usize>, OpError> {
    let [inner, _] = share::sizes(op, &ffn.gate_proj)?;
    let unit = share::col_unit(&ffn.down_proj)
        .max(share::row_unit(&ffn.gate_proj))
        .max(share::row_unit(&ffn.up_proj));
    share.of_each(op, "runs of inner units that stay whole", inner, unit)
}
