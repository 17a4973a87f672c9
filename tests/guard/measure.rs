//! What the guard finds, what it leaves alone, and what it costs, on files of one's own.
//!
//! ```text
//! cargo bench --bench guard -- --tokenizer DIR [--files N] [--streams N] PATH...
//! ```
//!
//! A PATH that is a folder holds real files, each taken for a reply: nothing should be done about
//! one. A PATH that ends in `.jsonl` holds cases (`cases.rs`). Loops are made of excerpts of the
//! prose among the files. All draws come from one seed.

mod cases;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use cases::{Case, encode, first_action, options, prompt};
use perigee_decoding::guard::{Config, Guard, Mode, Options, Verdict};
use perigee_http::generate::GuardPlan;
use perigee_text::Tokenizer;

const USAGE: &str = "cargo bench --bench guard -- --tokenizer DIR [--files N] [--streams N] PATH...";
/// Least and most bytes of a file that is taken; of a longer one the beginning.
const LEAST_BYTES: u64 = 1024;
const MOST_BYTES: usize = 256 * 1024;
/// Least tokens of one.
const LEAST_TOKENS: usize = 256;
/// Deepest folder below a path.
const DEPTH: usize = 24;
/// Tokens of a loop.
const LOOP_TOKENS: usize = 4000;
/// Tokens of one measurement of cost, of one reply in it, and how often it is made: the median
/// counts.
const COST_TOKENS: usize = 200_000;
const COST_REPLY: usize = 8192;
const COST_PASSES: usize = 7;
/// Kinds of files, by the ends of their names.
const KINDS: [(&str, &[&str]); 4] = [
    ("python", &["py"]),
    ("prose", &["md", "rst", "txt"]),
    ("code", &["rs", "c", "h", "cc", "cpp", "hpp", "cu", "cuh", "js", "ts", "go", "java"]),
    ("data", &["json", "yaml", "yml", "toml", "csv"]),
];
/// Loops: least and most tokens of the unit, and per cent of tokens that are others.
const LOOPS: [(usize, usize, u32); 9] = [
    (1, 1, 0),
    (2, 12, 0),
    (20, 60, 0),
    (100, 400, 0),
    (500, 900, 0),
    (20, 60, 2),
    (20, 60, 5),
    (20, 60, 10),
    (100, 400, 2),
];

struct Wanted {
    tokenizer: PathBuf,
    files: usize,
    streams: usize,
    paths: Vec<PathBuf>,
}

struct Document {
    kind: usize,
    path: PathBuf,
    tokens: Vec<u32>,
}

fn main() {
    if let Err(error) = wanted().and_then(|wanted| measure(&wanted)) {
        eprintln!("{error}\nusage: {USAGE}");
        std::process::exit(2);
    }
}

fn wanted() -> Result<Wanted, String> {
    let mut wanted = Wanted { tokenizer: PathBuf::new(), files: 700, streams: 64, paths: Vec::new() };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word}: a value is missing"));
        let number = |text: String| text.parse().map_err(|_| format!("{text}: this is no number"));
        match word.as_str() {
            // Cargo says so itself.
            "--bench" => {}
            "--tokenizer" => wanted.tokenizer = value()?.into(),
            "--files" => wanted.files = number(value()?)?,
            "--streams" => wanted.streams = number(value()?)?,
            flag if flag.starts_with('-') => return Err(format!("{flag}: there is no such flag")),
            path => wanted.paths.push(path.into()),
        }
    }
    match wanted.paths.iter().find(|path| !path.exists()) {
        Some(path) => Err(format!("{}: there is no such file or folder", path.display())),
        None => Ok(wanted),
    }
}

fn measure(wanted: &Wanted) -> Result<(), String> {
    let file = |name: &str| std::fs::read(wanted.tokenizer.join(name)).ok();
    let tokenizer = Tokenizer::load(&file).map_err(|error| format!("--tokenizer: {error}"))?;
    let tokenizer = Arc::new(tokenizer);
    let guards = GuardPlan::new(Config::default(), tokenizer.clone());
    println!("vocabulary of {} tokens", tokenizer.vocab_size());
    let (sets, folders): (Vec<&PathBuf>, Vec<&PathBuf>) =
        wanted.paths.iter().partition(|path| path.extension().is_some_and(|end| end == "jsonl"));
    if !sets.is_empty() {
        println!(
            "\n| cases | must be found | are | would be, without the request | must pass | acted on | would be |"
        );
        println!("|---|---|---|---|---|---|---|");
    }
    let mut wrong = Vec::new();
    for set in sets {
        let text = std::fs::read_to_string(set).map_err(|error| format!("{}: {error}", set.display()))?;
        let cases = Case::parse(&text).map_err(|error| format!("{}: {error}", set.display()))?;
        judge(
            &set.file_name().unwrap_or_default().to_string_lossy(),
            &cases,
            &guards,
            &tokenizer,
            &mut wrong,
        );
    }
    wrong.iter().for_each(|line| println!("  {line}"));
    let documents = read(&folders, wanted.files, &tokenizer);
    if !documents.is_empty() {
        leave_alone(&guards, &documents, &tokenizer);
        find_loops(wanted.streams, &guards, &documents);
        cost(&guards, &documents, &tokenizer);
    }
    Ok(())
}

