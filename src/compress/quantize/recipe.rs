//! What to make of a checkpoint: format, dialect, modules.

use perigee_model::ModuleClass;
use perigee_numbers::quant::Packing;
use perigee_numbers::quant::nvfp4::BlockScales;

/// Format of the packed modules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetFormat {
    /// NVFP4.
    Nvfp4,
    /// MXFP4.
    Mxfp4,
    /// INT4 in groups of 32.
    Int4Group32,
    /// FP8: in blocks of 128 x 128, or per tensor, as the dialect has it.
    Fp8,
}

/// Whose tensor names and configuration to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// NVIDIA modelopt: NVFP4, FP8 per tensor.
    Modelopt,
    /// compressed-tensors (LLM Compressor): NVFP4, MXFP4, INT4.
    CompressedTensors,
    /// AMD Quark: MXFP4.
    Quark,
    /// DeepSeek-V3's own FP8 in blocks.
    Deepseek,
}

/// Which modules are packed. Router, embeddings, head, norms, attention and vision never are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModuleSet {
    /// Routed experts.
    Experts,
    /// Routed and shared experts.
    ExpertsAndShared,
    /// Every feed-forward matrix: routed and shared experts and dense layers.
    AllButAttention,
}

/// What is said about the scales of an FP8 KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvCache {
    /// Nothing.
    None,
    /// That the cache is FP8, with scales of 1, which are not stored.
    Cast,
    /// Measured scales, stored per layer.
    Calibrated,
}

/// Why options do not go together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// Not one of the names.
    #[error("{option} {value:?} is not known; choose one of {known}")]
    Unknown {
        /// Flag.
        option: &'static str,
        /// As given.
        value: String,
        /// What it may be.
        known: &'static str,
    },
    /// A dialect that does not have the format.
    #[error("--dialect {dialect} does not have --format {format}; choose {known}")]
    Dialect {
        /// As given.
        dialect: &'static str,
        /// As given.
        format: &'static str,
        /// Dialects of the format.
        known: &'static str,
    },
    /// A dialect whose readers know no KV scales.
    #[error("--kv {kv} is for --dialect modelopt and compressed-tensors; {dialect} has no place for it")]
    KvDialect {
        /// As given.
        kv: &'static str,
        /// As chosen.
        dialect: &'static str,
    },
    /// Measured scales without a measurement.
    #[error("--kv calibrated needs a text to measure on: --calibrate FILE")]
    KvText,
    /// A measurement that nothing would use.
    #[error(
        "--calibrate measures scales of activations, and {format} in the dialect of {dialect} stores none; leave it out, or add --kv calibrated"
    )]
    NothingToCalibrate {
        /// As given.
        format: &'static str,
        /// As chosen.
        dialect: &'static str,
    },
    /// A choice of scales for a format that has none.
    #[error("--scales {value} is for --format nvfp4; {format} has one rule")]
    Scales {
        /// As given.
        value: String,
        /// As given.
        format: &'static str,
    },
}

impl TargetFormat {
    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            TargetFormat::Nvfp4 => "nvfp4",
            TargetFormat::Mxfp4 => "mxfp4",
            TargetFormat::Int4Group32 => "int4-g32",
            TargetFormat::Fp8 => "fp8",
        }
    }

    fn parse(value: &str) -> Result<Self, OptionsError> {
        let all = [Self::Nvfp4, Self::Mxfp4, Self::Int4Group32, Self::Fp8];
        let known = "nvfp4, mxfp4, int4-g32, fp8";
        named(&all, Self::name, "--format", value, known)
    }

    fn dialects(self) -> (&'static [Dialect], &'static str) {
        match self {
            TargetFormat::Nvfp4 => {
                (&[Dialect::Modelopt, Dialect::CompressedTensors], "modelopt or compressed-tensors")
            }
            TargetFormat::Mxfp4 => {
                (&[Dialect::Quark, Dialect::CompressedTensors], "quark or compressed-tensors")
            }
            TargetFormat::Int4Group32 => (&[Dialect::CompressedTensors], "compressed-tensors"),
            TargetFormat::Fp8 => (&[Dialect::Deepseek, Dialect::Modelopt], "deepseek or modelopt"),
        }
    }
}

impl Dialect {
    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Dialect::Modelopt => "modelopt",
            Dialect::CompressedTensors => "compressed-tensors",
            Dialect::Quark => "quark",
            Dialect::Deepseek => "deepseek",
        }
    }
}

