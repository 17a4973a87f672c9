//! Runs every code path of a step once before the first request: memory is touched, code is loaded.

use crate::model::Model;
use crate::ops::{
    Backend, BlockId, KvSlot, OpError, Outcomes, Row, SampleRows, SlotSpec, StepPlan, TokenSource,
};
use crate::sampling::SamplingParams;

use super::live::row_of;

/// Runs a small prefill in each attention form, a decode step, the head and a draw on block 0,
/// whose content belongs to no sequence yet.
pub fn warm_up<B: Backend>(model: &mut Model<B>, block_size: usize) -> Result<(), OpError> {
    let prefill = block_size.min(model.capacity().max_tokens);
    for (len, expanded_until) in [(prefill, prefill), (prefill, 0), (1, 0)] {
        let mut plan = StepPlan::default();
        let tokens = std::iter::repeat_n(TokenSource::from(0), len);
        plan.add(tokens, 0, expanded_until, &[BlockId(0)], block_size);
        plan.logits_rows.push(Row(0));
        model.forward(&plan)?;
    }
    for rows in model.recorded_rows() {
        let mut plan = StepPlan::default();
        for _ in 0..rows {
            plan.add([TokenSource::from(0)], 0, 0, &[BlockId(0)], block_size);
        }
        // One row is stored; the others would be written to the same place at the same time.
        plan.kv_slots[1..].fill(KvSlot::PAD);
        plan.logits_rows.push(Row(0));
        model.forward(&plan)?;
    }
    model.logits(0..1)?;
    let spec = SlotSpec { prompt: &[], reply: &[], counts: false, logit_bias: &[], stops: &[] };
    let row = row_of(&SamplingParams::default(), 0);
    model.open_slot(row.slot, &spec)?;
    let ticket = model.sample(&SampleRows { rows: vec![row], ..SampleRows::default() })?;
    model.wait(ticket, &mut Outcomes::default())
}
