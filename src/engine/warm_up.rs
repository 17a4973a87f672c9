//! One pass through every path a step can take, before the first request: memory is touched, code is loaded.

use crate::model::{ForwardInput, Model};
use crate::ops::{AttentionForm, Backend, OpError, Segment};

/// Runs a small prefill in each attention form, a decode step and the head on blocks 0 and up, whose content no sequence has claimed yet.
pub fn warm_up<B: Backend>(model: &mut Model<B>, block_size: usize) -> Result<(), OpError> {
    for form in [AttentionForm::Expanded, AttentionForm::Absorbed] {
        run(model, 0, block_size.min(model.max_tokens()), form)?;
    }
    run(model, 0, 1, AttentionForm::Absorbed)?;
    model.logits(&[0]).map(|_| ())
}

/// Tokens at positions `start..start + len` of a sequence in block 0.
fn run<B: Backend>(
    model: &mut Model<B>,
    start: usize,
    len: usize,
    form: AttentionForm,
) -> Result<(), OpError> {
    let segment = Segment { rows: 0..len, first_position: start, form, block_table: 0..1 };
    let (expanded, absorbed) = match form {
        AttentionForm::Expanded => (vec![segment], vec![]),
        AttentionForm::Absorbed => (vec![], vec![segment]),
    };
    model.forward(&ForwardInput {
        token_ids: vec![0; len],
        positions: (start..start + len).collect(),
        slot_mapping: (start as u32..(start + len) as u32).collect(),
        expanded,
        absorbed,
        block_tables: vec![0],
    })
}