impl ModuleSet {
    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            ModuleSet::Experts => "experts",
            ModuleSet::ExpertsAndShared => "experts+shared",
            ModuleSet::AllButAttention => "all-but-attention",
        }
    }

    /// Whether modules of a class are packed.
    pub fn has(self, class: ModuleClass) -> bool {
        match class {
            ModuleClass::RoutedExperts => true,
            ModuleClass::SharedExperts => self != ModuleSet::Experts,
            ModuleClass::DenseFfn => self == ModuleSet::AllButAttention,
            _ => false,
        }
    }
}

/// What to make, valid by construction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    format: TargetFormat,
    scales: BlockScales,
    modules: ModuleSet,
    dialect: Dialect,
    kv: KvCache,
}

impl KvCache {
    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            KvCache::None => "none",
            KvCache::Cast => "cast",
            KvCache::Calibrated => "calibrated",
        }
    }
}

impl Options {
    /// From the words of the command line; what is absent takes the first that the format has, and `max` scales.
    pub fn parse(
        format: &str,
        scales: Option<&str>,
        modules: Option<&str>,
        dialect: Option<&str>,
    ) -> Result<Self, OptionsError> {
        let format = TargetFormat::parse(format)?;
        let scales = match scales {
            None => BlockScales::Max,
            Some(value) if format != TargetFormat::Nvfp4 => {
                return Err(OptionsError::Scales { value: value.into(), format: format.name() });
            }
            Some(value) => {
                named(&[BlockScales::Max, BlockScales::Sweep], scales_name, "--scales", value, "max, sweep")?
            }
        };
        let modules = match modules {
            None => ModuleSet::Experts,
            Some(value) => {
                let all = [ModuleSet::Experts, ModuleSet::ExpertsAndShared, ModuleSet::AllButAttention];
                let known = "experts, experts+shared, all-but-attention";
                named(&all, ModuleSet::name, "--modules", value, known)?
            }
        };
        let (dialects, known) = format.dialects();
        let dialect = match dialect {
            None => dialects[0],
            Some(value) => {
                let all = [Dialect::Modelopt, Dialect::CompressedTensors, Dialect::Quark, Dialect::Deepseek];
                let names = "modelopt, compressed-tensors, quark, deepseek";
                named(&all, Dialect::name, "--dialect", value, names)?
            }
        };
        if !dialects.contains(&dialect) {
            return Err(OptionsError::Dialect { dialect: dialect.name(), format: format.name(), known });
        }
        Ok(Self { format, scales, modules, dialect, kv: KvCache::None })
    }

    /// The same with what `--kv` says, and with or without a text to calibrate on.
    pub fn with_calibration(self, kv: Option<&str>, calibrated: bool) -> Result<Self, OptionsError> {
        let kv = match kv {
            None => KvCache::None,
            Some(value) => {
                let all = [KvCache::None, KvCache::Cast, KvCache::Calibrated];
                named(&all, KvCache::name, "--kv", value, "none, cast, calibrated")?
            }
        };
        let dialect = self.dialect.name();
        if kv != KvCache::None && !matches!(self.dialect, Dialect::Modelopt | Dialect::CompressedTensors) {
            return Err(OptionsError::KvDialect { kv: kv.name(), dialect });
        }
        match (kv, calibrated) {
            (KvCache::Calibrated, false) => Err(OptionsError::KvText),
            (KvCache::None | KvCache::Cast, true) if !self.stores_input_scales() => {
                Err(OptionsError::NothingToCalibrate { format: self.format.name(), dialect })
            }
            _ => Ok(Self { kv, ..self }),
        }
    }

    /// What is said about the KV cache.
    pub fn kv(&self) -> KvCache {
        self.kv
    }

    /// Whether packed modules have a scale for their input.
    pub fn stores_input_scales(&self) -> bool {
        self.format == TargetFormat::Nvfp4 || self.dialect == Dialect::Modelopt
    }

    /// The format.
    pub fn format(&self) -> TargetFormat {
        self.format
    }

    /// The dialect.
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// The modules that are packed.
    pub fn modules(&self) -> ModuleSet {
        self.modules
    }

    /// How matrices are packed.
    pub fn packing(&self) -> Packing {
        match (self.format, self.dialect) {
            (TargetFormat::Nvfp4, Dialect::CompressedTensors) => Packing::Nvfp4Global(self.scales),
            (TargetFormat::Nvfp4, _) => Packing::Nvfp4(self.scales),
            (TargetFormat::Mxfp4, Dialect::Quark) => Packing::Mxfp4 { smallest_scale: 1 },
            (TargetFormat::Mxfp4, _) => Packing::Mxfp4 { smallest_scale: 0 },
            (TargetFormat::Int4Group32, _) => Packing::Int4Group32,
            (TargetFormat::Fp8, Dialect::Modelopt) => Packing::Fp8Tensor,
            (TargetFormat::Fp8, _) => Packing::Fp8Block,
        }
    }

