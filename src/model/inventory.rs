//! Compares a checkpoint with its network, from headers alone: the format of every linear, bytes
//! per class, and all missing, wrong and unexpected tensors.
//!
//! Work and memory are bounded by the checkpoint's actual size, not by the sizes in its
//! `config.json`.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use super::blueprint::Blueprint;
use super::checkpoint::Checkpoint;
use super::declared::DeclaredQuantization;
use super::expert_names::{Role, role};
use super::foreign_form;
use super::weight_names::{ModuleClass, Skipped, Wanted, WeightNames, is_kv_scale};
use perigee_numbers::quant::{Dialect, FloatType, Layout, PART_NAMES, PackedFormat, RecognizeError};
use perigee_numbers::tensor::{Dtype, ElementType, TensorView};

/// Upper bound on the listed entries of one kind; the rest are counted.
const MAX_LISTED: usize = 1000;

/// A network that wants more than this many times the tensors of its checkpoint does not belong to
/// it. Listing the missing ones would take memory in proportion to a number in an untrusted file.
const MAX_WANTED_PER_STORED: usize = 16;

/// A stored linear of the network whose format is recognised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Linear {
    /// Name without the part (`.weight`, `.weight_packed`, ...).
    pub name: String,
    /// Class of the linear.
    pub class: ModuleClass,
    /// Stored form of the linear.
    pub layout: Layout,
}

/// Modules of one class in one stored format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Holding {
    /// Number of linears, or of tensors in a class without linears.
    pub modules: usize,
    /// Elements of the modules, unpacked.
    pub parameters: u64,
    /// Stored bytes, scales included.
    pub bytes: u64,
}

/// All mismatches, each list sorted as found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Problems {
    /// Reason why checkpoint and configuration cannot belong together; `None` if they can.
    pub hopeless: Option<String>,
    /// Wanted tensors that are not stored.
    pub missing: Vec<String>,
    /// Stored tensors that cannot be used: `name: reason`.
    pub wrong: Vec<String>,
    /// Stored tensors that the network does not want.
    pub unexpected: Vec<String>,
}

impl Problems {
    /// Whether there is no mismatch.
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

/// The result of comparing a checkpoint with its network.
#[derive(Debug, Clone)]
pub struct Inventory {
    /// Spelling of the tensor names.
    pub(super) names: WeightNames,
    /// Every recognised linear, in binding order.
    pub linears: Vec<Linear>,
    /// Stored modules, by class and format.
    pub holdings: BTreeMap<(ModuleClass, String), Holding>,
    /// Scales of the KV cache; skipped when weights are loaded.
    pub kv_scales: Vec<String>,
    /// Calibrated scales of activations; skipped when weights are loaded.
    pub num_input_scales: usize,
    /// INT4 linears whose scales are rounded to BF16.
    num_rounded: usize,
    /// Largest number of experts with a tensor in one layer.
    pub experts_stored: usize,
    /// Quantization declared in `config.json`.
    pub declared: Option<DeclaredQuantization>,
    /// Findings that do not prevent serving.
    pub warnings: Vec<String>,
    /// Reasons for a refusal.
    pub problems: Problems,
}

/// Result of the search for a wanted linear.
#[derive(Clone, Copy)]
enum Found {
    Linear(Layout),
    Broken,
}

/// The checkpoint's tensors, grouped by module. Built once, so that every wanted name costs one
/// look-up.
struct Stored<'a> {
    /// Sorted by name.
    tensors: Vec<Part<'a>>,
    /// Indices into `modules` by module name.
    places: HashMap<&'a str, usize, ahash::RandomState>,
    modules: Vec<Module>,
}

struct Part<'a> {
    name: &'a str,
    /// The last word of the name.
    part: &'a str,
    /// Index of its module.
    module: usize,
    view: TensorView<'a>,
    /// Whether the network binds the tensor by its whole name.
    wanted: bool,
}

/// Tensors whose names differ in the last word.
struct Module {
    /// First and last index of the tensors; tensors of sub-modules may lie between.
    first: usize,
    last: usize,
    found: Option<Found>,
}

/// Number and first name of the tensors left out, by reason.
#[derive(Default)]
struct LeftOut<'a>(BTreeMap<Skipped, (usize, &'a str)>);

impl<'a> LeftOut<'a> {
    fn add(&mut self, reason: Skipped, name: &'a str) {
        self.0.entry(reason).or_insert((0, name)).0 += 1;
    }

    /// One line per reason that an operator may not expect.
    fn warnings(&self, blueprint: &Blueprint) -> Vec<String> {
        let line = |(reason, (count, first)): (&Skipped, &(usize, &str))| {
            let why = match reason {
                Skipped::Known => return None,
                Skipped::UncountedLayer => format!(
                    "they belong to prediction layers, of which config.json counts {} (num_nextn_predict_layers)",
                    blueprint.num_nextn_predict_layers
                ),
                Skipped::StrayTower => format!(
                    "they belong to a vision tower, and config.json, model_type {}, describes none; only text is served",
                    blueprint.wrapper_type
                ),
                Skipped::Calibration => "a calibration left them, and nothing here reads them".to_owned(),
            };
            Some(format!("tensors left out: {count}, first {first}: {why}"))
        };
        self.0.iter().filter_map(line).collect()
    }
}

