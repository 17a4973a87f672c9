//! `preprocessor_config.json`, of either wrapper.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{MERGE, PATCH, Preprocessor, Rule};

/// Settings of an image processor that cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum PreprocessorError {
    /// Not JSON, or a field missing or of another type.
    #[error("preprocessor_config.json is not what this model family has")]
    Json(#[from] serde_json::Error),
    /// A model family without image processor here.
    #[error("no image processor is known for the wrapper \"{wrapper}\"; known are kimi_k25 and kimi_vl")]
    UnknownWrapper {
        /// `model_type` of the checkpoint.
        wrapper: String,
    },
    /// A value that is not supported.
    #[error("{field} in preprocessor_config.json is {value}, {expected}")]
    Unsupported {
        /// Name of the field.
        field: &'static str,
        /// Its value.
        value: String,
        /// What it must be.
        expected: String,
    },
}

/// Largest limit of patches. 65535x65535 pixels have 21.9 million.
const MAX_PATCHES: usize = 1 << 25;
/// Largest number of patches on a side.
const MAX_SIDE: usize = 1 << 13;
/// Side limit that the code of Kimi-VL states.
const KIMI_VL_SIDE: usize = 512;

/// `media_proc_cfg` of the K2.5 line.
#[derive(Deserialize)]
struct MediaConfig {
    in_patch_limit: usize,
    patch_limit_on_one_side: usize,
    patch_size: usize,
    merge_kernel_size: MergeKernel,
    image_mean: Vec<f64>,
    image_std: Vec<f64>,
    #[serde(default)]
    fixed_output_tokens: Value,
}

/// The file of the K2.5 line.
#[derive(Deserialize)]
struct KimiK25File {
    media_proc_cfg: MediaConfig,
}

/// The file of Kimi-VL.
#[derive(Deserialize)]
struct KimiVlFile {
    in_token_limit: usize,
    patch_size: usize,
    merge_kernel_size: MergeKernel,
    image_mean: Vec<f64>,
    image_std: Vec<f64>,
    #[serde(default)]
    pad_input: bool,
}

/// One side, or rows and columns.
#[derive(Deserialize)]
#[serde(untagged)]
enum MergeKernel {
    Side(usize),
    Sides(Vec<usize>),
}

impl Preprocessor {
    /// The image processor of a checkpoint. `wrapper` is the checkpoint's `model_type`: "kimi_k25" or
    /// "kimi_vl".
    ///
    /// Errors: [`PreprocessorError`], with the field, its value and what it must be.
    pub fn parse(preprocessor_config_json: &[u8], wrapper: &str) -> Result<Preprocessor, PreprocessorError> {
        match wrapper {
            "kimi_k25" => kimi_k25(parse_json::<KimiK25File>(preprocessor_config_json)?.media_proc_cfg),
            "kimi_vl" => kimi_vl(parse_json(preprocessor_config_json)?),
            _ => Err(PreprocessorError::UnknownWrapper { wrapper: wrapper.to_owned() }),
        }
    }
}

fn parse_json<T: DeserializeOwned>(json: &[u8]) -> Result<T, PreprocessorError> {
    Ok(serde_json::from_slice(json)?)
}

fn kimi_k25(config: MediaConfig) -> Result<Preprocessor, PreprocessorError> {
    if !config.fixed_output_tokens.is_null() {
        return Err(unsupported(
            "fixed_output_tokens",
            &config.fixed_output_tokens,
            "only null is supported",
        ));
    }
    let side_limit = config.patch_limit_on_one_side;
    check_range("patch_limit_on_one_side", side_limit, MAX_SIDE)?;
    if !side_limit.is_multiple_of(MERGE) {
        // The padded side of an odd limit would exceed it.
        return Err(unsupported("patch_limit_on_one_side", side_limit, "it must be even"));
    }
    check_range("in_patch_limit", config.in_patch_limit, MAX_PATCHES)?;
    check_patches(config.patch_size, &config.merge_kernel_size)?;
    let (mean, std) = normalization(&config.image_mean, &config.image_std)?;
    Ok(Preprocessor { rule: Rule::KimiK25, patch_limit: config.in_patch_limit, side_limit, mean, std })
}

fn kimi_vl(config: KimiVlFile) -> Result<Preprocessor, PreprocessorError> {
    if !config.pad_input {
        return Err(unsupported("pad_input", false, "it must be true: pictures are padded, not cropped"));
    }
    check_range("in_token_limit", config.in_token_limit, MAX_PATCHES)?;
    check_patches(config.patch_size, &config.merge_kernel_size)?;
    let (mean, std) = normalization(&config.image_mean, &config.image_std)?;
    Ok(Preprocessor {
        rule: Rule::KimiVl,
        patch_limit: config.in_token_limit,
        side_limit: KIMI_VL_SIDE,
        mean,
        std,
    })
}

fn check_range(field: &'static str, value: usize, most: usize) -> Result<(), PreprocessorError> {
    if (1..=most).contains(&value) {
        return Ok(());
    }
    Err(unsupported(field, value, format!("it must be from 1 to {most}")))
}

fn check_patches(patch_size: usize, merge: &MergeKernel) -> Result<(), PreprocessorError> {
    if patch_size != PATCH {
        return Err(unsupported("patch_size", patch_size, format!("it must be {PATCH}")));
    }
    match merge {
        MergeKernel::Side(MERGE) => Ok(()),
        MergeKernel::Sides(sides) if sides[..] == [MERGE, MERGE] => Ok(()),
        MergeKernel::Side(side) => Err(unsupported("merge_kernel_size", side, format!("it must be {MERGE}"))),
        MergeKernel::Sides(sides) => Err(unsupported(
            "merge_kernel_size",
            format!("{sides:?}"),
            format!("it must be [{MERGE}, {MERGE}]"),
        )),
    }
}

fn normalization(mean: &[f64], std: &[f64]) -> Result<([f64; 3], [f64; 3]), PreprocessorError> {
    let three = |field, values: &[f64]| {
        <[f64; 3]>::try_from(values)
            .map_err(|_| unsupported(field, format!("{values:?}"), "it must be three numbers"))
    };
    let (mean, std) = (three("image_mean", mean)?, three("image_std", std)?);
    if !mean.iter().all(|mean| (-1.0..=2.0).contains(mean)) {
        return Err(unsupported("image_mean", format!("{mean:?}"), "its numbers must be from -1 to 2"));
    }
    if !std.iter().all(|std| (1e-3..=1e3).contains(std)) {
        return Err(unsupported("image_std", format!("{std:?}"), "its numbers must be from 0.001 to 1000"));
    }
    Ok((mean, std))
}

fn unsupported(field: &'static str, value: impl ToString, expected: impl Into<String>) -> PreprocessorError {
    PreprocessorError::Unsupported { field, value: value.to_string(), expected: expected.into() }
}
