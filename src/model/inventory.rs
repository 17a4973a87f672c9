//! What a checkpoint has against what its network needs, from headers alone: how every linear is stored, bytes per class, and everything
//! that is missing, wrong or foreign.
//!
//! Work and memory are bounded by the checkpoint's own size, not by what its `config.json` claims.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use super::blueprint::Blueprint;
use super::declared::DeclaredQuantization;
use super::weight_names::{ModuleClass, Wanted, WeightNames};
use crate::checkpoint::Checkpoint;
use crate::quant::{Layout, PART_NAMES, PackedFormat, RecognizeError};
use crate::tensor::TensorView;

/// How many entries of one kind a text lists before it counts the rest.
const MAX_LISTED: usize = 1000;

/// A network that wants more than this many times the tensors of its checkpoint does not belong to it; listing what is missing would take
/// memory in proportion to a number that somebody wrote into a file.
const MAX_WANTED_PER_STORED: usize = 16;

/// A linear of the network that was found and understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Linear {
    /// Name without the part (`.weight`, `.weight_packed`, ...).
    pub name: String,
    /// Where it belongs.
    pub class: ModuleClass,
    /// How it is stored.
    pub layout: Layout,
}

/// Modules of one class that are stored in one format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Holding {
    /// Linears, or tensors where there are no linears.
    pub modules: usize,
    /// Elements they stand for.
    pub parameters: u64,
    /// Stored bytes, scales included.
    pub bytes: u64,
}

/// Everything that does not fit, each list sorted as found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Problems {
    /// Why checkpoint and configuration do not belong together at all.
    pub hopeless: Option<String>,
    /// Wanted and not there.
    pub missing: Vec<String>,
    /// There and unusable: `name: reason`.
    pub wrong: Vec<String>,
    /// There and not wanted.
    pub unexpected: Vec<String>,
}

impl Problems {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.hopeless.is_none()
            && self.missing.is_empty()
            && self.wrong.is_empty()
            && self.unexpected.is_empty()
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = Vec::from_iter(self.hopeless.clone());
        let groups = [("missing", &self.missing), ("wrong", &self.wrong), ("unexpected", &self.unexpected)];
        for (kind, list) in groups.iter().filter(|(_, list)| !list.is_empty()) {
            lines.push(format!("{} {kind}:", list.len()));
            lines.extend(list.iter().take(MAX_LISTED).map(|entry| format!("  {entry}")));
            if list.len() > MAX_LISTED {
                lines.push(format!("  ... and {} more", list.len() - MAX_LISTED));
            }
        }
        f.write_str(&lines.join("\n"))
    }
}

/// A checkpoint seen through its network's configuration.
#[derive(Debug, Clone)]
pub struct Inventory {
    /// How this checkpoint spells its tensors.
    pub(super) names: WeightNames,
    /// Every linear that is there and understood, in binding order.
    pub linears: Vec<Linear>,
    /// What is stored, by class and format.
    pub holdings: BTreeMap<(ModuleClass, &'static str), Holding>,
    /// Scales of the KV cache; skipped when weights are loaded.
    pub kv_scales: Vec<String>,
    /// Calibrated scales of activations; skipped when weights are loaded.
    pub num_input_scales: usize,
    /// Most experts of a layer that have a tensor.
    pub experts_stored: usize,
    /// What `config.json` says about quantization.
    pub declared: Option<DeclaredQuantization>,
    /// Odd, but no reason to refuse.
    pub warnings: Vec<String>,
    /// Reasons to refuse.
    pub problems: Problems,
}

/// What became of a wanted name.
enum Found {
    Tensor,
    Linear(Layout),
    Broken,
}

impl Inventory {
    /// Looks at every name of the checkpoint once. Reads no tensor data.
    pub fn take(checkpoint: &Checkpoint, blueprint: &Blueprint) -> Self {
        let has = |name: &str| checkpoint.tensor(name).is_some();
        let mut inventory = Self {
            names: WeightNames::detect(has),
            linears: Vec::new(),
            holdings: BTreeMap::new(),
            kv_scales: Vec::new(),
            num_input_scales: 0,
            experts_stored: 0,
            declared: None,
            warnings: Vec::new(),
            problems: Problems::default(),
        };
        let (wanted, stored) = (WeightNames::num_wanted(blueprint), checkpoint.num_tensors());
        if wanted / MAX_WANTED_PER_STORED > stored.max(64) {
            inventory.problems.hopeless = Some(format!(
                "config.json describes {} layers with {} routed experts each, which take {wanted} weights; the checkpoint has {stored} tensors",
                blueprint.num_layers, blueprint.router.num_experts
            ));
            return inventory;
        }
        let mut found: HashMap<String, Found> = HashMap::with_capacity(wanted);
        let names = inventory.names.clone();
        names.for_each_wanted(blueprint, |name, class, wanted| {
            let outcome = match wanted {
                Wanted::Linear(shape) => inventory.linear(checkpoint, &name, class, shape),
                Wanted::Floats(shape) => inventory.floats(checkpoint, &name, class, &shape),
            };
            found.insert(name, outcome);
        });
        for name in checkpoint.names() {
            inventory.account(checkpoint, blueprint, &found, name);
        }
        inventory.read_declaration(checkpoint);
        inventory
    }