fn judge(set: &str, cases: &[Case], guards: &GuardPlan, tokenizer: &Tokenizer, wrong: &mut Vec<String>) {
    // By what must happen: cases, acted on, acted on without the request.
    let mut counts = [[0usize; 3]; 2];
    for case in cases {
        let reply = case.reply(tokenizer);
        let acted = first_action(options(guards, prompt(&case.request, tokenizer)), &reply);
        let bare = first_action(options(guards, [].into()), &reply);
        let count = &mut counts[usize::from(case.found)];
        count[0] += 1;
        count[1] += usize::from(acted.is_some());
        count[2] += usize::from(bare.is_some());
        if acted.is_some() != case.found {
            let what = acted.map_or("nothing is done".into(), |acted| {
                format!("{} of period {} at token {}", acted.event.kind.name(), acted.event.period, acted.at)
            });
            wrong.push(format!("{set}, {} ({} tokens): {what}", case.name, reply.len()));
        }
    }
    let [[pass, acted, bare], [loops, found, bare_found]] = counts;
    println!("| {set} | {loops} | {found} | {bare_found} | {pass} | {acted} | {bare} |");
}

/// Reads at most `most` files of each kind.
fn read(folders: &[&PathBuf], most: usize, tokenizer: &Tokenizer) -> Vec<Document> {
    let mut open: Vec<(PathBuf, usize)> = folders.iter().map(|folder| (folder.to_path_buf(), 0)).collect();
    let mut paths: Vec<(usize, PathBuf)> = Vec::new();
    while let Some((folder, depth)) = open.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() && depth < DEPTH {
                open.push((entry.path(), depth + 1));
            } else if kind.is_file() && entry.metadata().is_ok_and(|m| m.len() >= LEAST_BYTES) {
                paths.extend(kind_of(&entry.path()).map(|kind| (kind, entry.path())));
            }
        }
    }
    paths.sort();
    fastrand::Rng::with_seed(1).shuffle(&mut paths);
    let document = |(kind, path): &(usize, PathBuf)| {
        let bytes = std::fs::read(path).ok()?;
        let text = String::from_utf8_lossy(&bytes[..bytes.len().min(MOST_BYTES)]).into_owned();
        Some(Document { kind: *kind, path: path.clone(), tokens: encode(&text, tokenizer) })
    };
    (0..KINDS.len())
        .flat_map(|kind| {
            let of_kind = paths.iter().filter(move |(other, _)| *other == kind);
            of_kind
                .filter_map(document)
                .filter(|d| d.tokens.len() >= LEAST_TOKENS)
                .take(most)
                .collect::<Vec<_>>()
        })
        .collect()
}

fn kind_of(path: &Path) -> Option<usize> {
    let end = path.extension()?.to_str()?;
    KINDS.iter().position(|(_, ends)| ends.contains(&end))
}

/// Real files as replies, as they are and in a fence.
fn leave_alone(guards: &GuardPlan, documents: &[Document], tokenizer: &Tokenizer) {
    println!(
        "\n| files | number | tokens | acted on | in a fence | tokens held | longest |\n|---|---|---|---|---|---|---|"
    );
    let (opens, closes) = (encode("```\n", tokenizer), encode("\n```\n", tokenizer));
    let (mut lines, mut all) = (Vec::new(), [0; 6]);
    for (kind, (name, _)) in KINDS.iter().enumerate() {
        let mut row = [0; 6];
        for document in documents.iter().filter(|d| d.kind == kind) {
            let bare = options(guards, [].into());
            let acted = first_action(bare.clone(), &document.tokens);
            let fenced = [&opens[..], &document.tokens, &closes].concat();
            let fenced = first_action(bare.clone(), &fenced);
            let (held, longest) = held(Guard::new(bare, document.tokens.len()), &document.tokens);
            let counts = [1, document.tokens.len(), acted.is_some().into(), fenced.is_some().into(), held];
            row.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
            row[5] = row[5].max(longest);
            for (acted, place) in [(acted, ""), (fenced, " in a fence")] {
                lines.extend(acted.map(|acted| {
                    let (kind, period) = (acted.event.kind.name(), acted.event.period);
                    format!(
                        "  {}{place}: {kind} of period {period} at token {}",
                        document.path.display(),
                        acted.at
                    )
                }));
            }
        }
        all.iter_mut().zip(row).take(5).for_each(|(sum, count)| *sum += count);
        all[5] = all[5].max(row[5]);
        println!("{}", file_row(name, row));
    }
    println!("{}", file_row("all", all));
    lines.iter().for_each(|line| println!("{line}"));
}

