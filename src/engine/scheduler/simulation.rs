//! A million seeded steps of random traffic on pools far too small for it, against a model of what the KV cache holds.
//!
//! The model keeps one fingerprint per physical slot. The fingerprint of a position chains over the
//! salt and over token and attention form of every position up to it: exactly the inputs of its
//! keys and values (and the salt, so that sharing between salts is detected). Before each step the
//! context of each chunk, read through its block table, must be its sequence's own history: the
//! check detects a wrong hit, a block freed too early, a block written while shared, and a block
//! not written at all. Half of the episodes plan and compute a step before the previous one is
//! settled. The simulated engine samples as a function of the fingerprint, so equal histories have
//! equal replies. Many chunks carry drafts, right ones and wrong ones. In half of the episodes evicted blocks are kept outside the
//! pool and loaded again, some only after a fetch, and some loads fail.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::*;
use perigee_decoding::guard::RowFault;
use perigee_ops::AttentionForm;

const STEPS: u64 = 1_000_000;
const STEPS_PER_EPISODE: u64 = 4_000;
const STOP: u32 = 0;
const VOCABULARY: u64 = 120;

fn mix(a: u64, b: u64) -> u64 {
    let mut x = (a ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(0x2545_f491_4f6c_dd1d);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The expected state of a sequence, kept independently of the scheduler.
struct Model {
    prompt_len: usize,
    max_tokens: usize,
    salt: Option<&'static str>,
    expanded: bool,
    prompt_logits: bool,
    media: Vec<MediaSpan>,
    /// Position up to which the prompt must be cached when the sequence starts.
    media_from: usize,
    deadline_us: Option<u64>,
    tokens: Vec<u32>,
    /// One per known token.
    fingerprints: Vec<u64>,
    /// Prompt rows whose logits were delivered to the engine.
    logit_rows: usize,
    /// Changes the sampled tokens after a rewind.
    variation: u64,
    /// A sampled, unsettled token.
    under_way: Option<u32>,
    admitted: bool,
    last_step: u64,
}

impl Model {
    fn form(&self, position: usize) -> AttentionForm {
        if self.expanded && position < self.prompt_len {
            AttentionForm::Expanded
        } else {
            AttentionForm::Absorbed
        }
    }

    /// Fingerprint of `token` behind the known ones.
    fn fingerprint(&self, token: u32) -> u64 {
        let root = self.salt.map_or(1, |salt| mix(2, u64::from(salt.as_bytes()[0])));
        let before = self.fingerprints.last().copied().unwrap_or(root);
        let position = self.tokens.len();
        let picture = self.media.iter().find(|span| (span.start..span.end()).contains(&position));
        let picture = picture.map_or(0, |span| mix(u64::from(span.hash[0]), (position - span.start) as u64));
        mix(before ^ picture, u64::from(token) << 1 | (self.form(position) as u64))
    }

    fn extend(&mut self, tokens: &[u32]) {
        for &token in tokens {
            self.fingerprints.push(self.fingerprint(token));
            self.tokens.push(token);
        }
    }

    /// Known tokens: settled and unsettled.
    fn known(&self) -> usize {
        self.tokens.len() + usize::from(self.under_way.is_some())
    }

    /// The next `count` tokens of a reply that is sampled a token at a time.
    fn future(&self, count: usize) -> Vec<u32> {
        let (mut tokens, mut last) = (vec![], *self.fingerprints.last().unwrap());
        for _ in 0..count {
            let token = (mix(mix(last, self.variation), 7) % VOCABULARY) as u32;
            tokens.push(token);
            last = mix(last, u64::from(token) << 1 | (AttentionForm::Absorbed as u64));
        }
        tokens
    }

    fn truncate(&mut self, to: usize) {
        self.tokens.truncate(to);
        self.fingerprints.truncate(to);
        self.under_way = None;
        self.variation += 1;
    }

    fn reply_len(&self) -> usize {
        self.tokens.len() - self.prompt_len
    }

    /// The next `count` sampled tokens, without appending them.
    fn sample(&self, count: usize) -> Vec<u32> {
        let mut state = mix(*self.fingerprints.last().unwrap(), self.variation);
        std::iter::repeat_with(|| {
            state = mix(state, 7);
            (state % VOCABULARY) as u32
        })
        .take(count)
        .collect()
    }
}

/// Counts of events in the traffic, to show that the simulation reached them.
#[derive(Debug, Default)]
struct Tally {
    steps: u64,
    chunk_tokens: u64,
    finished: BTreeMap<&'static str, u64>,
    preemptions: u64,
    evictions: u64,
    hit_tokens: u64,
    rewinds: u64,
    failed_steps: u64,
    stale_chunks: u64,
    longest_prompt: usize,
    drafted: u64,
    accepted: u64,
    loaded_tokens: u64,
    failed_loads: u64,
    pauses: u64,
    passed: u64,
}

/// A step that was sampled and is not settled.
#[derive(Default)]
struct Pending {
    batch: Batch,
    sampled: Vec<(SeqId, Vec<u32>, Option<FinishReason>)>,
}

struct World {
    rng: fastrand::Rng,
    scheduler: Scheduler,
    batch: Batch,
    /// Whether a step is planned and computed before the previous one is settled.
    overlaps: bool,
    pending: Pending,
    /// Fingerprint per slot (`block * block_size + offset`).
    slots: Vec<u64>,
    /// Named blocks, by the changes that the scheduler noted, and what contents stand for.
    named: HashMap<Name, Name>,
    contents: HashMap<Name, (Option<Name>, Arc<[u32]>)>,
    /// Fingerprints of blocks outside the pool, at most so many.
    kept: BTreeMap<Name, Vec<u64>>,
    max_kept: usize,
    fetches: Vec<(SeqId, Vec<Name>)>,
    models: BTreeMap<SeqId, Model>,
    /// Histories that later prompts quote, as the next turn of a conversation does.
    past: VecDeque<(Vec<u32>, Option<&'static str>, Vec<MediaSpan>)>,
    next_id: u64,
    now_us: u64,
    target_live: usize,
    calm: bool,
    /// The first rank was left out of the last plan.
    pauses: u8,
    tally: Tally,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let block_size = rng.choice([1, 2, 3, 4, 4, 8, 16, 16]).unwrap();
        let num_blocks = if rng.u32(..8) == 0 { 160 } else { rng.usize(2..64) };
        let max_num_seqs = rng.usize(1..12);
        let max_num_batched_tokens = max_num_seqs + rng.choice([0, 3, 17, 64, 500]).unwrap();
        let capacity = block_size * num_blocks;
        let limits = Limits {
            max_num_seqs,
            max_num_batched_tokens,
            max_prefill_tokens: rng.usize(1..=max_num_batched_tokens),
            target_step: std::time::Duration::from_micros(rng.choice([0, 0, 100]).unwrap()),
            max_model_len: if rng.bool() { capacity + 100 } else { rng.usize(2..=capacity + 1) },
            block_size,
            num_blocks,
            prefix_caching: rng.u32(..8) > 0,
            expand_min_prompt_tokens: rng.choice([1, 10, 20, 40, usize::MAX]).unwrap(),
        };
        let mut scheduler = Scheduler::new(limits).unwrap();
        scheduler.note_changes();
        let max_kept = if rng.bool() { rng.usize(1..200) } else { 0 };
        if max_kept > 0 {
            scheduler.note_evictions();
        }
        Self {
            scheduler,
            batch: Batch::default(),
            overlaps: rng.bool(),
            pending: Pending::default(),
            slots: vec![0; capacity],
            named: HashMap::new(),
            contents: HashMap::new(),
            kept: BTreeMap::new(),
            max_kept,
            fetches: Vec::new(),
            models: BTreeMap::new(),
            past: VecDeque::new(),
            next_id: 0,
            now_us: 0,
            target_live: rng.usize(1..20),
            calm: false,
            pauses: 0,
            tally: Tally::default(),
            rng,
        }
    }

    fn limits(&self) -> Limits {
        *self.scheduler.limits()
    }

    /// A prompt that often shares its beginning with other prompts, with pictures in some.
    fn prompt(&mut self) -> (Vec<u32>, Option<&'static str>, Vec<MediaSpan>) {
        let longest = self.limits().max_sequence_len().min(2000);
        let usual = if self.rng.u32(..20) == 0 { longest } else { longest.div_ceil(4).min(80) };
        let len = self.rng.usize(1..=usual);
        let salt = self.rng.choice([None, None, Some("a"), Some("b")]).unwrap();
        let document = self.rng.u64(..3);
        let shared = self.rng.usize(..=len);
        let mut media = vec![];
        let (mut prompt, salt) = match self.past.get(self.rng.usize(..4)) {
            Some((past, past_salt, past_media)) => {
                media.clone_from(past_media);
                (past.clone(), if self.rng.u32(..8) > 0 { *past_salt } else { salt })
            }
            None => ((0..shared as u64).map(|p| (mix(document, p) % VOCABULARY) as u32).collect(), salt),
        };
        prompt.truncate(longest.min(2 * len));
        while prompt.len() < len {
            prompt.push(self.rng.u64(..VOCABULARY) as u32);
        }
        media.retain(|span| span.end() <= prompt.len());
        let behind = media.last().map_or(0, MediaSpan::end);
        if self.rng.u32(..4) == 0 && behind < prompt.len() {
            let start = self.rng.usize(behind..prompt.len());
            let len = self.rng.usize(1..=prompt.len() - start);
            media.push(MediaSpan { start, len, hash: [self.rng.u8(1..4); 32] });
        }
        // A picture that was changed in its place.
        if self.rng.u32(..4) == 0
            && let Some(span) = media.last_mut()
        {
            span.hash = [self.rng.u8(1..4); 32];
        }
        (prompt, salt, media)
    }

    /// Releases some of the sequences that wait for their pictures.
    fn show_pictures(&mut self) {
        let held: Vec<_> = self.scheduler.held().collect();
        for seq in held {
            let cached = self.scheduler.cached_prefix(seq);
            let model = self.models.get_mut(&seq).expect("only live sequences are held");
            match self.rng.u32(..4) {
                0 => continue,
                1 => model.media_from = 0,
                _ => {
                    let mut whole = model.media.iter().map(MediaSpan::end).filter(|end| *end <= cached);
                    model.media_from = whole.next_back().unwrap_or(0);
                }
            }
            self.scheduler.release(seq, model.media_from);
        }
        self.check();
    }

    /// In every second simulation three clients of different weights take turns.
    fn share(&self) -> Option<Share> {
        let client = (self.next_id % 3) as u32;
        self.limits().max_num_seqs.is_multiple_of(2).then(|| Share { client, weight: f64::from(client + 1) })
    }

    fn add(&mut self) {
        let (prompt, salt, media) = self.prompt();
        let id = SeqId(self.next_id);
        self.next_id += 1;
        let requested = self.rng.choice([0, 1, 10, 60, 200, 1000, 100_000]).unwrap();
        let new = NewSequence {
            id,
            prompt: prompt.clone().into(),
            max_tokens: requested,
            priority: if self.rng.u32(..4) == 0 { self.rng.i32(-1..2) } else { 0 },
            share: self.share(),
            arrival_us: self.now_us,
            deadline_us: (self.rng.u32(..10) == 0).then(|| self.now_us + self.rng.u64(..300)),
            cache_salt: salt.map(str::to_owned),
            prompt_logits: self.rng.u32(..10) == 0,
            media: media.clone().into(),
        };
        let Some(room) = self.limits().max_tokens_that_fit(prompt.len()) else {
            assert!(matches!(self.scheduler.add(new), Err(AddError::TooLong { .. })));
            return;
        };
        let mut model = Model {
            prompt_len: prompt.len(),
            max_tokens: room.min(requested as usize),
            salt,
            expanded: prompt.len() >= self.limits().expand_min_prompt_tokens,
            prompt_logits: new.prompt_logits,
            media,
            media_from: 0,
            deadline_us: new.deadline_us,
            tokens: vec![],
            fingerprints: vec![],
            logit_rows: 0,
            variation: 0,
            under_way: None,
            admitted: false,
            last_step: self.tally.steps,
        };
        model.extend(&prompt);
        self.tally.longest_prompt = self.tally.longest_prompt.max(prompt.len());
        self.scheduler.add(new).unwrap();
        self.models.insert(id, model);
        let missing = self.scheduler.missing_names(id);
        let fetched: Vec<Name> =
            missing.into_iter().take_while(|name| self.kept.contains_key(name)).collect();
        if !fetched.is_empty() && self.rng.bool() {
            self.scheduler.begin_fetch(id);
            self.fetches.push((id, fetched));
        }
    }

    /// Ends some of the fetches: their blocks can be loaded, as far as they are still kept.
    fn fetch(&mut self) {
        for (seq, names) in std::mem::take(&mut self.fetches) {
            if self.rng.bool() {
                self.fetches.push((seq, names));
                continue;
            }
            for name in names.into_iter().filter(|name| self.kept.contains_key(name)) {
                self.scheduler.add_loadable(name);
            }
            self.scheduler.end_fetch(seq);
        }
        self.check();
    }

    /// Keeps what the plan evicts, and loads what it asks for. Whether all could be loaded.
    fn transfer(&mut self) -> bool {
        let block_size = self.limits().block_size;
        let at = |block: BlockId| block.at() * block_size..(block.at() + 1) * block_size;
        assert!(self.max_kept > 0 || self.batch.evicted.is_empty() && self.batch.loads.is_empty());
        let evicted = std::mem::take(&mut self.batch.evicted);
        let kept: Vec<_> =
            evicted.iter().map(|(name, block)| (*name, self.slots[at(*block)].to_vec())).collect();
        let fails = self.rng.u32(..50) == 0;
        for (index, (name, block)) in self.batch.loads.iter().enumerate() {
            if fails && index > 0 {
                self.tally.failed_loads += 1;
                self.slots[at(*block)].fill(0);
                continue;
            }
            self.slots[at(*block)].copy_from_slice(&self.kept[name]);
        }
        let mut whole = true;
        if fails && self.batch.loads.len() > 1 {
            whole = false;
            self.scheduler.forget(&self.batch.loads[1..]);
            let ended: Vec<SeqId> = self.batch.chunks.iter().map(|chunk| chunk.seq).collect();
            for seq in ended {
                let finished = self.scheduler.finish(seq, FinishReason::Error).unwrap();
                self.ended(finished);
            }
            self.batch.clear();
        }
        for (name, fingerprints) in kept {
            self.kept.insert(name, fingerprints);
            if self.rng.bool() {
                self.scheduler.add_loadable(name);
            }
        }
        while self.kept.len() > self.max_kept {
            let nth = self.rng.usize(..self.kept.len());
            let name = *self.kept.keys().nth(nth).unwrap();
            self.kept.remove(&name);
            self.scheduler.remove_loadable(&name);
        }
        self.check();
        whole
    }

    fn any_live(&mut self) -> Option<SeqId> {
        let nth = self.rng.usize(..self.models.len().max(1));
        self.models.keys().nth(nth).copied()
    }

    /// Removes a sequence that the scheduler reports as ended.
    fn ended(&mut self, finished: Finished) {
        let model = self.models.remove(&finished.seq).expect("only live sequences end, once");
        assert!(!self.scheduler.contains(finished.seq));
        assert!(finished.reply_len <= model.reply_len());
        let reason = match finished.reason {
            FinishReason::StopToken(token) => {
                assert_eq!((token, model.tokens.last()), (STOP, Some(&STOP)));
                "stop token"
            }
            FinishReason::Length => {
                assert_eq!(finished.reply_len, model.max_tokens);
                assert!(!model.prompt_logits || model.logit_rows == model.prompt_len);
                "length"
            }
            FinishReason::Deadline => {
                assert!(model.deadline_us.unwrap() <= self.now_us);
                "deadline"
            }
            FinishReason::Stopped => "stopped",
            FinishReason::Aborted => "aborted",
            FinishReason::Error => "error",
            FinishReason::Repetition => "repetition",
            FinishReason::NumericFault(_) => "numeric fault",
        };
        *self.tally.finished.entry(reason).or_default() += 1;
        self.past.push_front((model.tokens, model.salt, model.media));
        self.past.truncate(6);
    }

    /// A random call of a client: abort, finish, rewind.
    fn disturb(&mut self) {
        let Some(seq) = self.any_live() else { return };
        let model = self.models.get_mut(&seq).unwrap();
        match self.rng.u32(..8) {
            0 => {
                let finished = self.scheduler.abort(seq).unwrap();
                self.ended(finished);
            }
            1 => {
                let keep = self.rng.usize(..=model.reply_len());
                let finished = self.scheduler.finish_at(seq, keep).unwrap();
                assert_eq!(finished.reply_len, keep);
                self.ended(finished);
            }
            2 => {
                let finished = self.scheduler.finish(seq, FinishReason::Error).unwrap();
                self.ended(finished);
            }
            _ => {
                let to = self.rng.usize(model.prompt_len..=model.tokens.len());
                let beyond = model.tokens.len() + 1;
                self.scheduler.rewind(seq, beyond).unwrap_err();
                self.scheduler.rewind(seq, to).unwrap();
                model.truncate(to);
                self.tally.rewinds += 1;
            }
        }
        assert_eq!(self.scheduler.abort(SeqId(u64::MAX)), None);
        self.check();
    }

    fn check(&mut self) {
        self.scheduler.check_invariants().unwrap();
        let changes = self.scheduler.take_changes();
        if changes.is_empty() {
            return;
        }
        for change in changes {
            match change {
                CacheChange::Named(block) => {
                    let NamedBlock { name, content, parent, tokens, .. } = *block;
                    assert_eq!(tokens.len(), self.limits().block_size);
                    assert_eq!(self.named.insert(name, content), None, "named twice");
                    let known = self.contents.entry(content).or_insert((parent, tokens.clone()));
                    assert_eq!(*known, (parent, tokens), "one content has one history");
                }
                CacheChange::Unnamed(name) => {
                    assert!(self.named.remove(&name).is_some(), "taken back and never given");
                }
            }
        }
        let pool = &self.scheduler.pool;
        assert_eq!(self.named.len(), pool.num_named());
        assert!(self.named.keys().all(|name| pool.lookup(name).is_some()));
    }

    /// Checks the plan's rules and every chunk's context.
    fn check_plan(&mut self) {
        let limits = self.limits();
        let (mut prefill_tokens, mut prefill_seen) = (0, false);
        for chunk in &self.batch.chunks {
            let model = self.models.get_mut(&chunk.seq).expect("only live sequences are planned");
            model.last_step = self.tally.steps;
            assert!(chunk.len > 0);
            if self.batch.started.contains(&chunk.seq) {
                assert!(chunk.start >= model.media_from, "starts before a picture that is not at hand");
            }
            if self.scheduler.sequence(chunk.seq).phase == Phase::Decode {
                assert!(!prefill_seen, "decoding sequences come first");
            } else {
                prefill_seen = true;
                prefill_tokens += chunk.len;
            }
            let tokens = self.scheduler.tokens(chunk.seq);
            assert_eq!(tokens.len(), model.tokens.len());
            let settled = chunk.end().min(tokens.len());
            assert_eq!(tokens[chunk.start..settled], model.tokens[chunk.start..settled]);
            assert!(chunk.end() <= model.known());
            assert!(chunk.draft.is_empty() || chunk.samples && model.under_way.is_none());
            self.tally.drafted += chunk.draft.len() as u64;
            let wants_token =
                chunk.end() == model.known() && model.known() - model.prompt_len < model.max_tokens;
            assert_eq!(chunk.samples, wants_token);
            let rows_due = model.prompt_logits && chunk.end().min(model.prompt_len) > model.logit_rows;
            match chunk.logits {
                LogitsNeed::All => assert!(rows_due && chunk.start == model.logit_rows),
                need => {
                    let last = need == LogitsNeed::Last;
                    assert!(!rows_due && last == wants_token, "{chunk:?}, rows seen {}", model.logit_rows);
                }
            }
            for position in [chunk.start, chunk.end() - 1, model.prompt_len.min(chunk.end() - 1)] {
                assert_eq!(chunk.form(position), model.form(position));
            }
            let table = self.scheduler.block_table(chunk.seq);
            assert!(table.len() * limits.block_size >= chunk.end() + chunk.draft.len());
            let useful = model.known().max(chunk.end() + chunk.draft.len()).div_ceil(limits.block_size);
            assert!(table.len() <= useful, "{} blocks, of use are {useful}", table.len());
            let history = model.fingerprints[..chunk.start].chunks(limits.block_size);
            for (index, (expected, &block)) in history.zip(table).enumerate() {
                let first = block.at() * limits.block_size;
                let found = &self.slots[first..first + expected.len()];
                assert_eq!(
                    found, expected,
                    "{:?}, block {index} of its table, {block:?} of the cache",
                    chunk.seq
                );
            }
        }
        assert!(self.batch.num_tokens() <= limits.max_num_batched_tokens);
        assert!(prefill_tokens <= limits.max_prefill_tokens);
        assert!(self.batch.chunks.len() <= limits.max_num_seqs);
        // Every step makes progress, or every third one where newcomers and short prompts come, which is why every sequence ends.
        let busy = |slot: &&usize| !self.scheduler.sequences[**slot].awaits_its_end();
        if let Some(&first) = self.scheduler.running.first().filter(busy) {
            let first = self.scheduler.sequences[first].id;
            let planned = self.batch.chunks.iter().any(|chunk| chunk.seq == first);
            self.pauses = if planned { 0 } else { self.pauses + 1 };
            let may_pause = self.pauses <= self.scheduler.lean_plans && self.pauses <= 2;
            assert!(planned || may_pause, "the first rank was not planned");
            self.tally.pauses += u64::from(!planned);
        }
        let all_settled = self.models.values().all(|model| model.under_way.is_none());
        // Sequences that wait for their pictures alone leave nothing to plan.
        let none_could = self.scheduler.running.is_empty() && self.scheduler.queue.first().is_none();
        assert!(!self.batch.chunks.is_empty() || none_could || !all_settled, "nothing planned");
        let first_waits = self.scheduler.queue.first().map(|head| head.rank);
        for admission in &self.batch.admitted {
            let rank = self.scheduler.sequence(admission.seq).rank;
            let lane_waits = first_waits.is_some_and(|waiting| waiting < rank);
            self.tally.passed += u64::from(lane_waits);
            let model = self.models.get_mut(&admission.seq).unwrap();
            assert!(!std::mem::replace(&mut model.admitted, true), "admitted for the first time twice");
            assert!(admission.cached_tokens < model.prompt_len);
            assert!(admission.cached_tokens == 0 || (limits.prefix_caching && !model.prompt_logits));
        }
    }

    /// The forward pass of the simulated engine: writes the fingerprints of each chunk.
    fn forward(&mut self) {
        let block_size = self.limits().block_size;
        for chunk in &self.batch.chunks {
            let table = self.scheduler.block_table(chunk.seq);
            let model = &self.models[&chunk.seq];
            for position in chunk.start..chunk.end() {
                let block = table[position / block_size];
                assert!(self.scheduler.pool.is_private(block), "{block:?} is written while others see it");
                let fingerprint = match (model.fingerprints.get(position), model.under_way) {
                    (Some(fingerprint), _) => *fingerprint,
                    (None, Some(token)) => model.fingerprint(token),
                    (None, None) => panic!("position {position} has no token"),
                };
                self.slots[block.at() * block_size + position % block_size] = fingerprint;
            }
            let mut before = model.fingerprints[chunk.end().min(model.fingerprints.len()) - 1];
            for (position, token) in (chunk.end()..).zip(&chunk.draft) {
                before = mix(before, u64::from(*token) << 1 | (AttentionForm::Absorbed as u64));
                let block = table[position / block_size];
                assert!(self.scheduler.pool.is_private(block), "{block:?} is drafted while others see it");
                self.slots[block.at() * block_size + position % block_size] = before;
            }
        }
    }

    /// Drafts for decoding sequences: what they will say, at times with a wrong token.
    fn propose(&mut self) {
        let decoding: Vec<SeqId> = self.scheduler.decoding().collect();
        for seq in decoding {
            if self.rng.bool() {
                let mut draft = self.models[&seq].future(self.rng.usize(..7));
                if let Some(wrong) = draft.get_mut(self.rng.usize(..12)) {
                    *wrong ^= 1;
                }
                self.scheduler.set_draft(seq, &draft);
            }
        }
    }

    /// Plans the rows of drafts that hold, samples and settles them, until none is left.
    fn settle_drafts(&mut self, mut settled: Vec<Chunk>) {
        loop {
            let next = settled.iter().filter_map(|chunk| self.scheduler.plan_drafted(chunk));
            self.batch.chunks = next.collect::<Vec<_>>();
            if self.batch.chunks.is_empty() {
                return;
            }
            for chunk in &self.batch.chunks {
                assert_eq!((chunk.end(), chunk.samples), (self.models[&chunk.seq].known(), true));
                self.tally.accepted += 1;
            }
            settled.clone_from(&self.batch.chunks);
            self.sample();
            self.settle();
        }
    }

    /// Draws of the simulated engine; then the step advances.
    fn sample(&mut self) {
        let mut sampled = vec![];
        for chunk in &mut self.batch.chunks {
            let Some(model) = self.models.get_mut(&chunk.seq) else {
                self.tally.stale_chunks += 1;
                // The simulated engine does not know that the chunk is void; its entry must have no
                // effect.
                sampled.push((chunk.seq, vec![1], None));
                continue;
            };
            if self.scheduler.is_void(chunk) {
                self.tally.stale_chunks += 1;
                sampled.push((chunk.seq, model.sample(1), Some(FinishReason::Stopped)));
                continue;
            }
            if chunk.logits == LogitsNeed::All {
                model.logit_rows += chunk.len;
            }
            if !chunk.samples {
                continue;
            }
            let count = match self.rng.u32(..100) {
                0 => 0,
                1..80 => 1,
                _ if self.overlaps => 1,
                _ => self.rng.usize(2..6),
            };
            if count == 0 && self.rng.bool() {
                // Its mask is late.
                chunk.samples = false;
                continue;
            }
            let mut tokens = model.sample(count);
            let stop = tokens.iter().position(|&token| token == STOP);
            tokens.truncate(stop.map_or(tokens.len(), |stop| stop + 1));
            model.under_way = Some(tokens.first().copied().unwrap_or(1));
            let broken = tokens.is_empty() && self.rng.u32(..4) == 0;
            let finish = match broken {
                true => Some(FinishReason::NumericFault(RowFault::NonFinite)),
                false => stop.map(|_| FinishReason::StopToken(STOP)),
            };
            sampled.push((chunk.seq, tokens, finish));
        }
        self.scheduler.advance(&mut self.batch);
        self.check();
        self.pending = Pending { batch: std::mem::take(&mut self.batch), sampled };
    }

    /// Settles the previous step: its values arrive.
    fn settle(&mut self) {
        let Pending { batch, mut sampled } = std::mem::take(&mut self.pending);
        let mut expected_end = vec![];
        for chunk in batch.chunks.iter().filter(|chunk| !chunk.void) {
            let Some(model) = self.models.get_mut(&chunk.seq) else { continue };
            let entry = sampled.iter().find(|(seq, ..)| *seq == chunk.seq);
            let Some((_, tokens, finish)) = entry.filter(|_| model.under_way.take().is_some()) else {
                if chunk.end() >= model.prompt_len && model.max_tokens == 0 {
                    expected_end.push((chunk.seq, FinishReason::Length));
                }
                continue;
            };
            let left = model.max_tokens - model.reply_len();
            let accepted = tokens.len().min(left);
            model.extend(&tokens[..accepted]);
            if let Some(reason) = finish.filter(|_| accepted == tokens.len()) {
                expected_end.push((chunk.seq, reason));
            } else if accepted == left {
                expected_end.push((chunk.seq, FinishReason::Length));
            }
        }
        self.rng.shuffle(&mut sampled);
        let finished = self.scheduler.settle(
            &batch,
            sampled.iter().map(|(seq, tokens, finish)| Sampled { seq: *seq, tokens, finish: *finish }),
        );
        let found: Vec<(SeqId, FinishReason)> = finished.iter().map(|f| (f.seq, f.reason)).collect();
        assert_eq!(found, expected_end);
        for finished in finished {
            self.ended(finished);
        }
        self.check();
    }

    fn step(&mut self) {
        self.now_us += self.rng.u64(..3);
        for finished in self.scheduler.expire(self.now_us) {
            self.ended(finished);
        }
        assert!(
            self.models.values().all(|model| model.deadline_us.is_none_or(|deadline| deadline > self.now_us))
        );
        let drafts = self.rng.bool();
        if drafts {
            self.settle();
            self.propose();
        }
        self.show_pictures();
        self.fetch();
        self.scheduler.schedule(self.now_us, &mut self.batch);
        self.tally.steps += 1;
        self.tally.chunk_tokens += self.batch.num_tokens() as u64;
        self.check();
        if !self.transfer() {
            return;
        }
        self.check_plan();
        if self.rng.u32(..200) == 0 {
            self.tally.failed_steps += 1;
            return;
        }
        self.forward();
        let took = std::time::Duration::from_micros(self.rng.u64(1..300));
        self.scheduler.note_pace(self.scheduler.paced_tokens(), took);
        if self.overlaps {
            self.settle();
        }
        if !self.calm && self.rng.u32(..50) == 0 {
            self.disturb();
        }
        self.sample();
        if !self.overlaps || drafts {
            let chunks = self.pending.batch.chunks.clone();
            self.settle();
            self.settle_drafts(chunks);
        }
    }

    /// Runs traffic for some steps, then runs without new traffic until every sequence has ended.
    fn run(&mut self) {
        for _ in 0..STEPS_PER_EPISODE {
            while self.models.len() < self.target_live && self.rng.u32(..3) > 0 {
                self.add();
            }
            self.step();
            if self.rng.u32(..25) == 0 {
                self.disturb();
            }
        }
        self.calm = true;
        // In every step the first rank computes or gets a token; failed steps and empty samples are
        // the slack.
        let known: usize = self.models.values().map(|model| model.prompt_len + model.max_tokens).sum();
        let mut bound = 3 * known + 1000;
        while !self.models.is_empty() {
            self.step();
            bound -= 1;
            assert!(bound > 0, "{} sequences do not end", self.models.len());
        }
        let stats = self.scheduler.stats();
        assert_eq!((stats.used_blocks, stats.waiting, stats.running, stats.queued_tokens), (0, 0, 0, 0));
        assert!(self.scheduler.is_empty());
        self.tally.preemptions = stats.preemptions;
        self.tally.evictions = stats.evicted_blocks;
        self.tally.hit_tokens = stats.prefix_hit_tokens;
        self.tally.loaded_tokens = stats.loaded_tokens;
    }
}

#[test]
fn a_million_random_steps_keep_every_invariant() {
    let mut total = Tally::default();
    let mut seed = 0;
    while total.steps < STEPS {
        let mut world = World::new(seed);
        // A failure names its episode: `World::new(seed).run()` repeats it.
        println!("episode {seed}: {:?}", world.limits());
        world.run();
        let tally = world.tally;
        total.steps += tally.steps;
        total.chunk_tokens += tally.chunk_tokens;
        for (reason, count) in tally.finished {
            *total.finished.entry(reason).or_default() += count;
        }
        total.preemptions += tally.preemptions;
        total.evictions += tally.evictions;
        total.hit_tokens += tally.hit_tokens;
        total.rewinds += tally.rewinds;
        total.failed_steps += tally.failed_steps;
        total.stale_chunks += tally.stale_chunks;
        total.longest_prompt = total.longest_prompt.max(tally.longest_prompt);
        total.drafted += tally.drafted;
        total.accepted += tally.accepted;
        total.loaded_tokens += tally.loaded_tokens;
        total.failed_loads += tally.failed_loads;
        total.pauses += tally.pauses;
        total.passed += tally.passed;
        seed += 1;
    }
    println!("{seed} episodes: {total:#?}");
    // A simulation that no longer reaches its cases would pass without notice.
    for (what, count, at_least) in [
        ("preemptions", total.preemptions, 10_000),
        ("evictions", total.evictions, 100_000),
        ("tokens from the prefix cache", total.hit_tokens, 100_000),
        ("rewinds", total.rewinds, 10_000),
        ("failed steps", total.failed_steps, 1_000),
        ("chunks of sequences that changed", total.stale_chunks, 1_000),
        ("drafted tokens", total.drafted, 100_000),
        ("drafted tokens that held", total.accepted, 50_000),
        ("tokens loaded from outside the pool", total.loaded_tokens, 50_000),
        ("failed loads", total.failed_loads, 100),
        ("steps without the first rank", total.pauses, 100),
        ("sequences that passed the head of the queue", total.passed, 1_000),
        ("longest prompt", total.longest_prompt as u64, 1_500),
    ] {
        assert!(count >= at_least, "{what}: {count}, expected {at_least} or more");
    }
    for reason in ["length", "stop token", "stopped", "aborted", "deadline", "error", "numeric fault"] {
        let count = total.finished.get(reason).copied().unwrap_or(0);
        assert!(count >= 500, "{count} sequences ended by {reason}");
    }
}
