//! Decode attention of Hopper: how long the items of long contexts should be, and which of a block's roles the others wait for.

use perigee_cuda::kernels::ahead::Ahead;
use perigee_cuda::kernels::{mla_decode, wgmma_mla_decode};
use perigee_cuda::{Addresses, Attention, AttentionCapacity, KvUp, KvUpType, Program, Stream};
use perigee_numbers::quant::CachedRowFormat;
use perigee_ops::{Activations, BlockId, CacheDtype, CacheShape, MlaShape, StepPlan, TokenSource};

use super::{device, edited, micros, on_gpu};
use crate::emulated::TestDriver;

const BLOCK_SIZE: usize = 64;
/// Keys of a split of a long context; the shipped one is [`mla_decode::SPLIT`].
const SPLITS: [usize; 3] = [256, 512, 1024];
const SPLITS_OF_ITEM: usize = wgmma_mla_decode::SPLITS;
/// Roles of a block: loads, scores, and two halves of the values.
const ROLES: usize = 4;

fn shape(num_heads: usize) -> MlaShape {
    MlaShape {
        num_heads: if on_gpu() { num_heads } else { 2 },
        qk_nope_head_dim: 128,
        qk_rope_head_dim: 64,
        v_head_dim: 128,
        kv_lora_rank: 512,
        scale: 0.072,
    }
}

const FP8: CacheDtype = CacheDtype::Fp8(CachedRowFormat { row_scales: true, rope_codes: false });

/// Both kernels with items of another length.
fn with_split(split: usize) -> Vec<Program> {
    if split == mla_decode::SPLIT {
        return Vec::new();
    }
    let keys = format!("constexpr int SPLIT = {split};");
    let changes = [("constexpr int SPLIT = 512;", keys.as_str())];
    vec![edited(&mla_decode::KERNEL, &changes), edited(&wgmma_mla_decode::KERNEL, &changes)]
}

/// The kernel of Hopper with clocks: of block 0, for each role the clocks of all its tiles, those of them that it waited for another
/// role, and the number of tiles.
fn with_clocks() -> Program {
    const CLOCKS: &str = "struct RoleClock {
    u32 begun = 0, waited = 0, tiles = 0;
    __device__ __forceinline__ void wait_for(u64* barrier, u32 parity) {
        const u32 before = clock();
        begun = tiles++ == 0 ? before : begun;
        wait_for_cluster(shared_address(barrier), parity);
        waited += clock() - before;
    }
    __device__ __forceinline__ void store(const MlaDecodeParams& params) const {
        if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x % WARPGROUP == 0) {
            u32* to = reinterpret_cast<u32*>(const_cast<u8*>(params.ahead.from)) + 4 * (threadIdx.x / WARPGROUP);
            to[0] = clock() - begun, to[1] = waited, to[2] = tiles;
        }
    }
};

struct Shared {";
    edited(
        &wgmma_mla_decode::KERNEL,
        &[
            ("struct Shared {", CLOCKS),
            // Loads, of codes.
            (
                "        u32 place = place_of(params, walk.left, warp, lane);\n        load_tile(place);",
                "        RoleClock clocks;\n        u32 place = place_of(params, walk.left, warp, lane);\n        load_tile(place);",
            ),
            (
                "wait_for_cluster(shared_address(&shared.emptied[turn.buffer()]), turn.parity() ^ 1);\n#pragma unroll\n            for (int key = 0; key < WARP_KEYS",
                "clocks.wait_for(&shared.emptied[turn.buffer()], turn.parity() ^ 1);\n#pragma unroll\n            for (int key = 0; key < WARP_KEYS",
            ),
            (
                "            if (!more) {\n                return;",
                "            if (!more) {\n                clocks.store(params);\n                return;",
            ),
            // Scores.
            (
                "    const u64 queries = descriptor(shared_address(shared.queries), 0);",
                "    RoleClock clocks;\n    const u64 queries = descriptor(shared_address(shared.queries), 0);",
            ),
            (
                "wait(&shared.filled[buffer], turn.parity());",
                "clocks.wait_for(&shared.filled[buffer], turn.parity());",
            ),
            (
                "            arrive(&shared.weighed[buffer]);\n        }\n    } while (item.go_on(params, end));\n",
                "            arrive(&shared.weighed[buffer]);\n        }\n    } while (item.go_on(params, end));\n    clocks.store(params);\n",
            ),
            // Values.
            (
                "    const int row = 16 * warp + lane / 4;\n    Turn turn;",
                "    const int row = 16 * warp + lane / 4;\n    RoleClock clocks;\n    Turn turn;",
            ),
            (
                "wait(&shared.weighed[buffer], turn.parity());",
                "clocks.wait_for(&shared.weighed[buffer], turn.parity());",
            ),
            (
                "&shared.emptied[~buffers >> lane & 1]), lane));\n        }\n    } while (item.go_on(params, end));\n",
                "&shared.emptied[~buffers >> lane & 1]), lane));\n        }\n    } while (item.go_on(params, end));\n    clocks.store(params);\n",
            ),
        ],
    )
}

