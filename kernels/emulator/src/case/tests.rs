use super::command::{self, Asynchrony, DeviceOptions};
use super::*;
use safetensors::Dtype;
use safetensors::tensor::TensorView;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/ptx/triton");
const BASE: u64 = 0x7f00_0000_0000;

/// Memory without a machine: `launch` writes answers prepared for the first allocations, in order.
struct FakeDevice {
    memory: Vec<u8>,
    allocations: Vec<(u64, u64)>,
    answers: Vec<Option<Vec<u8>>>,
    failure: Option<String>,
}

impl FakeDevice {
    fn new(answers: Vec<Option<Vec<u8>>>) -> Self {
        Self { memory: Vec::new(), allocations: Vec::new(), answers, failure: None }
    }

    fn range(address: u64, bytes: usize) -> std::ops::Range<usize> {
        let start = (address - BASE) as usize;
        start..start + bytes
    }
}

impl Device for FakeDevice {
    fn allocate(&mut self, bytes: u64, align: u64) -> u64 {
        let start = (self.memory.len() as u64).next_multiple_of(align);
        self.memory.resize((start + bytes) as usize, 0xa5);
        self.allocations.push((BASE + start, bytes));
        BASE + start
    }

    fn write(&mut self, address: u64, bytes: &[u8]) {
        self.memory[Self::range(address, bytes.len())].copy_from_slice(bytes);
    }

    fn read(&mut self, address: u64, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.memory[Self::range(address, bytes.len())]);
    }

    fn launch(&mut self, ptx: &str, entry: &str, shape: &LaunchShape, params: &[u8]) -> Result<(), String> {
        assert!(ptx.contains(&format!(".entry {entry}(")));
        assert!(shape.block[0] >= 32);
        assert!(!params.is_empty());
        let answers = std::mem::take(&mut self.answers);
        for (answer, (address, _)) in answers.into_iter().zip(self.allocations.clone()) {
            if let Some(answer) = answer {
                self.write(address, &answer);
            }
        }
        self.failure.take().map_or(Ok(()), Err)
    }
}

fn answers(case: &Case) -> Vec<Option<Vec<u8>>> {
    case.tensors.iter().map(|tensor| tensor.expected.clone()).collect()
}

fn golden_cases() -> Vec<(PathBuf, Case)> {
    let mut paths: Vec<_> = fs::read_dir(GOLDEN).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    assert!(paths.len() > 20);
    paths.into_iter().map(|path| (path.clone(), Case::load(&path).unwrap())).collect()
}

#[test]
fn golden_cases_accept_their_answer_and_refuse_others() {
    for (_, case) in golden_cases() {
        for build in &case.builds {
            let at = format!("{} {}", case.name, build.arch);
            let ptx = case.ptx(build).unwrap();
            let (report, _) = case.run(build, &ptx, &mut FakeDevice::new(answers(&case))).unwrap();
            assert!(report.is_right() && report.largest() == 0.0, "{at}");
            for (index, tensor) in case.tensors.iter().enumerate() {
                // The top byte of the last element: a change beyond every tolerance.
                let mut wrong = answers(&case);
                let mut bytes = tensor.expected.clone().unwrap_or_else(|| tensor.contents.clone());
                *bytes.last_mut().unwrap() ^= 0x41;
                wrong[index] = Some(bytes);
                let (report, _) = case.run(build, &ptx, &mut FakeDevice::new(wrong)).unwrap();
                assert!(!report.is_right(), "{at} {}", tensor.name);
                assert_eq!(report.changes.len(), usize::from(tensor.expected.is_none()), "{at}");
            }
        }
    }
}

/// Offsets and end of the parameters that a PTX entry declares.
fn declared_params(ptx: &str) -> (Vec<usize>, usize) {
    let (mut offsets, mut end) = (Vec::new(), 0);
    let from = ptx.find(".entry").unwrap();
    let list = &ptx[from..from + ptx[from..].find(')').unwrap()];
    for line in list.lines().map(str::trim).filter(|line| line.starts_with(".param")) {
        let (size, alignment) = match line.split_whitespace().nth(1).unwrap() {
            ".u32" | ".f32" => (4, 4),
            ".u64" => (8, 8),
            ".align" => {
                assert!(line.contains(".align 64 .b8") && line.contains("[128]"), "{line}");
                (128, 64)
            }
            other => panic!("unknown parameter type {other}"),
        };
        let offset = usize::next_multiple_of(end, alignment);
        offsets.push(offset);
        end = offset + size;
    }
    (offsets, end)
}