fn file_row(name: &str, [files, tokens, acted, fenced, held, longest]: [usize; 6]) -> String {
    let share = |part: usize, of: usize| 100.0 * part as f64 / of.max(1) as f64;
    let (acted_share, held_share) = (share(acted, files), share(held, tokens));
    format!(
        "| {name} | {files} | {tokens} | {acted}, {acted_share:.3} % | {fenced} | {held_share:.3} % | {longest} |"
    )
}

/// Tokens that do not leave at once, and the longest stretch of them.
fn held(mut guard: Guard, tokens: &[u32]) -> (usize, usize) {
    let (mut held, mut longest) = (0, 0);
    for &token in tokens {
        if !matches!(guard.observe(token), Verdict::Deliver { .. }) {
            break;
        }
        held += usize::from(guard.num_held() > 0);
        longest = longest.max(guard.num_held());
    }
    (held, longest)
}

/// Loops behind the beginning of a document.
fn find_loops(streams: usize, guards: &GuardPlan, documents: &[Document]) {
    println!("\n| loop | found | tokens of it until then, median | sent of it, median |\n|---|---|---|---|");
    let texts: Vec<&Document> = documents.iter().filter(|d| d.kind == 1).collect();
    if texts.is_empty() {
        return println!("there is no prose among the files to make them of");
    }
    for (least, most, noise) in LOOPS {
        let mut rng = fastrand::Rng::with_seed(2);
        let (mut until, mut sent) = (Vec::new(), Vec::new());
        for _ in 0..streams {
            let before = &texts[rng.usize(0..texts.len())].tokens;
            let before = &before[..rng.usize(200..2000).min(before.len())];
            let (unit, other) = (rng.usize(0..texts.len()), rng.usize(0..texts.len()));
            let (unit, other) = (&texts[unit].tokens, &texts[other].tokens);
            let wanted = rng.usize(least..=most).min(unit.len());
            let from = rng.usize(0..=unit.len() - wanted);
            let mut stream = before.to_vec();
            for &token in unit[from..from + wanted].iter().cycle().take(LOOP_TOKENS) {
                let changes = rng.u32(0..100) < noise;
                stream.push(if changes { other[rng.usize(0..other.len())] } else { token });
            }
            if let Some(acted) = first_action(options(guards, [].into()), &stream) {
                until.push(acted.at.saturating_sub(before.len()));
                sent.push(acted.delivered.saturating_sub(before.len()));
            }
        }
        let share = 100.0 * until.len() as f64 / streams.max(1) as f64;
        let (until, sent) = (median(until), median(sent));
        println!("| {least} to {most} tokens, {noise} % noise | {share:.0} % | {until} | {sent} |");
    }
}

/// CPU time per token, set-up included: a reply is a few thousand tokens long.
fn cost(guards: &GuardPlan, documents: &[Document], tokenizer: &Tokenizer) {
    println!("\n| cost | ns per token |\n|---|---|");
    let mut texts: Vec<(&str, Vec<u32>)> = Vec::new();
    for (kind, (name, _)) in KINDS.iter().enumerate() {
        let tokens = documents.iter().filter(|d| d.kind == kind).flat_map(|d| d.tokens.iter().copied());
        texts.push((name, tokens.take(COST_TOKENS).collect()));
    }
    let sentence = encode(" The same words come back again and again, and nothing follows them.", tokenizer);
    let cycle = |unit: &[u32]| unit.iter().copied().cycle().take(COST_TOKENS / 4).collect::<Vec<u32>>();
    texts.push(("one token", cycle(&sentence[..1])));
    let mut noisy = cycle(&sentence);
    noisy
        .iter_mut()
        .enumerate()
        .for_each(|(at, token)| *token = if at % 20 == 19 { at as u32 } else { *token });
    texts.extend([("a sentence", cycle(&sentence)), ("a sentence with noise", noisy)]);
    let prompt = prompt("What is a good way to learn the names of trees? I have a week.", tokenizer);
    for (name, tokens) in texts.iter().filter(|(_, tokens)| !tokens.is_empty()) {
        let mut passes = Vec::new();
        for _ in 0..COST_PASSES {
            let begun = Instant::now();
            for reply in tokens.chunks(COST_REPLY) {
                let options = Options { mode: Mode::Warn, ..options(guards, prompt.clone()) };
                let mut guard = Guard::new(options, reply.len());
                reply.iter().for_each(|&token| drop(std::hint::black_box(guard.observe(token))));
            }
            passes.push((begun.elapsed().as_nanos() / tokens.len() as u128) as usize);
        }
        println!("| {name} | {} |", median(passes));
    }
}

fn median(mut values: Vec<usize>) -> String {
    values.sort_unstable();
    values.get(values.len() / 2).map_or("-".into(), ToString::to_string)
}