pub(super) fn programs() -> Vec<Program> {
    SPLITS.into_iter().flat_map(with_split).chain([with_clocks()]).collect()
}

/// Attention of the last token of each of some sequences, over caches of several layers.
struct Layers {
    attention: Attention,
    at: Addresses,
    kv_up: KvUp,
    layers: usize,
    layer_bytes: u64,
}

impl Layers {
    /// Of `rows` sequences of `context` tokens, in splits of up to `split` keys.
    fn new(stream: &mut Stream<TestDriver>, rows: usize, context: usize, split: usize) -> Self {
        Self::with_tokens(stream, &shape(64), [rows, 1], context, split)
    }

    /// The same of the last tokens of each of some sequences.
    fn with_tokens(
        stream: &mut Stream<TestDriver>,
        shape: &MlaShape,
        [sequences, tokens]: [usize; 2],
        context: usize,
        split: usize,
    ) -> Self {
        let (rows, blocks) = (sequences * tokens, context.div_ceil(BLOCK_SIZE));
        let items = match context <= 4096 * SPLITS_OF_ITEM {
            true => mla_decode::items_of(context, SPLITS_OF_ITEM),
            false => context.div_ceil(SPLITS_OF_ITEM * split),
        };
        let mut plan = StepPlan::default();
        for at in 0..sequences {
            let table: Vec<BlockId> =
                (at * blocks..(at + 1) * blocks).map(|block| BlockId(block as u32)).collect();
            let sources = (0..tokens).map(|_| TokenSource::from(0));
            plan.add(sources, context - tokens, 0, &table, BLOCK_SIZE);
        }
        let capacity = AttentionCapacity {
            rows,
            absorbed_rows: rows,
            items: rows * items.max(mla_decode::items_of(context, SPLITS_OF_ITEM)),
            block_size: BLOCK_SIZE,
            slab_keys: 1,
        };
        let mut cache_shape = CacheShape {
            num_layers: 1,
            num_blocks: sequences * blocks,
            block_size: BLOCK_SIZE,
            latent_dim: shape.latent_dim(),
            rope_dim: shape.qk_rope_head_dim,
            dtype: FP8,
        };
        let layer_bytes = cache_shape.bytes();
        // Beyond the second cache, where there is a GPU.
        cache_shape.num_layers =
            if on_gpu() { (256usize << 20).div_ceil(layer_bytes).clamp(1, 64) } else { 1 };
        let mut attention = Attention::new(stream, shape, FP8, &capacity, Activations::Bf16, None).unwrap();
        let mut words = attention.lists(&plan, 0).unwrap().to_vec();
        assert_eq!(attention.num_passes(), 1);
        if tokens == 1 {
            // The lists of items of this length: a row has its items behind those of the rows in front of it.
            words = vec![rows as u32, (rows * items) as u32];
            for row in 0..rows {
                words.extend([row, row * items, context, row * blocks, 1].map(|word| word as u32));
            }
        }
        let head = shape.qk_nope_head_dim + shape.v_head_dim;
        // Times do not depend on values.
        let mut zeros = |bytes: usize| stream.zeros("experiment", bytes).unwrap().address;
        let at = Addresses {
            query: zeros(4 * rows * shape.num_heads * (shape.qk_nope_head_dim + shape.qk_rope_head_dim)),
            rotations: zeros(4 * rows * shape.qk_rope_head_dim),
            attended: zeros(4 * rows * shape.num_heads * shape.v_head_dim),
            rounded: zeros(2 * rows * shape.num_heads * shape.v_head_dim),
            cache: zeros(cache_shape.bytes()),
            caches: None,
            cache_shape,
            block_tables: stream.store("tables", &plan.block_tables).unwrap().address,
            lists: stream.store("lists", &words).unwrap().address,
            ahead: Ahead::NONE,
        };
        let kv_up = stream.zeros("kv_up", 2 * shape.num_heads * head * shape.kv_lora_rank).unwrap();
        let kv_up = KvUp { address: kv_up.address, all: kv_up.address, dtype: KvUpType::Bf16 };
        Self { attention, at, kv_up, layers: cache_shape.num_layers, layer_bytes: layer_bytes as u64 }
    }

