//! Options of an audit.

use crate::prune::plan_file::ExpertPlan;

/// What to audit and how much of it.
#[derive(Debug)]
pub struct AuditOptions<'a> {
    /// The plan; otherwise the target's own plan file, otherwise what its router rows say.
    pub plan: Option<&'a ExpertPlan>,
    /// Layer of the functional check; `None` = the first with experts.
    pub functional_layer: Option<usize>,
    /// Random hidden vectors of the functional check; 0 leaves it out.
    pub functional_tokens: usize,
    /// Seed of the vectors.
    pub seed: u64,
}

impl Default for AuditOptions<'_> {
    fn default() -> Self {
        Self { plan: None, functional_layer: None, functional_tokens: 8, seed: 42 }
    }
}
