//! Runs every code path of a step once before the first request: memory is touched, code is loaded.

use std::time::{Duration, Instant};

use perigee_decoding::sampling::SamplingParams;
use perigee_decoding::speculation::StepCost;
use perigee_model::Model;
use perigee_ops::{
    Backend, BlockId, DraftInput, KvSlot, OpError, Outcomes, Row, SampleRows, SlotSpec, StepPlan, TokenSource,
};

use super::live::row_of;

/// Distance of the tokens of a measured step; a prime.
const TOKEN_STRIDE: usize = 7919;
/// Steps of which the fastest counts.
const MEASURED_STEPS: usize = 3;
/// Time after which no further row count is measured.
const MEASURING: Duration = Duration::from_secs(2);

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
        let mut plan = decode_plan(rows, 0, 1, block_size);
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

/// Step number `step` of those that decode `rows` rows of `vocab_size` tokens.
fn decode_plan(rows: usize, step: usize, vocab_size: usize, block_size: usize) -> StepPlan {
    let mut plan = StepPlan::default();
    for row in 0..rows {
        // Different tokens choose different experts, in a step as those of a draft do, and from step to
        // step: experts of the step before are in the processor's caches.
        let token = (step * rows + row) * TOKEN_STRIDE % vocab_size;
        plan.add([TokenSource::from(token as u32)], 0, 0, &[BlockId(0)], block_size);
    }
    // One row is stored; the others would be written to the same place at the same time.
    plan.kv_slots[1..].fill(KvSlot::PAD);
    plan
}

/// Measured cost of decode steps, which the length of drafts depends on.
#[derive(Debug, Default)]
pub struct MeasuredSteps {
    /// Steps of the model, head and draw included.
    pub target: StepCost,
    /// Steps of its draft model, if it has one.
    pub draft: Option<StepCost>,
}

/// Measures decode steps of up to `max_rows` rows, with block 0 as in [`warm_up`]. Takes two seconds
/// at most for the model and as long for its draft, and three steps of each at least.
pub fn measure_steps<B: Backend>(
    model: &mut Model<B>,
    block_size: usize,
    max_rows: usize,
) -> Result<MeasuredSteps, OpError> {
    let target = measure_target(model, block_size, max_rows)?;
    tracing::info!(ms_by_rows = target.summary(), "decode steps measured, for the length of drafts");
    let mut draft = None;
    if model.has_draft() {
        let measured = measure_draft(model, block_size, max_rows)?;
        tracing::info!(ms_by_rows = measured.summary(), "steps of the draft model measured");
        draft = Some(measured);
    }
    Ok(MeasuredSteps { target, draft })
}

fn measure_target<B: Backend>(
    model: &mut Model<B>,
    block_size: usize,
    max_rows: usize,
) -> Result<StepCost, OpError> {
    let vocab_size = model.blueprint().vocab_size;
    let row = row_of(&SamplingParams::default(), 0);
    measure(max_rows, |rows, step| {
        let mut plan = decode_plan(rows, step, vocab_size, block_size);
        plan.logits_rows.extend((0..rows as u32).map(Row));
        let started = Instant::now();
        model.forward(&plan)?;
        model.logits(0..rows)?;
        let ticket = model.sample(&SampleRows { rows: vec![row], ..SampleRows::default() })?;
        model.wait(ticket, &mut Outcomes::default())?;
        Ok(started.elapsed())
    })
}

/// Measures steps of the draft model of up to `max_rows` rows, logits included, on block 0.
fn measure_draft<B: Backend>(
    model: &mut Model<B>,
    block_size: usize,
    max_rows: usize,
) -> Result<StepCost, OpError> {
    let vocab_size = model.blueprint().vocab_size;
    let row = row_of(&SamplingParams::default(), 0);
    // Steps fed by the draft itself are recorded now; those that read states are while they are measured.
    for rows in model.recorded_rows() {
        let plan = decode_plan(rows, 0, vocab_size, block_size);
        let source: Vec<Row> = (0..rows as u32).map(Row).collect();
        model.forward(&plan)?;
        model.draft(&plan, DraftInput::Captured(&source))?;
        model.draft(&plan, DraftInput::Own(&source))?;
    }
    measure(max_rows, |rows, step| {
        let plan = decode_plan(rows, step, vocab_size, block_size);
        model.forward(&plan)?;
        let mut draft = plan.clone();
        draft.logits_rows = (0..rows as u32).map(Row).collect();
        let source = draft.logits_rows.clone();
        let drawn = SampleRows { rows: vec![row], ..SampleRows::default() };
        // The model's own work ends with its draw.
        let ticket = model.sample(&drawn)?;
        model.wait(ticket, &mut Outcomes::default())?;
        let begun = Instant::now();
        model.draft(&draft, DraftInput::Captured(&source))?;
        let ticket = model.sample(&drawn)?;
        model.wait(ticket, &mut Outcomes::default())?;
        Ok(begun.elapsed())
    })
}

/// A table of the fastest of several steps at each row count up to `max_rows`; `step` runs the one of
/// a number and says how long it took.
fn measure(
    max_rows: usize,
    mut step: impl FnMut(usize, usize) -> Result<Duration, OpError>,
) -> Result<StepCost, OpError> {
    // Memory that no step has touched yet.
    step(1, MEASURED_STEPS)?;
    let begun = Instant::now();
    let mut measured = Vec::new();
    for rows in StepCost::rows_to_measure(max_rows) {
        let mut best = Duration::MAX;
        for number in 0..MEASURED_STEPS {
            best = best.min(step(rows, number)?);
        }
        measured.push((rows, best.as_secs_f64()));
        if begun.elapsed() > MEASURING {
            break;
        }
    }
    Ok(StepCost::new(&measured))
}
