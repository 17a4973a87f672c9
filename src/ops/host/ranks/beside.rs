//! Networks beside the model's own on a group of ranks: drafts, prediction layers, towers.

use super::group::{Group, Rank, RankStates, locked};
use super::pieces::ExpertPieces;
use super::share::{self, Part};
use crate::{
    BlockId, CacheShape, Capacity, DraftActivations, DraftInput, DraftMatrices, DraftOps, DraftShape,
    FusionMatrices, MemoryNeeds, ModelShape, MtpOps, OpError, Picture, RopeTable, StepPlan, TowerCapacity,
    TowerMatrices, TowerOps, TowerShape,
};

/// Every rank runs the draft's attention whole, on a cache with every position. Tables and heads of the whole vocabulary and the inner units
/// of the FFN, which are most of a draft's weights, are shared as the network's are.
impl<B: Rank> DraftOps for Group<B> {
    type Draft = RankStates<B::Draft>;

    fn draft_memory(&self, shape: &DraftShape, capacity: &Capacity, cache: &CacheShape) -> MemoryNeeds {
        let one = locked(&self.ranks[0]).draft_memory(shape, capacity, cache);
        one.times(self.ranks.len())
    }

    fn load_draft(
        &mut self,
        host: &DraftMatrices<'_>,
        shape: &DraftShape,
        rope: &RopeTable,
        capacity: &Capacity,
        cache: &CacheShape,
    ) -> Result<Self::Draft, OpError> {
        let op = "load_draft";
        let drafts = self.each(|share, rank| {
            let ids = share.of(shape.vocab_size, 1);
            let head = host.lm_head.as_ref().filter(|_| host.target_ids.is_none());
            let [table, head] = [host.embed_tokens.as_ref(), head]
                .map(|weight| weight.map(|weight| share::rows(op, weight, ids.clone())).transpose());
            let (table, head) = (table?, head?);
            ExpertPieces::cut(std::slice::from_ref(&host.mlp), share).with_all(|mlp| {
                let own = DraftMatrices {
                    embed_tokens: table.as_ref().map(Part::view),
                    lm_head: head.as_ref().map(Part::view).or(host.lm_head),
                    mlp: mlp[0].clone(),
                    ..host.clone()
                };
                rank.load_draft(&own, shape, rope, capacity, cache)
            })
        });
        drafts.map(RankStates::new)
    }

    fn capture(&mut self, state: usize, w: &Self::Workspace, draft: &mut Self::Draft) -> Result<(), OpError> {
        let (w, draft) = (w.share(), draft.share());
        self.enqueue(move |at, rank| rank.capture(state, &w.at(at), &mut draft.at(at)))
    }

    fn draft_step(
        &mut self,
        plan: &StepPlan,
        input: DraftInput<'_>,
        table: &Self::Matrix,
        w: &Self::Workspace,
        draft: &mut Self::Draft,
    ) -> Result<(), OpError> {
        self.on_each(|at, rank| rank.draft_step(plan, input, table.at(at), &w.at(at), &mut draft.at(at)))
    }

    fn draft_logits(
        &mut self,
        table: &Self::Matrix,
        draft: &mut Self::Draft,
        w: &mut Self::Workspace,
    ) -> Result<(), OpError> {
        let (table, draft, w) = (table.share(), draft.share(), w.share());
        self.enqueue(move |at, rank| rank.draft_logits(table.at(at), &mut draft.at(at), &mut w.at(at)))
    }

    fn draft_block_bytes(&self, draft: &Self::Draft) -> usize {
        self.on_first(|at, rank| rank.draft_block_bytes(&draft.at(at)))
    }

    /// Of the first rank: all have the same. Its calls so far must be able to end without more calls of the others, as they are where
    /// every rank's are on its device.
    fn start_draft_read(&mut self, block: BlockId, draft: &Self::Draft) -> Result<Self::BlockRead, OpError> {
        self.settle()?;
        let read = self.on_first(|at, rank| rank.start_draft_read(block, &draft.at(at)))?;
        Ok(vec![read])
    }

    fn write_draft_block(
        &mut self,
        block: BlockId,
        content: &[u8],
        draft: &mut Self::Draft,
    ) -> Result<(), OpError> {
        self.on_each(|at, rank| rank.write_draft_block(block, content, &mut draft.at(at)))
    }

