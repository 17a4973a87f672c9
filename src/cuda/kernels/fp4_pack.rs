//! Twin of `kernels/fp4_pack.cu`: weights in 4-bit floats from the checkpoint's rows into panels.

use bytemuck::{Pod, Zeroable};

use super::fp4::ARCHS;
use super::plain;
use crate::weights::{PANEL_ROWS, PanelFormat};
use crate::{Driver, Kernel, LaunchShape, Stream};
use perigee_ops::OpError;

/// The declaration.
pub const KERNEL: Kernel =
    Kernel { archs: ARCHS, ..plain!("fp4_pack", &["fp4_pack_nvfp4", "fp4_pack_mxfp4"], 64) };

/// `PackParams` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Params {
    /// Rows of codes of one matrix, or of gate and up.
    pub codes: [u64; 2],
    /// Rows of scales.
    pub scales: [u64; 2],
    /// `[P, U]` stages.
    pub panels: u64,
    /// 1, or 2: eight rows of each in turn.
    pub halves: i32,
    /// Rows of a matrix.
    pub rows: i32,
    /// K.
    pub columns: i32,
    /// U.
    pub stages: i32,
}

/// Enqueues the panels of a slice.
pub fn launch<D: Driver>(
    stream: &mut Stream<D>,
    format: PanelFormat,
    params: &Params,
) -> Result<(), OpError> {
    let name = match format {
        PanelFormat::Nvfp4 => "fp4_pack_nvfp4",
        PanelFormat::Mxfp4 => "fp4_pack_mxfp4",
    };
    let panels = (params.rows as usize * params.halves as usize).div_ceil(PANEL_ROWS);
    let grid = [params.stages as u32, panels as u32, 1];
    stream.launch(name, LaunchShape { grid, threads: 256, shared_bytes: 0 }, params)?;
    stream.driver().order_next_launch();
    Ok(())
}