#[test]
fn parameters_lie_where_the_entry_declares_them() {
    for (_, case) in golden_cases() {
        for build in &case.builds {
            let at = format!("{} {}", case.name, build.arch);
            let (offsets, end) = declared_params(&case.ptx(build).unwrap());
            assert_eq!(offsets.len(), build.args.len(), "{at}");
            let mut device = FakeDevice::new(Vec::new());
            let addresses: Vec<u64> = (0..case.tensors.len() as u64).map(|i| 0x1000 * (i + 1)).collect();
            let params = case.params(build, &addresses, &mut device).unwrap();
            assert_eq!(params.len(), end, "{at}");
            let mut scratch = device.allocations.iter();
            let blocks: u32 = build.launch_grid.iter().product();
            for (arg, &offset) in build.args.iter().zip(&offsets) {
                let address = |name: &str| {
                    addresses[case.tensors.iter().position(|tensor| tensor.name == name).unwrap()]
                };
                let word = |bytes: usize| &params[offset..offset + bytes];
                match arg {
                    Arg::Pointer { tensor } => assert_eq!(word(8), address(tensor).to_le_bytes(), "{at}"),
                    Arg::I32 { value } => assert_eq!(word(4), value.to_le_bytes(), "{at}"),
                    Arg::I64 { value } => assert_eq!(word(8), value.to_le_bytes(), "{at}"),
                    Arg::F32 { value } => assert_eq!(word(4), value.to_le_bytes(), "{at}"),
                    Arg::Scratch { bytes_per_block: 0, .. } => assert_eq!(word(8), [0; 8], "{at}"),
                    Arg::Scratch { bytes_per_block, .. } => {
                        let &(start, bytes) = scratch.next().unwrap();
                        assert_eq!(bytes, bytes_per_block * u64::from(blocks), "{at}");
                        assert_eq!(word(8), start.to_le_bytes(), "{at}");
                    }
                    Arg::TensorMap(map) => {
                        let decoded = TensorMap::decode(word(128).try_into().unwrap()).unwrap();
                        assert_eq!(decoded.address, address(&map.tensor), "{at}");
                        assert_eq!(decoded.dims[..map.global_dim.len()], map.global_dim, "{at}");
                    }
                }
            }
        }
    }
}

/// A folder of its own for one test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ptx-run-{test}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    /// A case of two tensors with builds for two architectures.
    fn write_case(&self, name: &str) -> String {
        let build = |arch: &str| {
            serde_json::json!({
                "arch": arch, "file": format!("{name}.{arch}.ptx"), "entry": "k",
                "block": [32, 1, 1], "cluster": [1, 1, 1], "launch_grid": [2, 1, 1],
                "dynamic_shared_bytes": 0,
                "args": [
                    {"kind": "pointer", "tensor": "x", "alignment": 256},
                    {"kind": "f32", "value": 0.5},
                    {"kind": "scratch", "bytes_per_block": 8, "alignment": 16}
                ]
            })
        };
        let case = serde_json::json!({
            "name": name,
            "tensors": {
                "x": {"dtype": "fp32", "shape": [2], "role": "in"},
                "y": {"dtype": "bf16", "shape": [2], "role": "in and out"}
            },
            "expected": {"y": {"dtype": "bf16", "shape": [2]}},
            "tolerance": {"absolute": 0.0, "relative": 0.0},
            "builds": [build("sm_80"), build("sm_90")]
        });
        let words = |words: [u16; 2]| words.map(u16::to_le_bytes).concat();
        let contents = [
            ("x", Dtype::F32, [1f32, 2.0].map(f32::to_le_bytes).concat()),
            ("y", Dtype::U16, words([0, 0])),
            ("y.expected", Dtype::U16, words([0x3f80, 0x4000])),
        ];
        let views = contents
            .iter()
            .map(|(name, dtype, bytes)| (name.to_string(), TensorView::new(*dtype, vec![2], bytes).unwrap()));
        fs::write(self.path(&format!("{name}.safetensors")), safetensors::serialize(views, None).unwrap())
            .unwrap();
        for arch in ["sm_80", "sm_90"] {
            fs::write(self.path(&format!("{name}.{arch}.ptx")), ".visible .entry k()").unwrap();
        }
        let json = self.path(&format!("{name}.json"));
        fs::write(&json, case.to_string()).unwrap();
        json
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

/// Exit code, output without times, errors.
fn command(
    arguments: &[&str],
    device: impl FnMut(&DeviceOptions) -> FakeDevice,
) -> (u8, Vec<String>, String) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let code = command::run(arguments.iter().map(|a| a.to_string()), device, &mut out, &mut err).unwrap();
    let out = String::from_utf8(out).unwrap();
    let lines = out.lines().map(|line| match line.strip_suffix(" ms") {
        Some(line) => line.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.').trim_end().to_owned(),
        None => line.to_owned(),
    });
    (code, lines.collect(), String::from_utf8(err).unwrap())
}

const RIGHT: [u8; 4] = [0x80, 0x3f, 0, 0x40];

fn right(_: &DeviceOptions) -> FakeDevice {
    FakeDevice::new(vec![None, Some(RIGHT.to_vec())])
}

#[test]
fn right_cases_are_ok() {
    let folder = Folder::new("right");
    let (long, short) = (folder.write_case("a_long_name"), folder.write_case("short"));
    let mut seen = Vec::new();
    let arguments = [long.as_str(), "--seed", "7", "--async", "late", &short];
    let result = command(&arguments, |options| {
        seen.push(*options);
        right(options)
    });
    let lines = [
        "a_long_name  sm_80          0  exact        ok",
        "a_long_name  sm_90          0  exact        ok",
        "short        sm_80          0  exact        ok",
        "short        sm_90          0  exact        ok",
        "4 builds: 4 ok, 0 wrong, 0 not run,",
    ];
    assert_eq!(result, (command::ALL_RIGHT, lines.map(str::to_owned).to_vec(), String::new()));
    assert_eq!(seen, [DeviceOptions { seed: 7, asynchrony: Asynchrony::Late }; 4]);
}