    fn read_draft(&mut self, draft: &Self::Draft) -> DraftActivations {
        // They are those of the last `draft_step`, which is never left in the queue.
        self.on_first(|at, rank| rank.read_draft(&draft.at(at)))
    }
}

/// The layer is split as the network's are; the fusion in front of it is whole on every rank.
impl<B: Rank> MtpOps for Group<B> {
    type Fusion = RankStates<B::Fusion>;

    fn fusion_bytes(&self, shape: &ModelShape, capacity: &Capacity) -> u64 {
        self.ranks.len() as u64 * locked(&self.ranks[0]).fusion_bytes(shape, capacity)
    }

    fn load_fusion(
        &mut self,
        host: &FusionMatrices<'_>,
        shape: &ModelShape,
        capacity: &Capacity,
    ) -> Result<Self::Fusion, OpError> {
        self.each(|_, rank| rank.load_fusion(host, shape, capacity)).map(RankStates::new)
    }

    fn fuse(
        &mut self,
        plan: &StepPlan,
        input: DraftInput<'_>,
        table: &Self::Matrix,
        target: &Self::Workspace,
        fusion: &mut Self::Fusion,
        own: &mut Self::Workspace,
    ) -> Result<(), OpError> {
        self.on_each(|at, rank| {
            let (target, table) = (&target.at(at), table.at(at));
            rank.fuse(plan, input, table, target, &mut fusion.at(at), &mut own.at(at))
        })
    }

    fn logits_of(
        &mut self,
        head: &Self::Matrix,
        own: &Self::Workspace,
        target: &mut Self::Workspace,
    ) -> Result<(), OpError> {
        let (head, own, target) = (head.share(), own.share(), target.share());
        self.enqueue(move |at, rank| rank.logits_of(head.at(at), &own.at(at), &mut target.at(at)))
    }
}

/// Every rank runs the whole tower: its weights are a thousandth of the network's, and every rank needs every row.
impl<B: Rank> TowerOps for Group<B> {
    type Tower = RankStates<B::Tower>;

    fn tower_bytes(&self, shape: &TowerShape, capacity: &TowerCapacity) -> u64 {
        self.ranks.len() as u64 * locked(&self.ranks[0]).tower_bytes(shape, capacity)
    }

    fn load_tower(
        &mut self,
        host: &TowerMatrices<'_>,
        shape: &TowerShape,
        capacity: &TowerCapacity,
    ) -> Result<Self::Tower, OpError> {
        self.each(|_, rank| rank.load_tower(host, shape, capacity)).map(RankStates::new)
    }

    fn begin_pictures(&mut self, pictures: &[&Picture], tower: &mut Self::Tower) -> Result<(), OpError> {
        self.on_each(|at, rank| rank.begin_pictures(pictures, &mut tower.at(at)))
    }

    fn tower_block(&mut self, block: usize, tower: &mut Self::Tower) -> Result<(), OpError> {
        let tower = tower.share();
        self.enqueue(move |at, rank| rank.tower_block(block, &mut tower.at(at)))
    }

    fn project_pictures(&mut self, to: &[u32], tower: &mut Self::Tower) -> Result<(), OpError> {
        let (to, tower) = (to.to_vec(), tower.share());
        self.enqueue(move |at, rank| rank.project_pictures(&to, &mut tower.at(at)))
    }

    fn place_rows(&mut self, tower: &Self::Tower, w: &mut Self::Workspace) -> Result<(), OpError> {
        let (tower, w) = (tower.share(), w.share());
        self.enqueue(move |at, rank| rank.place_rows(&tower.at(at), &mut w.at(at)))
    }

    fn read_rows(&mut self, rows: &[u32], tower: &Self::Tower) -> Result<Vec<f32>, OpError> {
        Ok(self.each(|at, rank| rank.read_rows(rows, &tower.at(at)))?.swap_remove(0))
    }

    fn read_encoded(&mut self, tower: &mut Self::Tower) -> Result<Vec<f32>, OpError> {
        Ok(self.each(|at, rank| rank.read_encoded(&mut tower.at(at)))?.swap_remove(0))
    }
}