impl<'a> Stored<'a> {
    fn new(checkpoint: &'a Checkpoint) -> Self {
        let mut stored = Self { tensors: Vec::new(), places: HashMap::default(), modules: Vec::new() };
        stored.tensors.reserve(checkpoint.num_tensors());
        let mut previous = None;
        for (at, (name, view)) in checkpoint.tensors().enumerate() {
            let (module, part) = name.rsplit_once('.').unwrap_or(("", name));
            let place = match previous {
                Some((before, place)) if before == module => place,
                _ => *stored.places.entry(module).or_insert(stored.modules.len()),
            };
            previous = Some((module, place));
            match stored.modules.get_mut(place) {
                Some(module) => module.last = at,
                None => stored.modules.push(Module { first: at, last: at, found: None }),
            }
            stored.tensors.push(Part { name, part, module: place, view, wanted: false });
        }
        stored
    }

    /// Index of a part of a module.
    fn find(&self, place: usize, part: &str) -> Option<usize> {
        let Module { first, last, .. } = self.modules[place];
        (first..=last).find(|at| self.tensors[*at].module == place && self.tensors[*at].part == part)
    }
}

impl Inventory {
    /// Compares every name of the checkpoint once. Reads no tensor data.
    pub fn take(checkpoint: &Checkpoint, blueprint: &Blueprint) -> Self {
        let mut inventory = Self {
            names: WeightNames::detect(checkpoint.names(), blueprint.num_layers),
            linears: Vec::new(),
            holdings: BTreeMap::new(),
            kv_scales: Vec::new(),
            num_input_scales: 0,
            num_rounded: 0,
            experts_stored: 0,
            declared: None,
            warnings: Vec::new(),
            problems: Problems::default(),
        };
        let (wanted, num_stored) = (WeightNames::num_wanted(blueprint), checkpoint.num_tensors());
        if wanted / MAX_WANTED_PER_STORED > num_stored.max(64) {
            inventory.problems.hopeless = Some(format!(
                "config.json describes {} layers with {} routed experts each, which take {wanted} weights; the checkpoint has {num_stored} tensors",
                blueprint.num_layers, blueprint.router.num_experts
            ));
            return inventory;
        }
        inventory.problems.hopeless = foreign_form::of(checkpoint.names());
        if inventory.problems.hopeless.is_some() {
            return inventory;
        }
        let mut stored = Stored::new(checkpoint);
        let names = inventory.names.clone();
        names.for_each_wanted(blueprint, |name, class, wanted| match wanted {
            Wanted::Linear(shape) => inventory.linear(&mut stored, name, class, shape),
            Wanted::Floats(shape) => inventory.floats(&mut stored, name, class, &shape),
        });
        inventory.account(&stored, blueprint);
        inventory.read_declaration(checkpoint);
        inventory
    }

    fn linear(&mut self, stored: &mut Stored<'_>, name: &str, class: ModuleClass, shape: [usize; 2]) {
        let Some(place) = stored.places.get(name).copied() else {
            return self.problems.missing.push(format!("{name}.weight"));
        };
        let part = |part: &str| stored.find(place, part).map(|at| stored.tensors[at].view);
        let found = match Layout::of(part) {
            Ok(layout) if layout.shape == shape => {
                if layout.dialect == Dialect::CompressedTensorsInt4
                    && part("weight_scale")
                        .is_some_and(|scale| matches!(scale.dtype, Dtype::F16 | Dtype::F32))
                {
                    self.num_rounded += 1;
                }
                let parameters = (shape[0] * shape[1]) as u64;
                self.hold(class, layout.dialect.format_name().into(), parameters, layout.bytes);
                self.linears.push(Linear { name: name.into(), class, layout });
                Found::Linear(layout)
            }
            Ok(layout) => {
                let got = layout.shape;
                self.problems.wrong.push(format!("{name}.weight: shape {got:?}, expected {shape:?}"));
                Found::Broken
            }
            Err(RecognizeError::NoWeight { found: None }) => {
                self.problems.missing.push(format!("{name}.weight"));
                Found::Broken
            }
            Err(error) => {
                self.problems.wrong.push(format!("{name}: {error}"));
                Found::Broken
            }
        };
        stored.modules[place].found = Some(found);
    }

