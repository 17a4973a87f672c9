//! Checkpoints made to do harm, or damaged: each is refused with words that say what is wrong, without a panic, without waiting, and without
//! memory in proportion to what a file merely claims.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use perigee_model::checkpoint::Checkpoint;
use perigee_model::{Blueprint, Weights};
use perigee_ops::host::reference::ReferenceBackend;
use perigee_telemetry::heap;
use safetensors::Dtype::{self, BF16, F8_E4M3, F32, I8, I32, I64, U8};
use serde_json::{Value, json};

use crate::quantized::Tensors;

/// Most bytes that refusing a case may hold. The largest files that really are there have 17 MiB.
const MEMORY_LIMIT: isize = 128 << 20;

/// Opens and binds as a boot does; the error's whole text.
fn outcome(folder: &Path) -> Result<(), String> {
    let checkpoint = Checkpoint::open(folder).map_err(|e| e.to_string())?;
    let config = checkpoint.read_file("config.json").map_err(|e| e.to_string())?;
    let config = config.ok_or("no config.json")?;
    let blueprint = Blueprint::parse(&config).map_err(|e| e.to_string())?;
    let weights = Weights::load(&checkpoint, &blueprint, &mut ReferenceBackend, &mut |_, _| ());
    weights.map(|_| ()).map_err(|e| e.to_string())
}

/// The cases of one group: what is done to a good folder, and words of the refusal.
#[derive(Default)]
struct Cases {
    count: usize,
    faults: Vec<String>,
}

impl Cases {
    fn check(&mut self, name: &str, words: &str, harm: impl FnOnce(&Path)) {
        let folder = Tensors::tiny().folder();
        harm(folder.path());
        self.refused(name, words, folder.path());
    }

    fn refused(&mut self, name: &str, words: &str, folder: &Path) {
        let before = heap::begin();
        let refused = outcome(folder);
        let most = heap::most() - before;
        match refused {
            Ok(()) => self.faults.push(format!("{name}: accepted")),
            Err(text) if !text.contains(words) => {
                self.faults.push(format!("{name}: {text:.1000}\n  expected {words}"));
            }
            Err(text) if text.len() > 1 << 20 => {
                self.faults.push(format!("{name}: an error of {} bytes", text.len()));
            }
            Err(_) => {}
        }
        if most > MEMORY_LIMIT {
            self.faults.push(format!("{name}: held {most} bytes"));
        }
        self.count += 1;
    }

    /// Every case went as it should, and there were at least so many.
    fn done(self, least: usize) {
        println!("{} cases", self.count);
        assert!(
            self.faults.is_empty(),
            "{} of {}:\n{}",
            self.faults.len(),
            self.count,
            self.faults.join("\n")
        );
        assert!(self.count >= least, "{} cases, {least} expected", self.count);
    }

    /// The tiny model with changed tensors.
    fn tensors(&mut self, name: &str, words: &str, harm: impl FnOnce(&mut Tensors)) {
        let mut tensors = Tensors::tiny();
        harm(&mut tensors);
        let folder = tensors.folder();
        self.refused(name, words, folder.path());
    }

    /// The tiny model with a changed configuration.
    fn config(&mut self, name: &str, words: &str, harm: impl FnOnce(&mut Value)) {
        self.check(name, words, |folder| {
            let mut config = serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap()).unwrap();
            harm(&mut config);
            fs::write(folder.join("config.json"), config.to_string()).unwrap();
        });
    }
}

const MODEL: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