    /// The options as text, for fingerprints and reports.
    pub fn describe(&self) -> String {
        let scales = match self.format {
            TargetFormat::Nvfp4 => format!(" scales {}", scales_name(self.scales)),
            _ => String::new(),
        };
        let kv = match self.kv {
            KvCache::None => String::new(),
            kv => format!(" kv {}", kv.name()),
        };
        format!(
            "{}{scales} modules {} dialect {}{kv}",
            self.format.name(),
            self.modules.name(),
            self.dialect.name()
        )
    }
}

fn scales_name(scales: BlockScales) -> &'static str {
    match scales {
        BlockScales::Max => "max",
        BlockScales::Sweep => "sweep",
    }
}

fn named<T: Copy>(
    all: &[T],
    name: impl Fn(T) -> &'static str,
    option: &'static str,
    value: &str,
    known: &'static str,
) -> Result<T, OptionsError> {
    let unknown = || OptionsError::Unknown { option, value: value.into(), known };
    all.iter().copied().find(|x| name(*x) == value).ok_or_else(unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_words_take_the_usual_and_wrong_ones_are_named() {
        let parse = |format, scales, dialect| Options::parse(format, scales, None, dialect);
        for (format, expected) in [
            ("nvfp4", "nvfp4 scales max modules experts dialect modelopt"),
            ("mxfp4", "mxfp4 modules experts dialect quark"),
            ("int4-g32", "int4-g32 modules experts dialect compressed-tensors"),
            ("fp8", "fp8 modules experts dialect deepseek"),
        ] {
            assert_eq!(parse(format, None, None).unwrap().describe(), expected);
        }
        for (result, expected) in [
            (parse("int8", None, None), "--format \"int8\" is not known; choose one of nvfp4, mxfp4"),
            (parse("nvfp4", Some("mse"), None), "--scales \"mse\" is not known; choose one of max, sweep"),
            (parse("mxfp4", Some("sweep"), None), "--scales sweep is for --format nvfp4; mxfp4 has one rule"),
            (
                parse("nvfp4", None, Some("quark")),
                "--dialect quark does not have --format nvfp4; choose modelopt or",
            ),
            (Options::parse("fp8", None, Some("all"), None), "--modules \"all\" is not known"),
        ] {
            let text = result.unwrap_err().to_string();
            assert!(text.starts_with(expected), "{text}");
        }
    }

    #[test]
    fn kv_scales_and_calibration_go_with_what_stores_them() {
        let parse = |format, dialect, kv, calibrated| {
            let options = Options::parse(format, None, None, Some(dialect)).unwrap();
            options.with_calibration(kv, calibrated).map(|o| o.describe()).map_err(|e| e.to_string())
        };
        for (format, dialect, kv, calibrated, expected) in [
            ("nvfp4", "modelopt", None, true, "nvfp4 scales max modules experts dialect modelopt"),
            (
                "nvfp4",
                "modelopt",
                Some("cast"),
                false,
                "nvfp4 scales max modules experts dialect modelopt kv cast",
            ),
            ("fp8", "modelopt", None, true, "fp8 modules experts dialect modelopt"),
            (
                "int4-g32",
                "compressed-tensors",
                Some("calibrated"),
                true,
                "int4-g32 modules experts dialect compressed-tensors kv calibrated",
            ),
        ] {
            assert_eq!(parse(format, dialect, kv, calibrated).as_deref(), Ok(expected));
        }
        for (format, dialect, kv, calibrated, expected) in [
            ("nvfp4", "modelopt", Some("fp8"), false, "--kv \"fp8\" is not known"),
            ("nvfp4", "modelopt", Some("calibrated"), false, "--kv calibrated needs a text"),
            ("mxfp4", "quark", Some("cast"), false, "--kv cast is for --dialect modelopt"),
            ("fp8", "deepseek", Some("calibrated"), true, "--kv calibrated is for --dialect modelopt"),
            (
                "int4-g32",
                "compressed-tensors",
                None,
                true,
                "--calibrate measures scales of activations, and int4-g32",
            ),
        ] {
            let error = parse(format, dialect, kv, calibrated).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
