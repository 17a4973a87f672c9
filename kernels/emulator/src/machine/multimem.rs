//! `multimem`: accesses to the copies of an allocation on several devices.

use super::access::{lanes, register_bytes, set_register};
use super::atomic::combine;
use super::block::Warp;
use super::cluster::{Env, Flow, Step};
use super::fault::{Trouble, lane as blame};
use crate::program::{AtomicOp, Multimem, MultimemKind};
use crate::text::Space;

impl Env<'_> {
    /// Lane by lane, copy by copy in the order of devices.
    pub(super) fn multimem(&mut self, warp: &mut Warp, multimem: &Multimem, exec: u32) -> Step {
        let access = &multimem.access;
        let size = access.ty.bytes() as usize;
        let total = size * access.registers.len();
        for lane in lanes(exec) {
            let address = access.address.of(&warp.registers, lane);
            Self::aligned(address, total as u32, lane)?;
            let Some(copies) = self.memory.copies(address, total as u64) else {
                let text = format!("{total} bytes at {address:#x}, which is no multicast address");
                return Err(Trouble { lane: Some(lane), text });
            };
            let copies: Vec<u64> = copies.collect();
            for (index, target) in access.registers.iter().enumerate() {
                let offset = (index * size) as u64;
                let value = register_bytes(&warp.registers, *target, lane);
                let mut sum: Option<[u8; 8]> = None;
                for copy in copies.iter().map(|copy| copy + offset) {
                    let mut read = |env: &mut Self| {
                        let mut old = [0; 8];
                        env.read(warp, lane, Space::Global, copy, &mut old[..size]).map(|()| old)
                    };
                    let merge = |op: AtomicOp, flushes: bool, a: [u8; 8], b: [u8; 8]| {
                        let [a, b] = [a, b].map(u64::from_le_bytes);
                        combine(op, access.ty, flushes, a, b).map(u64::to_le_bytes).map_err(blame(lane))
                    };
                    let word: [u8; 8] = std::array::from_fn(|at| if at < size { value[at] } else { 0 });
                    match multimem.kind {
                        MultimemKind::LoadReduce(op) => {
                            let old = read(self)?;
                            sum = Some(match sum {
                                Some(sum) => merge(op, false, sum, old)?,
                                None => old,
                            });
                        }
                        MultimemKind::Store => {
                            self.write(warp, lane, Space::Global, copy, &word[..size])?;
                        }
                        MultimemKind::Reduce(op) => {
                            let old = read(self)?;
                            let new = merge(op, true, old, word)?;
                            self.write(warp, lane, Space::Global, copy, &new[..size])?;
                        }
                    }
                }
                if let Some(sum) = sum {
                    set_register(&mut warp.registers, *target, lane, access.ty, &sum[..size]);
                }
            }
        }
        Ok(Flow::Next)
    }
}