    fn floats(&mut self, stored: &mut Stored<'_>, name: &str, class: ModuleClass, shape: &[usize]) {
        let (module, part) = name.rsplit_once('.').unwrap_or(("", name));
        let at = stored.places.get(module).and_then(|place| stored.find(*place, part));
        let Some(at) = at else { return self.problems.missing.push(name.into()) };
        let Part { view, ref mut wanted, .. } = stored.tensors[at];
        *wanted = true;
        if view.shape != shape {
            let got = view.shape;
            return self.problems.wrong.push(format!("{name}: shape {got:?}, expected {shape:?}"));
        }
        if !view.dtype.is_float() {
            let dtype = view.dtype;
            return self.problems.wrong.push(format!("{name}: dtype {dtype}, expected BF16, F16 or F32"));
        }
        self.hold(class, view.dtype.to_string(), view.len() as u64, view.bytes.len());
    }

    fn hold(&mut self, class: ModuleClass, format: String, parameters: u64, bytes: usize) {
        let holding = self.holdings.entry((class, format)).or_default();
        holding.modules += 1;
        holding.parameters += parameters;
        holding.bytes += bytes as u64;
    }

    /// Classifies every stored name: part of a wanted module, skipped, or unexpected.
    fn account(&mut self, stored: &Stored<'_>, blueprint: &Blueprint) {
        let mut module = usize::MAX;
        let mut left_out = LeftOut::default();
        for tensor in &stored.tensors {
            if tensor.module != module {
                module = tensor.module;
                if let Role::Expert(expert) = role(tensor.name) {
                    self.experts_stored = self.experts_stored.max(expert.expert as usize + 1);
                }
            }
            if !tensor.wanted {
                let found = stored.modules[module].found.as_ref();
                self.account_one(tensor, found, blueprint, &mut left_out);
            }
        }
        self.warnings.extend(left_out.warnings(blueprint));
        if self.num_rounded > 0 {
            self.warnings.push(format!(
                "{} INT4 matrices have scales in F16 or F32; they are rounded to BF16, at most 2^-9 of each",
                self.num_rounded
            ));
        }
    }

    /// Classifies a tensor that is not bound by its whole name; `found` is the result for its
    /// module.
    fn account_one<'a>(
        &mut self,
        tensor: &Part<'a>,
        found: Option<&Found>,
        blueprint: &Blueprint,
        left_out: &mut LeftOut<'a>,
    ) {
        let Part { name, part, view, .. } = *tensor;
        // Stored beside a linear, but not part of its weight.
        let is_input_scale = found.is_some() && matches!(part, "input_scale" | "input_global_scale");
        match found {
            Some(_) if is_input_scale => self.num_input_scales += 1,
            Some(Found::Linear(layout)) if layout.dialect.parts().contains(&part) => return,
            Some(Found::Broken) if PART_NAMES.contains(&part) => return,
            _ => {}
        }
        let class = if WeightNames::is_vision(name) { ModuleClass::Vision } else { ModuleClass::Other };
        self.hold(class, view.dtype.to_string(), view.len() as u64, view.bytes.len());
        if is_kv_scale(name) {
            self.kv_scales.push(name.into());
        } else if !is_input_scale {
            match self.names.skipped(name, blueprint) {
                Some(reason) => left_out.add(reason, name),
                None => self.problems.unexpected.push(name.into()),
            }
        }
    }

    /// Cross-checks `quantization_config`. The stored tensors decide; a declaration adds a warning,
    /// or an error where it changes the meaning of the codes.
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

    /// Bytes that `kv_b_proj`, routers and linears in F16 take beyond their stored size: attention and routing
    /// multiply by plain values of `value_bytes` each, and F16 is widened to f32.
    pub fn widened_bytes(&self, value_bytes: usize) -> u64 {
        let is_half = |linear: &Linear| linear.layout.dialect == Dialect::Plain(FloatType::F16);
        let widened = |linear: &&Linear| {
            let class = linear.class == ModuleClass::Router || linear.name.ends_with(".kv_b_proj");
            is_half(linear) || class && linear.layout.dialect.format().is_some()
        };
        let more = |linear: &Linear| {
            let wide = linear.class == ModuleClass::Router || is_half(linear);
            let size = if wide { 4 } else { value_bytes };
            (linear.layout.shape[0] * linear.layout.shape[1] * size).saturating_sub(linear.layout.bytes)
                as u64
        };
        self.linears.iter().filter(widened).map(more).sum()
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

/// The tensors of a linear by the last word of their names. One descent into the checkpoint's names
/// serves the dozen look-ups of recognition.
pub(super) fn parts<'a>(
    checkpoint: &'a Checkpoint,
    linear: &str,
) -> impl Fn(&str) -> Option<TensorView<'a>> + use<'a> {
    let prefix = format!("{linear}.");
    let known = |name: &str| PART_NAMES.into_iter().find(|part| *part == name);
    let found: Vec<(&'static str, TensorView<'a>)> =
        checkpoint.under(&prefix).filter_map(|(name, view)| known(name).map(|part| (part, view))).collect();
    move |part| found.iter().find(|(name, _)| *name == part).map(|(_, view)| *view)
}