#[test]
fn wrong_cases_say_what_is_wrong() {
    let folder = Folder::new("wrong");
    let case = folder.write_case("c");
    let mut run = 0;
    let result = command(&[&case], |_| {
        run += 1;
        let mut device = FakeDevice::new(vec![None, Some(vec![0x80, 0x3f, 0x40, 0x40])]);
        device.failure = (run == 2).then(|| "no such instruction\nat line 3".to_owned());
        device
    });
    let lines = [
        "c  sm_80     1.00e0  exact        WRONG",
        "    y: 1 of 2 elements wrong, the first at 1: got 3.0, want 2.0",
        "c  sm_90          -  exact        WRONG",
        "    no such instruction",
        "    at line 3",
        "2 builds: 0 ok, 2 wrong, 0 not run,",
    ];
    assert_eq!(result, (command::SOME_WRONG, lines.map(str::to_owned).to_vec(), String::new()));
    let result = command(&[&case, "--arch", "sm_90"], |_| {
        FakeDevice::new(vec![Some(vec![1; 8]), Some(RIGHT.to_vec())])
    });
    let lines = [
        "c  sm_90          0  exact        WRONG",
        "    x: 8 bytes of an input changed, the first at 0",
        "1 builds: 0 ok, 1 wrong, 0 not run,",
    ];
    assert_eq!(result, (command::SOME_WRONG, lines.map(str::to_owned).to_vec(), String::new()));
}

#[test]
fn bad_usage_and_unreadable_cases_are_told() {
    let folder = Folder::new("usage");
    let good = folder.write_case("good");
    let missing = folder.path("missing.json");
    let malformed = folder.path("malformed.json");
    fs::write(&malformed, "{\"name\": \"m\",").unwrap();
    let bare = folder.write_case("bare");
    fs::remove_file(folder.path("bare.safetensors")).unwrap();
    let unbuilt = folder.write_case("unbuilt");
    fs::remove_file(folder.path("unbuilt.sm_80.ptx")).unwrap();
    let cases: [(&[&str], &str); 9] = [
        (&[], "ptx-run: no case given\nusage: ptx-run"),
        (&["--arch"], "ptx-run: --arch needs a value\nusage"),
        (&[&good, "--seed", "x"], "ptx-run: --seed x is not a number\n"),
        (&[&good, "--async", "soon"], "ptx-run: --async soon is not issue, late or random\n"),
        (&[&good, "--fast"], "ptx-run: unknown option --fast\n"),
        (&[&missing], &format!("ptx-run: cannot read {missing}: No such file")),
        (&[&malformed], &format!("ptx-run: {malformed} is not a case: EOF while parsing")),
        (&[&bare], &format!("ptx-run: cannot read {}: No such file", folder.path("bare.safetensors"))),
        (&[&unbuilt], &format!("ptx-run: cannot read {}: No such file", folder.path("unbuilt.sm_80.ptx"))),
    ];
    for (arguments, message) in cases {
        let (code, _, err) = command(arguments, right);
        assert_eq!(code, command::NOT_RUN, "{arguments:?}");
        assert!(err.starts_with(message), "{err}");
    }
    let (code, out, err) = command(&[&good, "--arch", "sm_120"], right);
    assert_eq!((code, err.as_str()), (command::NOT_RUN, ""));
    assert_eq!(out, ["good  no build for sm_120", "0 builds: 0 ok, 0 wrong, 0 not run,"]);
    // One unreadable case does not keep the others from running.
    let (code, out, _) = command(&[&missing, &good], right);
    assert_eq!((code, out.len()), (command::NOT_RUN, 3));
}

#[test]
fn values_of_small_floats() {
    let cases = [
        (DType::Fp16, 0x3c00, 1.0),
        (DType::Fp16, 0x8001, -(2f64.powi(-24))),
        (DType::Fp16, 0xfc00, f64::NEG_INFINITY),
        (DType::Fp8e4nv, 0x7e, 448.0),
        (DType::Fp8e4nv, 0x81, -(2f64.powi(-9))),
        (DType::Fp8e5, 0x7b, 57344.0),
        (DType::Fp8e5, 0x7c, f64::INFINITY),
        (DType::Bf16, 0xc040, -3.0),
        (DType::I8, 0xff, -1.0),
        (DType::U16, 0xffff, 65535.0),
    ];
    for (dtype, bits, value) in cases {
        assert_eq!(dtype.value(&u32::to_le_bytes(bits)[..dtype.bytes()]), value, "{dtype:?} {bits:#x}");
    }
    assert!(DType::Fp8e4nv.value(&[0x7f]).is_nan());
    assert!(DType::Fp8e5.value(&[0x7d]).is_nan());
}