    fn linear(
        &mut self,
        checkpoint: &Checkpoint,
        name: &str,
        class: ModuleClass,
        shape: [usize; 2],
    ) -> Found {
        let layout = match Layout::of(parts(checkpoint, name)) {
            Ok(layout) => layout,
            Err(RecognizeError::NoWeight { found: None }) => {
                self.problems.missing.push(format!("{name}.weight"));
                return Found::Broken;
            }
            Err(error) => {
                self.problems.wrong.push(format!("{name}: {error}"));
                return Found::Broken;
            }
        };
        if layout.shape != shape {
            let got = layout.shape;
            self.problems.wrong.push(format!("{name}.weight: shape {got:?}, expected {shape:?}"));
            return Found::Broken;
        }
        let parameters = (shape[0] * shape[1]) as u64;
        self.hold(class, layout.dialect.format_name(), parameters, layout.bytes);
        self.linears.push(Linear { name: name.into(), class, layout });
        Found::Linear(layout)
    }

    fn floats(&mut self, checkpoint: &Checkpoint, name: &str, class: ModuleClass, shape: &[usize]) -> Found {
        let Some(view) = checkpoint.tensor(name) else {
            self.problems.missing.push(name.into());
            return Found::Broken;
        };
        if view.shape != shape {
            let got = view.shape;
            self.problems.wrong.push(format!("{name}: shape {got:?}, expected {shape:?}"));
            return Found::Broken;
        }
        if !view.dtype.is_float() {
            self.problems.wrong.push(format!("{name}: dtype {}, expected BF16, F16 or F32", view.dtype));
            return Found::Broken;
        }
        self.hold(class, view.dtype.name(), view.len() as u64, view.bytes.len());
        Found::Tensor
    }

    fn hold(&mut self, class: ModuleClass, format: &'static str, parameters: u64, bytes: usize) {
        let holding = self.holdings.entry((class, format)).or_default();
        holding.modules += 1;
        holding.parameters += parameters;
        holding.bytes += bytes as u64;
    }

    /// Puts a stored name where it belongs: a part of something wanted, something that may be skipped, or foreign.
    fn account(
        &mut self,
        checkpoint: &Checkpoint,
        blueprint: &Blueprint,
        found: &HashMap<String, Found>,
        name: &str,
    ) {
        if let Some(index) = expert_index(name) {
            self.experts_stored = self.experts_stored.max(index.saturating_add(1));
        }
        if found.contains_key(name) {
            return;
        }
        let (module, part) = name.rsplit_once('.').unwrap_or(("", name));
        match found.get(module) {
            Some(Found::Linear(layout)) if layout.dialect.parts().contains(&part) => {
                self.num_input_scales += usize::from(part.starts_with("input"));
                return;
            }
            Some(Found::Broken) if PART_NAMES.contains(&part) => return,
            Some(_) if part.starts_with("input_") && PART_NAMES.contains(&part) => {
                self.num_input_scales += 1;
                return;
            }
            _ => {}
        }
        let view = checkpoint.tensor(name);
        let (elements, bytes) = view.map_or((0, 0), |v| (v.len() as u64, v.bytes.len()));
        let format = view.map_or("", |v| v.dtype.name());
        let class = if WeightNames::is_vision(name) { ModuleClass::Vision } else { ModuleClass::Other };
        self.hold(class, format, elements, bytes);
        if WeightNames::is_kv_scale(name) {
            self.kv_scales.push(name.into());
        } else if !self.names.may_skip(name, blueprint) {
            self.problems.unexpected.push(name.into());
        }
    }

    /// Cross-checks `quantization_config`. What is stored decides; what is said can only warn, or refuse where it changes what codes mean.
    fn read_declaration(&mut self, checkpoint: &Checkpoint) {
        let Some(config) = checkpoint.file("config.json") else { return };
        match DeclaredQuantization::parse(&config) {
            Ok(declared) => self.declared = declared,
            Err(reason) => self.warnings.push(format!("config.json: {reason}; it is not used")),
        }
        let mut formats: Vec<PackedFormat> =
            self.linears.iter().filter_map(|linear| linear.layout.dialect.format()).collect();
        formats.sort_unstable();
        formats.dedup();
        let (warnings, errors) = DeclaredQuantization::contradictions(self.declared.as_ref(), &formats);
        self.warnings.extend(warnings);
        self.problems.wrong.extend(errors);
    }

    /// Stored bytes of the classes that are loaded, largest class last as in [`ModuleClass::ALL`].
    pub fn loaded_bytes(&self) -> Vec<(ModuleClass, u64)> {
        let sum = |class| {
            let of_class = self.holdings.iter().filter(|((c, _), _)| *c == class);
            of_class.map(|(_, holding)| holding.bytes).sum()
        };
        let classes = ModuleClass::ALL.into_iter().filter(|class| class.is_loaded());
        classes.map(|class| (class, sum(class))).filter(|(_, bytes)| *bytes > 0).collect()
    }
}

/// The tensors of a linear by the last word of their names.
pub(super) fn parts<'a>(checkpoint: &'a Checkpoint, linear: &str) -> impl Fn(&str) -> Option<TensorView<'a>> {
    // One buffer for all lookups of a linear: there are a dozen for each of 70,000.
    let buffer = std::cell::RefCell::new(String::with_capacity(linear.len() + 24));
    let stem = format!("{linear}.");
    move |part| {
        let mut name = buffer.borrow_mut();
        name.clear();
        name.push_str(&stem);
        name.push_str(part);
        checkpoint.tensor(&name)
    }
}

/// E of `...mlp.experts.E....`.
fn expert_index(name: &str) -> Option<usize> {
    let (_, rest) = name.split_once(".mlp.experts.")?;
    rest.split('.').next()?.parse().ok()
}
