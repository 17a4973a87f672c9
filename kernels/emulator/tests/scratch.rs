
use perigee_emulator::case::Case;
use perigee_emulator::machine::{Asynchrony, CaseDevice, Options};
const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/golden/ptx/triton");
#[test]
fn mutate() {
    let mut paths: Vec<_> = std::fs::read_dir(GOLDEN).unwrap().map(|e| e.unwrap().path()).collect();
    paths.retain(|p| p.extension().is_some_and(|e| e == "json"));
    paths.sort();
    for path in &paths {
        let case = Case::load(path).unwrap();
        for build in &case.builds {
            let ptx = case.ptx(build).unwrap();
            for kind in ["bar.sync", "cp.async.wait_group", "cp.async.bulk.wait_group", "barrier.cluster.wait", "mbarrier.try_wait"] {
                let mut n = 0;
                let text: Vec<String> = ptx.lines().map(|line| {
                    let t = line.trim();
                    if !t.starts_with(kind) && !(kind == "bar.sync" && t.starts_with("barrier.sync")) { return line.to_string() }
                    n += 1;
                    if kind == "mbarrier.try_wait" {
                        let p = t.split_whitespace().skip_while(|w| !w.starts_with("mbarrier")).nth(1).unwrap().trim_end_matches(',');
                        format!("setp.eq.u32 {p}, 0, 0;")
                    } else { String::new() }
                }).collect();
                if n == 0 { continue }
                let o = Options { asynchrony: Asynchrony::Issue, races: true, uninitialized: false, max_instructions: 3_000_000, ..Options::default() };
                let r = case.run(build, &text.join("\n"), &mut CaseDevice::with(o));
                let text = match r {
                    Err(e) if e.contains("race on") => { println!("{kind} {} {} found", case.name, build.arch); continue },
                    Err(e) => e,
                    Ok((rep, _)) if !rep.is_right() => "WRONG values".to_string(),
                    Ok(_) => "clean".to_string(),
                };
                println!("{kind} {} {} ({n}): -> {}", case.name, build.arch, &text[..text.len().min(250)]);
            }
        }
    }
}