    fn micros(&self, stream: &mut Stream<TestDriver>) -> f64 {
        micros(stream, self.layers, |stream, layer| {
            let at = Addresses { cache: self.at.cache + layer as u64 * self.layer_bytes, ..self.at };
            self.attention.attend_absorbed(stream, &at, &self.kv_up).unwrap();
        })
    }
}

/// Rows and contexts.
fn sizes() -> (&'static [usize], [usize; 2]) {
    if on_gpu() { (&[1, 8, 64], [1024, 32_768]) } else { (&[1, 2], [200, 1100]) }
}

pub(super) fn splits() -> Option<String> {
    let (rows, [short, long]) = sizes();
    let mut found = Vec::new();
    for (context, splits) in [(short, &SPLITS[1..2]), (long, &SPLITS[..])] {
        for &split in splits {
            let mut times = Vec::new();
            for &rows in rows {
                // A device of its own: its memory is free after it.
                let mut stream = device(&with_split(split))?;
                let layers = Layers::new(&mut stream, rows, context, split);
                times.push(format!("{:.1}", layers.micros(&mut stream)));
            }
            found.push(format!("{context} tokens, splits of {split}: {} us", times.join(" / ")));
        }
    }
    Some(format!("FP8, {rows:?} rows, absorb and combine included: {}", found.join("; ")))
}

/// The last four tokens of a sequence, as drafts are verified, and as many tokens of as many sequences; the heads of one of four ranks.
pub(super) fn drafts() -> Option<String> {
    const TOKENS: usize = 4;
    let (rows, [_, context]) = sizes();
    let mut found = Vec::new();
    for &sequences in &rows[..2] {
        let times = [[sequences, TOKENS], [sequences * TOKENS, 1]].map(|sizes| {
            let mut stream = device(&[])?;
            let layers = Layers::with_tokens(&mut stream, &shape(16), sizes, context, mla_decode::SPLIT);
            Some(format!("{:.1}", layers.micros(&mut stream)))
        });
        let [Some(shared), Some(apart)] = times else { return None };
        found.push(format!("{sequences} sequences: {shared} us, of {TOKENS} times as many {apart} us"));
    }
    Some(format!("FP8, {context} tokens, 16 heads: {}", found.join("; ")))
}

pub(super) fn roles() -> Option<String> {
    let (rows, [_, context]) = sizes();
    let mut found = Vec::new();
    for &rows in rows {
        let mut stream = device(&[with_clocks()])?;
        let mut layers = Layers::new(&mut stream, rows, context, mla_decode::SPLIT);
        let clocks = stream.zeros("clocks", 4 * 4 * ROLES).unwrap().address;
        // Nothing is fetched: the address alone is used.
        layers.at.ahead = Ahead { from: clocks, bytes: 0, padding: 0 };
        // The first run brings the code.
        for _ in 0..2 {
            layers.attention.attend_absorbed(&mut stream, &layers.at, &layers.kv_up).unwrap();
        }
        let clocks: Vec<[u32; 4]> = stream.read(clocks, ROLES).unwrap();
        let role = |name: &str, [all, waited, tiles, _]: [u32; 4]| {
            assert!(
                tiles > 0 && waited <= all,
                "{name}: {all} clocks, {waited} of them waiting, {tiles} tiles"
            );
            format!(
                "{name} {} a tile, {:.0} % waiting",
                all / tiles,
                100.0 * f64::from(waited) / f64::from(all.max(1))
            )
        };
        let roles: Vec<String> = ["load", "score", "values", "values"]
            .into_iter()
            .zip(clocks)
            .map(|(name, clocks)| role(name, clocks))
            .collect();
        found.push(format!("{rows} rows: {}", roles.join(", ")));
    }
    Some(format!("FP8, {context} tokens, clocks of block 0: {}", found.join("; ")))
}