fn mkfifo(path: &Path) {
    let _ = fs::remove_file(path);
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// Grows a file to `bytes` without writing them.
fn sparse(path: &Path, bytes: u64) {
    fs::OpenOptions::new().create(true).append(true).open(path).unwrap().set_len(bytes).unwrap();
}

#[test]
fn folders_that_lie() {
    let mut cases = Cases::default();
    let mut check = |name: &str, words: &str, harm: &dyn Fn(&Path)| cases.check(name, words, harm);
    let index = |folder: &Path, text: &str| fs::write(folder.join(INDEX), text).unwrap();
    let shard = |file: &str| format!(r#"{{"weight_map":{{"lm_head.weight":{}}}}}"#, json!(file));
    check("no weights", "neither model.safetensors.index.json nor model.safetensors", &|f| {
        fs::remove_file(f.join(MODEL)).unwrap();
    });
    check("no configuration", "no config.json", &|f| fs::remove_file(f.join("config.json")).unwrap());
    check("configuration is a folder", "config.json: is not a regular file", &|f| {
        fs::remove_file(f.join("config.json")).unwrap();
        fs::create_dir(f.join("config.json")).unwrap();
    });
    check("configuration is a pipe", "config.json: is not a regular file", &|f| {
        mkfifo(&f.join("config.json"))
    });
    check("weights are a pipe", "model.safetensors: is not a regular file", &|f| mkfifo(&f.join(MODEL)));
    check("index is a pipe", "index.json: is not a regular file", &|f| mkfifo(&f.join(INDEX)));
    for (name, target) in [("a link to a file", "/etc/hostname"), ("a link to a device", "/dev/zero")] {
        check(name, "leads out of the checkpoint's folder (a symbolic link", &|f| {
            fs::remove_file(f.join(MODEL)).unwrap();
            symlink(target, f.join(MODEL)).unwrap();
        });
    }
    check("configuration linked out", "\"config.json\" leads out", &|f| {
        fs::remove_file(f.join("config.json")).unwrap();
        symlink("/etc/hostname", f.join("config.json")).unwrap();
    });
    check("a circle of links", "model.safetensors:", &|f| {
        fs::remove_file(f.join(MODEL)).unwrap();
        symlink(MODEL, f.join("b")).unwrap();
        symlink("b", f.join(MODEL)).unwrap();
    });
    check("shard above the folder", "leads out of the checkpoint's folder (it has ..)", &|f| {
        index(f, &shard("../model.safetensors"));
    });
    check("shard by absolute path", "(it is absolute)", &|f| index(f, &shard("/etc/hostname")));
    check("shard without a name", "not a file name", &|f| index(f, &shard("")));
    check("shard with a NUL in its name", "not a file name", &|f| index(f, &shard("a\0b")));
    check("shard that is a folder", "is not a regular file", &|f| {
        fs::create_dir(f.join("d")).unwrap();
        index(f, &shard("d"));
    });
    check("shard that is linked out", "a symbolic link points elsewhere", &|f| {
        symlink("/etc/hostname", f.join("s")).unwrap();
        index(f, &shard("s"));
    });
    check("shard that is missing", "shard s is missing (1 tensors, first lm_head.weight)", &|f| {
        index(f, &shard("s"));
    });
    check("a name longer than a file's can be", "File name too long", &|f| {
        index(f, &shard(&"x".repeat(5000)))
    });
    check("tensor that is not in its shard", "has no tensor ghost.weight", &|f| {
        index(f, r#"{"weight_map":{"ghost.weight":"model.safetensors"}}"#);
    });
    check("tensor named twice in the index", "names tensor a twice", &|f| {
        index(f, r#"{"weight_map":{"a":"model.safetensors","a":"b"}}"#);
    });
    check("tensor stored twice", "is stored twice", &|f| {
        fs::copy(f.join(MODEL), f.join("b")).unwrap();
        index(f, r#"{"weight_map":{"lm_head.weight":"model.safetensors","model.norm.weight":"b"}}"#);
    });
    check("empty index", "weight_map is empty", &|f| index(f, r#"{"weight_map":{}}"#));
    check("index that is no JSON", "index.json: ", &|f| index(f, "\u{0}\u{1}"));
    check("index that is a list", "an object from tensor name", &|f| index(f, r#"{"weight_map":[1]}"#));
    check("index 100,000 levels deep", "index.json: EOF", &|f| {
        index(f, &format!(r#"{{"metadata":{}"#, "[".repeat(100_000)));
    });
    check("index of 1 TiB", "more than the 268435456 that are read", &|f| sparse(&f.join(INDEX), 1 << 40));
    check("configuration of 1 TiB", "more than the 268435456 that are read", &|f| {
        sparse(&f.join("config.json"), 1 << 40);
    });
    check("100,000 missing shards", "... and 99800 more", &|f| {
        let entries: Vec<String> = (0..100_000).map(|i| format!(r#""t{i}":"s{i}""#)).collect();
        index(f, &format!(r#"{{"weight_map":{{{}}}}}"#, entries.join(",")));
    });
    cases.done(25);
}

/// A file of this header and `data` zero bytes (never written).
fn write_raw(folder: &Path, length: u64, json: &[u8], data: u64) {
    let mut bytes = length.to_le_bytes().to_vec();
    bytes.extend_from_slice(json);
    let total = bytes.len() as u64 + data;
    fs::write(folder.join(MODEL), bytes).unwrap();
    sparse(&folder.join(MODEL), total);
}

#[test]
fn headers_that_lie() {
    let mut cases = Cases::default();
    let one = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{"model.norm.weight":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    let entry = |name: &str, start: u64, end: u64| {
        format!(r#""{name}":{{"dtype":"U8","shape":[{}],"data_offsets":[{start},{end}]}}"#, end - start)
    };
    let mut lengths = |name: &str, words: &str, length: u64, json: &str, data: u64| {
        cases.check(name, words, |f| write_raw(f, length, json.as_bytes(), data));
    };
    lengths("length beyond everything", "limit 100000000", u64::MAX, "{}", 0);
    lengths("length just above the limit", "limit 100000000", 100_000_001, "{}", 0);
    lengths("length past the end", "truncated or not safetensors", 1000, "{}", 10);
    lengths("no header", "does not begin with {", 0, "", 10);
    lengths("100 MB of zeros as a header", "does not begin with {", 100_000_000, "", 100_000_000);
    lengths("100 MB of nothing behind a brace", "header is not valid", 100_000_000, "{", 99_999_999);
    let mut header = |name: &str, words: &str, json: &str, data: u64| {
        cases.check(name, words, |f| write_raw(f, json.len() as u64, json.as_bytes(), data));
    };
    header("no tensors", "missing", "{}", 0);
    header("a list", "does not begin with {", "[]", 0);
    header("100,000 levels", "header is not valid", &format!("{{\"a\":{}", "[".repeat(100_000)), 0);
    header("garbage behind", "trailing characters", "{}x", 0);
    header("metadata that is no text", "header is not valid", r#"{"__metadata__":{"a":1}}"#, 0);
    header(
        "metadata 100,000 levels",
        "not valid",
        &format!(r#"{{"__metadata__":{}"#, "{\"a\":".repeat(100_000)),
        0,
    );
    header("unknown dtype", "unknown variant `F99`, expected one of `BOOL`", &one("F99", "[2]", "[0,8]"), 8);
    header("dtype as long as a book", "unknown variant `FFFF", &one(&"F".repeat(1 << 20), "[2]", "[0,8]"), 8);
    header("offsets reversed", "data offsets 8..0", &one("F32", "[2]", "[8,0]"), 8);
    header("offsets past the end", "do not lie in the 8 bytes", &one("F32", "[4]", "[0,16]"), 8);
    header(
        "1 TiB in a file of 8 bytes",
        "do not lie in the 8 bytes",
        &one("U8", "[1099511627776]", "[0,1099511627776]"),
        8,
    );
    header(
        "2^64 - 1 bytes",
        "do not lie",
        &one("U8", "[18446744073709551615]", "[0,18446744073709551615]"),
        8,
    );
    header("shape beyond its offsets", "takes 12 bytes, its offsets span 8", &one("F32", "[3]", "[0,8]"), 8);
    header("shape that overflows", "overflows", &one("F32", "[4294967296,4294967296]", "[0,8]"), 8);
    header(
        "shape that overflows behind a zero",
        "shape [0, 18446744073709551615]",
        &one("F32", "[0,18446744073709551615]", "[0,0]"),
        0,
    );
    header(
        "a thousand dimensions",
        "dimensions, limit 16",
        &one("F32", &format!("[{}]", ["1"; 1000].join(",")), "[0,4]"),
        4,
    );
    header("negative dimension", "header is not valid", &one("F32", "[-2]", "[0,8]"), 8);
    header("broken dimension", "header is not valid", &one("F32", "[2.5]", "[0,8]"), 8);
    header("three offsets", "header is not valid", &one("F32", "[2]", "[0,8,16]"), 8);
    header("offset beyond 64 bits", "header is not valid", &one("F32", "[2]", "[0,99999999999999999999]"), 8);
    header(
        "two tensors overlap",
        "overlap at byte 3",
        &format!("{{{},{}}}", entry("a", 0, 4), entry("b", 3, 8)),
        8,
    );
    header("one inside another", "overlap", &format!("{{{},{}}}", entry("a", 0, 8), entry("b", 2, 4)), 8);
    header("a gap", "belong to no tensor", &format!("{{{},{}}}", entry("a", 0, 3), entry("b", 4, 8)), 8);
    header(
        "data behind the last tensor",
        "belong to no tensor",
        &format!("{{{}}}", entry("a", 0, 8)),
        1 << 40,
    );
    header("one name twice", "is listed twice", &format!("{{{},{}}}", entry("a", 0, 4), entry("a", 4, 8)), 8);
    header("an entry that is a number", "header is not valid", r#"{"a":3}"#, 8);
    header(
        "64 GiB of holes",
        "model.norm.weight: shape [68719476736]",
        &one("U8", "[68719476736]", "[0,68719476736]"),
        1 << 36,
    );
    let many: Vec<String> = (0..100_000).map(|i| entry(&format!("t{i}"), i, i + 1)).collect();
    header("100,000 foreign tensors", "100000 unexpected", &format!("{{{}}}", many.join(",")), 100_000);
    let experts: Vec<String> = (0..1000)
        .map(|i| {
            entry(&format!("model.layers.1.mlp.experts.{}.up_proj.weight", i * 1_000_000_007u64), i, i + 1)
        })
        .collect();
    header("experts without number", "unexpected", &format!("{{{}}}", experts.join(",")), 1000);
    cases.check("a name that is no text", "header is not valid", |f| {
        write_raw(f, 40, b"{\"\xff\xfe\":{\"dtype\":\"U8\",\"shape\":[],\"data_", 8);
    });
    for bytes in [0, 1, 7] {
        cases.check("too short for a length", &format!("has only {bytes} bytes"), |f| {
            fs::write(f.join(MODEL), vec![0; bytes]).unwrap();
        });
    }
    cases.check("a file cut in half", "do not lie in", |f| {
        let whole = fs::read(f.join(MODEL)).unwrap();
        fs::write(f.join(MODEL), &whole[..whole.len() / 2]).unwrap();
    });
    cases.done(35);
}

#[test]
fn configurations_that_lie() {
    let mut cases = Cases::default();
    let mut text = |name: &str, words: &str, text: &str| {
        cases.check(name, words, |f| fs::write(f.join("config.json"), text).unwrap());
    };
    text("no JSON", "not valid JSON", "\u{7f}ELF");
    text("nothing", "not valid JSON", "");
    text("a list", "not a JSON object", "[]");
    text("100,000 levels", "not valid JSON", &format!("{{\"a\":{}", "[".repeat(100_000)));
    text("17 MiB", "more than the 16777216 that are parsed", &format!("[{}0]", "0,".repeat(17 << 19)));
    let mut set = |field: &str, value: Value, words: &str| {
        cases.config(field, words, |c| c[field] = value);
    };
    for (field, limit) in [
        ("num_hidden_layers", "4096"),
        ("n_routed_experts", "16384"),
        ("num_experts_per_tok", "1024"),
        ("n_shared_experts", "256"),
        ("hidden_size", "131072"),
        ("intermediate_size", "262144"),
        ("moe_intermediate_size", "262144"),
        ("num_attention_heads", "2048"),
        ("vocab_size", "4194304"),
        ("max_position_embeddings", "4194304"),
        ("num_nextn_predict_layers", "256"),
        ("kv_lora_rank", "32768"),
        ("qk_rope_head_dim", "4096"),
    ] {
        let words = format!("field `{field}` is 1000000000, expected an integer between 0 and {limit}");
        set(field, 1_000_000_000u64.into(), &words);
    }
    set("num_hidden_layers", u64::MAX.into(), "num_hidden_layers");
    set("num_hidden_layers", 0.into(), "at least 1");
    set("hidden_size", (-128).into(), "`hidden_size` is -128");
    set("hidden_size", "128".into(), "`hidden_size` is \"128\"");
    set("hidden_size", 1e300.into(), "hidden_size");
    set("hidden_size", Value::Null, "`hidden_size` is missing");
    set("hidden_size", 256.into(), "expected [256, 256]");
    set("vocab_size", 300.into(), "expected [300, 128]");
    set("model_type", "llama".into(), "model_type");
    set("model_type", 7.into(), "model_type");
    set("model_type", "kimi_k25".into(), "`text_config` is missing");
    set("num_experts_per_tok", 5.into(), "num_experts_per_tok");
    set("n_group", 3.into(), "n_group");
    set("topk_group", 2.into(), "topk_group");
    set("qk_rope_head_dim", 15.into(), "even");
    set("rms_norm_eps", 0.into(), "rms_norm_eps");
    set("rms_norm_eps", "1e400".into(), "rms_norm_eps");
    set("attention_bias", true.into(), "attention_bias");
    set("scoring_func", "softmax".into(), "scoring_func");
    set("rope_scaling", "yarn".into(), "rope_scaling");
    set("rope_scaling", json!({"type": "yarn", "factor": 0}), "factor");
    set("n_routed_experts", 2.into(), "18 unexpected");
    set("n_routed_experts", 8.into(), "12 missing");
    set("tie_word_embeddings", "no".into(), "tie_word_embeddings");
    cases.config("a layer too many", "unexpected:\n  model.layers.1.", |c| {
        c["num_hidden_layers"] = 1.into();
        c["num_nextn_predict_layers"] = 0.into();
    });
    cases.config("200 million weights in 81 tensors", "the checkpoint has 81 tensors", |c| {
        c["num_hidden_layers"] = 4096.into();
        c["n_routed_experts"] = 16384.into();
    });
    cases.done(40);
}

const UP: &str = "model.layers.1.mlp.experts.2.up_proj";

fn up(part: &str) -> String {
    format!("{UP}.{part}")
}

/// Replaces the `[64, 128]` matrix by other tensors.
fn replace(tensors: &mut Tensors, parts: &[(&str, Dtype, &[usize], &[u8])]) {
    tensors.0.retain(|t| !t.0.starts_with(UP));
    for (part, dtype, shape, fill) in parts {
        let size = dtype.bitsize() / 8 * shape.iter().product::<usize>();
        let bytes = fill.iter().copied().cycle().take(size).collect();
        tensors.put(&up(part), *dtype, shape, bytes);
    }
}

#[test]
fn tensors_that_lie() {
    let mut cases = Cases::default();
    let mut check = |name: &str, words: &str, harm: &dyn Fn(&mut Tensors)| cases.tensors(name, words, harm);
    let norm = "model.layers.0.input_layernorm.weight";
    check("a norm is missing", "1 missing:\n  model.layers.0.input_layernorm", &|t| t.remove(norm));
    check("a projection is missing", "1 missing:\n  model.layers.0.self_attn.o_proj.weight", &|t| {
        t.remove("model.layers.0.self_attn.o_proj.weight");
    });
    check("a foreign tensor", "1 unexpected:\n  model.layers.0.backdoor", &|t| {
        t.put("model.layers.0.backdoor", F32, &[1], vec![0; 4]);
    });
    check("a bias that nobody adds", "unexpected:\n  model.layers.0.self_attn.o_proj.bias", &|t| {
        t.put("model.layers.0.self_attn.o_proj.bias", F32, &[128], vec![0; 512]);
    });
    check("an expert too many", "unexpected:\n  model.layers.1.mlp.experts.4.up_proj", &|t| {
        t.put("model.layers.1.mlp.experts.4.up_proj.weight", BF16, &[64, 128], vec![0; 64 * 256]);
    });
    check("a norm of integers", "dtype I32, expected BF16, F16 or F32", &|t| {
        t.put(norm, I32, &[128], vec![0; 512]);
    });
    check("a norm too long", "shape [129], expected [128]", &|t| t.put(norm, F32, &[129], vec![0; 516]));
    check("a norm with two dimensions", "shape [1, 128], expected [128]", &|t| {
        t.put(norm, F32, &[1, 128], vec![0; 512])
    });
    check("an embedding of codes", "dtype U8, expected", &|t| {
        t.put("model.embed_tokens.weight", U8, &[256, 128], vec![0; 256 * 128]);
    });
    check("a matrix on its side", "shape [128, 64], expected [64, 128]", &|t| {
        replace(t, &[("weight", BF16, &[128, 64], &[0])]);
    });
    check("a router row too few", "shape [3, 128], expected [4, 128]", &|t| {
        t.put("model.layers.1.mlp.gate.weight", BF16, &[3, 128], vec![0; 768]);
    });
    check("a bias row too many", "shape [5], expected [4]", &|t| {
        t.put("model.layers.1.mlp.gate.e_score_correction_bias", F32, &[5], vec![0; 20]);
    });
    check("three dimensions", "two dimensions", &|t| replace(t, &[("weight", BF16, &[1, 64, 128], &[0])]));
    check("weights of I8", "weight has dtype I8", &|t| replace(t, &[("weight", I8, &[64, 128], &[0])]));
    check("weights of I64", "weight has dtype I64", &|t| replace(t, &[("weight", I64, &[64, 128], &[0])]));
    check("no block scales", "weight_scale is needed", &|t| t.remove(&up("weight_scale")));
    check("no tensor scale", "weight_scale_2 is needed", &|t| t.remove(&up("weight_scale_2")));
    check("scales alone", "only weight_scale", &|t| t.remove(&up("weight")));
    check("scales of a plain weight", "BF16, which does not go with the weight_scale", &|t| {
        t.put(&up("weight"), BF16, &[64, 128], vec![0; 64 * 256]);
    });
    check("plain and packed", "both weight and weight_packed", &|t| {
        t.put(&up("weight_packed"), U8, &[64, 64], vec![0; 64 * 64]);
    });
    check("a zero point", "asymmetric", &|t| t.put(&up("weight_zero_point"), I32, &[1], vec![0; 4]));
    check("an order of columns", "actorder", &|t| t.put(&up("weight_g_idx"), I32, &[128], vec![0; 512]));
    check("scaled inputs", "AWQ", &|t| t.put(&up("pre_quant_scale"), BF16, &[128], vec![0; 256]));
    check("a low-rank part", "SVDQuant", &|t| t.put(&up("svdquant_lora_a"), BF16, &[1, 128], vec![0; 256]));
    let tensor_scale = |value: f32| value.to_le_bytes().to_vec();
    for (name, value, words) in [
        ("the reciprocal", 26880.0, "looks written in compressed-tensors"),
        ("a tensor scale of zero", 0.0, "weight_scale_2 is 0e0, outside"),
        ("a negative tensor scale", -1e-4, "outside 1e-30 to 1e0"),
        ("a NaN tensor scale", f32::NAN, "weight_scale_2 is NaN"),
        ("an infinite tensor scale", f32::INFINITY, "weight_scale_2 is inf"),
        ("a tensor scale that is no number", 1e-40, "outside"),
    ] {
        check(name, words, &|t| t.get(&up("weight_scale_2")).3 = tensor_scale(value));
    }
    check("two tensor scales", "expected [] or [1]", &|t| {
        t.put(&up("weight_scale_2"), F32, &[2], vec![0; 8])
    });
    check("a tensor scale of BF16", "weight_scale_2 has dtype BF16", &|t| {
        t.put(&up("weight_scale_2"), BF16, &[], vec![0; 2])
    });
    for (name, byte, words) in [
        ("a NaN scale", 0x7f, "row 63, block 7: scale 0x7f is NaN"),
        ("a minus NaN scale", 0xff, "scale 0xff is NaN"),
        ("a negative scale", 0xb8, "scale 0xb8 is -1"),
    ] {
        check(name, words, &|t| {
            *t.get(&up("weight")).3.last_mut().unwrap() = 0x11;
            *t.get(&up("weight_scale")).3.last_mut().unwrap() = byte;
        });
    }
    check("every scale NaN", "512 NaN, infinite or negative scales", &|t| {
        t.get(&up("weight")).3.fill(0x11);
        t.get(&up("weight_scale")).3.fill(0x7f);
    });
    check("groups of 32", "groups of 32, but only groups of 16", &|t| {
        t.put(&up("weight_scale"), F8_E4M3, &[64, 4], vec![0x38; 256]);
    });
    check("scales of another matrix", "expected [64, 8] for a [64, 128] matrix", &|t| {
        t.put(&up("weight_scale"), F8_E4M3, &[128, 4], vec![0x38; 512]);
    });
    check("scales of F32", "weight_scale has dtype F32", &|t| {
        t.put(&up("weight_scale"), F32, &[64, 8], vec![0; 2048]);
    });
    let mut parts = |name: &str, words: &str, list: &[(&str, Dtype, &[usize], &[u8])]| {
        check(name, words, &|t| replace(t, list));
    };
    let one = 1f32.to_le_bytes();
    parts(
        "E8M0 NaN",
        "scale 0xff is NaN",
        &[("weight", U8, &[64, 64], &[0x11]), ("weight_scale", U8, &[64, 4], &[0xff])],
    );
    parts(
        "MXFP4 in groups of 16",
        "mxfp4 with groups of 16",
        &[("weight", U8, &[64, 64], &[0x11]), ("weight_scale", U8, &[64, 8], &[120])],
    );
    parts(
        "columns that no group divides",
        "multiple of 16 columns, got 24",
        &[
            ("weight", U8, &[64, 12], &[0]),
            ("weight_scale", F8_E4M3, &[64, 5], &[0x38]),
            ("weight_scale_2", F32, &[], &one),
        ],
    );
    parts(
        "matrices of nothing",
        "expected [64, 128]",
        &[("weight", U8, &[0, 64], &[]), ("weight_scale", U8, &[0, 4], &[])],
    );
    parts("no columns", "expected [64, 128]", &[("weight", BF16, &[64, 0], &[])]);
    let int4 = ("weight_packed", I32, &[64usize, 16] as &[usize], &[0x99u8] as &[u8]);
    parts("INT4 without scales", "weight_packed is I32, so weight_scale is needed", &[int4]);
    parts(
        "INT4 in groups of 64",
        "int4-g32 with groups of 64",
        &[int4, ("weight_scale", BF16, &[64, 2], &[0x80, 0x3f])],
    );
    parts("INT4 with a NaN scale", "is NaN", &[int4, ("weight_scale", BF16, &[64, 4], &[0xc0, 0x7f])]);
    parts(
        "INT4 with an infinite scale",
        "scale 0x7f80 is inf",
        &[int4, ("weight_scale", BF16, &[64, 4], &[0x80, 0x7f])],
    );
    parts(
        "INT4 with a negative scale",
        "scale 0xbf80 is -1",
        &[int4, ("weight_scale", BF16, &[64, 4], &[0x80, 0xbf])],
    );
    parts(
        "INT4 with another shape",
        "weight_shape says [-1, -1]",
        &[int4, ("weight_scale", BF16, &[64, 4], &[0x80, 0x3f]), ("weight_shape", I64, &[2], &[0xff])],
    );
    parts(
        "INT4 with scales of bytes",
        "BF16, F16, F32 or F8_E8M0 beside I32",
        &[int4, ("weight_scale", U8, &[64, 4], &[0x7f])],
    );
    let ct = [
        ("weight_packed", U8, &[64usize, 64] as &[usize], &[0x11u8] as &[u8]),
        ("weight_scale", F8_E4M3, &[64, 8], &[0x38]),
    ];
    parts(
        "the other reciprocal",
        "looks written in modelopt",
        &[ct[0], ct[1], ("weight_global_scale", F32, &[1], &1e-4f32.to_le_bytes())],
    );
    parts(
        "modelopt's scale under packed codes",
        "weight_scale_2 belongs to weight",
        &[ct[0], ct[1], ("weight_scale_2", F32, &[], &one)],
    );
    let fp8 = ("weight", F8_E4M3, &[64usize, 128] as &[usize], &[0x38u8] as &[u8]);
    parts("FP8 without scales", "weight_scale_inv or weight_scale is needed", &[fp8]);
    parts(
        "FP8 with blocks of 64",
        "expected [1, 1] (blocks of 128 x 128)",
        &[fp8, ("weight_scale_inv", F32, &[1, 2], &one)],
    );
    parts(
        "FP8 with two kinds of scales",
        "both weight_scale_inv and weight_scale",
        &[fp8, ("weight_scale_inv", F32, &[1, 1], &one), ("weight_scale", F32, &[], &one)],
    );
    parts(
        "FP8 with a NaN scale",
        "is NaN",
        &[fp8, ("weight_scale_inv", F32, &[1, 1], &f32::NAN.to_le_bytes())],
    );
    parts("FP8 with a negative scale", "is -1", &[fp8, ("weight_scale", F32, &[64], &(-1f32).to_le_bytes())]);
    parts(
        "FP8 NaN under a zero scale",
        "row 0, block 0: scale 0x0 is 0",
        &[("weight", F8_E4M3, &[64, 128], &[0x7f]), ("weight_scale", F32, &[], &0f32.to_le_bytes())],
    );
    let int4_model = |field: &str, value: Value, words: &str, cases: &mut Cases| {
        let mut tensors = Tensors::tiny();
        replace(&mut tensors, &[int4, ("weight_scale", BF16, &[64, 4], &[0x80, 0x3f])]);
        let folder = tensors.folder();
        let mut config: Value =
            serde_json::from_slice(&fs::read(folder.path().join("config.json")).unwrap()).unwrap();
        config["quantization_config"]["config_groups"]["group_0"]["weights"][field] = value;
        fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        cases.refused(field, words, folder.path());
    };
    int4_model("symmetric", false.into(), "symmetric false", &mut cases);
    int4_model("actorder", "group".into(), "actorder \"group\"", &mut cases);
    cases.done(60);
}

#[test]
fn the_folder_that_all_cases_start_from_is_accepted() {
    assert_eq!(outcome(Tensors::tiny().folder().path()), Ok(()));
}

/// A few through the program itself: exit code 1 (not a signal) and the same words on stderr.
#[test]
fn the_program_ends_with_the_reason() {
    type Harm = fn(&Path);
    let cases: [(&str, Harm); 4] = [
        ("truncated or not safetensors", |f| write_raw(f, 1000, b"{}", 0)),
        ("leads out of the checkpoint's folder", |f| {
            fs::remove_file(f.join(MODEL)).unwrap();
            symlink("/etc/hostname", f.join(MODEL)).unwrap();
        }),
        ("num_hidden_layers", |f| {
            let config = fs::read_to_string(f.join("config.json")).unwrap();
            let config = config.replace("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1000000000");
            fs::write(f.join("config.json"), config).unwrap();
        }),
        ("weight_scale_2 is needed", |f| {
            let mut tensors = Tensors::tiny();
            tensors.remove(&up("weight_scale_2"));
            fs::write(f.join(MODEL), tensors.file()).unwrap();
        }),
    ];
    for (words, harm) in cases {
        let folder = crate::quantized::servable_copy(Tensors::tiny().folder().path());
        harm(folder.path());
        for arguments in [&["serve", "--port", "0", "--model"][..], &["inspect"]] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_perigee"));
            for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("PERIGEE_")) {
                command.env_remove(name);
            }
            let output = command
                .args(arguments)
                .arg(folder.path())
                .current_dir(std::env::temp_dir())
                .output()
                .unwrap();
            let said = format!(
                "{}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
            assert_eq!(output.status.code(), Some(1), "{arguments:?} {words}: {said}");
            assert!(said.contains(words), "{arguments:?}: {said}\n  expected {words}");
        }
    }
}
