//! Weight files of a folder without an index.
//!
//! Files `STEM-N-of-TOTAL.safetensors` are one checkpoint if all of them are there; one file of any other name is
//! one too. What else a folder can hold is told by the names of its files.

use std::collections::BTreeMap;

use super::error::Problem;

/// Names that a message lists.
const MAX_LISTED: usize = 5;

/// The weight files among the files of a folder, in their order.
///
/// Errors: a part is missing; several sets of files, or none.
pub(super) fn find(names: &[String]) -> Result<Vec<String>, Problem> {
    let is_weights = |name: &&String| {
        // Adapters, and the copies in other layouts that some releases carry, are no part of the network.
        name.strip_suffix(".safetensors").is_some_and(|stem| {
            !["adapter", "consolidated", "optimizer"].iter().any(|word| stem.starts_with(word))
        })
    };
    let files: Vec<&String> = names.iter().filter(is_weights).collect();
    let mut sets: BTreeMap<(&str, &str), BTreeMap<usize, &str>> = BTreeMap::new();
    let mut singles = Vec::new();
    for name in &files {
        match part_of(name) {
            Some((stem, total, number)) => {
                sets.entry((stem, total)).or_default().insert(number, name);
            }
            None => singles.push(name.as_str()),
        }
    }
    let sets: Vec<_> = sets.into_iter().collect();
    match (&sets[..], &singles[..]) {
        ([((_, total), parts)], []) => whole(total, parts),
        ([], [single]) => Ok(vec![(*single).to_owned()]),
        ([], []) => Err(Problem::NoWeights { found: other_form(names) }),
        _ => {
            let listed: Vec<String> = files.iter().take(MAX_LISTED).map(|name| name.to_string()).collect();
            Err(Problem::SeveralWeights { count: files.len(), listed })
        }
    }
}

/// Stem, total as written, and number of a part.
fn part_of(name: &str) -> Option<(&str, &str, usize)> {
    let (rest, total) = name.strip_suffix(".safetensors")?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| !text.is_empty() && text.len() <= 9 && text.bytes().all(|b| b.is_ascii_digit());
    (digits(number) && digits(total)).then(|| Some((stem, total, number.parse().ok()?)))?
}

/// The parts of a set, which are numbered from 1, or from 0 as some exporters do.
fn whole(total: &str, parts: &BTreeMap<usize, &str>) -> Result<Vec<String>, Problem> {
    let num_parts: usize = total.parse().unwrap_or(0);
    let first = usize::from(!parts.contains_key(&0));
    let there = parts.range(first..first + num_parts).count();
    if there == num_parts && there == parts.len() {
        return Ok(parts.values().map(|name| (*name).to_owned()).collect());
    }
    let missing = (first..first + num_parts).find(|number| !parts.contains_key(number));
    let example = parts.values().next().copied().unwrap_or_default().to_owned();
    Err(Problem::MissingParts { example, there, num_parts, missing: missing.unwrap_or_default() })
}

/// What a folder without safetensors holds, and what to do; empty if nothing is known.
fn other_form(names: &[String]) -> &'static str {
    let any = |test: &dyn Fn(&str) -> bool| names.iter().any(|name| test(name));
    let forms: [(bool, &str); 6] = [
        (
            any(&|name| name.ends_with(".gguf")),
            "GGUF files, which are for llama.cpp and are not read; get the model's safetensors",
        ),
        (
            any(&|name| name.starts_with("adapter_")),
            "an adapter (LoRA) without its base model; merge it into the base model and save that",
        ),
        (
            any(&|name| name.starts_with("consolidated")),
            "consolidated weights in another layout; get the model in the layout of transformers",
        ),
        (
            any(&|name| [".bin", ".bin.index.json", ".pt", ".pth"].iter().any(|end| name.ends_with(end))),
            "PyTorch pickle files, which can run code and are not read; save the model again with save_pretrained, which writes safetensors",
        ),
        (
            any(&|name| name.ends_with(".npz") || name.ends_with(".onnx") || name.ends_with(".h5")),
            "weights of another framework; get the model's safetensors",
        ),
        (
            any(&|name| name.ends_with(".incomplete") || name.ends_with(".safetensors.aria2")),
            "an unfinished download; finish it",
        ),
    ];
    forms.into_iter().find(|(there, _)| *there).map_or("", |(_, text)| text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(names: &[&str], expected: Result<&[&str], &str>) {
        let mut names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        names.sort();
        match (find(&names), expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected),
            (Err(problem), Err(expected)) => {
                let text = problem.to_string();
                assert!(text.contains(expected), "{names:?}: {text}, expected {expected}");
            }
            (found, expected) => panic!("{names:?}: {found:?}, expected {expected:?}"),
        }
    }

    /// Regression: numbered shards without an index were refused as a folder without weights.
    #[test]
    fn numbered_parts_and_single_files_are_found() {
        let [one, two] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
        check(&[two, one, "config.json", "adapter_model.safetensors"], Ok(&[one, two]));
        let [one, two] = ["x-1-of-000002.safetensors", "x-2-of-000002.safetensors"];
        check(&[one, two], Ok(&[one, two]));
        let [one, two] = ["model-00000-of-00002.safetensors", "model-00001-of-00002.safetensors"];
        check(&[one, two], Ok(&[one, two]));
        check(&["weights.safetensors", "consolidated.safetensors"], Ok(&["weights.safetensors"]));
    }

    #[test]
    fn what_is_not_one_set_of_weights_is_refused() {
        let part = |n: usize| format!("model-{n:05}-of-00003.safetensors");
        check(&[&part(1), &part(3)], Err("2 of 3 parts are there, part 2 is missing"));
        check(&[&part(1), &part(2), &part(3), &part(4)], Err("numbers"));
        check(&["a.safetensors", "b.safetensors"], Err("2 weight files and no model.safetensors.index.json"));
        check(&[&part(1), &part(2), &part(3), "extra.safetensors"], Err("4 weight files"));
        check(&["model-1-of-0.safetensors"], Err("numbers"));
        check(&["model-x-of-3.safetensors"], Ok(&["model-x-of-3.safetensors"]));
    }

    #[test]
    fn folders_of_other_forms_say_what_they_are() {
        check(&["Kimi-K2-Q4_K_M-00001-of-00009.gguf"], Err("GGUF"));
        check(&["pytorch_model-00001-of-00002.bin", "config.json"], Err("PyTorch pickle"));
        check(&["adapter_config.json", "adapter_model.safetensors"], Err("LoRA"));
        check(&["config.json"], Err("holds neither model.safetensors.index.json nor model.safetensors"));
    }
}
